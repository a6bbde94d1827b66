"""What a table alone says of how its best η moves with size: what νGPT's exponents leave over."""

from __future__ import annotations

import math
from fractions import Fraction

from nugpt.spec.parametrization import NUGPT, Parametrization, Power
from nugpt.spec.roles import MATRIX_ROLES
from nugpt.spec.study_rules import DRIFT

# CHOICE: how far νGPT's own slopes may be from 0. Over width and depth, the bound of "no drift"; over length twice
# that, since in our runs η* falls faster with length than the paper's exponent says, by 0.18 to 0.26 in each table.
DOUBT = {"width": DRIFT, "layers": DRIFT, "steps": 0.2}  # standard deviation, octaves per octave


def expected_slope(table: Parametrization, axis: str) -> tuple[float, float]:
    """Octaves of η* per octave of a size, and their standard deviation, before any size but one was swept.

    If νGPT's exponents are right, the η of another table has to make up for what its own lack: for matrix role r by
    (νGPT's exponent of r) − (the table's exponent of r). One η serves all roles, so that it lies somewhere between the
    least and the largest of these, evenly likely; and νGPT's own are right to within `DOUBT`.
    """
    if table.family != NUGPT.family or axis not in DOUBT:
        return 0.0, DRIFT  # no law is known that the table could differ from
    # CHOICE: the middle of what the roles want, with the spread of an even chance between its ends.
    wanted = [float(exponent(NUGPT, role, axis) - exponent(table, role, axis)) for role in MATRIX_ROLES]
    low, high = min(wanted), max(wanted)
    return (low + high) / 2, math.hypot(DOUBT[axis], (high - low) / math.sqrt(12))


def exponent(table: Parametrization, role: str, axis: str) -> Fraction:
    """Of the learning rate that is applied to a role, over a size."""

    def of(power: Power) -> Fraction:
        return {"width": power.over_width, "layers": power.depth, "steps": power.data}[axis]

    return of(table.base) + of(table.rows[role].lr)
