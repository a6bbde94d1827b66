"""Groups against each other: planted differences, and where there is nothing to compare."""

from __future__ import annotations

import pytest
from tests.cli.test_fit import planted_points

from nugpt.fit.curves import Answers, Measured, answer
from nugpt.fit.groups import MOST_GROUPS, group_differences
from nugpt.fit.points import Point


def answers(groups: dict[str, tuple[float, tuple[float, ...]]]) -> Answers:
    """Curves of each group, whose best loss and sizes are given."""
    return answer(
        [
            Measured({"of": name, "size": size}, name, {"size": size}, tuple(planted_points(-7.0, i, best)))
            for name, (best, sizes) in groups.items()
            for i, size in enumerate(sizes)
        ]
    )


def test_a_planted_difference_is_found_at_every_size_that_both_have() -> None:
    found = group_differences(answers({"a": (3.0, (1.0, 2.0, 4.0)), "b": (2.9, (2.0, 4.0, 8.0))}))
    assert [(one.first, one.second, one.where) for one in found] == [("b", "a", "size=2"), ("b", "a", "size=4")]
    for one in found:
        assert one.difference.interval.contains(-0.1)
        assert one.difference.interval.high < 0
        assert one.difference.seeds == 3


def test_every_group_is_compared_with_the_first() -> None:
    found = group_differences(answers({"a": (3.0, (1.0,)), "b": (2.9, (1.0,)), "c": (3.2, (1.0,))}))
    assert [(one.first, one.second, one.where) for one in found] == [("b", "a", ""), ("c", "a", "")]
    assert found[1].difference.nats == pytest.approx(0.2, abs=0.01)  # five times the planted noise


def test_where_there_is_nothing_to_compare() -> None:
    assert group_differences(answers({"a": (3.0, (1.0, 2.0))})) == ()
    assert group_differences(answers({"a": (3.0, (1.0,)), "b": (3.0, (2.0,))})) == ()
    assert group_differences(answers({f"g{i}": (3.0, (1.0,)) for i in range(MOST_GROUPS + 1)})) == ()
    single = [Measured({"of": name}, name, {}, (Point(-7.0, 3.0, 0),)) for name in "ab"]
    assert group_differences(answer(single)) == ()
