"""What a schedule's value refuses; its course is in tests/core/test_schedule.py."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nugpt.core.schedule import multiplier
from nugpt.spec import Schedule


@pytest.mark.parametrize("value", [True, "0.1", None, math.nan, math.inf, -0.1, 1.1])
@pytest.mark.parametrize("field", ["final", "decay"])
def test_a_share_is_a_number_and_no_truth_value(field: str, value: Any) -> None:
    with pytest.raises(ValueError) as refusal:
        Schedule(**{field: value})
    assert str(refusal.value).startswith(f"schedule's {field} is {value!r}, but must be a share")
    assert "\n" not in str(refusal.value)


def test_without_a_word_it_is_the_papers() -> None:
    assert Schedule() == Schedule("cosine", final=0.1, warmup=0)


def test_a_decay_takes_some_of_the_run_and_at_most_all_of_it() -> None:
    with pytest.raises(ValueError, match="schedule's decay is 0, but must be a share of the run above 0"):
        Schedule("wsd", decay=0)
    assert (Schedule("wsd", decay=1.0).decay, Schedule(final=0.0).final, Schedule(final=1.0).final) == (1.0, 0.0, 1.0)


def test_a_warm_up_leaves_a_step_for_the_peak() -> None:
    Schedule(warmup=11).check_reaches_peak(12)
    assert multiplier(Schedule(warmup=11), 11, 12) == 1
    with pytest.raises(ValueError, match="warmup is 12, but must be below the run's 12 steps"):
        Schedule(warmup=12).check_reaches_peak(12)


def test_a_number_that_changes_nothing_is_no_part_of_a_new_run() -> None:
    for fine in (Schedule("wsd", decay=0.5), Schedule("cosine", final=0.3), Schedule("constant")):
        fine.check_heeded()
    with pytest.raises(ValueError, match=r"decay is 0\.5, but only a schedule wsd has one: leave it out with 'cosine'"):
        Schedule("cosine", decay=0.5).check_heeded()
    with pytest.raises(ValueError, match=r"final is 0\.3, but a schedule 'constant' stays at its peak"):
        Schedule("constant", final=0.3).check_heeded()
