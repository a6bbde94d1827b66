"""Two sides at their best, paired over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nugpt.fit import Budgeted, Difference, Point, compare, compare_at_cost, tuned

GRID = np.arange(-9.0, -4.9, 0.5)


def side(
    loss: float, effects: dict[int, float], centre: float = -7.0, noise: float = 0.002, rng_seed: int = 0
) -> tuple[Point, ...]:
    rng = np.random.default_rng(rng_seed)
    return tuple(
        Point(float(x), loss + effect + 0.1 * float(x - centre) ** 2 + rng.normal(0, noise), seed)
        for seed, effect in effects.items()
        for x in GRID
    )


EFFECTS = {0: -0.05, 1: 0.0, 2: 0.05}


def only(pair: tuple[tuple[Point, ...], tuple[Point, ...]]) -> Difference:
    (difference,) = compare([pair])
    return difference


def test_pairing_removes_what_seeds_share() -> None:
    found = only((side(3.52, EFFECTS, -7.2), side(3.50, EFFECTS, -6.8, rng_seed=1)))
    assert found.seeds == 3
    # Noise of 0.002 over some points of three seeds, and the freedom of the shapes between the points.
    assert found.nats == pytest.approx(0.02, abs=0.004)
    assert found.interval.contains(0.02)
    assert found.interval.width < 0.02  # the seeds themselves spread over 0.1


def test_seeds_that_one_side_lacks_are_left_out() -> None:
    found = only((side(3.52, EFFECTS), side(3.50, {0: -0.05, 9: 1.0}, rng_seed=1)))
    assert found.seeds == 1
    assert found.nats == pytest.approx(0.02, abs=0.005)
    assert "one seed" in found.notes[0]


def test_seeds_that_are_not_paired_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    paired = only((side(3.5, EFFECTS), side(3.5, EFFECTS, rng_seed=1)))
    other = {seed: float(e) for seed, e in enumerate(rng.normal(0, 0.03, size=3))}
    assert only((side(3.5, EFFECTS), side(3.5, other, rng_seed=1))).interval.width > paired.interval.width
    apart = only((side(3.5, EFFECTS), side(3.5, {7: 0.0, 8: 0.0}, rng_seed=1)))
    assert (apart.seeds, apart.interval.width > paired.interval.width) == (0, True)
    assert "share no seed" in apart.notes[0]


def test_a_best_beyond_the_grid_is_no_best() -> None:
    falling = tuple(Point(float(x), 3.5 - 0.2 * float(x), s) for x in GRID for s in range(3))
    found = only((falling, side(3.5, EFFECTS)))
    assert (found.nats, found.interval.bounded) == (None, False)
    assert "first side" in found.notes[0]


def test_equal_cost_lies_between_a_sides_runs() -> None:
    # Loss falls by 0.1 per octave of cost on both sides; the second is 0.03 better at any cost.
    def runs(costs: tuple[float, ...], better: float, rng_seed: int) -> list[Budgeted]:
        return [Budgeted(c, side(4.0 - better - 0.1 * math.log2(c), EFFECTS, rng_seed=rng_seed)) for c in costs]

    found = compare_at_cost(runs((1.0, 4.0), 0.0, 0), runs((1.5, 3.0), 0.03, 1), cost=2.0)
    assert found.nats == pytest.approx(0.03, abs=0.004)
    assert found.interval.contains(0.03)
    outside = compare_at_cost(runs((1.0, 4.0), 0.0, 0), runs((1.5, 3.0), 0.03, 1), cost=3.5)
    assert outside.nats is None
    assert "second side" in outside.notes[0]
    exact = compare_at_cost(runs((2.0,), 0.0, 0), runs((2.0,), 0.03, 1), cost=2.0)
    assert exact.nats == pytest.approx(0.03, abs=0.004)


def test_the_best_tuned_candidate() -> None:
    worse, better = side(3.6, EFFECTS), side(3.5, EFFECTS)
    assert tuned([worse, better]) is better
    assert tuned([[Point(-7.0, None, 0, "diverged")], worse]) is worse
    with pytest.raises(ValueError, match="candidates is empty"):
        tuned([])


def test_a_cost_is_above_zero() -> None:
    with pytest.raises(ValueError, match="cost is 0"):
        Budgeted(0, ())
