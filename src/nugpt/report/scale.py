"""Which stretch of the loss a picture shows, and what lies beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nugpt.report.answers import Picture

MOST = 0.8  # nats above the highest best: the cliff's foot is to be seen, not its height
FLATTER = 1.7  # times taller than the tallest picture: from there on each gets its own
ROOM = 0.06  # share of the stretch left free below, and above for what is off the scale


@dataclass(frozen=True)
class Stretch:
    """From low to high; runs above `top` (and failed ones) are drawn at `mark`."""

    low: float
    top: float
    high: float

    @property
    def mark(self) -> float:
        """Where a run without a loss, or with one off the scale, is marked."""
        return (self.top + self.high) / 2


def stretches(pictures: Sequence[Picture]) -> list[Stretch]:
    """One stretch for all pictures of a plan, so that they can be compared, unless that would flatten each of them."""
    together = _stretch(pictures)
    apart = [_stretch([picture]) for picture in pictures]
    tallest = max((one.high - one.low for one in apart), default=0.0)
    return [together] * len(apart) if together.high - together.low <= FLATTER * tallest else apart


def _stretch(pictures: Sequence[Picture]) -> Stretch:
    curves = [[y for _, y in series.means] for picture in pictures for series in picture.series if series.means]
    if not curves:
        return Stretch(0.0, 1.0, 1.1)
    lowest, reach = min(map(min, curves)), max(map(min, curves)) + MOST
    top = max((y for curve in curves for y in curve if y <= reach), default=reach)
    runs = [
        run.loss
        for picture in pictures
        for series in picture.series
        for run in series.runs.runs
        if run.trained and run.loss is not None
    ]
    lowest = min(lowest, *runs)
    top = max([top, *(loss for loss in runs if loss <= reach)])
    room = max(top - lowest, 0.02)
    return Stretch(lowest - ROOM * room, top + 0.02 * room, top + 2.5 * ROOM * room)
