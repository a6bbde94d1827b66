"""How far a place on the axis of η moves when one thing of the run is changed: the best η, or the stability edge."""

from __future__ import annotations

import math
from typing import Protocol

from nugpt.fit.interval import Interval


class Placed(Protocol):
    """An optimum or an edge."""

    @property
    def log2_lr(self) -> float | None:
        """Where it lies; none where the grid does not enclose it."""

    @property
    def interval(self) -> Interval:
        """Where it may lie."""


def shift(changed: Placed, plain: Placed) -> tuple[float | None, Interval]:
    """Octaves from the second to the first; their errors are independent, and an end without a bound leaves none."""
    low = _less(changed.interval.low, plain.interval.high, changed.log2_lr, plain.log2_lr)
    high = _less(changed.interval.high, plain.interval.low, changed.log2_lr, plain.log2_lr)
    if changed.log2_lr is None or plain.log2_lr is None:
        return None, Interval(low, high)
    return changed.log2_lr - plain.log2_lr, Interval(low, high)


def _less(end: float, other: float, at: float | None, other_at: float | None) -> float:
    """One end of the difference: deviations added in quadrature where both places are known, else the ends' own."""
    if at is None or other_at is None or not (math.isfinite(end) and math.isfinite(other)):
        return end - other
    gap = math.hypot(end - at, other - other_at)
    return at - other_at + math.copysign(gap, end - at if end != at else other_at - other)
