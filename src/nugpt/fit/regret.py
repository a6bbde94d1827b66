"""What a wrong learning rate costs: regret of the base's best η, sensitivity either side, the cautious choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nugpt.fit.curve import Shapes
from nugpt.fit.interval import Array, Interval, check_level
from nugpt.fit.optimum import Optimum
from nugpt.fit.points import ROUGHNESS

OFFSETS = (-1.0, -0.5, 0.5, 1.0)  # octaves
MOST = 3.0  # nats; a run that pays more has failed, and how badly no longer matters


@dataclass(frozen=True)
class Cost:
    """Nats above a size's own best, with an interval; infinite where learning rates like it failed."""

    nats: float | None
    interval: Interval
    level: float
    notes: tuple[str, ...] = ()


def regret_at(own: Optimum, log2_lr: float, level: float = 0.90) -> Cost:
    """What a given learning rate costs at a size."""
    return _regret(own, np.asarray([log2_lr]), level)


def regret(base: Optimum, own: Optimum, level: float = 0.90) -> Cost:
    """What the base size's best η costs at another size; both optima are uncertain."""
    if base.shapes is None or base.log2_lr is None:
        check_level(level)
        return Cost(None, Interval(0.0, math.inf), level, ("the base size has no enclosed optimum",))
    return _regret(own, np.random.default_rng(3).permutation(base.shapes.x), level)


def _regret(own: Optimum, chosen: Array, level: float) -> Cost:
    check_level(level)
    if own.shapes is None:
        return Cost(None, Interval(0.0, math.inf), level, ("nothing trained at this size",))
    drawn = own.shapes
    draws = _rough(_paid(drawn, np.broadcast_to(chosen, drawn.x.shape)))
    shift = np.sort(np.broadcast_to(chosen, drawn.x.shape) - drawn.x)
    tail = (1 - level) / 2
    moved = not (_share(shift, tail) <= 0 <= _share(shift, 1 - tail))
    # Where the optimum may not have moved at all, the cost may be nothing: the bound is one-sided, from 0.
    low, high = (_share(draws, tail), _share(draws, 1 - tail)) if moved else (0.0, _share(draws, level))
    notes: tuple[str, ...] = ()
    if own.verdict == "edge-censored":
        high, notes = math.inf, ("this size's own best lies beyond its grid",)
    return Cost(_share(draws, 0.5), Interval(low, high), level, notes)


def _paid(drawn: Shapes, log2_lr: Array) -> Array:
    """Nats above each draw's minimum; beyond a learning rate that failed, infinite."""
    paid = drawn.excess(log2_lr)
    failed = (log2_lr >= drawn.failed.high) | (log2_lr <= drawn.failed.low)
    return np.where(failed, math.inf, paid)


def _rough(paid: Array) -> Array:
    """The same with the relative error that no simple shape is without."""
    return paid * np.exp(ROUGHNESS * np.random.default_rng(5).standard_normal(len(paid)))


def _share(draws: Array, share: float) -> float:
    """A quantile that is one of the draws, so that infinite ones do no harm."""
    return float(np.quantile(draws, share, method="inverted_cdf"))


@dataclass(frozen=True)
class Sensitivity:
    """The cost of being off by half and by one octave, either side apart."""

    costs: tuple[tuple[float, Cost], ...]  # octaves off, and what that costs

    def at(self, octaves: float) -> Cost:
        """The cost of one offset."""
        return dict(self.costs)[octaves]


def sensitivity(own: Optimum, level: float = 0.90, offsets: Sequence[float] = OFFSETS) -> Sensitivity:
    """What it costs to miss a size's own optimum to either side."""
    check_level(level)
    tail = (1 - level) / 2
    costs = []
    for octaves in offsets:
        if own.shapes is None or own.log2_lr is None:
            unknown = Cost(None, Interval(0.0, math.inf), level, ("this size has no enclosed optimum",))
            costs.append((octaves, unknown))
            continue
        draws = _rough(_paid(own.shapes, own.shapes.x + octaves))
        interval = Interval(_share(draws, tail), _share(draws, 1 - tail))
        costs.append((octaves, Cost(_share(draws, 0.5), interval, level)))
    return Sensitivity(tuple(costs))


def cautious_lr(own: Optimum) -> float | None:
    """log2 of the η that minimises the expected cost: on the safe side of a cliff; none without an optimum."""
    if own.shapes is None or own.log2_lr is None:
        return None
    drawn = own.shapes
    grid = np.linspace(float(drawn.x.min()) - 0.5, float(drawn.x.max()), 400)
    expected = [float(np.mean(np.minimum(_paid(drawn, np.full(len(drawn.x), x)), MOST))) for x in grid]
    return float(grid[int(np.argmin(expected))])
