"""How much a loss varies from run to run: within a curve, and over the curves of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.points import Levels, Point, levels

# Before any seed is repeated: 0.006 nats, give or take a factor of three or so (two degrees of freedom). Where none is
# repeated in the whole study, nothing will correct it, and it is taken to be larger.
PRIOR_VARIANCE, PRIOR_DOF = 0.006**2, 2.0
UNREPEATED_VARIANCE = 0.015**2
SMOOTH_TERMS = 4  # of the cubic whose residuals stand in for repeated seeds
SMOOTH_HEIGHT = 0.25  # nats above the best, up to which a cubic will do
# How alike the curves of a study scatter, in degrees of freedom: their variances are spread as sample variances of so
# many would be. With 0.5 of them deviations differ by a factor of 8 (one standard deviation of the logarithm), with 3
# by 1.6, with 60 by 1.1.
ALIKE = np.geomspace(0.5, 60.0, 24)
# Before any curve is seen: the median, which is the likeliest by the scatter of our studies, and the deviation of the
# logarithm (they range from 1 to beyond 20).
USUALLY_ALIKE, OFF_BY = 3.0, 1.0
COMMON = np.linspace(2 * math.log(1e-5), 2 * math.log(0.5), 217)  # logarithm of what variances have in common
SMALLEST = 1e-10  # nats²; that runs agree to the bit does not show that others will
_DOFS = np.geomspace(0.2, 200.0, 200)
_SPREADS = special.polygamma(1, _DOFS / 2)  # variance of the logarithm of a scaled inverse χ²


@dataclass(frozen=True)
class NoiseModel:
    """Variance of a loss around curve plus seed effect, and of the seed effects, each with its degrees of freedom."""

    variance: float
    dof: float
    seed_variance: float = 0.0
    seed_dof: float = 0.0
    curves: tuple[tuple[float, float], ...] = ()  # variance and degrees of freedom of each that it was pooled from

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
    models = [curve_noise(curve) for curve in found] if _repeated(found) else [residual_noise(c) for c in found]
    return replace(pool(models), curves=tuple((model.variance, model.dof) for model in models if model.dof))


def _repeated(curves: Sequence[Levels]) -> bool:
    return any(curve.dof for curve in curves)


def noise_of(curve: Levels, pooled: NoiseModel | None) -> NoiseModel:
    """What is known about this curve's noise: its own seeds, and what a curve like the study's others would have."""
    own = curve_noise(curve)
    repeated = curve.paired and (bool(own.dof) or (pooled is not None and bool(pooled.seed_dof)))
    prior = NoiseModel(PRIOR_VARIANCE if repeated else UNREPEATED_VARIANCE, PRIOR_DOF)
    if pooled is None:
        return pool([prior, own])
    # A pooled model holds this curve's share already; its own roughness is seen again when it is fitted.
    share = own if own.dof or repeated else residual_noise(curve)
    if not curve.paired and pooled.seed_dof:  # pooled over paired curves alone
        share = NoiseModel(0.0, 0.0)
    like = like_others(_others(pooled, share), prior)
    if curve.paired:
        like = replace(like, seed_variance=pooled.seed_variance, seed_dof=pooled.seed_dof)
    else:  # what a seed does is part of its noise
        like = replace(like, variance=like.variance + pooled.seed_variance)
    return pool([like, own])


def _others(pooled: NoiseModel, own: NoiseModel) -> tuple[tuple[float, float], ...]:
    """Variance and degrees of freedom of each pooled curve but this one; of all as one where none is named."""
    share = (own.variance, own.dof)
    if share in pooled.curves:
        at = pooled.curves.index(share)
        return pooled.curves[:at] + pooled.curves[at + 1 :]
    if pooled.curves:  # of some of a curve's seeds: the whole of it is one among the others
        return pooled.curves
    dof = max(pooled.dof - own.dof, 0.0)
    rest = max(pooled.variance * pooled.dof - own.variance * own.dof, 0.0)
    return ((rest / dof, dof),) if dof else ()


@lru_cache(maxsize=1024)  # each curve's own, asked for by its optimum and by every comparison
def like_others(curves: tuple[tuple[float, float], ...], prior: NoiseModel) -> NoiseModel:
    """The noise of one more curve of a study, by the (variance, degrees of freedom) of others; else the prior.

    Variances of a study's curves are taken as draws of a scaled inverse χ² (Smyth 2004), averaged over what its scale
    and its degrees of freedom may be: the less alike those seen, the less they say about this one.
    """
    seen = [(max(variance, SMALLEST), dof) for variance, dof in curves if dof]
    if not seen:
        return prior
    alike = ALIKE[:, None]
    log_weight = -0.5 * (np.log(alike / USUALLY_ALIKE) / OFF_BY) ** 2
    log_weight = log_weight - 0.5 * prior.dof * (COMMON + prior.variance * np.exp(-COMMON))
    for variance, dof in seen:
        # Over the common one a sample variance is F distributed; terms without the two unknowns are left out.
        log_ratio = np.log(dof * variance / alike) - COMMON
        log_weight += 0.5 * dof * log_ratio - 0.5 * (dof + alike) * np.log1p(np.exp(log_ratio))
        log_weight -= special.betaln(0.5 * dof, 0.5 * alike)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    # Mean and variance of the logarithm of a variance so drawn, and the one scaled inverse χ² that has the same.
    means = COMMON + np.log(0.5 * alike) - special.digamma(0.5 * alike)
    mean = float(np.sum(weight * means))
    spread = float(np.sum(weight * (special.polygamma(1, 0.5 * alike) + (means - mean) ** 2)))
    dof = float(np.exp(np.interp(-math.log(spread), -np.log(_SPREADS), np.log(_DOFS))))
    return NoiseModel(math.exp(mean - math.log(0.5 * dof) + float(special.digamma(0.5 * dof))), dof)
