"""Ranges that answers come with."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A range at some stated level; an end at infinity says that the data put no bound there."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether the value lies in the range, ends included."""
        return self.low <= value <= self.high

    def inside(self, other: Interval) -> bool:
        """Whether the whole range lies in the other."""
        return other.low <= self.low and self.high <= other.high

    def apart(self, other: Interval) -> bool:
        """Whether the two share no value."""
        return self.high < other.low or other.high < self.low

    @property
    def width(self) -> float:
        """From end to end."""
        return self.high - self.low

    @property
    def bounded(self) -> bool:
        """Whether both ends are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def check_level(level: float) -> float:
    """The level of an interval, if it is one."""
    if not isinstance(level, (int, float)) or not 0.5 <= level < 1:
        raise ValueError(f"level is {level!r}, but must be a number from 0.5 to below 1, such as 0.9")
    return float(level)


def central(draws: Array, level: float) -> Interval:
    """The range that leaves (1 − level)/2 of the draws out on either side."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
