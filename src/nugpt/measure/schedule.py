"""When to measure, and on how many tokens: log-spaced steps, and a cost that stays a small share of training."""

from __future__ import annotations

from typing import NamedTuple

# The share of training's time that measuring may take, by count: two passes and three products per matrix against three
# passes of a training step. The estimate is rough, so half of the 5 % that are allowed.
SHARE = 0.025
PASSES_PER_MEASUREMENT, PASSES_PER_STEP = 5, 3
MOST_POINTS, FEWEST_POINTS = 30, 4
MOST_WINDOWS, MOST_TOKENS = 16, 8192
# Where training is in bfloat16, on a GPU: float32 products take some ten times as long there. And however small the
# model, the thousand small operations of a measurement take as long as a few of its steps, though both are graphs: at
# three steps a point that is SHARE. Launched one by one they take the time of thirty.
FLOAT32_SLOWER = 10
STEPS_PER_POINT = 120


class Sampling(NamedTuple):
    """How many measurements a run takes, and on how many validation windows."""

    points: int
    windows: int


def default_sampling(steps: int, batch: int, seq_len: int, precision: str = "float32") -> Sampling:
    """As many points as the share allows, then as many windows; a short run is measured less often."""
    affordable = SHARE * PASSES_PER_STEP / PASSES_PER_MEASUREMENT * steps * batch  # windows, over all points
    most_points = MOST_POINTS
    if precision == "bfloat16":
        affordable /= FLOAT32_SLOWER
        most_points = min(MOST_POINTS, steps // STEPS_PER_POINT)
    points = max(FEWEST_POINTS, min(most_points, int(affordable)))
    most = max(1, min(MOST_WINDOWS, MOST_TOKENS // seq_len))
    return Sampling(points, max(1, min(most, int(affordable / points))))


def measured_steps(steps: int, points: int) -> tuple[int, ...]:
    """At most so many steps, log-spaced from the first to the last."""
    if points < 1:
        raise ValueError(f"points is {points!r}, but must be a whole number of at least 1")
    if points == 1:
        return (steps,)
    return tuple(sorted({round(steps ** (k / (points - 1))) for k in range(points)}))
