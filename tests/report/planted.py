"""Studies whose runs have losses with a planted optimum, and a data set with known facts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from tests.report.small import record_of

from nugpt.spec.plan import Plan
from nugpt.spec.run import RunSpec
from nugpt.spec.study import Setting
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.sweep.worker import grown

DATA = "0123456789abcdef" * 4
FACTS: dict[str, Any] = {
    "inputs": ["mine-0.parquet (file)", "mine-1.parquet (file)"],
    "tokens": 1_234_567,
    "validation_tokens": 8_901,
}
FACTS |= {"sources": {"code": 1_000_000, "prose": 234_567}, "tokenizer": "bpe:4096", "vocab_size": 4096}
SETTING = Setting(DATA, 4096, "bfloat16", {"output": 0.25})
WALL_S, REPLICAS = 36.0, 4  # of every run, and how many shared its device: 0.15 minutes each


def best_log2_lr(spec: RunSpec) -> float:
    """Planted: νGPT and the plain transformer stay, nGPT falls by half an octave per octave of width."""
    ratios = spec.resolved().ratios
    moves = {"ngpt": -0.5, "completep": 0.3}.get(spec.table.name, 0.0)
    centre = {128: -3.5, 256: -7.0, 512: -7.0}.get(spec.model.seq_len, -7.0)
    if spec.model.architecture == "prenorm":
        centre -= 3.5 if spec.model.seq_len == 128 else 1.0
    return centre + 0.1 + moves * math.log2(ratios.width)


def loss_of(spec: RunSpec) -> float:
    """A parabola in log2 η; νGPT's bottom is 0.05 nats below the others', 0.03 below that of a model with clipped
    gradients. Seeds lie 0.01 apart at every η alike."""
    u = math.log2(spec.lr) - best_log2_lr(spec)
    steep = 0.08 if spec.model.seq_len > 128 else 0.5  # `tiny` has one seed, an octave between points, and must tell
    lead = 0.05 if spec.table.name == "nugpt" else 0.02 if spec.grad_clip else 0.0
    return 3.0 - lead + steep * u * u + 0.01 * spec.seed


def write_run(store: Store, spec: RunSpec) -> None:
    loss = loss_of(spec)
    carried = {"device": "NVIDIA H200", "device_type": "cuda", "engine": "lab", "torch": "2.11.0", "python": "3.12.1"}
    carried |= {"nugpt": "0.1.0", "replicas": REPLICAS, "data": "/home/somebody/corpus"}
    sources = {"code": loss - 0.5, "prose": loss + 1.0}
    record = replace(record_of(spec), status="done", steps=spec.steps, wall_s=WALL_S, val_loss=loss, val_loss_ema=loss)
    record = replace(record, train_loss=loss, diverged_at=None, carried_by=carried, val_loss_by_source=sources)
    run = store.run(spec)
    run.write_record(record)
    about = {"content_hash": DATA, "end_of_text": None, "path": "/home/somebody/corpus", "facts": FACTS}
    (run.path / "data.json").write_text(json.dumps(about))


def fill(store: Store, made: Plan, but: int = 0) -> None:
    """All runs of the plan and of what it grows to, or all of its first grid but so many."""
    directory = PlanDirectory.of(store, made)
    for spec in made.specs()[: len(made.specs()) - but]:
        write_run(store, spec)
    while not but:
        left = [p.spec for curve in grown(made, directory, 60.0) for p in curve.places if p.record is None]
        if not left:
            break
        for spec in left:
            write_run(store, spec)
