"""Refusals of `resolve`; its numbers are in tests/paper/test_tables.py."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from nugpt.spec import Base, Extent, ModelConfig, Power, Row, Schedule, parametrization, resolve
from nugpt.spec.parametrization import symbolic
from nugpt.spec.resolve import ratios
from nugpt.spec.run import RunSpec

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


@pytest.mark.parametrize(
    ("name", "value", "way"),
    [
        ("table", "nugpt", "Parametrization: nugpt.parametrization(NAME)"),
        ("base", EXTENT, "Base: nugpt.Base.of(EXTENT)"),
        ("target", ModelConfig(2, 2, 48, 1024, 128), "Extent: nugpt.Extent.of(MODEL, STEPS, BATCH)"),
    ],
)
def test_what_is_no_table_base_or_extent_is_told_how_one_is_had(name: str, value: Any, way: str) -> None:
    refused(f"{name} is {repr(value)[:40]}", **{name: value})
    refused(f"but must be of the class {way}", **{name: value})


def test_a_base_is_of_an_extent() -> None:
    with pytest.raises(ValueError, match=r"extent is ModelConfig\(.*Extent\.of\(MODEL, STEPS, BATCH\) makes one"):
        Base.of(ModelConfig(2, 2, 48, 1024, 128))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "way"),
    [
        ("table", "nugpt", "Parametrization: nugpt.parametrization(NAME)"),
        ("base", EXTENT, "Base: nugpt.Base.of(EXTENT)"),
        ("model", "tiny-l2h2", "ModelConfig: nugpt.ModelConfig(…)"),
    ],
)
def test_a_run_is_told_the_same(name: str, value: Any, way: str) -> None:
    given: dict[str, Any] = {"model": ModelConfig(2, 2, 48, 1024, 128), "table": parametrization("nugpt"), "base": BASE}
    with pytest.raises(ValueError, match=rf"^{name} is .* must be of the class {re.escape(way)}"):
        RunSpec(**{**given, name: value}, lr=0.01, steps=120, batch=16, data="d")


def test_whole_numbers_of_numpy_are_taken_for_pythons() -> None:
    model = ModelConfig(*(np.int64(n) for n in (2, 2, 48, 1024, 128)))  # type: ignore[arg-type]
    extent = Extent.of(model, np.int32(120), np.int64(16))  # type: ignore[arg-type]
    assert extent == EXTENT
    run = RunSpec(
        model,
        parametrization("nugpt"),
        Base.of(extent),
        lr=0.01,
        steps=np.int64(120),  # type: ignore[arg-type]
        batch=np.uint8(16),  # type: ignore[arg-type]
        data="d",
        seed=np.int64(3),  # type: ignore[arg-type]
        schedule=Schedule(warmup=np.int64(7)),  # type: ignore[arg-type]
    )
    plain = replace(
        run, model=ModelConfig(2, 2, 48, 1024, 128), steps=120, batch=16, seed=3, schedule=Schedule(warmup=7)
    )
    assert json.dumps(run.to_dict()) == json.dumps(plain.to_dict())
    assert run.hash == plain.hash


@pytest.mark.parametrize("value", [np.int64(0), np.float64(2.0), np.True_, np.array([1, 2])])
def test_what_is_no_whole_number_of_numpys_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"steps is .*, but must be a whole number of at least 1"):
        replace(EXTENT, steps=value)


def test_multipliers_name_roles_of_the_table() -> None:
    refused("unknown role 'E_out', known are input, hidden, output,", multipliers={"E_out": 0.5})
    refused("multiplier of output is 0", multipliers={"output": 0})
    refused("multiplier of output is nan", multipliers={"output": math.nan})
    refused("multiplier of hidden is -1", multipliers={"hidden": -1})


@pytest.mark.parametrize("decay", [-0.1, math.nan, math.inf, "x", True])
def test_weight_decay_is_not_negative(decay: Any) -> None:
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
        f"table 'nugpt': lr of hidden ({symbolic(power)}) is inf at this target, but must be a finite number",
        table=replace(table, rows=rows),
        base=Base.of(base),
        target=replace(EXTENT, d_model=width),
    )


HUGE, TINY = Power(1e300, d_model=Fraction(10)), Power(1e-200, d_model=Fraction(-100))
ABOVE = "but must be a finite number above 0"


@pytest.mark.parametrize(
    ("role", "changes", "named"),
    [
        ("s_z", {"scale": TINY}, f"scale of s_z (1e-200·d_model^(-100)) is 0.0 at this target, {ABOVE}"),
        ("s_z", {"scale": HUGE}, f"scale of s_z (1e+300·d_model^(10)) is inf at this target, {ABOVE}"),
        ("s_z", {"init": HUGE}, "init of s_z (1e+300·d_model^(10)) is inf"),
        ("alpha_A", {"init": Power(1e200), "scale": Power(1e-200)}, "gain of alpha_A (1e+200) is inf"),
        ("input", {"lr": HUGE}, "lr of input (1e+300·d_model^(10)) is inf"),
        ("input", {"eps": HUGE}, "eps of input (1e+300·d_model^(10)) is inf"),
        ("input", {"weight_decay": HUGE}, "weight_decay of input (1e+300·d_model^(10)) is inf"),
        # not 0 · ∞ = nan either
        ("input", {"lr": Power(0, d_model=Fraction(100), rescaler_scale=Fraction(-100))}, "lr of input"),
    ],
)
def test_no_cell_leaves_the_numbers(role: str, changes: dict[str, Power], named: str) -> None:
    table = parametrization("nugpt")
    rows = dict(table.rows) | {role: replace(table.rows[role], **changes)}  # type: ignore[arg-type]
    wide = replace(EXTENT, d_model=9_600_000)
    refused(named, table=replace(table, rows=rows, weight_decay=0.1), base=Base.of(wide), target=wide)


def test_neither_base_nor_forward_leave_the_numbers() -> None:
    refused("η_base (1e+308) is inf", table=replace(parametrization("nugpt"), base=Power(1e308)), lr=100.0)
    prenorm = parametrization("prenorm-completep")
    forward = dict(prenorm.forward) | {"logit": HUGE}
    refused("gain of logit", table=replace(prenorm, forward=forward))


@pytest.mark.parametrize("batch", [-1, 0, 2.5, True, "16"])
def test_an_extent_names_a_wrong_batch_as_it_was_given(batch: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        Extent.of(ModelConfig(2, 2, 48, 64, 128), steps=100, batch=batch)
    assert str(refusal.value) == f"batch is {batch!r}, but must be a whole number of at least 1"


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
