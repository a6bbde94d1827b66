"""Whole training steps: forward, backward, optimizer and retraction, of νGPT and of the plain transformer beside it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nugpt.bench.timing import Timing, lead, timed_in_a_row
from nugpt.data.zipf import Stream
from nugpt.engines.lab.ensemble import Ensemble
from nugpt.engines.lab.options import Options, why_not_fused
from nugpt.spec import load_table
from nugpt.spec.checks import one_line
from nugpt.spec.model import ModelConfig, flops_per_token
from nugpt.spec.resolve import Base, Extent
from nugpt.spec.run import RunSpec

TABLES = {"normalized": "nugpt", "prenorm": "prenorm-completep"}
TOO_LITTLE = "the device has too little memory for it"
# The fused step's attention on a GPU; the module that has them cannot be imported without Triton.
ATTENTION = ("short", "flash", "cudnn", "efficient")
WARM_UP = 5  # steps before any counts: the whole step is one graph by then


@dataclass(frozen=True)
class Shape:
    """A model and what is trained at once."""

    name: str
    model: ModelConfig
    batch: int
    replicas: int = 1


def paper_shapes(architecture: str) -> list[Shape]:
    """The shapes of large runs: 12 layers, sequence 4096, vocabulary 100,352, 8 sequences a step."""
    common: dict[str, Any] = {"vocab_size": 100_352, "seq_len": 4096, "architecture": architecture}
    # 8/3 of 1280 is no whole number: the next multiple of 128 stands for it.
    wide = ModelConfig(12, 10, 128, d_mlp=3456, **common)
    return [
        Shape("12 × 10 heads of 128", wide, 8),
        Shape("12 × 12 heads of 102", ModelConfig(12, 12, 102, **common), 8),
    ]


def lab_shapes(architecture: str) -> list[Shape]:
    """The shapes of sweeps: 4 layers, heads of 48, sequence 512, vocabulary 8192, 32 sequences a step."""
    common: dict[str, Any] = {"vocab_size": 8192, "seq_len": 512, "architecture": architecture}
    return [
        Shape(f"d_model {48 * heads}, R = {replicas}", ModelConfig(4, heads, 48, **common), 32, replicas)
        for heads, replicas in ((4, 1), (4, 8), (8, 8), (16, 1), (16, 8))
    ]


def host_shapes(architecture: str) -> list[Shape]:
    """What a CPU can time in seconds."""
    model = ModelConfig(2, 2, 48, 512, 64, architecture=architecture)
    return [Shape(f"d_model 96, R = {replicas}", model, 4, replicas) for replicas in (1, 4)]


def check_attention(name: str, shapes: Sequence[Shape], device: torch.device, options: Options) -> None:
    """Refuse an attention kernel that a fused step of these shapes cannot have."""
    if name not in ATTENTION:
        raise ValueError(f"attention is {name!r}, but must be one of {', '.join(ATTENTION)}")
    if device.type != "cuda":
        raise ValueError(
            f"attention is {name!r}, a kernel of the fused step, but the device is {device.type}: leave it out"
        )
    for shape in shapes:
        architecture = shape.model.architecture
        if options.kernels_on(device, architecture) != "fused":
            why = why_not_fused(architecture, device) or f"kernels is {options.kernels!r}"
            raise ValueError(f"attention is {name!r}, a kernel of the fused step, but {why}: leave it out")
    if name == "short":
        _check_short(shapes)


def _check_short(shapes: Sequence[Shape]) -> None:
    from nugpt.kernels.fused.heads import Heads
    from nugpt.kernels.fused.short import MOST_TOKENS, MOST_WIDTH, takes

    for shape in shapes:
        model = shape.model
        if not takes(model.seq_len, Heads(model.n_heads, model.n_kv_heads, model.head_dim, model.seq_len).width):
            raise ValueError(
                f"attention is 'short', which takes at most {MOST_TOKENS} tokens and heads of {MOST_WIDTH}, "
                f"but {shape.name} has {model.seq_len} and {model.head_dim}: leave its section out, or take another"
            )


class Trained:
    """A shape that is being trained, ready to be timed; with an attention kernel of the fused step, by that one."""

    def __init__(self, shape: Shape, device: torch.device, options: Options, attention: str | None = None) -> None:
        self.shape, self.device = shape, device
        model, R = shape.model, shape.replicas
        base = Base.of(Extent.of(model, 1000, shape.batch))
        precision = "bfloat16" if device.type == "cuda" else "float32"
        table = load_table(TABLES[model.architecture])
        specs = [
            RunSpec(model, table, base, 2**-9, 1000, shape.batch, "0" * 16, precision=precision, seed=r)
            for r in range(R)
        ]
        self.kernels = options.kernels_on(device, model.architecture)
        self.compiled = options.compiles(device, self.kernels)
        self.stream = Stream(model.vocab_size, (R, shape.batch, model.seq_len), device)
        self.ahead = iter(self.stream.draw(1 + WARM_UP))
        held = self._memory(torch.cuda.memory_allocated)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        begun = time.perf_counter()
        self.ensemble = Ensemble(specs, device, options.attention, options.loss, self.compiled, self.kernels)
        self.state = self.ensemble.initial_state()
        self.micro_batch = options.micro_batch or shape.batch
        self.attention = options.attention
        if attention is not None:
            assert self.ensemble.fused is not None
            self.ensemble.fused.program.asked = attention
        self._first_step(attention)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.first_s = time.perf_counter() - begun
        for _ in range(WARM_UP):
            self.step()
        peak = self._memory(torch.cuda.max_memory_allocated)
        self.peak_bytes = None if peak is None or held is None else peak - held  # without what was there before
        self.taken: list[float] = []

    def _first_step(self, attention: str | None) -> None:
        """Compile and run; what attention was asked for and fails is the user's to know."""
        try:
            self.step()
        except torch.OutOfMemoryError:  # a RuntimeError too
            raise
        except RuntimeError as error:
            if attention is None:
                raise
            raise ValueError(f"attention is {attention!r}, but it fails at {self.shape.name}: {error}") from error

    def step(self) -> None:
        """One step of all replicas, on a batch that lies ready and that they have not seen."""
        self.ensemble.train_step(self.state, *next(self.ahead), 1.0, self.micro_batch)

    def prepared(self, steps: int) -> Callable[[], None]:
        """The step, with batches that lie ready for so many."""
        self.ahead = iter(self.stream.draw(steps))
        return self.step

    def time(self, runs: int) -> None:
        """So many more steps that count, after some that do not."""
        if runs:
            step = self.prepared(lead(self.device) + runs)
            self.taken += timed_in_a_row(step, self.device, runs).taken

    def row(self) -> dict[str, Any]:
        """Milliseconds per step and replica, tokens per second, TFLOP/s, peak memory, time to the first step."""
        shape, timing = self.shape, Timing.of(self.taken)
        count = shape.replicas * shape.batch * shape.model.seq_len
        fused = self.ensemble.fused
        return {
            "shape": shape.name,
            "architecture": shape.model.architecture,
            "replicas": shape.replicas,
            "tokens_per_step": count,
            "kernels": self.kernels,
            "compile": self.compiled,
            "attention": fused.program.attention if fused else self.attention,
            "ms": timing.figures(),
            "ms_per_replica": timing.median / shape.replicas,
            "tokens_per_ms": count / timing.median,
            "tflops": count * flops_per_token(shape.model) / timing.median / 1e9,
            "peak_bytes": self.peak_bytes,
            "first_step_s": self.first_s,
            "loss": float(self.state.loss_sum.mean()) / self.state.logged,
            "diverged": int((~self.state.alive).sum()),  # replicas: of these nothing is updated, which takes less time
        }

    def _memory(self, of: Callable[[torch.device], int]) -> int | None:
        return of(self.device) if self.device.type == "cuda" else None


def bench_pair(
    shapes: list[tuple[Shape, Shape]],
    device: torch.device,
    options: Options,
    runs: int,
    say: Callable[[str], None] = lambda line: None,
    attention: str | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """νGPT and the plain transformer of each shape, with the ratio of their speeds; `say` is told as it goes.

    A model that does not fit, or fails, has a row that says so, and the shapes after it are tried.
    """
    for pair in shapes:
        ours, plain = rows = _timed_in_turn(*pair, runs, lambda shape: Trained(shape, device, options, attention))
        if "ms" in ours and "ms" in plain:
            ours["against_plain"] = plain["ms"]["median"] / ours["ms"]["median"]
        say(f"{pair[0].name}: νGPT {_in_words(ours)}, plain {_in_words(plain)}")
        yield rows


def _in_words(row: dict[str, Any]) -> str:
    return f"{row['ms']['median']:.2f} ms" if "ms" in row else "failed" if "failed" in row else "does not fit"


def failure(error: Exception) -> dict[str, str]:
    """What a row says of a model that failed: the error on one line, and where it came from."""
    words = one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"
    return {"failed": words, "traceback": "".join(traceback.format_exception(error))}


def _timed_in_turn(ours: Shape, plain: Shape, runs: int, trained: Callable[[Shape], Trained]) -> list[dict[str, Any]]:
    """Both rows: the two models in turn where both fit at once, else one after the other, which tells who fails."""
    together: dict[str, str] = {}
    try:
        return _timed_together(ours, plain, runs, trained)
    except torch.OutOfMemoryError:
        pass
    except Exception as error:
        together = failure(error)
    # Not within what handles the error: what was made of a model that fails is gone before another is tried.
    rows = [_timed_alone(shape, runs, trained) for shape in (ours, plain)]
    return rows if any("failed" in row for row in rows) else [row | together for row in rows]


def _timed_together(ours: Shape, plain: Shape, runs: int, trained: Callable[[Shape], Trained]) -> list[dict[str, Any]]:
    """Half of ours, all of the plain model's, the other half, so that a chip slows down for both."""
    first = trained(ours)
    first.time(-(-runs // 2))
    second = trained(plain)
    second.time(runs)
    first.time(runs // 2)
    return [first.row(), second.row()]


def _timed_alone(shape: Shape, runs: int, trained: Callable[[Shape], Trained]) -> dict[str, Any]:
    """The row of a model, or where it does not fit even alone, or fails, one that says so."""
    row = {"shape": shape.name, "architecture": shape.model.architecture, "replicas": shape.replicas}
    try:
        model = trained(shape)
        model.time(runs)
        return model.row()
    except torch.OutOfMemoryError:
        return row | {"not_run": TOO_LITTLE}
    except Exception as error:  # whatever it is, the other shapes are timed
        return row | failure(error)
