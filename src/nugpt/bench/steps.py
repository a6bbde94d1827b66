"""Whole training steps: forward, backward, optimizer and retraction, of νGPT and of the plain transformer beside it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nugpt.bench.timing import timed
from nugpt.engines.lab.ensemble import Ensemble
from nugpt.engines.lab.options import Options
from nugpt.spec import load_table
from nugpt.spec.model import ModelConfig, flops_per_token
from nugpt.spec.resolve import Base, Extent
from nugpt.spec.run import RunSpec

TABLES = {"normalized": "nugpt", "prenorm": "prenorm-completep"}


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


def bench_step(shape: Shape, device: torch.device, options: Options, runs: int = 10) -> dict[str, Any]:
    """One shape: milliseconds per step and replica, tokens per second, TFLOP/s, peak memory, time to the first step."""
    model, R = shape.model, shape.replicas
    base = Base.of(Extent.of(model, 1000, shape.batch))
    precision = "bfloat16" if device.type == "cuda" else "float32"
    table = load_table(TABLES[model.architecture])
    specs = [
        RunSpec(model, table, base, 2**-9, 1000, shape.batch, "0" * 16, precision=precision, seed=r) for r in range(R)
    ]
    kernels = options.kernels_on(device, model.architecture)
    compiled = options.compiles(device, kernels)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    begun = time.perf_counter()
    ensemble = Ensemble(specs, device, options.attention, options.loss, compiled, kernels)
    state = ensemble.initial_state()
    generator = torch.Generator(device).manual_seed(0)
    tokens, targets = (
        torch.randint(model.vocab_size, (R, shape.batch, model.seq_len), device=device, generator=generator)
        for _ in range(2)
    )

    def step() -> None:
        ensemble.train_step(state, tokens, targets, 1.0, options.micro_batch or shape.batch)

    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    first = time.perf_counter() - begun
    timing = timed(step, device, runs, warm_up=5)
    count = R * shape.batch * model.seq_len
    return {
        "shape": shape.name,
        "architecture": model.architecture,
        "replicas": R,
        "tokens_per_step": count,
        "kernels": kernels,
        "compile": compiled,
        "attention": ensemble.fused.program.attention if ensemble.fused else options.attention,
        "ms": asdict(timing),
        "ms_per_replica": timing.median / R,
        "tokens_per_ms": count / timing.median,
        "tflops": count * flops_per_token(model) / timing.median / 1e9,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "first_step_s": first,
        "loss": float(state.loss_sum.mean()) / state.logged,
    }


def bench_pair(shapes: list[tuple[Shape, Shape]], device: torch.device, options: Options, runs: int) -> list[Any]:
    """νGPT and the plain transformer of the same shape, one after the other, with the ratio of their speeds."""
    rows = []
    for ours, plain in shapes:
        row, other = bench_step(ours, device, options, runs), bench_step(plain, device, options, runs)
        row["against_plain"] = other["ms"]["median"] / row["ms"]["median"]
        rows += [row, other]
    return rows
