"""How the best η of a table is expected to move with size: the paper's exponents, subtracted by hand."""

from __future__ import annotations

import math
from fractions import Fraction as F

import pytest

from nugpt.fit.expected import expected_slope
from nugpt.spec.parametrization import TABLES, with_data_exponent

OWN = {"width": 0.1, "layers": 0.1, "steps": 0.2}  # docs/choices.md#expected-slope


def spread(axis: str, low: float, high: float) -> float:
    """The standard deviation of an even chance between two ends, beside that of νGPT's own slope."""
    return math.sqrt(OWN[axis] ** 2 + (high - low) ** 2 / 12)


@pytest.mark.parametrize(
    ("table", "axis", "low", "high"),
    [
        # Table 1 by hand: νGPT's exponents of (input, hidden, output) over width are (−1/2, −3/4, −3/4).
        ("nugpt", "width", 0.0, 0.0),
        ("ngpt", "width", -0.75, -0.5),  # nGPT's are 0
        ("completep", "width", -0.25, 0.25),  # (−1/2, −1, −1/2)
        ("depth-mup", "width", -0.25, 0.25),
        ("nugpt-full-align", "width", 0.0, 0.25),  # (−1/2, −1, −1)
        # Over depth all are 0 but Depth-μP's hidden one, −1/2.
        ("nugpt", "layers", 0.0, 0.0),
        ("ngpt", "layers", 0.0, 0.0),
        ("depth-mup", "layers", 0.0, 0.5),
        # Over iterations νGPT's η_base has −1/3, the older tables nothing.
        ("nugpt", "steps", 0.0, 0.0),
        ("nugpt-full-align", "steps", 0.0, 0.0),
        ("ngpt", "steps", -1 / 3, -1 / 3),
        ("completep", "steps", -1 / 3, -1 / 3),
    ],
)
def test_by_hand(table: str, axis: str, low: float, high: float) -> None:
    slope, deviation = expected_slope(TABLES[table], axis)
    assert slope == pytest.approx((low + high) / 2, abs=1e-12)
    assert deviation == pytest.approx(spread(axis, low, high), abs=1e-12)


def test_a_table_without_its_correction_for_length_is_expected_to_want_it() -> None:
    assert expected_slope(with_data_exponent(TABLES["nugpt"], F(0)), "steps")[0] == pytest.approx(-1 / 3)


@pytest.mark.parametrize(
    ("table", "axis"), [("prenorm-completep", "width"), ("prenorm-completep", "steps"), ("ngpt", "batch")]
)
def test_where_no_law_is_known_nothing_is_expected(table: str, axis: str) -> None:
    assert expected_slope(TABLES[table], axis) == (0.0, 0.1)
