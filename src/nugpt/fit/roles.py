"""Role exponents from role sweeps: the best multiplier of each role at each width, and its slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nugpt.fit.drift import Drift, drift
from nugpt.fit.interval import Interval
from nugpt.fit.noise import NoiseModel
from nugpt.fit.optimum import Optimum, optimum
from nugpt.fit.points import Point
from nugpt.spec.study_rules import DRIFT


@dataclass(frozen=True)
class RoleExponent:
    """The width exponent that a role's loss asks for: the table's, and what its best multiplier adds."""

    role: str
    table: float  # exponent that the runs had
    slope: Drift  # octaves of the best multiplier per octave of width
    exponent: float | None
    interval: Interval


def role_exponents(
    optima: Mapping[str, Sequence[tuple[float, Optimum]]],
    table: Mapping[str, float],
    level: float = 0.90,
    bound: float = DRIFT,
) -> tuple[RoleExponent, ...]:
    """Each role's exponent, from its (width, optimum over log2 multiplier)s; the table is right where nothing moves."""
    answers = []
    for role, located in optima.items():
        if role not in table:
            raise ValueError(f"role {role!r} was swept, but the table's exponents are given for {', '.join(table)}")
        slope = drift(located, level, bound)
        interval = Interval(table[role] + slope.interval.low, table[role] + slope.interval.high)
        exponent = None if slope.slope is None else table[role] + slope.slope
        answers.append(RoleExponent(role, table[role], slope, exponent, interval))
    return tuple(answers)


def profile(curves: Sequence[tuple[float, Sequence[Point]]], pooled: NoiseModel | None = None) -> tuple[Point, ...]:
    """Points over log2 multiplier from one learning-rate curve each: every seed's loss at its own best η.

    Seeds are fitted apart, so that their scatter stays visible to the optimum over the multiplier.
    """
    points = []
    for log2_multiplier, runs in curves:
        for seed in sorted({run.seed for run in runs}):
            found = optimum([run for run in runs if run.seed == seed], pooled=pooled)
            status = "diverged" if found.reached is None else "done"
            points.append(Point(log2_multiplier, found.reached, seed, status))
    return tuple(points)
