"""Tables as Python values: what they refuse, how they are printed. Their numbers are in tests/paper/test_tables.py."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest

from nugpt.spec import Parametrization, Power, Row, parametrization
from nugpt.spec.parametrization import FAMILIES, TABLES, symbolic

NUGPT = parametrization("nugpt")


def one_line(refusal: pytest.ExceptionInfo[ValueError], *named: str) -> None:
    assert len(str(refusal.value).splitlines()) == 1
    for text in named:
        assert text in str(refusal.value)


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(ValueError) as refusal:
        parametrization("nuGPT")
    one_line(refusal, "unknown parametrization 'nuGPT'", "nugpt-full-align", ".toml")


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError) as refusal:
        replace(NUGPT, name="mine", rows=dict(NUGPT.rows) | {"hiden": Row()})
    one_line(refusal, "'mine'", "unknown role 'hiden'", "hidden")


@pytest.mark.parametrize(("table", "role"), [(t, r) for t in ("nugpt", "prenorm-completep") for r in TABLES[t].rows])
def test_a_missing_row_is_refused(table: str, role: str) -> None:
    rows = {name: row for name, row in TABLES[table].rows.items() if name != role}
    with pytest.raises(ValueError) as refusal:
        replace(TABLES[table], rows=rows)
    one_line(refusal, f"the row of role {role!r} is missing")


@pytest.mark.parametrize(
    ("role", "row", "named"),
    [
        ("s_z", Row(init=Power()), "needs both init and scale"),
        ("s_z", Row(scale=Power()), "needs both init and scale"),
        ("hidden", Row(scale=Power()), "is no rescaler and has no scale"),
        ("alpha_A", Row(init=Power(), scale=Power(0.0)), "scale"),
    ],
)
def test_a_row_that_does_not_suit_its_role_is_refused(role: str, row: Row, named: str) -> None:
    with pytest.raises(ValueError) as refusal:
        replace(NUGPT, rows=dict(NUGPT.rows) | {role: row})
    one_line(refusal, f"role {role!r}", named)


def test_forward_multipliers_are_those_of_the_family() -> None:
    table = TABLES["prenorm-completep"]
    for broken, named in (
        (lambda: replace(NUGPT, forward={"residual": Power()}), "unknown forward multiplier 'residual'"),
        (lambda: replace(table, forward={}), "forward multiplier 'residual' is missing"),
        (lambda: replace(table, rows=dict(table.rows) | {"hidden": Row()}), "'hidden' needs init"),
    ):
        with pytest.raises(ValueError) as refusal:
            broken()
        one_line(refusal, named)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError) as refusal:
        Parametrization("mine", "postnorm", {})
    one_line(refusal, "family is 'postnorm'", "normalized, prenorm")


@pytest.mark.parametrize("value", ["-3/4", None, math.nan, math.inf, 10**400, True])
@pytest.mark.parametrize("exponent", ["width", "depth", "data", "d_model", "rescaler_scale"])
def test_an_exponent_that_is_no_number_is_refused(exponent: str, value: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        Power(**{exponent: value})
    one_line(refusal, exponent, repr(value))


@pytest.mark.parametrize("value", ["0.05", None, math.nan, math.inf, 10**400, -0.1, True])
def test_a_coefficient_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        Power(value)
    one_line(refusal, "coefficient", repr(value))


def test_exponents_may_be_given_as_numbers() -> None:
    assert Power(width=-1, depth=-0.5) == Power(width=Fraction(-1), depth=Fraction(-1, 2))  # type: ignore[arg-type]
    assert isinstance(Power(width=-0.75).width, Fraction)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", TABLES)
def test_built_in_tables_are_frozen_and_know_their_architectures(table: str) -> None:
    ours = TABLES[table]
    assert set(ours.rows) == set(FAMILIES[ours.family])
    assert ours.name == table
    with pytest.raises(FrozenInstanceError):
        ours.name = "other"  # type: ignore[misc]
    fits = {a for a in ("normalized", "prenorm", "prenorm-qknorm") if ours.fits(a)}
    assert fits == ({"normalized"} if ours.family == "normalized" else {"prenorm", "prenorm-qknorm"})


@pytest.mark.parametrize(
    ("power", "text"),
    [
        (Power(), "1"),
        (Power(0.05, depth=Fraction(-1)), "0.05·m_depth^(-1)"),
        (Power(width=Fraction(-3, 4)), "m_width^(-3/4)"),
        (Power(width=Fraction(1)), "m_width"),
        (Power(data=Fraction(-1, 3)), "m_data^(-1/3)"),
        (Power(d_model=Fraction(-1, 2)), "d_model^(-1/2)"),
        (Power(rescaler_scale=Fraction(1)), "c"),
        (Power(2.0, width=Fraction(-1), depth=Fraction(-1, 2)), "2·m_width^(-1)·m_depth^(-1/2)"),
    ],
)
def test_a_cell_is_printed_as_the_paper_prints_it(power: Power, text: str) -> None:
    assert symbolic(power) == text
