"""What a table alone says of how its best η moves with size: what νGPT's exponents leave over."""

from __future__ import annotations

import math
from fractions import Fraction

from nugpt.spec.parametrization import NUGPT, Parametrization, Power
from nugpt.spec.roles import MATRIX_ROLES
from nugpt.spec.study_rules import DRIFT


def expected_slope(table: Parametrization, axis: str) -> tuple[float, float]:
    """Octaves of η* per octave of a size, and their standard deviation, before any size but one was swept.

    If νGPT's exponents are right, the η of another table has to make up for what its own lack: for matrix role r by
    (νGPT's exponent of r) − (the table's exponent of r). One η serves all roles, so that it lies somewhere between the
    least and the largest of these, evenly likely; and νGPT's own are right to within the bound of "no drift".
    """
    if table.family != NUGPT.family or axis not in ("width", "layers", "steps"):
        return 0.0, DRIFT  # no law is known that the table could differ from
    # CHOICE: the middle of what the roles want, with the spread of an even chance between its ends.
    wanted = [float(exponent(NUGPT, role, axis) - exponent(table, role, axis)) for role in MATRIX_ROLES]
    low, high = min(wanted), max(wanted)
    return (low + high) / 2, math.hypot(DRIFT, (high - low) / math.sqrt(12))


def exponent(table: Parametrization, role: str, axis: str) -> Fraction:
    """Of the learning rate that is applied to a role, over a size."""

    def of(power: Power) -> Fraction:
        return {"width": power.over_width, "layers": power.depth, "steps": power.data}[axis]

    return of(table.base) + of(table.rows[role].lr)
