"""What a plan will cost before it has run: time as first measured, and the runs that refinement will add."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nugpt.spec.plan import Curve, Plan
from nugpt.spec.run import RunSpec, run_flops

# Whole runs on one H200, start and validation included (milliseconds per replica and step, 4 layers, 16k tokens: 1.85,
# 3.71, 9.17 and 26.7 at d_model 192, 384, 768 and 1,536, six or nine replicas; the records of `width-fresh-seeds`):
# 0.24 ms a layer and 430 TFLOP/s meet the first three within 7 %, the last within 15 %.
LAYER_S, H200_FLOPS = 0.24e-3, 430e12
# One core: 0.05, 0.14 and 0.4 s per replica and step at tiny-l2h1, -l2h2 and -l2h4, which are 1.4, 4.2 and 14 GFLOP.
CORE_FLOPS = 30e9


def expected_seconds(spec: RunSpec, device_type: str) -> float:
    """Of one run as its share of an ensemble's time: on an H200 where there is a GPU, else on one core."""
    if device_type == "cuda":
        return spec.steps * LAYER_S * spec.model.n_layers + run_flops(spec) / H200_FLOPS
    return run_flops(spec) / CORE_FLOPS


def total_seconds(specs: Iterable[RunSpec], device_type: str) -> float:
    """Of all these runs, one after the other."""
    return sum(expected_seconds(spec, device_type) for spec in specs)


def refined(plan: Plan) -> list[RunSpec]:
    """The plan's runs and those that its refinement adds where an optimum lies at the middle of its first grid."""
    return [spec for curve in plan.curves for spec in curve.runs(_refined_grid(curve, plan)).values()]


def _refined_grid(curve: Curve, plan: Plan) -> list[float]:
    grid = {*curve.log2_lrs}
    middle = curve.log2_lrs[len(curve.log2_lrs) // 2]
    if len(grid) > 1:  # what lies at one learning rate has no optimum to refine around
        grid |= {middle + k * spacing for spacing in plan.policy.refine for k in range(-curve.fine, curve.fine + 1)}
    return sorted(grid)


def told(seconds: float) -> str:
    """A stretch of time in a line for people; seconds are full ones, so that what is left is not told as more."""
    if seconds < 120:
        return f"{max(0, math.floor(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
