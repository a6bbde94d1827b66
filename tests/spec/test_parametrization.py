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
        (
            lambda: replace(NUGPT, forward={"residual": Power()}),
            "unknown forward multiplier 'residual', the family 'normalized' has none",
        ),
        (lambda: replace(table, forward={"depth": Power()}), "'depth', known are residual, logit"),
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
    one_line(refusal, exponent, repr(value)[:60])
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("value", ["0.05", None, math.nan, math.inf, 10**400, -0.1, True])
def test_a_coefficient_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        Power(value)
    one_line(refusal, "coefficient", repr(value)[:60])


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("lr", "x"),
        ("lr", 1.0),
        ("lr", None),
        ("init", 0.05),
        ("scale", (1,)),
        ("weight_decay", 0.1),
        ("eps", None),
        ("multiplier_log2", "x"),
        ("multiplier_log2", None),
        ("multiplier_log2", 101),
        ("multiplier_log2", math.nan),
        ("multiplier_log2", True),
    ],
)
def test_a_row_holds_cells(cell: str, value: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        Row(**{cell: value})
    one_line(refusal, cell, f"is {value!r}, but must be a")


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("name", 3, "name of a table is 3"),
        ("name", "", "name of a table is ''"),
        ("family", ["normalized"], "family is ['normalized']"),
        ("rows", [Row()], "rows is [Row("),
        ("rows", {"hidden": 3}, "rows.hidden is 3, but must be a Row"),
        ("rows", {"hidden": None}, "rows.hidden is None"),
        ("base", 1, "base is 1, but must be a Power"),
        ("batch", "x", "batch is 'x'"),
        ("batch", 5000, "batch is 5000, but must be a number from -100 to 100"),
        ("forward", 3, "forward is 3"),
        ("forward", {"residual": 1.0}, "forward.residual is 1.0, but must be a Power"),
        ("weight_decay", "x", "weight_decay is 'x', but must be a number of at least 0"),
        ("weight_decay", -1, "weight_decay is -1"),
        ("eps", -1, "eps is -1"),
        ("eps", math.inf, "eps is inf"),
        ("betas", (2, 3), "betas is (2, 3), but must be two numbers from 0 to below 1"),
        ("betas", 0.9, "betas is 0.9"),
        ("betas", (0.9, 0.95, 0.99), "betas is (0.9"),
        ("betas", ("a", "b"), "betas is ('a', 'b')"),
    ],
)
def test_a_wrong_field_of_a_table_is_refused(field: str, value: Any, named: str) -> None:
    with pytest.raises(ValueError) as refusal:
        replace(NUGPT, **{field: value})
    one_line(refusal, named)


def test_numbers_of_a_table_may_be_given_in_any_spelling() -> None:
    ours = replace(NUGPT, batch=0.5, weight_decay=1, betas=[0, 0.5])  # type: ignore[arg-type]
    assert (ours.batch, ours.weight_decay, ours.betas) == (Fraction(1, 2), 1.0, (0.0, 0.5))
    assert Row(multiplier_log2=-1.5).multiplier_log2 == Fraction(-3, 2)  # type: ignore[arg-type]


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
