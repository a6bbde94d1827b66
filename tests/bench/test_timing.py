"""Timing of steps on a device that runs behind Python, acted by a clock of ours."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from nugpt.bench.timing import lead, timed_in_a_row
from nugpt.engines.lab.device import STEPS_AHEAD

CUDA = torch.device("cuda")


class Chip:
    """A queue of work, each piece with its milliseconds; Python's clock goes on while it launches, and waits."""

    def __init__(self, launch_ms: float) -> None:
        self.launch_ms, self.python, self.done, self.queued, self.most = launch_ms, 0.0, 0.0, [], 0

    def step(self, ms: float) -> None:
        self.python += self.launch_ms
        self.done = max(self.done, self.python) + ms  # it begins when launched, and when what is before it has ended
        self.queued.append(self.done)
        self.most = max(self.most, sum(end > self.python for end in self.queued))

    def event(self, **_: Any) -> Any:
        chip = self

        class Event:
            at = 0.0

            def record(self, stream: object) -> None:
                self.at = max(chip.done, chip.python)

            def synchronize(self) -> None:
                chip.python = max(chip.python, self.at)

            def elapsed_time(self, later: Event) -> float:
                return later.at - self.at

        return Event()


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def act(launch_ms: float) -> Chip:
        chip = Chip(launch_ms)
        monkeypatch.setattr(torch.cuda, "Event", chip.event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        return chip

    return act


def test_launches_that_the_steps_before_hide_are_not_counted(acted: Any) -> None:
    chip = acted(launch_ms=2.0)
    times = iter([50.0] * lead(CUDA) + [5.0, 3.0, 4.0])
    found = timed_in_a_row(lambda: chip.step(next(times)), CUDA, 3)
    assert found.taken == pytest.approx((5.0, 3.0, 4.0))
    assert found.median == pytest.approx(4.0)
    assert chip.most == STEPS_AHEAD + 1  # one is launched, then the one so many before it is waited for


def test_where_python_is_the_slower_its_time_counts(acted: Any) -> None:
    chip = acted(launch_ms=7.0)
    found = timed_in_a_row(lambda: chip.step(3.0), CUDA, 4)
    assert found.taken == pytest.approx([7.0] * 4)


def test_a_cpu_times_each_step_by_itself() -> None:
    calls: list[int] = []
    found = timed_in_a_row(lambda: calls.append(1), torch.device("cpu"), 3)
    assert len(found.taken) == 3
    assert len(calls) == 3 + lead(torch.device("cpu"))


@pytest.mark.gpu
def test_steps_in_a_row_take_as_long_as_the_wall_clock_says() -> None:
    a, runs = torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16), 40
    timed_in_a_row(lambda: a @ a, CUDA, 5)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = timed_in_a_row(lambda: a @ a, CUDA, runs)
    wall = 1e3 * (time.perf_counter() - begun)
    # By the wall clock there are also the steps before those that count, and the first launch.
    assert sum(found.taken) / runs == pytest.approx(wall / (runs + lead(CUDA)), rel=0.1)
