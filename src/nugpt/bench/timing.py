"""Time on the device itself: events around the work, the median and the spread of several runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

import torch

import nugpt
from nugpt.engines.lab.device import STEPS_AHEAD, Ahead, captured, cpu_name, device_name


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, the shortest and the longest of `runs`, and each."""

    median: float
    low: float
    high: float
    taken: tuple[float, ...]

    @classmethod
    def of(cls, taken: Sequence[float]) -> Timing:
        """The figures of times in any order."""
        return cls(median(taken), min(taken), max(taken), tuple(taken))

    def figures(self) -> dict[str, Any]:
        """As a table shows them, and each in the order in which it was taken."""
        spread = {"median": self.median, "low": self.low, "high": self.high}
        return spread | {"runs": len(self.taken), "each": list(self.taken)}


def timed(
    work: Callable[[], object],
    device: torch.device,
    runs: int = 10,
    warm_up: int = 3,
    ahead: Callable[[], object] = lambda: None,
) -> Timing:
    """How long `work` takes, after runs that do not count; what runs `ahead` of each is not timed."""
    for _ in range(warm_up):
        work()
    taken = []
    for _ in range(runs):
        ahead()
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
        else:
            begun = time.perf_counter()
            work()
            taken.append(1e3 * (time.perf_counter() - begun))
    return Timing.of(taken)


def lead(device: torch.device) -> int:
    """Steps before those that `timed_in_a_row` counts: as many as Python may be ahead of the device."""
    return STEPS_AHEAD if device.type == "cuda" else 1


def timed_in_a_row(step: Callable[[], object], device: torch.device, runs: int) -> Timing:
    """How long a step takes among others, queued as in training: what Python does for it, the steps before it hide.

    An event lies between every two steps; only how far Python runs ahead is bounded, as in training.
    """
    if device.type != "cuda":
        return timed(step, device, runs, lead(device))
    ahead, marks = Ahead(device), []
    for i in range(lead(device) + runs):
        if i >= lead(device):
            marks.append(_mark(device))
        step()
        ahead.step()
    marks.append(_mark(device))
    marks[-1].synchronize()
    return Timing.of([before.elapsed_time(after) for before, after in pairwise(marks)])


def _mark(device: torch.device) -> torch.cuda.Event:
    """An event at the end of what is queued now."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


TOGETHER = 4  # calls: what comes before the first, a graph's launch or another's data in the cache, then hardly counts


def timed_queued(work: Callable[[], object], device: torch.device, runs: int = 10) -> Timing:
    """How long `work` takes on the device: a product before it gives Python the time to launch all of it."""
    if device.type != "cuda":
        return timed(work, device, runs)
    a = torch.ones(8192, 8192, device=device, dtype=torch.bfloat16)

    def several() -> None:
        for _ in range(TOGETHER):
            work()

    return _each(timed(several, device, runs, ahead=lambda: a @ a @ a))


def timed_in_graph(work: Callable[[], object], device: torch.device, runs: int = 10) -> Timing:
    """How long `work` takes within a CUDA graph, where no launch waits for Python; without a GPU as `timed`."""
    if device.type != "cuda":
        return timed(work, device, runs)
    for _ in range(2):  # compiled, and every library has its workspace
        work()
    with captured() as graph:
        for _ in range(TOGETHER):
            work()
    return _each(timed(graph.replay, device, runs))


def _each(together: Timing) -> Timing:
    return Timing.of([taken / TOGETHER for taken in together.taken])


def ceilings(device: torch.device) -> dict[str, float]:
    """What the device reaches at best: TFLOP/s of a large bfloat16 product, TB/s of a large copy (read and write)."""
    n, numbers = (8192, 2**29) if device.type == "cuda" else (1024, 2**24)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(0)
    # Random operands: on zeros a chip draws less power and runs faster than it ever will on data.
    a, b = (torch.randn(n, n, generator=generator, device=device, dtype=dtype) for _ in range(2))
    product = timed_queued(lambda: a @ b, device)  # of a kernel's or a step's time no launch is part either
    source, target = (torch.randn(numbers, generator=generator, device=device) for _ in range(2))
    copy = timed_queued(lambda: target.copy_(source), device)
    return {
        "product_tflops": 2 * n**3 / product.median / 1e9,
        "copy_tbps": 2 * 4 * numbers / copy.median / 1e9,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """What the figures were taken with, and when."""
    cuda = device.type == "cuda"
    try:
        import triton

        triton_version = triton.__version__
    except ImportError:
        triton_version = None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "cpu": cpu_name() if cuda else None,  # which prepares data; without a GPU it is the device
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "triton": triton_version,
        "python": platform.python_version(),
        "nugpt": nugpt.__version__,
        "threads": None if cuda else torch.get_num_threads(),
    }
