"""A store whose runs were never trained: losses from cliff curves with planted optima, written as an engine would."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nugpt.report.source import Source, read_store
from nugpt.spec.plan import Curve, Plan
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Setting
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.studies import STUDIES, plan, study

SETTING = Setting(data="0123456789abcdef", vocab_size=4096)
HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='stolen'</script>&amp;\"'`${1}"
# Octaves that the planted optimum moves per octave of width and of depth, by table; the rest stay.
MOVES = {"ngpt": (-0.5, 0.0), "completep": (0.35, 0.0), "depth-mup": (0.0, 0.4)}
CARRIED_BY = {
    "engine": "lab",
    "nugpt": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11.9",
    "device": "a made-up device",
    "device_type": "cpu",
    "compile": False,
    "attention": "sdpa",
    "loss": "plain",
    "replicas": 4,
    "data": "somewhere/private",
}


def best_log2_lr(spec: RunSpec) -> float:
    """Where the planted optimum of a run's curve lies."""
    ratios = spec.resolved().ratios
    per_width, per_depth = MOVES.get(spec.table.name, (0.0, 0.0))
    horizon = -1 / 3 if spec.table.base.data == 0 else 0.0
    moved = per_width * math.log2(ratios.width) + per_depth * math.log2(ratios.depth)
    centre = -3.5 if spec.model.seq_len == scale_named("tiny").seq_len else -7.0  # where the studies' grids lie
    return centre + moved + horizon * math.log2(ratios.data)


def noise_of(spec: RunSpec) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(spec.hash.encode()))


def loss_of(spec: RunSpec) -> float | None:
    """A gentle slope on the left, a cliff on the right; none where it diverges."""
    u = math.log2(spec.lr) - best_log2_lr(spec)
    output = math.log2(spec.multipliers["output"])
    height = 0.06 * (math.expm1(3.2 * u) / 3.2 - u) + 0.012 * u * u + 0.01 * (output + 1) ** 2
    if height > 1.2:
        return None
    ratios = spec.resolved().ratios
    floor = 3.6 - 0.12 * math.log2(ratios.width) - 0.05 * math.log2(ratios.depth) - 0.15 * math.log2(ratios.data)
    seed_effect = 0.008 * math.sin(2.3 * spec.seed + 1)
    return floor + height + seed_effect + 0.003 * noise_of(spec).standard_normal()


def record_of(spec: RunSpec) -> RunRecord:
    loss = loss_of(spec)
    flops = 6.0 * spec.model.d_model**2 * 12 * spec.model.n_layers * spec.steps * spec.batch * spec.model.seq_len
    mean = 0.25 * (spec.model.n_layers / 4) ** -0.5 * (1 + 0.02 * noise_of(spec).standard_normal())
    alpha = {"mean": mean, "std": 0.6 * mean, "mean_by_block": [], "std_by_block": []}
    return RunRecord(
        hash=spec.hash,
        status="diverged" if loss is None else "done",
        steps=spec.steps if loss is not None else spec.steps // 3,
        tokens=spec.steps * spec.batch * spec.model.seq_len,
        flops=flops,
        wall_s=flops / 1e13 * (1.1 if spec.model.architecture == "normalized" else 1.0),
        val_loss=loss,
        val_loss_ema=loss,
        train_loss=loss,
        diverged_at=spec.steps // 3 if loss is None else None,
        lerp={} if loss is None else {"alpha_A": alpha, "alpha_M": {**alpha, "mean": 0.7 * mean}},
        resolved={},
        carried_by=CARRIED_BY,
    )


def fill(store: Store, plans: Iterable[Plan], skip: int = 0) -> None:
    """Lay the plans down and write the record of every run, but for each `skip`-th."""
    for made in plans:
        PlanDirectory.of(store, made)
        for i, spec in enumerate(made.specs(), 1):
            if skip and i % skip == 0:
                continue
            run = store.run(spec)
            if run.record() is None:
                run.write_record(record_of(spec))


def study_plans(*ids: str, scale: str = "lab") -> list[Plan]:
    return [plan(study(id), scale, SETTING) for id in ids]


def hostile_plan() -> Plan:
    """A sweep of one's own whose labels would be markup, if anybody let them."""
    (first, *_) = study_plans("width-fixed-steps")[0].curves
    curves = [
        Curve({"table": HOSTILE, HOSTILE: n}, replace(first.spec, val_windows=n), first.log2_lrs, first.seeds)
        for n in (1, 2)
    ]
    return Plan("hostile", tuple(curves))


def source_of(store: Store, *names: str, **options: Any) -> Source:
    return read_store(store, names, STUDIES, options.pop("page_folder", store.root.parent / "report"), **options)


def make_source(path: Path, *ids: str, scale: str = "lab") -> Source:
    """A store in that folder with these studies, read back."""
    store = Store(path / "runs")
    fill(store, study_plans(*ids, scale=scale))
    return source_of(store)
