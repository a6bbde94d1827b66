"""Straight lines through values that have errors of their own, with Student-t intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.interval import Array, Interval

# What is trusted about the scale of the errors before the scatter about the line is seen: the values' own deviations,
# as if seen in so many points (three sizes leave a scatter of one degree of freedom, which says next to nothing).
OWN_WEIGHT = 6.0
# The share of the values' variance that differs from size to size. The rest, by which a curve's shape misleads, is
# alike at all sizes that share an even grid and moves the line, not its slope (set so that synthetic studies reach
# their coverage).
OWN_SHARE = 0.45
LEAST_DEVIATION = 0.02  # octaves; no optimum is known better, whatever its curve says
BENT = 0.05  # odds of so much scatter about a straight line from which on there is none


@dataclass(frozen=True, eq=False)
class Line:
    """Coefficients of y = X·b, their covariance, and the degrees of freedom of their Student-t."""

    coefficients: Array
    covariance: Array
    dof: float
    scatter: float  # root mean square of the residuals, each over its deviation (absolute where none was given)
    points: int

    def misfit(self) -> float:
        """The odds of at least so much scatter, were the values on the line but for their own deviations."""
        return float(special.chdtrc(self.points - len(self.coefficients), self.points * self.scatter**2))

    def bent(self) -> bool:
        """Whether values that have deviations lie further from the line than these explain: its slope is an average."""
        return self.misfit() < BENT

    def interval(self, i: int, level: float) -> Interval:
        """Of one coefficient."""
        unit = np.zeros(len(self.coefficients))
        unit[i] = 1.0
        return self.interval_at(unit, level)

    def at(self, row: Sequence[float] | Array) -> float:
        """The line's value."""
        return float(np.asarray(row) @ self.coefficients)

    def interval_at(self, row: Sequence[float] | Array, level: float) -> Interval:
        """Of the line's value at a row of X."""
        row = np.asarray(row, dtype=np.float64)
        half = float(special.stdtrit(self.dof, (1 + level) / 2)) * math.sqrt(float(row @ self.covariance @ row))
        return Interval(self.at(row) - half, self.at(row) + half)


def fit_line(rows: Array, values: Array, deviations: Array | None = None, independent: bool = False) -> Line | None:
    """Weighted least squares; none where the rows do not determine it or leave no scatter to see.

    `independent` says that the values' errors have nothing in common.
    """
    n, p = rows.shape
    if n <= p or np.linalg.matrix_rank(rows) < p:
        return None
    own = np.ones(n) if deviations is None else np.maximum(deviations, LEAST_DEVIATION)
    scaled, target = rows / own[:, None], values / own
    coefficients: Array = np.linalg.lstsq(scaled, target, rcond=None)[0].astype(np.float64)
    squares = float(np.sum((target - scaled @ coefficients) ** 2))
    prior = 0.0 if deviations is None else OWN_WEIGHT
    dof = prior + n - p
    own_share = 1.0 if independent else OWN_SHARE
    covariance = np.linalg.inv(scaled.T @ scaled) * (prior * own_share + squares) / dof
    return Line(coefficients, covariance, dof, math.sqrt(squares / n), n)
