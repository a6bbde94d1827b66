"""Where interrupted runs can go on together: replicas of one ensemble must stand at one step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nugpt.spec.run import RunSpec

REACH = 0.1  # of a run: what it may lose so as to meet others, as much as lies between two checkpoints by default


@dataclass(frozen=True)
class Meeting:
    """Runs, by their places in what was asked, that go on together."""

    step: int  # START: from where their specs begin
    members: tuple[int, ...]


START = -1  # the step of a run that has no checkpoint


def meetings(specs: Sequence[RunSpec], saved: Sequence[Collection[int]]) -> list[Meeting]:
    """Groups of runs at a step that all members have a checkpoint of, the furthest first.

    A process that dies between the checkpoints of two replicas leaves an ensemble at two steps. Kept apart its parts
    would cost a program each to their end; going back to the newest step they share costs one interval.
    """
    left = dict(enumerate(_reachable(spec, steps) for spec, steps in zip(specs, saved, strict=True)))
    made: list[Meeting] = []
    while left:
        steps = {step for reachable in left.values() for step in reachable}
        # Where the most meet; of those the furthest, so that an ensemble that was not split loses nothing.
        step = max(steps, key=lambda step: (sum(step in reachable for reachable in left.values()), step))
        members = tuple(i for i, reachable in left.items() if step in reachable)
        made.append(Meeting(step, members))
        left = {i: reachable for i, reachable in left.items() if i not in members}
    return sorted(made, key=lambda meeting: meeting.step, reverse=True)


def _reachable(spec: RunSpec, saved: Collection[int]) -> set[int]:
    """The steps that a run can go on from without losing more than its reach."""
    if not saved:
        return {START}
    newest, reach = max(saved), math.ceil(REACH * spec.steps)
    begins = spec.start.step if spec.start is not None else 0
    return {step for step in saved if newest - step <= reach} | ({START} if newest - begins <= reach else set())
