"""Groups of curves against each other: who is better at its best, at every size that both have."""

from __future__ import annotations

from dataclasses import dataclass

from nugpt.fit.comparison import Difference, compare
from nugpt.fit.curves import Answers, CurveAnswer
from nugpt.fit.measured import words

MOST_GROUPS = 6  # beyond that, groups are settings that were swept over, and a study's rules say what to compare


@dataclass(frozen=True)
class GroupDifference:
    """Best loss of one group less that of another at one size."""

    first: str
    second: str
    where: str  # the size in words; empty where there is only one
    difference: Difference


def group_differences(answers: Answers) -> tuple[GroupDifference, ...]:
    """Every group against the first; nothing where they are too many to be alternatives, or none has a best."""
    groups: dict[str, dict[tuple[tuple[str, float], ...], CurveAnswer]] = {}
    for one in answers.curves:
        groups.setdefault(one.curve.group, {})[tuple(one.curve.sizes.items())] = one
    if not 2 <= len(groups) <= MOST_GROUPS:
        return ()
    base, *rest = groups
    pairs = [
        (groups[other][size], groups[base][size], size)
        for other in rest
        for size in groups[other]
        if size in groups[base]
    ]
    values: dict[str, set[float]] = {}
    for axis, value in (entry for *_, size in pairs for entry in size):
        values.setdefault(axis, set()).add(value)
    found = compare([(a.curve.points, b.curve.points) for a, b, _ in pairs], answers.level, answers.noise)
    if all(one.nats is None for one in found):
        return ()
    return tuple(
        GroupDifference(
            answers.names[a.curve.group],
            answers.names[b.curve.group],
            words({axis: value for axis, value in size if len(values[axis]) > 1}),
            difference,
        )
        for (a, b, size), difference in zip(pairs, found, strict=True)
    )
