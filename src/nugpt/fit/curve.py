"""Every curve that agrees with the points, weighed by likelihood: two families of valleys with a cliff on the right.

With u = log2 η − log2 η*, the loss above its minimum is, in the first, s·((e^{ku} − 1)/k − u) + q·u²: a gentle slope s
that may grow to the left (q), and e^{ku} to the right; with s = 0 it is a parabola. In the second the two sides are
independent: a·|u|^(1+p) on the left, c·(e^{ku} − 1 − ku)/k² on the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nugpt.fit.interval import Array, Interval
from nugpt.fit.noise import NoiseModel
from nugpt.fit.points import ROUGHNESS, Levels

Mask = NDArray[np.bool_]

BEYOND = 2.0  # octaves outside the grid in which an optimum is looked for
MISFIT = 0.001  # nats by which no simple shape can be trusted even near its minimum
WIDE, NARROW = 1.0, 0.25  # nats above the best: the two windows whose answers are taken together
DRAWS = 2048  # in all, shared by windows and families
FEWEST = 192  # that a posterior is explored with, also where fewer are kept
MOVES = 4  # Metropolis moves after each resampling
STEEPEST = 40.0  # exponents are cut here: far above any loss, far below an overflow


@dataclass(frozen=True, eq=False)
class Family:
    """Curves of one form, and what is thought of the logarithms of its parameters before any point is seen."""

    excess: Callable[[Array, Array], Array]  # u and parameters (the last axis of which is theirs) → nats
    centre: Array
    deviation: Array
    share: float  # of the draws


def _smooth(u: Array, shape: Array) -> Array:
    s, k, q = (shape[..., i] for i in range(3))
    return s * (np.expm1(np.minimum(k * u, STEEPEST)) / k - u) + q * u * u


def _apart(u: Array, shape: Array) -> Array:
    a, p, c, k = (shape[..., i] for i in range(4))
    ku = np.minimum(k * np.maximum(u, 0.0), STEEPEST)
    return a * np.maximum(-u, 0.0) ** (1 + p) + c * (np.expm1(ku) - ku) / k**2


SMOOTH = Family(_smooth, np.log([0.05, 4.0, 0.012]), np.array([1.0, 0.5, 1.1]), share=15 / 16)
APART = Family(_apart, np.log([0.06, 0.6, 0.3, 3.0]), np.array([0.9, 0.35, 0.9, 0.45]), share=1 / 16)
# The second asks little of a curve, for what the first may miss; with more of it intervals get too wide.
FAMILIES = (SMOOTH, APART)


assert sum(family.share for family in FAMILIES) == 1


@dataclass(frozen=True, eq=False)
class Shapes:
    """Draws of the curve: equally likely values of the optimum, the shape and the loss at the optimum."""

    x: Array  # log2 η*
    loss: Array
    groups: tuple[tuple[Family, Array], ...]  # each family's parameters, in the order of x
    failed: Interval  # from its ends outwards learning rates failed; infinite where none did

    def excess(self, log2_lr: float | Array) -> Array:
        """Nats above its own minimum that each draw pays at a learning rate (or each at its own)."""
        u = np.asarray(log2_lr) - self.x
        at, parts = 0, []
        for family, shape in self.groups:
            parts.append(family.excess(u[at : at + len(shape)], shape))
            at += len(shape)
        return np.concatenate(parts)


def windows(curve: Levels) -> list[Mask]:
    """Which learning rates each window holds: those near the best in loss, and at least the best and its neighbours."""
    masks: list[Mask] = []
    best = int(np.argmin(curve.mean))
    for height in (WIDE, NARROW):
        mask = curve.height <= height
        mask[max(best - 1, 0) : best + 2] = True
        if not any(np.array_equal(mask, other) for other in masks):
            masks.append(mask)
    return masks


def failures(curve: Levels) -> Interval:
    """The nearest learning rates on either side of the best that failed; infinite where none did."""
    best = curve.best.log2_lr
    low = max((x for x in curve.failed if x < best), default=-math.inf)
    high = min((x for x in curve.failed if x > best), default=math.inf)
    return Interval(low, high)


def _domain(curve: Levels) -> Interval:
    """Where the optimum may lie: between failures, or some way beyond the grid."""
    low, high = failures(curve)
    return Interval(
        low if math.isfinite(low) else float(curve.x[0]) - BEYOND,
        high if math.isfinite(high) else float(curve.x[-1]) + BEYOND,
    )


def shapes(curve: Levels, noise: NoiseModel) -> Shapes:
    """Draws from the curves that agree with the points, windows in equal parts, families in theirs."""
    where = _domain(curve)
    masks = windows(curve)
    generator = np.random.default_rng(7)  # fixed: the same points give the same answer
    parts = []
    for family in FAMILIES:
        keep = int(DRAWS * family.share) // len(masks)
        for mask in masks:
            theta, loss = _sample(_Target(curve, mask, noise, where, family), max(keep, FEWEST), generator)
            kept = generator.permutation(len(theta))[:keep]
            parts.append((family, theta[kept], loss[kept]))
    assert sum(len(loss) for _, _, loss in parts) == DRAWS  # draws of two curves are compared one by one
    return Shapes(
        x=np.concatenate([theta[:, 0] for _, theta, _ in parts]),
        loss=np.concatenate([loss for _, _, loss in parts]),
        groups=tuple((family, np.exp(theta[:, 2:])) for family, theta, _ in parts),
        failed=failures(curve),
    )


class _Target:
    """The posterior of (log2 η*, ln σ, logarithms of the shape's parameters) given one window of a curve."""

    def __init__(self, curve: Levels, mask: Mask, noise: NoiseModel, where: Interval, family: Family) -> None:
        self.x, self.y, self.count = curve.x[mask], curve.mean[mask], curve.count[mask]
        # Common to all seeds, so more seeds do not average it away; and to all points of half an octave, so a
        # finer grid does not either.
        crowding = (len(self.x) - 1) / (2 * (self.x[-1] - self.x[0])) if len(self.x) > 1 else 1.0
        self.misfit = (MISFIT**2 + (ROUGHNESS * curve.height[mask]) ** 2) * crowding
        self.noise, self.where, self.family = noise, where, family

    def start(self, draws: int, generator: np.random.Generator) -> Array:
        family = self.family
        shape = family.centre + family.deviation * generator.standard_normal((draws, len(family.centre)))
        x = generator.uniform(*self.where, size=draws)
        variance = self.noise.variance * self.noise.dof / generator.chisquare(self.noise.dof, size=draws)
        return np.column_stack([x, np.log(variance) / 2, shape])

    def prior(self, theta: Array) -> Array:
        inside = (theta[:, 0] > self.where.low) & (theta[:, 0] < self.where.high)
        log_sigma = theta[:, 1]
        scale = -self.noise.dof * (log_sigma + 0.5 * self.noise.variance * np.exp(-2 * log_sigma))
        shape = -0.5 * np.sum(((theta[:, 2:] - self.family.centre) / self.family.deviation) ** 2, axis=1)
        return np.where(inside, shape + scale, -np.inf)

    def residuals(self, theta: Array) -> tuple[Array, Array, Array]:
        """Per draw: its points' precisions, the loss at its optimum, and what is left over."""
        rest = self.y - self.family.excess(self.x - theta[:, :1], np.exp(theta[:, None, 2:]))
        precision = 1 / (np.exp(2 * theta[:, 1:2]) / self.count + self.misfit)
        loss = np.sum(precision * rest, axis=1) / np.sum(precision, axis=1)
        return precision, loss, rest - loss[:, None]

    def likelihood(self, theta: Array) -> Array:
        precision, _, rest = self.residuals(theta)
        total = np.sum(precision, axis=1)
        return 0.5 * (np.sum(np.log(precision), axis=1) - np.log(total) - np.sum(precision * rest**2, axis=1))


def _sample(target: _Target, draws: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Sequential Monte Carlo, from the prior to the posterior through powers of the likelihood: draws, their losses."""
    theta = target.start(draws, generator)
    prior, likelihood = target.prior(theta), target.likelihood(theta)
    power = 0.0
    while power < 1.0:
        step = _next_power(likelihood, 1.0 - power)
        power = min(1.0, power + step)
        weight = np.exp(step * (likelihood - likelihood.max()))
        picked = _systematic(weight / weight.sum(), generator)
        theta, prior, likelihood = theta[picked], prior[picked], likelihood[picked]
        spread = np.linalg.cholesky(np.cov(theta.T) + 1e-9 * np.eye(theta.shape[1]))
        for scale in np.geomspace(1.2, 0.3, MOVES):
            new = theta + scale * generator.standard_normal(theta.shape) @ spread.T
            new_prior, new_likelihood = target.prior(new), target.likelihood(new)
            odds = new_prior - prior + power * (new_likelihood - likelihood)
            take = np.log(generator.uniform(size=draws)) < odds
            theta[take], prior[take], likelihood[take] = new[take], new_prior[take], new_likelihood[take]
    precision, loss, _ = target.residuals(theta)
    return theta, loss + generator.standard_normal(draws) / np.sqrt(np.sum(precision, axis=1))


def _next_power(likelihood: Array, most: float) -> float:
    """The step in the likelihood's power after which half of the draws still count."""

    def effective(step: float) -> float:
        weight = np.exp(step * (likelihood - likelihood.max()))
        return float(weight.sum() ** 2 / np.sum(weight**2) / len(weight))

    if effective(most) >= 0.5:
        return most
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= 0.5 else (low, middle)
    return low or high


def _systematic(weight: Array, generator: np.random.Generator) -> NDArray[np.intp]:
    """Indices drawn in proportion to weight, with as little chance as possible."""
    places = (generator.uniform() + np.arange(len(weight))) / len(weight)
    return np.minimum(np.searchsorted(np.cumsum(weight), places), len(weight) - 1)
