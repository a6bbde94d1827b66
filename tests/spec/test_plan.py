"""Plans as values: grids, names, round trips, and one line for what is wrong with one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sweep.small import make_plan, make_spec

from nugpt.spec.plan import Curve, Plan, Policy, StopRule, lr_at

CURVE = Curve({"heads": 2}, make_spec(), (-6, -7.5, -5), (0, 3))


@given(st.floats(-60, 60))
def test_a_learning_rate_is_the_power_of_two_to_twelve_digits(log2_lr: float) -> None:
    lr = lr_at(log2_lr)
    assert math.isclose(lr, 2.0**log2_lr, rel_tol=1e-11)
    assert float(f"{lr:.12g}") == lr  # nothing beyond the twelfth digit, where platforms may differ


@given(st.integers(-39, 39))
def test_whole_octaves_are_exact_where_twelve_digits_say_so(k: int) -> None:
    exact = Fraction(2) ** k
    if Fraction(f"{float(exact):.12g}") == exact:
        assert Fraction(lr_at(float(k))) == exact


@pytest.mark.parametrize("log2_lr", [math.nan, math.inf, -math.inf, 61.0, -1e3])
def test_a_power_beyond_all_sense_is_refused(log2_lr: float) -> None:
    with pytest.raises(ValueError, match="log2 of a learning rate"):
        lr_at(log2_lr)


def test_a_curve_is_called_by_its_run_at_a_rate_of_one() -> None:
    assert CURVE.key == CURVE.run(0.0, 0).hash  # additions that are stored name it so
    assert CURVE.key != replace(CURVE, spec=make_spec(steps=101)).key


def test_what_a_plan_leaves_out_is_filled_in() -> None:
    assert Plan("plan", (CURVE,)).to_dict()["policy"] == {"extend": 4, "spacing": 0.5, "refine": (), "stop": None}
    assert Plan("plan", (CURVE,)).to_dict()["format"] == 1  # which plans that were stored have
    assert CURVE.fine == 2


def test_points_are_at_most_four_octaves_apart() -> None:
    assert (Policy(spacing=4).spacing, Policy(refine=(4.0, 0.5)).refine) == (4, (4.0, 0.5))
    for policy in ({"spacing": 4.01}, {"spacing": 0}, {"refine": (0.5, 4.01)}):
        with pytest.raises(ValueError, match="but must be above 0 and at most 4"):
            Policy(**policy)  # type: ignore[arg-type]


def test_a_curve_is_every_learning_rate_with_every_seed() -> None:
    assert CURVE.log2_lrs == (-7.5, -6.0, -5.0)
    runs = CURVE.runs()
    assert list(runs) == [(x, seed) for x in (-7.5, -6.0, -5.0) for seed in (0, 3)]
    for (x, seed), spec in runs.items():
        assert (spec.lr, spec.seed) == (lr_at(x), seed)
        assert replace(spec, lr=CURVE.spec.lr, seed=CURVE.spec.seed) == CURVE.spec
    assert list(CURVE.runs([1.0])) == [(1.0, 0), (1.0, 3)]
    assert len({spec.hash for spec in runs.values()}) == 6


def test_whole_numbers_of_numpy_make_the_same_plan() -> None:
    policy = Policy(extend=2, stop=StopRule(times=3))
    ours = Plan("p", (Curve({"heads": 2}, make_spec(), (-7.0, -6.0), (0, 1), fine=3),), policy)
    theirs = Curve({"heads": np.int64(2)}, make_spec(), np.arange(-7, -5), np.arange(2), np.int64(3))  # type: ignore[arg-type, dict-item]
    numbers = {"extend": np.int64(2), "stop": StopRule(times=np.int64(3))}  # type: ignore[arg-type]
    found = Plan("p", (theirs,), Policy(**numbers))  # type: ignore[arg-type]
    assert json.dumps(found.to_dict()) == json.dumps(ours.to_dict())
    assert found.hash == ours.hash


def test_a_curve_is_known_by_what_its_runs_share() -> None:
    other_grid = Curve({"other": "label"}, replace(CURVE.spec, lr=0.5, seed=9), (-1,), (7,))
    assert other_grid.key == CURVE.key
    assert replace(CURVE, spec=make_spec(steps=7)).key != CURVE.key


@pytest.mark.parametrize("change", [{"log2_lrs": ()}, {"log2_lrs": (-6, -6.0)}, {"seeds": ()}, {"seeds": (1, 1)}])
def test_a_grid_that_is_empty_or_names_a_value_twice_is_refused(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} of curve {{'heads': 2}}"):
        replace(CURVE, **change)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Policy(extend=-1), "extend is -1"),
        (lambda: Policy(extend=1.5), "extend is 1.5"),  # type: ignore[arg-type]
        (lambda: Policy(spacing=0), "spacing is 0 octaves"),
        (lambda: Policy(refine=(0.25, -0.5)), "refine is -0.5 octaves"),
        (lambda: Policy(refine=(8.0,)), "refine is 8.0 octaves"),
        (lambda: StopRule(after=0.0), "0 < after < 1"),
        (lambda: StopRule(after=1.0), "0 < after < 1"),
        (lambda: StopRule(margin=0.0), "margin > 0"),
        (lambda: StopRule(margin=math.nan), "margin > 0"),
        (lambda: StopRule(times=0), "times of at least 1"),
        (lambda: make_plan(name=""), "plan name ''"),
        (lambda: make_plan(name="../up"), "plan name '../up'"),
        (lambda: make_plan(name="a/b"), "plan name 'a/b'"),
        (lambda: make_plan(name=".hidden"), "plan name '.hidden'"),
        (lambda: make_plan(name="x" * 101), "at most 100"),
        (lambda: make_plan(name="a\n"), "plan name"),
        (lambda: Plan("p", (CURVE, replace(CURVE, log2_lrs=(-1,)))), "twice"),
    ],
)
def test_what_cannot_be_meant_is_one_line_that_names_it(make: Any, word: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert word in str(error.value)
    assert "\n" not in str(error.value)


PLANS = [
    make_plan(),
    Plan(
        "two-1.5_x",
        (CURVE, Curve({"table": "ngpt", "share": 0.5}, make_spec(steps=20, weight_decay=0.1), (-3,), (5,))),
        Policy(3, 0.25, (0.5, 0.25), StopRule(0.5, 1.0, 3)),
        "width-fixed-steps",
        "tiny",
    ),
]


@pytest.mark.parametrize("plan", PLANS, ids=["small", "large"])
def test_a_plan_comes_back_from_json(plan: Plan) -> None:
    back = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert back == plan
    assert back.hash == plan.hash
    assert [spec.hash for spec in back.specs()] == [spec.hash for spec in plan.specs()]


def test_the_hash_changes_with_everything_that_a_plan_says() -> None:
    first = PLANS[1]
    others = [
        replace(first, name="other"),
        replace(first, curves=first.curves[:1]),
        replace(first, curves=(replace(CURVE, seeds=(0,)), first.curves[1])),
        replace(first, curves=(replace(CURVE, log2_lrs=(-6,)), first.curves[1])),
        replace(first, curves=(replace(CURVE, label={"heads": 3}), first.curves[1])),
        replace(first, policy=replace(first.policy, extend=2)),
        replace(first, policy=replace(first.policy, stop=None)),
        replace(first, policy=replace(first.policy, refine=())),
        replace(first, study=None),
        replace(first, scale="lab"),
    ]
    assert len({plan.hash for plan in [first, *others]}) == len(others) + 1


def spoiled() -> list[tuple[Any, str]]:
    whole = json.loads(json.dumps(PLANS[1].to_dict()))
    curve = whole["curves"][0]
    cases: list[tuple[Any, str]] = [
        (whole | {"format": 2}, "format 2"),
        (whole | {"format": None}, "format None"),
        ([], "form"),
        ("plan", "form"),
        (None, "form"),
        ({key: value for key, value in whole.items() if key != "curves"}, "curves"),
        (whole | {"policy": None}, "form"),
        (whole | {"policy": whole["policy"] | {"unknown": 1}}, "unknown"),
        (whole | {"policy": whole["policy"] | {"extend": "4"}}, "extend is '4'"),
        (whole | {"policy": whole["policy"] | {"stop": [1]}}, "form"),
        (whole | {"policy": whole["policy"] | {"stop": {"after": "x"}}}, "form"),
        (whole | {"curves": [3]}, "form"),
        (whole | {"curves": [curve | {"spec": "text"}]}, "form"),
        (whole | {"curves": [curve | {"spec": curve["spec"] | {"steps": "many"}}]}, "steps is 'many'"),
        (whole | {"curves": [curve | {"spec": curve["spec"] | {"format": 9}}]}, "format 9"),
        (whole | {"curves": [curve | {"log2_lrs": 3}]}, "form"),
        (whole | {"curves": [curve | {"log2_lrs": ["a"]}]}, "'a'"),
        (whole | {"name": 3}, "form"),
        (whole | {"colour": 3}, "unknown field 'colour'"),
        (whole | {"curves": [curve | {"colour": 3}]}, "unknown field 'colour'"),
    ]
    return cases


@pytest.mark.parametrize(("values", "word"), spoiled())
def test_a_spoiled_plan_is_one_line(values: Any, word: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan.from_dict(values)
    assert word in str(error.value)
    assert "\n" not in str(error.value)
