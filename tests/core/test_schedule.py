"""The learning rate's course."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nugpt.core.schedule import multiplier
from nugpt.spec import Schedule
from nugpt.spec.schedule import KINDS


def course(schedule: Schedule, steps: int) -> list[float]:
    return [multiplier(schedule, step, steps) for step in range(steps)]


@pytest.mark.parametrize("steps", [2, 3, 7, 100, 101, 9_750])
def test_cosine_starts_at_one_and_ends_at_exactly_a_tenth(steps: int) -> None:
    values = course(Schedule(), steps)
    assert values[0] == 1.0
    assert values[-1] == 0.1
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == steps


def test_cosine_by_hand() -> None:
    # 0.1 + 0.45·(1 + cos θ) at θ = 0, π/3, π/2, 2π/3, π
    values = [multiplier(Schedule(), step, 13) for step in (0, 4, 6, 8, 12)]
    assert values == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1], abs=1e-15)


def test_linear_by_hand() -> None:
    assert course(Schedule("linear"), 4) == pytest.approx([1.0, 0.7, 0.4, 0.1], abs=1e-15)
    assert course(Schedule("linear", final=0.0), 5) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0], abs=1e-15)


def test_constant_stays() -> None:
    assert set(course(Schedule("constant"), 10)) == {1.0}


def test_warm_up_stable_decay_by_hand() -> None:
    # 11 steps: after 0.6 of the way, step 6, straight down to 0.1 at step 10
    values = course(Schedule("wsd", decay=0.4), 11)
    assert values[:7] == pytest.approx([1.0] * 7, abs=1e-15)
    assert values[7:] == pytest.approx([0.775, 0.55, 0.325, 0.1], abs=1e-14)
    assert course(Schedule("wsd", decay=1.0), 9) == pytest.approx(course(Schedule("linear"), 9), abs=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_evenly_to_the_peak(kind: str) -> None:
    values = course(Schedule(kind, warmup=3), 20)
    assert values[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=1e-15)
    # what follows is the course of a run that much shorter
    assert values[3:] == course(Schedule(kind), 17)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_step_is_taken_at_the_peak(kind: str) -> None:
    assert course(Schedule(kind), 1) == [1.0]


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.integers(1, 60), st.integers(0, 70), st.floats(0, 1, allow_subnormal=False), st.floats(0.01, 1, exclude_min=True)
)
def test_any_course(kind: str, steps: int, warmup: int, final: float, decay: float) -> None:
    values = course(Schedule(kind, final, warmup, decay), steps)
    assert all(0 <= value <= 1 for value in values)
    rise, fall = values[:warmup], values[warmup:]
    assert all(a < b for a, b in pairwise(rise))
    assert all(a >= b for a, b in pairwise(fall))
    if fall:
        assert fall[0] == 1.0
    if len(fall) > 1:
        assert fall[-1] == (1.0 if kind == "constant" else final)


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_a_step_outside_the_run_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=rf"step is {step}, but must be from 0 to 9"):
        multiplier(Schedule(), step, 10)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "cosin"}, "'cosin'"),
        ({"final": 1.5}, "1.5"),
        ({"final": -0.1}, "-0.1"),
        ({"final": math.nan}, "nan"),
        ({"warmup": -1}, "-1"),
        ({"warmup": 2.5}, "2.5"),
        ({"warmup": True}, "True"),
        ({"decay": 0.0}, "0.0"),
        ({"decay": 1.1}, "1.1"),
        ({"decay": math.nan}, "nan"),
    ],
)
def test_a_wrong_schedule_is_refused_in_one_line(fields: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named) as refusal:
        Schedule(**fields)  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)
