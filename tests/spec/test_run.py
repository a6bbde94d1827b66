"""A run is its spec: what it is written as, what it is called, and what it refuses."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nugpt
from nugpt.spec import Base, Extent, ModelConfig, Power, Schedule, load_table
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec, Start, packable

MODEL = ModelConfig(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=12, vocab_size=384, seq_len=16)
BASE = Base.of(Extent(d_model=12, head_dim=12, n_layers=1, steps=20, batch_tokens=64))
SPEC = RunSpec(MODEL, load_table("nugpt"), BASE, lr=2**-6, steps=24, batch=4, data="0123456789abcdef")
PRENORM = RunSpec(
    model=replace(MODEL, architecture="prenorm"),
    table=load_table("prenorm-completep"),
    base=BASE,
    lr=2**-6,
    steps=24,
    batch=4,
    data="0123456789abcdef",
)
FULL = replace(
    SPEC,
    seed=2**63 - 1,
    multipliers={"output": 0.3, "s_z": 2.0},
    weight_decay=0.1,
    schedule=Schedule("wsd", 0.0, 3, 0.5),
    precision="bfloat16",
    grad_clip=1.0,
    validations=7,
    val_windows=5,
    start=Start("extend", "fedcba9876543210", 12),
)
SPECS = {
    "plain": SPEC,
    "prenorm": PRENORM,
    "full": FULL,
    "ngpt": replace(SPEC, table=load_table("ngpt"), multipliers={}),
}


def test_what_a_spec_leaves_out_is_filled_in() -> None:
    written = SPEC.to_dict()
    defaults = {"seed": 0, "weight_decay": SPEC.table.weight_decay, "precision": "float32", "grad_clip": None}
    defaults |= {"validations": 100, "val_windows": 64, "start": None}
    assert {name: written[name] for name in defaults} == defaults


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every plain value inside, with the keys that lead to it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inside is None:
        yield path, value
    else:
        for key, inner in inside:
            yield from leaves(inner, (*path, key))


def changed(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(values)
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return copied


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_spec_comes_back_from_its_values_and_from_json(spec: RunSpec) -> None:
    assert RunSpec.from_dict(spec.to_dict()) == spec
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.hash == spec.hash
    assert again.to_dict() == spec.to_dict()
    assert again.resolved() == spec.resolved()


def test_the_hash_is_the_same_on_every_machine() -> None:
    assert {name: spec.hash for name, spec in SPECS.items()} == {
        "plain": "ae4c7bf95374a94d",
        "prenorm": "4d0df27551675566",
        "full": "ce29d38b366b85b3",
        "ngpt": "b49afdbb1bfdc0fa",
    }


def test_the_hash_does_not_hang_on_the_order_of_sets_in_a_process() -> None:
    program = (
        "import json, sys; from nugpt.spec.run import RunSpec; print(RunSpec.from_dict(json.load(sys.stdin)).hash)"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(nugpt.__file__).parents[1])}
        printed = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            input=json.dumps(FULL.to_dict()),
            capture_output=True,
            text=True,
        )
        assert printed.stdout.strip() == FULL.hash, printed.stderr


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(inner, rng) for inner in value]
    if not isinstance(value, dict):
        return value
    items = list(value.items())
    rng.shuffle(items)
    return {key: shuffled(inner, rng) for key, inner in items}


@given(st.sampled_from(sorted(SPECS)), st.randoms(use_true_random=False))
def test_the_hash_does_not_hang_on_the_order_of_keys(name: str, rng: random.Random) -> None:
    spec = RunSpec.from_dict(shuffled(SPECS[name].to_dict(), rng))
    assert spec == SPECS[name]
    assert spec.hash == SPECS[name].hash


@settings(max_examples=25)
@given(st.sampled_from(sorted(SPECS)), st.integers(1, 5), st.integers(0, 1), st.data())
def test_the_hash_does_not_hang_on_how_a_number_is_spelled(
    name: str, whole: int, share: int, data: st.DataObject
) -> None:
    """1 and 1.0 are the same number wherever a field is real; so are equal specs the same run."""
    start = SPECS[name]
    draw = st.sampled_from([int, float])

    def spelled(number: int) -> float:
        return data.draw(draw)(number)

    def spec(kind: type) -> RunSpec:
        def number(value: int) -> float:
            return kind(value) if kind in (int, float) else spelled(value)

        table = replace(
            start.table,
            weight_decay=number(whole),
            eps=number(whole),
            betas=(number(0), 0.5),
            base=Power(number(whole), data=Fraction(-1, 3)),
            rows={
                role: replace(row, lr=replace(row.lr, coefficient=number(whole)))
                for role, row in start.table.rows.items()
            },
        )
        return replace(
            start,
            table=table,
            model=replace(start.model, rope_theta=number(whole + 1)),
            base=Base(start.base.extent, number(whole)),
            lr=number(whole),
            multipliers={"output": number(whole), "hidden": number(1)},
            weight_decay=number(share),
            schedule=Schedule("cosine", number(share), 0, number(1)),
            grad_clip=number(whole),
        )

    assert spec(int) == spec(float)
    assert spec(int).hash == spec(float).hash == spec(object).hash


def test_what_is_filled_in_is_the_same_run_as_what_is_written_out() -> None:
    rows = SPEC.resolved().rows
    assert replace(SPEC, multipliers={role: row.multiplier for role, row in rows.items()}).hash == SPEC.hash
    bare = RunSpec(MODEL, SPEC.table, BASE, 2**-6, 24, 4, SPEC.data)
    assert bare.hash == SPEC.hash
    assert bare.multipliers["output"] == 0.5  # the table's default, 2^(-1), is in the spec in so many words
    assert PRENORM.weight_decay == PRENORM.table.weight_decay == 0.1
    assert replace(PRENORM, weight_decay=0.1).hash == PRENORM.hash
    kv = ModelConfig(**(MODEL.to_dict() | {"n_kv_heads": 0, "d_mlp": 0}))
    assert replace(SPEC, model=kv).hash == replace(SPEC, model=replace(kv, n_kv_heads=4, d_mlp=128)).hash


# Fields that cannot be changed alone: they must agree with another.
TIED = {
    ("format",),
    ("model", "architecture"),  # with the table's family, tested below
    ("table", "family"),
    ("model", "head_dim"),  # with the base's
    ("base", "extent", "head_dim"),
    ("model", "seq_len"),  # with the base's tokens per step, as the batch
    ("batch",),
    ("base", "extent", "batch_tokens"),
    ("start", "kind"),  # with its step
}
WORDS = {
    ("precision",): ["float32", "bfloat16"],
    ("schedule", "kind"): ["cosine", "linear"],
}


def others(path: tuple[Any, ...], value: Any) -> list[Any]:
    """Other values that might do."""
    if path in WORDS:
        return [word for word in WORDS[path] if word != value]
    if isinstance(value, str):
        try:
            return [str(Fraction(value) + Fraction(1, 7))] if path[0] == "table" else [value + "0"]
        except ValueError:
            return [value + "0"]
    if value is None:
        return [1.5]
    if isinstance(value, int):
        return [value + 1, value * 2, value - 1]
    return [value * 1.0000000000000004 if value else 0.5, value * 0.75, 0.25]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_hash_is_another_with_every_field(spec: RunSpec) -> None:
    values = spec.to_dict()
    seen = {spec.hash}
    for path, value in leaves(values):
        if path in TIED or path == ("start",):
            continue
        for other in others(path, value):
            try:
                found = RunSpec.from_dict(changed(values, path, other))
            except ValueError:
                continue
            assert found != spec, path
            assert found.hash not in seen, path
            seen.add(found.hash)
            break
        else:
            raise AssertionError(f"no other value of {path} was taken")
    assert len(seen) > 50


def test_the_hash_is_another_with_fields_that_change_together() -> None:
    extent = BASE.extent
    together = [
        replace(SPEC, model=replace(MODEL, head_dim=24), base=replace(BASE, extent=replace(extent, head_dim=24))),
        replace(
            SPEC, model=replace(MODEL, head_dim=24, d_mlp=256), base=replace(BASE, extent=replace(extent, head_dim=24))
        ),
        replace(SPEC, batch=8, base=replace(BASE, extent=replace(extent, batch_tokens=128))),
        replace(SPEC, batch=2, model=replace(MODEL, seq_len=32)),
        replace(PRENORM, model=replace(PRENORM.model, architecture="prenorm-qknorm")),
        PRENORM,
        replace(SPEC, start=Start("weights", "fedcba9876543210")),
        replace(SPEC, start=Start("extend", "fedcba9876543210")),
        replace(SPEC, start=Start("extend", "fedcba9876543210", 1)),
        SPEC,
    ]
    assert len({spec.hash for spec in together}) == len(together)


WRONG: list[tuple[str, Any, str]] = [
    ("lr", 0, "lr"),
    ("lr", -1.0, "lr"),
    ("lr", float("nan"), "lr"),
    ("lr", float("inf"), "lr"),
    ("lr", "0.01", "lr"),
    ("lr", None, "lr"),
    ("lr", True, "lr"),
    ("steps", 0, "steps"),
    ("steps", 1.5, "steps"),
    ("steps", "24", "steps"),
    ("steps", True, "steps"),
    ("batch", 0, "batch"),
    ("batch", None, "batch"),
    ("validations", 0, "validations"),
    ("val_windows", -1, "val_windows"),
    ("seed", -1, "seed"),
    ("seed", 2**63, "seed"),
    ("seed", 1.0, "seed"),
    ("precision", "foo", "precision"),
    ("precision", None, "precision"),
    ("grad_clip", 0, "grad_clip"),
    ("grad_clip", float("nan"), "grad_clip"),
    ("grad_clip", "1", "grad_clip"),
    ("grad_clip", True, "grad_clip"),
    ("weight_decay", -0.1, "weight_decay"),
    ("weight_decay", "0.1", "weight_decay"),
    ("weight_decay", True, "weight_decay"),
    ("weight_decay", float("inf"), "weight_decay"),
    ("data", "", "data"),
    ("data", 7, "data"),
    ("multipliers", {"output": 0}, "output"),
    ("multipliers", {"output": "1"}, "output"),
    ("multipliers", {"outputs": 1.0}, "outputs"),
    ("multipliers", [["output", 1.0]], "multipliers"),
    ("multipliers", 3, "multipliers"),
    ("multipliers", None, "multipliers"),
    ("model", {}, "model"),
    ("model", None, "model"),
    ("model", [2, 2], "model"),
    ("table", "nugpt", "table"),
    ("table", None, "table"),
    ("table", {}, "table"),
    ("base", {}, "base"),
    ("base", None, "base"),
    ("base", 3, "base"),
    ("base", {"extent": {"d_model": 12}, "rescaler_scale": 0.1}, "base"),
    ("schedule", None, "schedule"),
    ("schedule", "cosine", "schedule"),
    ("schedule", {"kind": "cosines"}, "cosines"),
    ("schedule", {"sort": "cosine"}, "schedule"),
    ("start", {"kind": "middle", "hash": "0"}, "middle"),
    ("start", {"kind": "weights"}, "start"),
    ("start", {"kind": "weights", "hash": 3}, "start"),
    ("start", {"kind": "extend", "hash": "0", "step": 24}, "24"),
    ("start", {"kind": "extend", "hash": "0", "step": -1}, "step"),
    ("start", {"kind": "extend", "hash": "0", "step": 0.5}, "step"),
    ("start", {"kind": "extend", "hash": "0", "step": "3"}, "step"),
    ("start", {"kind": "weights", "hash": "0", "step": 3}, "step"),
    ("start", "abc", "start"),
    ("start", [], "start"),
]


@pytest.mark.parametrize(("name", "value", "word"), WRONG, ids=[f"{name}={value!r}" for name, value, _ in WRONG])
def test_a_wrong_value_is_one_line_that_names_it(name: str, value: Any, word: str) -> None:
    with pytest.raises(ValueError) as error:
        RunSpec.from_dict(SPEC.to_dict() | {name: value})
    assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("at", [(), ("model",), ("table",), ("base",), ("base", "extent"), ("schedule",), ("start",)])
def test_an_unknown_field_is_refused_at_every_level(at: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        RunSpec.from_dict(changed(FULL.to_dict(), (*at, "momentum"), 0.9))
    assert "momentum" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(SPEC.to_dict()))
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    values = SPEC.to_dict()
    del values[name]
    with pytest.raises(ValueError, match=name):
        RunSpec.from_dict(values)


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_another_format_is_refused(version: Any) -> None:
    with pytest.raises(ValueError, match=r"format .*reads 1"):
        RunSpec.from_dict(SPEC.to_dict() | {"format": version})
    with pytest.raises(ValueError, match=r"format .*reads 1"):
        RunRecord.from_dict({"format": version})


def test_the_table_must_be_for_the_model() -> None:
    with pytest.raises(ValueError, match=r"'normalized'.*'prenorm-completep'"):
        replace(SPEC, table=load_table("prenorm-completep"), multipliers={})


def test_a_spec_cannot_be_changed_from_outside() -> None:
    given_multipliers = {"output": 0.25}
    spec = replace(SPEC, multipliers=given_multipliers)
    given_multipliers["output"] = 9.0
    assert spec.multipliers["output"] == 0.25
    with pytest.raises(AttributeError):
        spec.lr = 1.0  # type: ignore[misc]
    assert len({spec, SPEC, replace(SPEC)}) == 2


def test_runs_that_share_a_shape_can_share_an_ensemble() -> None:
    alike = [
        SPEC,
        replace(SPEC, lr=0.5),
        replace(SPEC, seed=3),
        replace(SPEC, table=load_table("ngpt"), multipliers={}),
        replace(SPEC, multipliers={"output": 2.0}),
        replace(SPEC, weight_decay=0.5),
        replace(SPEC, start=Start("weights", "0" * 16)),
        replace(SPEC, base=replace(BASE, rescaler_scale=0.5)),
    ]
    assert packable(alike)
    assert packable([])
    apart = [
        replace(SPEC, steps=25),
        replace(SPEC, batch=8, base=replace(BASE, extent=replace(BASE.extent, batch_tokens=128))),
        replace(SPEC, data="other"),
        replace(SPEC, schedule=Schedule("constant")),
        replace(SPEC, precision="bfloat16"),
        replace(SPEC, grad_clip=1.0),
        replace(SPEC, validations=3),
        replace(SPEC, val_windows=3),
        replace(SPEC, model=replace(MODEL, rope_theta=500.0)),
        replace(SPEC, table=replace(SPEC.table, betas=(0.8, 0.95))),
        replace(SPEC, start=Start("extend", "0" * 16, 3)),
        PRENORM,
    ]
    for other in apart:
        assert not packable([SPEC, other])


RECORD = RunRecord("0" * 16, "diverged", 3, 192, 1e6, 0.5, None, None, None, 3, resolved={"lr": 0.1})


def test_a_record_comes_back_from_json() -> None:
    done = replace(RECORD, status="done", val_loss=3.0, val_loss_ema=3.1, train_loss=3.2, diverged_at=None)
    for record in (RECORD, done):
        assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", "3"),
        ("steps", True),
        ("status", "fine"),
        ("status", 3),
        ("val_loss", "3"),
        ("hash", None),
        ("lerp", []),
    ],
)
def test_a_wrong_field_of_a_record_is_one_line(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name) as error:
        RunRecord.from_dict(RECORD.to_dict() | {name: value})
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="momentum"):
        RunRecord.from_dict(RECORD.to_dict() | {"momentum": 1})
    with pytest.raises(ValueError, match=name):
        RunRecord.from_dict({key: value for key, value in RECORD.to_dict().items() if key != name})


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("lr", [2**-7, 1.0, 3e-4, 1e300])
def test_another_learning_rate_and_seed_are_the_same_run_however_it_is_made(spec: RunSpec, lr: float) -> None:
    fresh = replace(spec)
    for _ in range(2):  # before and after its parts were worked out
        made = fresh.at(lr, 5)
        assert made == replace(spec, lr=lr, seed=5)
        assert made.hash == replace(spec, lr=lr, seed=5).hash
        assert made.at(spec.lr, spec.seed).hash == spec.hash == replace(fresh).hash


@pytest.mark.parametrize(
    ("lr", "seed", "word"),
    [(wrong, 1, "lr") for wrong in (0.0, -1.0, math.nan, math.inf, True, "1")]
    + [(0.5, wrong, "seed") for wrong in (-1, 2**63, 1.0, True, None)],
)
def test_a_learning_rate_or_seed_that_cannot_be_is_refused_there_too(lr: Any, seed: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SPEC.at(lr, seed)
