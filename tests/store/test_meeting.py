"""Where interrupted runs meet: at the newest step that all can go on from, if none loses more than a tenth."""

from __future__ import annotations

import pytest
from tests.sweep.small import make_spec

from nugpt.spec.run import Start
from nugpt.store.meeting import START, meetings


@pytest.mark.parametrize(
    ("saved", "met"),
    [
        ([[], []], [(START, (0, 1))]),
        ([[10, 20], [10, 20]], [(20, (0, 1))]),  # nothing happened between two saves: nothing is lost
        ([[20, 30], [10, 20]], [(20, (0, 1))]),  # killed between the saves of the first and the second
        ([[20, 30], [20, 30], [10, 20]], [(20, (0, 1, 2))]),
        ([[10], []], [(START, (0, 1))]),  # killed between their first saves
        ([[11], []], [(11, (0,)), (START, (1,))]),
        ([[20], []], [(20, (0,)), (START, (1,))]),  # to begin again would lose a fifth of the run
        ([[40, 50], [10, 20]], [(50, (0,)), (20, (1,))]),
        ([[20, 40], [10, 20]], [(40, (0,)), (20, (1,))]),
        ([[93, 97], [80, 97], [70, 80]], [(97, (0, 1)), (80, (2,))]),
        ([[10, 20], [30, 40], [20, 30]], [(30, (1, 2)), (20, (0,))]),
    ],
)
def test_runs_of_a_hundred_steps(saved: list[list[int]], met: list[tuple[int, tuple[int, ...]]]) -> None:
    specs = [make_spec(seed=i) for i in range(len(saved))]
    assert [(meeting.step, meeting.members) for meeting in meetings(specs, saved)] == met


def test_a_tenth_of_a_run_is_rounded_up() -> None:
    specs = [make_spec(seed=i, steps=105) for i in range(2)]
    assert [(meeting.step, meeting.members) for meeting in meetings(specs, [[9, 20], [9]])] == [(9, (0, 1))]
    assert [meeting.step for meeting in meetings(specs, [[8, 20], [8]])] == [20, 8]


def test_an_extended_run_begins_where_its_start_ends() -> None:
    specs = [make_spec(seed=i, start=Start("extend", "0" * 16, 40)) for i in range(2)]
    assert [meeting.step for meeting in meetings(specs, [[50], []])] == [START]
    assert [meeting.step for meeting in meetings(specs, [[60], []])] == [60, START]
