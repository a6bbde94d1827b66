"""Where the time of steps goes: by kind of kernel on a GPU, by operator on a CPU."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from nugpt.bench.steps import TOO_LITTLE, Shape, Trained, failure
from nugpt.engines.lab.options import Options

Times = Iterable[tuple[str, float]]  # a kernel's or operator's name, and microseconds

STEPS = 5
# Before the first step and after the last. The profiler drops, without a word, what by the device's clock began before
# it or ended after it, and that clock and the host's drift apart while the device has nothing to do.
PAUSE_S = 0.2
LINES = 20  # of a table: what takes most, then the rest
REST = "rest"

# What each kernel of kernels/fused is for, by the name it is compiled under.
OURS: dict[str, str] = {
    "_lerp_forward": "lerp",
    "_lerp_backward": "lerp backward",
    "_add_norm_forward": "add, norm",
    "_add_norm_backward": "add, norm backward",
    "_heads_forward": "rotate, norm, s_qk",
    "_heads_backward": "rotate, norm, s_qk backward",
    "_short_forward": "attention",
    "_short_queries": "attention",
    "_short_keys": "attention",
    "_swiglu_forward": "swiglu",
    "_swiglu_backward": "swiglu backward",
    "_embedding_gather": "embedding",
    "_embedding_scatter": "embedding backward",
    "_embedding_collect": "embedding backward",
    "_softmax_in_place": "logits to their gradient",
    "_long_softmax_in_place": "logits to their gradient",
    "_scale_rows": "unembedding, scaled",
    "_unscale_rows": "unembedding, its gradient",
    "_adam_rows": "Adam, retraction, copy",
    "_adam_columns": "Adam, retraction, copy",
    "_squares": "length of a gradient",
    "_total_kernel": "sums of parts",  # of gradients of vectors, and of lengths
}
# Of the others: the kind, and what its kernels have in their names. The first that fits counts, for the attention of
# libraries is made of cutlass too; of cuDNN nothing but attention is used.
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"flash|fmha|sdpa|attention|cudnn", re.IGNORECASE)),
    ("matrix products", re.compile(r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk", re.IGNORECASE)),
    ("compiled by torch", re.compile(r"^triton_")),
    ("copies", re.compile(r"^Mem(cpy|set)|copy|FillFunctor", re.IGNORECASE)),
)


def kind(kernel: str) -> str:
    """What a CUDA kernel of this name does."""
    if kernel in OURS:
        return OURS[kernel]
    return next((name for name, pattern in KINDS if pattern.search(kernel)), REST)


def by_kind(times: Times) -> dict[str, float]:
    """Milliseconds of each kind of CUDA kernel, most first."""
    return by_name((kind(name), us) for name, us in times)


def by_name(times: Times) -> dict[str, float]:
    """Milliseconds of each name, most first."""
    sums: dict[str, float] = {}
    for name, us in times:
        sums[name] = sums.get(name, 0.0) + us / 1e3
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def uneven(times: Times, steps: int) -> list[str]:
    """Kernels that were not seen equally often in so many equal steps: some were lost, or were not these steps'."""
    # Seen of steps that are graphs: memsets as many as ever, but of memory told as Device here and as Unknown there.
    names = ("Memset" if name.startswith("Memset (") else name for name, _ in times)
    return [name for name, seen in Counter(names).items() if seen % steps]


def side_by_side(columns: Sequence[dict[str, float]], most: int = LINES) -> dict[str, list[float]]:
    """What takes most in all columns together, and the rest of each added up, so that every column keeps its sum."""
    names = by_name((name, ms) for column in columns for name, ms in column.items() if name != REST)
    shown = list(names)[:most]
    lines = {name: [column.get(name, 0.0) for column in columns] for name in shown}
    rest = [sum(ms for name, ms in column.items() if name not in lines) for column in columns]
    return lines | ({REST: rest} if any(rest) else {})


def profile_pairs(
    pairs: list[tuple[Shape, Shape]], device: torch.device, options: Options, attention: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Milliseconds a step by kind, of both models of each pair.

    To be taken after all timing: what watches the kernels may stay with the process, and slows it down.
    """
    for pair in pairs:
        yield [_row(shape, device, options, attention) for shape in pair]


def _row(shape: Shape, device: torch.device, options: Options, attention: str | None) -> dict[str, Any]:
    row = {"shape": shape.name, "architecture": shape.model.architecture, "steps": STEPS}
    try:
        times = watched(Trained(shape, device, options, attention).prepared(STEPS), device, STEPS)
        if not times:
            return row | {"not_run": "the profiler saw no kernel"}
        cuda = device.type == "cuda"
        each = (by_kind if cuda else by_name)((name, us / STEPS) for name, us in times)
        row |= {"ms": each, "total_ms": sum(us for _, us in times) / 1e3 / STEPS}
        return row | {"uneven": uneven(times, STEPS) if cuda else []}  # a CPU's operators are added up already
    except torch.OutOfMemoryError:
        return row | {"not_run": TOO_LITTLE}
    except Exception as error:  # whatever it is, the other shapes are watched
        return row | failure(error)


def watched(step: Callable[[], object], device: torch.device, steps: int) -> list[tuple[str, float]]:
    """Every kernel that so many steps run on the device; of a CPU every operator, without those that it calls."""
    if device.type != "cuda":
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(steps):
                step()
        return [
            (event.key, event.self_cpu_time_total) for event in seen.key_averages() if event.self_cpu_time_total > 0
        ]
    torch.cuda.synchronize(device)  # of what was queued before, nothing is seen
    # With acc_events it does not warn of cycles, of which there is one.
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        time.sleep(PAUSE_S)
        for _ in range(steps):
            step()
        torch.cuda.synchronize(device)
        time.sleep(PAUSE_S)
    return [
        (event.name, event.time_range.elapsed_us())
        for event in seen.events()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
