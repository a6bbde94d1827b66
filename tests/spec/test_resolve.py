"""Refusals of `resolve`; its numbers are in tests/paper/test_tables.py."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from nugpt.spec import Base, Extent, ModelConfig, Power, Row, parametrization, resolve
from nugpt.spec.parametrization import symbolic
from nugpt.spec.resolve import ratios

EXTENT = Extent(d_model=96, head_dim=48, n_layers=2, steps=120, batch_tokens=2048)
BASE = Base.of(EXTENT)


def refused(message: str, **arguments: Any) -> None:
    given: dict[str, Any] = {"table": parametrization("nugpt"), "base": BASE, "target": EXTENT, "lr": 0.01}
    with pytest.raises(ValueError) as refusal:
        resolve(**(given | arguments))
    assert message in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("lr", [0, -0.1, math.nan, math.inf, "0.1", True, None])
def test_a_learning_rate_is_a_finite_number_above_zero(lr: Any) -> None:
    refused(f"lr is {lr!r}, but must be a finite number above 0", lr=lr)


def test_multipliers_name_roles_of_the_table() -> None:
    refused("unknown role 'E_out', known are input, hidden, output,", multipliers={"E_out": 0.5})
    refused("multiplier of output is 0", multipliers={"output": 0})
    refused("multiplier of output is nan", multipliers={"output": math.nan})
    refused("multiplier of hidden is -1", multipliers={"hidden": -1})


@pytest.mark.parametrize("decay", [-0.1, math.nan, math.inf])
def test_weight_decay_is_not_negative(decay: float) -> None:
    refused(f"weight_decay is {decay!r}, but must be a number of at least 0", weight_decay=decay)


def test_a_base_of_another_head_dimension_is_refused() -> None:
    refused(
        "head_dim is 48 in the target but 102 in the base",
        base=Base.of(Extent(1020, 102, 10, 9_750, 2048)),
    )


@pytest.mark.parametrize("name", ["d_model", "head_dim", "n_layers", "steps", "batch_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_extents_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}, but must be a whole number of at least 1"):
        replace(EXTENT, **{name: value})


@pytest.mark.parametrize("constant", [0.0, -1.0, math.nan])
def test_the_rescalers_constant_is_above_zero(constant: float) -> None:
    with pytest.raises(ValueError, match="rescaler_scale is"):
        Base.of(EXTENT, constant)


def test_ratios_of_a_model_and_its_base() -> None:
    base = Extent.of(ModelConfig(2, 2, 48, 64, 128), steps=100, batch=16)
    target = Extent.of(ModelConfig(6, 3, 48, 64, 256), steps=150, batch=4)
    m = ratios(base, target)
    assert (m.width, m.depth, m.data, m.batch) == (1.5, 3.0, 1.5, 0.5)
    assert (target.d_model, target.batch_tokens) == (144, 1024)


@pytest.mark.parametrize(
    ("power", "width"),
    [(Power(width=Fraction(90)), 960_000), (Power(width=Fraction(-99)), 1), (Power(1e308, width=Fraction(1)), 9600)],
)
def test_a_cell_beyond_all_numbers_is_refused_in_words(power: Power, width: int) -> None:
    table = parametrization("nugpt")
    rows = dict(table.rows) | {"hidden": Row(lr=power)}
    base = replace(EXTENT, d_model=96 if width > 1 else 96_000_000)
    refused(
        f"table 'nugpt' at this target gives {symbolic(power)}, beyond every number",
        table=replace(table, rows=rows),
        base=Base.of(base),
        target=replace(EXTENT, d_model=width),
    )


def test_a_resolved_table_is_plain_values() -> None:
    ours = resolve(parametrization("nugpt"), BASE, EXTENT, 0.01)
    again = json.loads(json.dumps(ours.to_dict(), allow_nan=False))
    assert again["rows"]["output"] == {
        "lr": 0.005,
        "multiplier": 0.5,
        "init": None,
        "scale": None,
        "weight_decay": 0.0,
        "eps": 1e-16,
    }
    assert again["table"] == "nugpt"
    with pytest.raises(ValueError, match="role 'norm' is not in table 'nugpt'"):
        ours["norm"]
