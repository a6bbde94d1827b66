"""The points of a learning-rate curve, and what its seeds say together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nugpt.fit.interval import Array

STATUSES = ("done", "diverged", "stopped")
# Relative spread of losses high up on the curve: runs near the cliff scatter more, and no simple shape holds there.
ROUGHNESS = 0.05
LARGEST = 1e9  # nats; a number beyond it is no loss, and its square would drown all others
_REFERENCE_NOISE = 0.01  # nats; only sets the height from which a point counts as being high up


@dataclass(frozen=True)
class Point:
    """One run of a sweep: where it lies, how it ended, and its loss if it has one."""

    log2_lr: float
    loss: float | None
    seed: int
    status: str = "done"

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status is {self.status!r}, but must be one of {', '.join(STATUSES)}")
        if not math.isfinite(self.log2_lr):
            raise ValueError(f"log2_lr is {self.log2_lr!r}, but must be a finite number")

    @property
    def trained(self) -> bool:
        """Whether the run ended with a loss; without a sensible number it has diverged, whatever its status."""
        return self.status == "done" and self.loss is not None and abs(self.loss) <= LARGEST


@dataclass(frozen=True)
class GridPoint:
    """One learning rate of a curve: the mean loss over seeds, freed of which seeds happen to be missing."""

    log2_lr: float
    loss: float
    seeds: int


@dataclass(frozen=True, eq=False)
class Levels:
    """A curve with its seeds taken together: loss = level of the learning rate + effect of the seed + noise."""

    x: Array  # log2 η, ascending
    mean: Array  # level at each, for the average seed
    count: Array  # seeds at each
    seeds: tuple[int, ...]
    seed_effects: Array
    squares: float  # sum of squared residuals of the two-way fit, points high up weighing less
    dof: float  # a point that weighs less counts less
    failed: tuple[float, ...]  # learning rates at which at least half of the seeds diverged or were stopped
    notes: tuple[str, ...] = ()
    paired: bool = True  # whether seeds link all learning rates; else what a seed does is part of the noise

    @property
    def height(self) -> Array:
        """Nats above the lowest level."""
        return self.mean - self.mean.min() if len(self.mean) else self.mean

    @property
    def best(self) -> GridPoint:
        """The learning rate with the lowest level."""
        i = int(np.argmin(self.mean))
        return GridPoint(float(self.x[i]), float(self.mean[i]), int(self.count[i]))


def _key(log2_lr: float) -> float:
    """Learning rates that differ by rounding alone are one."""
    return round(log2_lr, 6)


def levels(points: Sequence[Point]) -> Levels:
    """The two-way fit of a curve: seeds are paired, so what a seed does at every learning rate is taken out."""
    return _levels(tuple(points))


@lru_cache(maxsize=1024)  # noise, optimum, edge and comparison all start from it
def _levels(points: tuple[Point, ...]) -> Levels:
    runs: dict[tuple[float, int], list[float]] = defaultdict(list)
    ended: dict[float, list[bool]] = defaultdict(list)
    notes = []
    for point in points:
        ended[_key(point.log2_lr)].append(point.trained)
        if point.trained:
            runs[_key(point.log2_lr), point.seed].append(float(point.loss or 0.0))
    lost = sum(p.status == "done" and not p.trained for p in points)
    if lost:
        notes.append(f"{lost} done without a sensible loss: counted as diverged")
    if any(len(losses) > 1 for losses in runs.values()):
        notes.append("runs of the same learning rate and seed were averaged")
    failed = tuple(sorted(x for x, ok in ended.items() if 2 * sum(ok) <= len(ok)))
    kept = {key: float(np.mean(losses)) for key, losses in sorted(runs.items()) if key[0] not in failed}
    if any(not all(ok) and x not in failed for x, ok in ended.items()):
        notes.append("at some learning rates a minority of seeds failed: the others are fitted")
    return _two_way(kept, failed, tuple(notes))


def _two_way(losses: dict[tuple[float, int], float], failed: tuple[float, ...], notes: tuple[str, ...]) -> Levels:
    x = sorted({key[0] for key in losses})
    seeds = sorted({key[1] for key in losses})
    if not losses:
        nothing = np.zeros(0)
        return Levels(nothing, nothing, nothing, (), nothing, 0.0, 0.0, failed, notes)
    at = np.array([x.index(key[0]) for key in losses])
    of = np.array([seeds.index(key[1]) for key in losses])
    y = np.array(list(losses.values()))
    one, seed_of = np.eye(len(x))[at], np.eye(len(seeds))[of]
    # Where learning rates fall into parts without a common seed, nothing tells a part's levels from its seeds' effects.
    paired = int(np.linalg.matrix_rank(np.hstack([one, seed_of]))) == len(x) + len(seeds) - 1
    if not paired:
        seed_of = np.zeros_like(seed_of)
        notes += ("seeds do not link all learning rates: what a seed does counts as noise",)
    # The effects of the seeds sum to nothing, so that a level is that of the average seed.
    anchor = np.concatenate([np.zeros(len(x)), np.ones(len(seeds))])[None]
    weight = np.ones(len(y))
    fitted = np.zeros(len(x) + len(seeds))
    for _ in range(2):  # the first fit shows which points are high up, the second weighs them less
        design = np.hstack([one, seed_of]) * np.sqrt(weight)[:, None]
        fitted = np.linalg.lstsq(np.vstack([design, anchor]), np.append(y * np.sqrt(weight), 0.0), rcond=None)[0]
        height = fitted[: len(x)] - fitted[: len(x)].min()
        used, weight = weight, 1 / (1 + (ROUGHNESS * height[at] / _REFERENCE_NOISE) ** 2)
    rest = y - fitted[at] - fitted[len(x) + of]
    free = len(y) - int(np.linalg.matrix_rank(design))
    return Levels(
        x=np.array(x),
        mean=fitted[: len(x)],
        count=np.bincount(at, minlength=len(x)).astype(np.float64),
        seeds=tuple(seeds),
        seed_effects=fitted[len(x) :],
        squares=float(used @ rest**2) if free else 0.0,
        dof=free * float(used.mean()),
        failed=failed,
        notes=notes,
        paired=paired,
    )
