"""Two tables or architectures at their best: paired over seeds, at equal sizes, FLOPs or time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nugpt.fit.curve import FINE
from nugpt.fit.interval import Array, Interval, central, check_level
from nugpt.fit.noise import NoiseModel, noise_of
from nugpt.fit.optimum import optimum
from nugpt.fit.points import Point, levels

# Nats by which a seed may change one side's loss but not the other's, before any two seeds are compared.
UNSHARED = 0.004
ONE_SEED = 0.01  # the same where all that there is are pairs of one seed, which will not correct it
SEEDS_APART = 0.014  # the same where the sides share no seed: both sides' seed effects count


@dataclass(frozen=True)
class Difference:
    """Best loss of the first less that of the second, in nats: negative where the first is better."""

    nats: float | None
    interval: Interval
    seeds: int  # that both sides have
    level: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Budgeted:
    """A curve and what each of its runs costs, in FLOPs or in seconds."""

    cost: float
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        if not math.isfinite(self.cost) or self.cost <= 0:
            raise ValueError(f"cost is {self.cost!r}, but must be a finite number above 0")


@dataclass(frozen=True, eq=False)
class _Best:
    """Draws of the loss at the optimum for the average seed, and each seed's distance from it."""

    draws: Array
    effects: Mapping[int, float] = field(hash=False)
    effect_variance: float  # of an effect, from noise alone


def compare(
    pairs: Sequence[tuple[Sequence[Point], Sequence[Point]]], level: float = 0.90, pooled: NoiseModel | None = None
) -> tuple[Difference, ...]:
    """Each pair's difference at their best; how well seeds are paired is learned from all pairs together."""
    check_level(level)
    common = [_common(a, b) for a, b in pairs]
    return _differences([(_best(a, pooled), _best(b, pooled)) for a, b in common], level)


def compare_at_cost(
    first: Sequence[Budgeted],
    second: Sequence[Budgeted],
    cost: float,
    level: float = 0.90,
    pooled: NoiseModel | None = None,
) -> Difference:
    """The difference at one cost, each side's loss taken between its nearest costs, straight in log cost."""
    check_level(level)
    a, b = _at_cost(first, cost), _at_cost(second, cost)
    if a is None or b is None:
        where = "first" if a is None else "second"
        notes = (f"the {where} side has no runs on both sides of the cost {cost:g}",)
        return Difference(None, Interval(-math.inf, math.inf), 0, level, notes)
    seeds = _seeds(a) & _seeds(b) or None
    best = [_mixed([(w, _best(_only(points, seeds), pooled)) for w, points in side]) for side in (a, b)]
    (difference,) = _differences([(best[0], best[1])], level)
    return difference


def tuned(candidates: Sequence[Sequence[Point]], pooled: NoiseModel | None = None) -> Sequence[Point]:
    """The candidate (such as one weight decay's curve) whose loss at its optimum is lowest."""
    if not candidates:
        raise ValueError("candidates is empty, but must hold at least one curve")

    def loss(points: Sequence[Point]) -> float:
        reached = optimum(points, pooled=pooled).reached
        return math.inf if reached is None else reached

    return min(candidates, key=loss)


def _common(a: Sequence[Point], b: Sequence[Point]) -> tuple[Sequence[Point], Sequence[Point]]:
    """Both sides with the seeds they share; all of them where they share none."""
    shared = {point.seed for point in a} & {point.seed for point in b} or None
    return _only(a, shared), _only(b, shared)


def _only(points: Sequence[Point], seeds: set[int] | None) -> Sequence[Point]:
    return points if seeds is None else [point for point in points if point.seed in seeds]


def _seeds(side: Sequence[tuple[float, Sequence[Point]]]) -> set[int]:
    return set.intersection(*({point.seed for point in points} for _, points in side))


def _best(points: Sequence[Point], pooled: NoiseModel | None) -> _Best | None:
    """None where the best lies beyond the grid, or nothing trained."""
    found = optimum(points, pooled=pooled, effort=FINE) if points else None
    if found is None or found.shapes is None or found.verdict == "edge-censored":
        return None
    curve = levels(points)
    effects = dict(zip(curve.seeds, map(float, curve.seed_effects), strict=True))
    return _Best(found.shapes.loss, effects, noise_of(curve, pooled).variance / len(curve.x))


def _at_cost(side: Sequence[Budgeted], cost: float) -> list[tuple[float, Sequence[Point]]] | None:
    """The neighbours of a cost, each with its weight; none where the cost lies outside."""
    ordered = sorted(side, key=lambda one: one.cost)
    for one in ordered:
        if math.isclose(one.cost, cost, rel_tol=0.01):  # closer than a loss could tell
            return [(1.0, one.points)]
    below = [one for one in ordered if one.cost < cost]
    above = [one for one in ordered if one.cost > cost]
    if not below or not above:
        return None
    low, high = below[-1], above[0]
    share = math.log(cost / low.cost) / math.log(high.cost / low.cost)
    return [(1 - share, low.points), (share, high.points)]


def _mixed(parts: Sequence[tuple[float, _Best | None]]) -> _Best | None:
    """A weighted mean of bests whose errors are independent."""
    generator = np.random.default_rng(13)
    draws, effects, variance = np.zeros(1), dict[int, float](), 0.0
    for weight, part in parts:
        if part is None:
            return None
        draws = draws + weight * generator.permutation(part.draws)
        effects = {seed: effects.get(seed, 0.0) + weight * e for seed, e in part.effects.items()}
        variance += weight**2 * part.effect_variance
    return _Best(draws, effects, variance)


def _differences(pairs: Sequence[tuple[_Best | None, _Best | None]], level: float) -> tuple[Difference, ...]:
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    unshared = _unshared(known)
    answers = []
    for a, b in pairs:
        if a is None or b is None:
            notes = (f"the best of the {'first' if a is None else 'second'} side is not enclosed",)
            answers.append(Difference(None, Interval(-math.inf, math.inf), 0, level, notes))
            continue
        answers.append(_difference(a, b, unshared, level))
    return tuple(answers)


def _difference(a: _Best, b: _Best, unshared: Array, level: float) -> Difference:
    generator = np.random.default_rng(17)
    shared = len(set(a.effects) & set(b.effects))
    draws = generator.permutation(a.draws) - generator.permutation(b.draws)
    normal = generator.standard_normal(len(draws))
    notes = (f"one seed: another is taken to change the difference by about {ONE_SEED:g} nats",) if shared == 1 else ()
    if shared:
        spread = generator.choice(unshared, size=len(draws)) / math.sqrt(shared)
    else:
        notes = ("the sides share no seed: their difference is not paired",)
        spread = np.full(len(draws), SEEDS_APART / math.sqrt(min(len(a.effects), len(b.effects))))
    return Difference(float(np.median(draws)), central(draws + spread * normal, level), shared, level, notes)


def _unshared(pairs: Sequence[tuple[_Best, _Best]]) -> Array:
    """Draws of the deviation by which a seed changes one side and not the other, given all pairs' seed effects."""
    usual = UNSHARED if any(len(set(a.effects) & set(b.effects)) > 1 for a, b in pairs) else ONE_SEED
    scale = np.linspace(0.0, 6 * usual, 241)
    log_weight = -0.5 * (scale / usual) ** 2
    for a, b in pairs:
        gaps = np.array([a.effects[seed] - b.effects[seed] for seed in sorted(set(a.effects) & set(b.effects))])
        if len(gaps) > 1:
            variance = scale**2 + a.effect_variance + b.effect_variance
            squares = float(np.sum((gaps - gaps.mean()) ** 2))
            log_weight -= 0.5 * ((len(gaps) - 1) * np.log(variance) + squares / variance)
    weight = np.exp(log_weight - log_weight.max())
    places = (np.arange(1024) + 0.5) / 1024
    return np.interp(places, np.cumsum(weight) / weight.sum(), scale)
