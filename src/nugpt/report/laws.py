"""On the results page: the best learning rate of all sizes of a table as one power law, and as it is applied."""

from __future__ import annotations

from collections.abc import Sequence

from nugpt.fit.expected import exponent
from nugpt.fit.measured import SIZES
from nugpt.fit.power_law import PowerLaw
from nugpt.report.backtests import Group
from nugpt.report.words import AXES, NONE, between, number, printed
from nugpt.spec.parametrization import NUGPT

TOLD = """\
One power law in width, depth and length, fitted through all optima of a table at once; exponents are octaves of η per
octave of size, with 90 % intervals. A table that transfers perfectly has exponents of 0. The columns "applied to
hidden" add the table's own exponents: they say how the learning rate that hidden matrices really get moves with size.
If one law were behind all tables, these would be the same in every row.

- Where optima do not lie on a plane, the slopes are averages over the sizes swept, which differ between tables.
- "Bend seen: no" does not prove a plane. The test treats all of an optimum's error as its own, though part of it is
  common to all sizes, and so lets any but a strong bend pass.
- No rule was set for this table; it was made after the runs were seen."""


def law_table(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows; none where no group has a law."""
    known = [(group, group.law) for group in groups if group.law is not None and group.sizes]
    axes = [axis for axis in SIZES if any(axis in law.exponents for _, law in known)]
    applied = [axis for axis in axes if axis != "batch"]
    columns = ["table", "optima", *(f"η over {AXES[axis]}" for axis in axes), "bend seen"]
    columns += [f"applied to hidden, over {AXES[axis]}" for axis in applied]
    rows = [
        [
            printed(group.name),
            str(law.values),
            *(_slope(law, axis) for axis in axes),
            "yes" if law.line is not None and law.line.bent() else "no",
            *(_applied(group, law, axis) for axis in applied),
        ]
        for group, law in known
    ]
    if rows:
        paper = [number(float(exponent(NUGPT, "hidden", axis))) for axis in applied]
        rows.append(["νGPT's own exponents", *([NONE] * (len(axes) + 2)), *paper])
    return columns, rows


def _slope(law: PowerLaw, axis: str) -> str:
    if axis not in law.exponents:
        return NONE
    return f"{number(law.exponents[axis])} ({between(law.intervals[axis])})"


def _applied(group: Group, law: PowerLaw, axis: str) -> str:
    if axis not in law.exponents:
        return NONE
    return number(law.exponents[axis] + float(exponent(group.parametrization, "hidden", axis)))
