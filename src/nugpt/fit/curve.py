"""Every curve that agrees with the points, weighed by likelihood: two families of valleys with one side steeper.

With u = log2 η − log2 η*, the loss above its minimum is, in the first, s·((e^{ku} − 1)/k − u) + q·u²: a gentle slope s
that may grow to the left (q), and e^{ku} to the right; where s is small against q, a parabola. In the second the two
sides are independent: a·|u|^(1+p) and b·|u|^(1+r). Each draw has its cliff on one side: on the right where u is as it
stands, on the left, as a multiplier may have it, where u is turned around.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nugpt.fit.interval import Array, Interval
from nugpt.fit.noise import NoiseModel
from nugpt.fit.points import ROUGHNESS, Levels

Mask = NDArray[np.bool_]

BEYOND = 2.0  # octaves outside the grid in which an optimum is looked for
NARROW, WIDE = 0.25, 1.0  # nats above the best: the two windows whose answers are taken together
LOUDEST = 8.0  # times what the noise is taken to be: beyond, a steep curve would pass for noise
MISFIT = 0.0003  # nats by which no simple shape can be trusted even near its minimum, however many the seeds
# On a grid of octaves the likelihood counts so many times over, and more by a cube root on a finer one. Families that
# no data tell apart and windows that disagree widen the answer beyond what each would say alone; set so that
# synthetic sweeps of every kind reach their coverage (docs/fit.md).
SHARPNESS = {"right": 1.6, "either": 1.1}
# How likely the cliff is on the left, before any point is seen: too high a learning rate diverges, too low a one does
# not. Of a multiplier's curve nothing is known.
MIRRORED = {"right": 0.2, "either": 0.5}
SCALE = 1.2  # deviation of ln of the height of a whole curve
UNUSUAL = 1.5  # a curve whose ln height is farther from the usual than this is compared with curves like itself
NEAR = 1.5  # octaves around the best point where most draws start
LEFT = 0.35  # the share of draws that still count after one step of the likelihood's power
MOVES = (1.2, 0.7, 0.35)  # Metropolis moves after each resampling, in deviations of the draws
STEEPEST = 12.0  # from this exponent on, far above any loss, a straight line follows, so that squares keep their digits
X, LOG_SIGMA, SIDE, SHAPE = 0, 1, 2, 3  # rows of a draw; those from SHAPE on are logarithms of the shape's parameters


class Effort(NamedTuple):
    """How much chance is averaged out of an answer."""

    draws: int  # in all, half of them from each window
    explore: int  # that each family is explored with
    rounds: int  # of moves after each resampling


# The ends of an interval differ from one generator to another by about a tenth of its width, or by a thirtieth.
QUICK, FINE = Effort(1024, 512, 1), Effort(4096, 2048, 4)


@dataclass(frozen=True, eq=False)
class Family:
    """Curves of one form, and what is thought of the logarithms of its parameters before any point is seen."""

    excess: Callable[[Array, Array], Array]  # u and logarithms of parameters (the first axis of which is theirs) → nats
    centre: Array
    heights: Array  # 1 for each parameter that a curve's scale multiplies, else 0
    spread: Array  # the lower triangle whose product with its own transpose is the covariance
    weight: float  # before any point is seen


def _exp(x: Array) -> Array:
    """e^x, and its tangent where that is beyond any loss: a constant there would make a second valley."""
    low = np.minimum(x, STEEPEST)
    return np.exp(low) * (1 + (x - low))


def _cliff(u: Array, shape: Array) -> Array:
    s, k, q = np.exp(shape)
    return s * ((_exp(k * u) - 1) / k - u) + q * u * u


def _powers(u: Array, shape: Array) -> Array:
    log_a, p, log_b, r = shape[0], np.exp(shape[1]), shape[2], np.exp(shape[3])
    log = np.log(np.abs(u) + 1e-12)
    return _exp(np.where(u > 0, log_b + (1 + r) * log, log_a + (1 + p) * log))


def _family(
    excess: Callable[[Array, Array], Array],
    middle: Sequence[float],
    deviation: Sequence[float],
    heights: Sequence[int],
    weight: float,
) -> Family:
    """The parameters' medians and deviations of their logarithms; `heights` marks those that a curve's scale moves."""
    marked = np.asarray(heights, dtype=np.float64)
    covariance = np.diag(np.square(deviation)) + SCALE**2 * np.outer(marked, marked)
    spread: Array = np.linalg.cholesky(covariance).astype(np.float64)
    return Family(excess, np.log(middle), marked, spread, weight)


# Medians like those of first runs, in nats and octaves; the second asks less of a curve, for what the first may miss.
CLIFF = _family(_cliff, (0.05, 4.0, 0.012), (0.8, 0.5, 1.1), (1, 0, 1), weight=0.75)
POWERS = _family(_powers, (0.07, 0.7, 0.4, 1.5), (0.6, 0.4, 0.7, 0.5), (1, 0, 1, 0), weight=0.25)
FAMILIES = (CLIFF, POWERS)


@dataclass(frozen=True, eq=False)
class Shapes:
    """Draws of the curve: equally likely values of the optimum, the shape and the loss at the optimum."""

    x: Array  # log2 η*
    loss: Array
    groups: tuple[tuple[Family, Array], ...]  # each family's sides and parameters, in the order of x
    failed: Interval  # from its ends outwards learning rates failed; infinite where none did

    def excess(self, log2_lr: float | Array) -> Array:
        """Nats above its own minimum that each draw pays at a learning rate (or each at its own)."""
        u = np.asarray(log2_lr) - self.x
        at, parts = 0, []
        for family, drawn in self.groups:
            n = drawn.shape[1]
            parts.append(family.excess(drawn[0] * u[at : at + n], drawn[1:]))
            at += n
        return np.concatenate(parts)


def windows(curve: Levels) -> list[Mask]:
    """Which learning rates each window holds, the narrow one first: those near the best in loss, and its neighbours."""
    masks: list[Mask] = []
    best = int(np.argmin(curve.mean))
    for height, beside in ((NARROW, 1), (WIDE, 2)):
        mask = curve.height <= height
        mask[max(best - beside, 0) : best + beside + 1] = True
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


def shapes(curve: Levels, noise: NoiseModel, cliff: str = "right", effort: Effort = QUICK) -> Shapes:
    """Draws from the curves that agree with the points: windows in equal parts, families by how well they agree."""
    masks = windows(curve)
    generator = np.random.default_rng(7)  # fixed: the same points give the same answer
    found = [_sample(_Target(curve, masks, noise, family, cliff), generator, effort) for family in FAMILIES]
    parts: list[list[tuple[Array, Array]]] = [[] for _ in FAMILIES]
    for window in range(len(masks)):
        evidence = np.array([one[window].log_evidence for one in found])
        weight = np.exp(evidence - evidence.max()) * [family.weight for family in FAMILIES]
        ends = np.round(np.cumsum(weight) / weight.sum() * (effort.draws // len(masks))).astype(int)
        for part, one, keep in zip(parts, found, np.diff(ends, prepend=0), strict=True):
            kept = np.resize(generator.permutation(effort.explore), keep)
            part.append((one[window].theta[:, kept], one[window].loss[kept]))
    whole = [np.hstack([theta for theta, _ in part]) for part in parts]
    return Shapes(
        x=np.concatenate([theta[X] for theta in whole]),
        loss=np.concatenate([loss for part in parts for _, loss in part]),
        groups=tuple((family, theta[SIDE:]) for family, theta in zip(FAMILIES, whole, strict=True)),
        failed=failures(curve),
    )


def _unusual(curve: Levels, family: Family) -> float:
    """By how much ln of the curve's height lies beyond what is usual, at the point where it shows most."""
    height, u = curve.height, curve.x - curve.best.log2_lr
    clear = (height > 0) & (np.abs(u) <= 2 * NEAR)
    if not clear.any():
        return 0.0
    usual = family.excess(u[clear], family.centre)
    mirrored = family.excess(-u[clear], family.centre)
    # The gentlest and the steepest reading of the points: only what neither side of the usual curve explains counts.
    ratio = np.log(height[clear])
    low = float(np.median(ratio - np.log(np.maximum(usual, mirrored))))
    high = float(np.median(ratio - np.log(np.minimum(usual, mirrored))))
    return max(0.0, low - UNUSUAL) + min(0.0, high + UNUSUAL)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What one window says under one family."""

    theta: Array
    loss: Array  # at the optimum
    log_evidence: float


class _Target:
    """The posterior of (log2 η*, ln σ, side of the cliff, ln of the shape's parameters) given a curve's windows."""

    def __init__(self, curve: Levels, masks: Sequence[Mask], noise: NoiseModel, family: Family, cliff: str) -> None:
        widest = masks[-1]
        order = np.argsort(~masks[0][widest], kind="stable")  # the narrow window's points first
        self.ends = [int(mask.sum()) for mask in masks]
        self.x, self.y, self.count, height = (
            values[widest][order][:, None] for values in (curve.x, curve.mean, curve.count, curve.height)
        )
        self.misfit = MISFIT**2 + (ROUGHNESS * height) ** 2 / self.count
        density = (len(curve.x) - 1) / (curve.x[-1] - curve.x[0]) if len(curve.x) > 1 else 1.0
        self.sharpness = SHARPNESS[cliff] * float(np.clip(density, 1.0, 4.0)) ** (1 / 3)
        self.noise, self.where, self.family, self.mirrored = noise, _domain(curve), family, MIRRORED[cliff]
        self.loudest = math.log(LOUDEST * noise.deviation)
        best = curve.best.log2_lr
        self.near = Interval(max(best - NEAR, self.where.low), min(best + NEAR, self.where.high))
        self.centre = (family.centre + family.heights * _unusual(curve, family))[:, None]
        self.inverse = np.linalg.inv(family.spread)

    def start(self, n: int, generator: np.random.Generator) -> Array:
        """Draws from the prior, but for their places: three of four near the best point, the fourth anywhere."""
        family = self.family
        even = (np.arange(n) + generator.uniform(size=n)) / n
        near = even < 0.75
        places = np.where(
            near,
            self.near.low + self.near.width * even / 0.75,
            self.where.low + self.where.width * (even - 0.75) / 0.25,
        )
        side = np.where(generator.permutation(n) < self.mirrored * n, -1.0, 1.0)
        chance = np.maximum(generator.chisquare(self.noise.dof, size=n), 1.01 * self.noise.dof / LOUDEST**2)
        variance = self.noise.variance * self.noise.dof / chance
        shape = self.centre + family.spread @ generator.standard_normal((len(family.centre), n))
        return np.vstack([generator.permutation(places), np.log(variance) / 2, side, shape])

    def started(self, theta: Array) -> Array:
        """Logarithm of how much more likely draws start at a place than the prior has it."""
        near = (theta[X] > self.near.low) & (theta[X] < self.near.high)
        return np.where(near, math.log(0.25 + 0.75 * self.where.width / self.near.width), math.log(0.25))

    def prior(self, theta: Array) -> Array:
        log_sigma = theta[LOG_SIGMA]
        inside = (theta[X] > self.where.low) & (theta[X] < self.where.high) & (log_sigma < self.loudest)
        scale = -self.noise.dof * (log_sigma + 0.5 * self.noise.variance * np.exp(-2 * log_sigma))
        white = self.inverse @ (theta[SHAPE:] - self.centre)
        return np.where(inside, scale - 0.5 * np.einsum("ij,ij->j", white, white), -np.inf)

    def residuals(self, theta: Array, end: int) -> tuple[Array, Array]:
        """Of each draw at the first points: their precisions, and what the shape leaves of their losses."""
        u = theta[SIDE] * (self.x[:end] - theta[X])
        precision = 1 / (np.exp(2 * theta[LOG_SIGMA]) / self.count[:end] + self.misfit[:end])
        return precision, self.y[:end] - self.family.excess(u, theta[SHAPE:])

    def likelihoods(self, theta: Array, window: int) -> list[Array]:
        """Logarithms of the likelihood of each window up to this one, the loss at the optimum being anything."""
        precision, rest = self.residuals(theta, self.ends[window])
        found, logs = [], np.log(precision)
        for end in self.ends[: window + 1]:
            weight, left = precision[:end], rest[:end]
            total = weight.sum(axis=0)
            left = left - np.einsum("ij,ij->j", weight, left) / total
            squares = np.einsum("ij,ij,ij->j", weight, left, left)
            found.append(0.5 * self.sharpness * (logs[:end].sum(axis=0) - np.log(total) - squares))
        return found

    def drawn(self, theta: Array, window: int, log_evidence: float, generator: np.random.Generator) -> _Drawn:
        precision, rest = self.residuals(theta, self.ends[window])
        total = precision.sum(axis=0)
        error = generator.standard_normal(theta.shape[1]) / np.sqrt(total)
        return _Drawn(theta, np.einsum("ij,ij->j", precision, rest) / total + error, log_evidence)


def _sample(target: _Target, generator: np.random.Generator, effort: Effort) -> list[_Drawn]:
    """Sequential Monte Carlo: from the prior through powers of the likelihood to the first window, then to the next."""
    theta = target.start(effort.explore, generator)
    prior, before = target.prior(theta), target.started(theta)  # `before` is what the draws already know
    log_evidence, found = 0.0, []
    for window in range(len(target.ends)):
        now, power = target.likelihoods(theta, window)[-1], 0.0
        while power < 1.0:
            gain = now - before
            step = _next_power(gain, 1.0 - power)
            power = min(1.0, power + step)
            weight = np.exp(step * (gain - gain.max()))
            log_evidence += step * float(gain.max()) + math.log(float(weight.mean()))
            picked = _systematic(weight, generator)
            theta, prior, now, before = theta[:, picked], prior[picked], now[picked], before[picked]
            spread = _spread_of(theta)
            for scale in effort.rounds * MOVES:
                new = theta + scale * (spread @ generator.standard_normal(theta.shape))
                new_prior, likelihoods = target.prior(new), target.likelihoods(new, window)
                new_now, new_before = likelihoods[-1], likelihoods[-2] if window else target.started(new)
                odds = new_prior - prior + power * (new_now - now) + (1 - power) * (new_before - before)
                take = np.log(generator.uniform(size=effort.explore)) < odds
                theta[:, take], prior[take] = new[:, take], new_prior[take]
                now[take], before[take] = new_now[take], new_before[take]
        found.append(target.drawn(theta.copy(), window, log_evidence, generator))
        before = now
    return found


def _spread_of(theta: Array) -> Array:
    """The triangle that moves are made with; they leave the side of the cliff as it is."""
    free = np.arange(len(theta)) != SIDE
    centred = theta[free] - theta[free].mean(axis=1, keepdims=True)
    covariance = centred @ centred.T / theta.shape[1]
    spread = np.zeros((len(theta), len(theta)))
    spread[np.ix_(free, free)] = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(covariance)))
    return spread


def _next_power(gain: Array, most: float) -> float:
    """The step in the likelihood's power after which enough of the draws still count."""
    below = gain - gain.max()

    def enough(step: float) -> bool:
        weight = np.exp(step * below)
        return bool(weight.sum() ** 2 >= LEFT * len(weight) * (weight @ weight))

    if enough(most):
        return most
    low, high = 0.0, most
    while low < 0.9 * high:
        middle = (low + high) / 2 if low else high / 8
        if middle < 1e-12:  # one draw outdoes all others by any measure: let it
            return high
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _systematic(weight: Array, generator: np.random.Generator) -> NDArray[np.intp]:
    """Indices drawn in proportion to weight, with as little chance as possible."""
    places = (generator.uniform() + np.arange(len(weight))) / len(weight) * weight.sum()
    return np.minimum(np.searchsorted(np.cumsum(weight), places), len(weight) - 1)
