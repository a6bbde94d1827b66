"""The best learning rate of a curve, with its error: never a bare argmin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.curve import MIRRORED, QUICK, Effort, Shapes, shapes, windows
from nugpt.fit.interval import Array, Interval, central, check_level
from nugpt.fit.noise import NoiseModel, noise_of
from nugpt.fit.points import GridPoint, Levels, Point, levels

VERDICTS = ("enclosed", "edge-censored", "flat")
# Octaves by which one seed's optimum is taken to lie off the average seed's, before any second seed shows it.
ONE_SEED = 0.08
ONE_SEED_LOSS = 0.02  # nats, the same of its loss
FLAT_LEVEL = 0.05  # a curve is flat when equality of its levels is not rejected at this level


@dataclass(frozen=True)
class Optimum:
    """Where a curve has its minimum, how sure that is, and what the loss is there."""

    verdict: str  # enclosed, edge-censored or flat
    side: str | None  # edge-censored: where the grid should go on; none when a single point tells neither
    log2_lr: float | None  # none unless enclosed
    interval: Interval  # of log2 η*; an end at infinity is not bounded by the data
    deviation: float | None  # standard deviation of log2 η*; none unless enclosed
    loss: float | None  # expected loss at the optimum
    loss_interval: Interval | None
    best_point: GridPoint | None  # lowest mean on the grid, to show; not an estimate
    window: Interval | None  # learning rates that were fitted
    level: float
    notes: tuple[str, ...] = ()
    shapes: Shapes | None = field(default=None, repr=False, compare=False)  # draws of the curve, for regret and more
    seeds: int = 2
    refined: bool = False  # whether points were added where the first ones fell

    @property
    def independent(self) -> bool:
        """Whether its error is its own.

        That of a shape, alike at all sizes, prevails only over several seeds and the same learning rates.
        """
        return self.seeds < 2 or self.refined

    @property
    def reached(self) -> float | None:
        """The loss at the optimum, or the lowest mean on the grid where the optimum is not enclosed."""
        if self.loss is not None or self.best_point is None:
            return self.loss
        return self.best_point.loss


def optimum(
    points: Sequence[Point],
    level: float = 0.90,
    pooled: NoiseModel | None = None,
    cliff: str = "right",
    effort: Effort = QUICK,
) -> Optimum:
    """The optimum of one curve; `pooled` is the noise of the study's curves, this one included.

    A learning rate's cliff is mostly on the right; a multiplier's may be on `either` side. Where a sweep goes on needs
    no more than QUICK; what verdicts are read from is FINE.
    """
    check_level(level)
    if cliff not in MIRRORED:
        raise ValueError(f"cliff is {cliff!r}, but must be one of {', '.join(MIRRORED)}")
    if not points:
        raise ValueError("points is empty, but must hold at least one run")
    return _optimum(tuple(points), level, pooled, cliff, effort)


# Comparisons ask for curves that were fitted before, and a live table every second, when mostly nothing has changed.
@lru_cache(maxsize=512)
def _optimum(points: tuple[Point, ...], level: float, pooled: NoiseModel | None, cliff: str, effort: Effort) -> Optimum:
    curve = levels(points)
    if not len(curve.x):
        return _nothing_trained(points, level, curve.notes)
    noise = noise_of(curve, pooled)
    drawn = shapes(curve, noise, cliff, effort)
    if len(curve.seeds) == 1:
        drawn = _moved_by_seed(drawn)
    best = curve.best
    left, right = _open_sides(curve, drawn, level)
    verdict = "enclosed"
    if left or right:
        verdict = "flat" if _is_flat(curve, noise) else "edge-censored"
    enclosed = verdict == "enclosed"
    fitted = curve.x[windows(curve)[-1]]
    loss, loss_interval, loss_notes = _loss(curve, drawn, noise, level)
    return Optimum(
        verdict=verdict,
        side=_side(curve, drawn, left, right) if verdict == "edge-censored" else None,
        log2_lr=float(np.median(drawn.x)) if enclosed else None,
        interval=_interval(drawn, left, right, level),
        deviation=_deviation(drawn.x) if enclosed else None,
        loss=loss if enclosed else None,
        loss_interval=loss_interval if enclosed else None,
        best_point=best,
        window=Interval(float(fitted[0]), float(fitted[-1])),
        level=level,
        notes=curve.notes + (loss_notes if enclosed else ()) + _noise_notes(curve, pooled, noise),
        shapes=drawn,
        seeds=len(curve.seeds),
        refined=not _even({point.log2_lr for point in points}),
    )


def _even(log2_lrs: Iterable[float]) -> bool:
    """Whether steps are about alike, as in a grid that no result has had a say in."""
    steps = np.diff(sorted(log2_lrs))
    return not len(steps) or bool(steps.max() < 1.5 * steps.min())


def _deviation(draws: Array) -> float:
    """Of the normal distribution with the same central 90 %: a few far draws do not count for more than they are."""
    return central(draws, 0.90).width / (2 * float(special.ndtri(0.95)))


def _nothing_trained(points: Sequence[Point], level: float, notes: tuple[str, ...]) -> Optimum:
    """No learning rate trained: if there is an optimum, it lies below all of them."""
    lowest = min(point.log2_lr for point in points)
    return Optimum(
        verdict="edge-censored",
        side="left",
        log2_lr=None,
        interval=Interval(-math.inf, lowest),
        deviation=None,
        loss=None,
        loss_interval=None,
        best_point=None,
        window=None,
        level=level,
        notes=(*notes, "no learning rate trained"),
    )


def _open_sides(curve: Levels, drawn: Shapes, level: float) -> tuple[bool, bool]:
    """On which sides the optimum may lie beyond what was tried, as far as the points can tell."""
    best = curve.best.log2_lr
    below, above = _beyond(curve, drawn)
    tail = (1 - level) / 2
    left = best == curve.x[0] or below > tail
    right = best == curve.x[-1] or above > tail
    # A learning rate that fails encloses: the optimum lies on this side of it.
    return left and not math.isfinite(drawn.failed.low), right and not math.isfinite(drawn.failed.high)


def _beyond(curve: Levels, drawn: Shapes) -> tuple[float, float]:
    """The shares of the draws to the left and to the right of all learning rates that trained."""
    return float(np.mean(drawn.x < curve.x[0])), float(np.mean(drawn.x > curve.x[-1]))


def _side(curve: Levels, drawn: Shapes, left: bool, right: bool) -> str | None:
    """Where the grid should go on: where the best point is its last, or else where more of the draws lie beyond it."""
    if not (left and right):
        return "left" if left else "right"
    best = curve.best.log2_lr
    if curve.x[0] == curve.x[-1]:
        return None
    if best in (curve.x[0], curve.x[-1]):
        return "left" if best == curve.x[0] else "right"
    below, above = _beyond(curve, drawn)
    return "left" if below > above else "right"


def _interval(drawn: Shapes, left: bool, right: bool, level: float) -> Interval:
    """Two-sided where both sides are closed, one-sided at the same level where one is open."""
    if left and right:
        return Interval(-math.inf, math.inf)
    if left:
        return Interval(-math.inf, float(np.quantile(drawn.x, level)))
    if right:
        return Interval(float(np.quantile(drawn.x, 1 - level)), math.inf)
    return central(drawn.x, level)


def _is_flat(curve: Levels, noise: NoiseModel) -> bool:
    """Whether the levels of the window differ by no more than noise (F test)."""
    mask = windows(curve)[-1]
    mean, count = curve.mean[mask], curve.count[mask]
    if len(mean) < 2:
        return False
    between = float(np.sum(count * (mean - np.average(mean, weights=count)) ** 2)) / (len(mean) - 1)
    return bool(special.fdtrc(len(mean) - 1, noise.dof, between / noise.variance) > FLAT_LEVEL)


def _loss(curve: Levels, drawn: Shapes, noise: NoiseModel, level: float) -> tuple[float, Interval, tuple[str, ...]]:
    """The expected loss over seeds at the optimum: the draws' spread, widened by that of the seeds."""
    if curve.paired and not noise.seed_dof:
        note = f"the loss is that of one seed, and another's is taken to differ by {ONE_SEED_LOSS:g} nats (deviation)"
        others = ONE_SEED_LOSS * np.random.default_rng(11).standard_normal(len(drawn.loss))
        return float(np.median(drawn.loss)), central(drawn.loss + others, level), (note,)
    # Seeds that are not paired are part of the noise, which runs of one seed then have in common.
    variance, dof = (noise.seed_variance, noise.seed_dof) if curve.paired else (noise.variance, noise.dof)
    error = math.sqrt(variance / len(curve.seeds))
    places = (np.arange(len(drawn.loss)) + 0.5) / len(drawn.loss)
    seeds = error * special.stdtrit(dof, np.random.default_rng(11).permutation(places))
    return float(np.median(drawn.loss)), central(drawn.loss + seeds, level), ()


def _noise_notes(curve: Levels, pooled: NoiseModel | None, noise: NoiseModel) -> tuple[str, ...]:
    """What the interval rests on where no seed was repeated."""
    if len(curve.seeds) > 1:
        return ()
    moves = f"one seed: its optimum is taken to be off by {ONE_SEED:g} octaves (deviation)"
    if pooled is not None and pooled.seed_dof:
        return (f"{moves}, the noise as at the study's other curves",)
    source = "by the roughness of the curves and a prior" if pooled is not None and pooled.dof else "by a prior alone"
    return (f"{moves}, its noise to be {noise.deviation:.2g} nats {source}",)


def _moved_by_seed(drawn: Shapes) -> Shapes:
    """The same draws, each off by as much as one seed's optimum may be; failures stay where they are."""
    moved = drawn.x + ONE_SEED * np.random.default_rng(19).standard_normal(len(drawn.x))
    return replace(drawn, x=np.clip(moved, *drawn.failed))
