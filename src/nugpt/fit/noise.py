"""How much a loss varies from run to run: within a curve, and over the curves of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nugpt.fit.points import Levels, Point, levels

# Before any seed is repeated: 0.006 nats, give or take a factor of three or so (two degrees of freedom). Where none is
# repeated in the whole study, nothing will correct it, and it is taken to be larger.
PRIOR_VARIANCE, PRIOR_DOF = 0.006**2, 2.0
UNREPEATED_VARIANCE = 0.015**2
SMOOTH_TERMS = 4  # of the cubic whose residuals stand in for repeated seeds
SMOOTH_HEIGHT = 0.25  # nats above the best, up to which a cubic will do
# Curves of a study resemble each other, they are not the same: beyond this, more curves say no more about this one.
MOST_POOLED_DOF = 30.0


@dataclass(frozen=True)
class NoiseModel:
    """Variance of a loss around curve plus seed effect, and of the seed effects, each with its degrees of freedom."""

    variance: float
    dof: float
    seed_variance: float = 0.0
    seed_dof: float = 0.0

    def __post_init__(self) -> None:
        for name in ("variance", "dof", "seed_variance", "seed_dof"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value!r}, but must be a finite number of at least 0")

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in nats."""
        return math.sqrt(self.variance)


def curve_noise(curve: Levels) -> NoiseModel:
    """What one curve says about its noise; without repeated seeds, nothing (no degrees of freedom)."""
    variance = curve.squares / curve.dof if curve.dof else 0.0
    spread = len(curve.seeds) - 1 if curve.paired else 0
    seen = float(np.sum(curve.seed_effects**2)) / spread if spread > 0 else 0.0
    # What is seen of a seed's effect carries the noise of its points; a tenth of it is left at the least.
    own = variance * len(curve.seeds) / float(np.sum(curve.count)) if spread > 0 else 0.0
    return NoiseModel(variance, curve.dof, max(seen - own, seen / 10), float(max(spread, 0)))


def residual_noise(curve: Levels) -> NoiseModel:
    """What the roughness of a curve of one seed says about its noise: residuals of a cubic around its best point."""
    near = curve.height <= SMOOTH_HEIGHT
    free = int(near.sum()) - SMOOTH_TERMS
    if free < 1:
        return NoiseModel(0.0, 0.0)
    x = curve.x[near] - curve.x[near].mean()
    rows = np.vander(x, SMOOTH_TERMS)
    rest = curve.mean[near] - rows @ np.linalg.lstsq(rows, curve.mean[near], rcond=None)[0]
    return NoiseModel(float(rest @ rest) / free, float(free))


def pool(models: Sequence[NoiseModel]) -> NoiseModel:
    """Noise of several curves taken together, each weighing by its degrees of freedom."""
    dof = sum(m.dof for m in models)
    seed_dof = max((m.seed_dof for m in models), default=0.0)
    weight = sum(m.seed_dof for m in models)
    return NoiseModel(
        variance=sum(m.variance * m.dof for m in models) / dof if dof else 0.0,
        dof=dof,
        seed_variance=sum(m.seed_variance * m.seed_dof for m in models) / weight if weight else 0.0,
        # A study's curves have the same seeds: more curves do not show more of them.
        seed_dof=seed_dof,
    )


def study_noise(curves: Sequence[Sequence[Point]]) -> NoiseModel:
    """Noise pooled over the curves of a study: from repeated seeds, or from roughness where no curve has any."""
    found = [levels(points) for points in curves]
    found = [curve for curve in found if curve.paired] or found  # the noise of others has their seeds in it
    return pool([curve_noise(curve) for curve in found] if _repeated(found) else [residual_noise(c) for c in found])


def _repeated(curves: Sequence[Levels]) -> bool:
    return any(curve.dof for curve in curves)


def noise_of(curve: Levels, pooled: NoiseModel | None) -> NoiseModel:
    """What is known about this curve's noise: its own seeds, the study's other curves, and a weak prior."""
    own = curve_noise(curve)
    repeated = curve.paired and (bool(own.dof) or (pooled is not None and bool(pooled.seed_dof)))
    parts = [NoiseModel(PRIOR_VARIANCE if repeated else UNREPEATED_VARIANCE, PRIOR_DOF), own]
    if pooled is not None:
        # A pooled model holds this curve's share already; its own roughness is seen again when it is fitted.
        share = own if own.dof or repeated else residual_noise(curve)
        if not curve.paired and pooled.seed_dof:  # pooled over paired curves alone
            share = NoiseModel(0.0, 0.0)
        dof = max(pooled.dof - share.dof, 0.0)
        rest = max(pooled.variance * pooled.dof - share.variance * share.dof, 0.0)
        others = NoiseModel(rest / dof if dof else 0.0, min(dof, MOST_POOLED_DOF))
        if curve.paired:
            parts.append(replace(others, seed_variance=pooled.seed_variance, seed_dof=pooled.seed_dof))
        else:  # what a seed does is part of its noise
            parts.append(replace(others, variance=others.variance + pooled.seed_variance))
    return pool(parts)
