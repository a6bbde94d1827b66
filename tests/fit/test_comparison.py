"""Two sides at their best, paired over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from nugpt.fit import Budgeted, Difference, Point, compare, compare_at_cost, tuned
from nugpt.fit.comparison import _at_cost, _Best, _best, _difference, _differences, _mixed, _unshared

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


def test_at_equal_cost_too_seeds_that_one_side_lacks_are_left_out() -> None:
    first, second = side(3.52, EFFECTS), side(3.50, {0: -0.05, 9: 1.0}, rng_seed=1)
    found = compare_at_cost([Budgeted(2.0, first)], [Budgeted(2.0, second)], cost=2.0)
    assert found.seeds == 1
    assert found.nats == pytest.approx(0.02, abs=0.005)


def test_the_best_tuned_candidate() -> None:
    worse, better = side(3.6, EFFECTS), side(3.5, EFFECTS)
    assert tuned([worse, better]) is better
    assert tuned([[Point(-7.0, None, 0, "diverged")], worse]) is worse
    with pytest.raises(ValueError, match="candidates is empty"):
        tuned([])


def test_a_cost_is_above_zero() -> None:
    with pytest.raises(ValueError, match="cost is 0"):
        Budgeted(0, ())


def best(effects: dict[int, float], draws: float = 3.5, variance: float = 0.0) -> _Best:
    """A loss that is known exactly for the average seed."""
    return _Best(np.full(4096, draws), effects, variance)


def test_how_much_seeds_are_unshared_is_read_from_their_gaps() -> None:
    # Of 2000 seeds whose effects differ by 0.02 nats (deviation), 0.01 on either side is the noise of their points:
    # √(0.02² − 2 · 0.01²) is left, known to 1 % or two.
    gaps = np.random.default_rng(6).normal(0, 0.02, size=2000)
    pair = (best(dict(enumerate(gaps)), variance=1e-4), best(dict.fromkeys(range(2000), 0.0), variance=1e-4))
    assert float(np.median(_unshared([pair]))) == pytest.approx(math.sqrt(2e-4), rel=0.08)
    assert float(np.std(_unshared([pair]))) < 0.001


@pytest.mark.parametrize(
    ("first", "second", "usual"), [((0,), (0,), 0.01), ((0, 1), (0, 2), 0.01), ((0, 1), (0, 1), 0.004)]
)
def test_before_seeds_show_it_half_a_normal_distribution_is_assumed(
    first: tuple[int, ...], second: tuple[int, ...], usual: float
) -> None:
    # Seeds with so much noise of their own that they say nothing; the mean of half a normal is √(2/π) deviations.
    pair = (best(dict.fromkeys(first, 0.0), variance=1.0), best(dict.fromkeys(second, 0.0), variance=1.0))
    # Its places are a fortieth of a deviation apart.
    assert float(np.mean(_unshared([pair]))) == pytest.approx(usual * math.sqrt(2 / math.pi), rel=0.03)


def test_what_few_seeds_say_of_it_is_weighed_by_their_likelihood() -> None:
    # Whatever the mean of three gaps is, their scatter is that of a normal distribution in two dimensions.
    gaps, noise = np.array([-0.006, 0.001, 0.008]), 0.002**2
    pair = (best(dict(enumerate(gaps)), variance=noise), best(dict.fromkeys(range(3), 0.0)))

    def density(scale: float) -> float:
        variance = scale**2 + noise
        return float(np.exp(-0.5 * (scale / 0.004) ** 2 - 0.5 * np.sum((gaps - 0.001) ** 2) / variance)) / variance

    total, first = (integrate.quad(lambda s, n=n: s**n * density(s), 0, 0.03)[0] for n in (0, 1))
    assert float(np.mean(_unshared([pair]))) == pytest.approx(first / total, rel=0.02)  # a fortieth of 0.004 apart


def test_the_interval_of_a_difference_by_hand() -> None:
    # 1.645 deviations to either side, those of chance in 4096 draws, 3 %; four seeds halve what they do not share.
    known = np.full(1024, 0.02)
    four, three = dict.fromkeys(range(4), 0.0), dict.fromkeys((7, 8, 9), 0.0)
    found = _difference(best(four, 3.52), best(four), known, 0.90)
    assert (found.nats, found.seeds) == (pytest.approx(0.02), 4)
    assert found.interval == pytest.approx((0.02 - 1.645 * 0.01, 0.02 + 1.645 * 0.01), abs=0.001)
    apart = _difference(best(four), best(three), known, 0.90)  # at the fewer of their seeds, each side's own counts
    half = 1.645 * 0.014 / math.sqrt(3)
    assert (apart.seeds, apart.interval) == (0, pytest.approx((-half, half), abs=0.001))


def test_all_pairs_that_are_known_say_how_much_seeds_are_unshared() -> None:
    # A hundred seeds ±0.01 apart in one pair; the other has one seed, and says nothing of it.
    gaps = {seed: 0.01 * (-1) ** seed for seed in range(100)}
    apart = (best(gaps, variance=1e-9), best(dict.fromkeys(gaps, 0.0), variance=1e-9))
    single = (best({0: 0.0}), best({0: 0.0}))
    many, one, missing = _differences([apart, single, (best({0: 0.0}), None)], 0.90)
    half = 1.645 * 0.01  # to a few hundredths, by the prior and by chance
    assert many.interval == pytest.approx((-half / 10, half / 10), rel=0.1)
    assert one.interval == pytest.approx((-half, half), rel=0.1)
    assert (missing.nats, missing.interval) == (None, (-math.inf, math.inf))
    assert missing.notes == ("the best of the second side is not enclosed",)


def test_a_mean_of_bests_has_their_weights() -> None:
    mixed = _mixed([(0.25, best({0: 0.1, 1: -0.1}, 3.0, 0.16)), (0.75, best({0: 0.2, 1: -0.2}, 4.0, 0.32))])
    assert mixed is not None
    assert float(np.mean(mixed.draws)) == pytest.approx(0.25 * 3 + 0.75 * 4)
    assert mixed.effects == pytest.approx({0: 0.175, 1: -0.175})
    assert mixed.effect_variance == pytest.approx(0.16 / 16 + 0.32 * 9 / 16)
    assert _mixed([(0.5, best({0: 0.0})), (0.5, None)]) is None


def test_the_neighbours_of_a_cost() -> None:
    runs = [Budgeted(cost, (Point(-7.0, cost, 0),)) for cost in (16.0, 1.0, 4.0, 64.0)]

    def weights(cost: float) -> dict[float, float] | None:
        found = _at_cost(runs, cost)
        return None if found is None else {float(points[0].loss or 0.0): weight for weight, points in found}

    assert weights(8.0) == pytest.approx({4.0: 0.5, 16.0: 0.5})
    assert weights(4.0 * 2**0.5) == pytest.approx({4.0: 0.75, 16.0: 0.25})
    for close in (4.0, 4.03, 3.97):  # within a hundredth
        assert weights(close) == {4.0: 1.0}
    assert weights(4.1) != {4.0: 1.0}
    assert weights(64.3) == {64.0: 1.0}
    assert weights(0.9) is None
    assert weights(70.0) is None


def test_errors_of_two_sides_and_of_two_costs_are_independent() -> None:
    # Draws in ascending order on both sides: taken pair by pair they would cancel, or add up whole.
    ordered = np.sort(np.random.default_rng(2).normal(0, 0.01, 20_000))
    one = _Best(ordered, {0: 0.0, 1: 0.0}, 0.0)
    mixed = _mixed([(0.5, one), (0.5, one)])
    assert mixed is not None
    assert float(np.std(mixed.draws)) == pytest.approx(0.01 / math.sqrt(2), rel=0.03)  # 20,000 draws: 0.7 %, as below
    found = _difference(one, one, np.zeros(1), 0.90)
    half = 1.645 * 0.01 * math.sqrt(2)
    assert found.interval == pytest.approx((-half, half), rel=0.03)


def test_a_seed_of_one_side_alone_says_nothing_of_what_is_unshared() -> None:
    # Seeds 1 and 2 agree on both sides; the others, each of which one side lacks, are far off.
    first, second = best({0: -5.0, 1: 0.0, 2: 0.01}, variance=1e-8), best({1: 0.0, 2: 0.01, 3: 7.0}, variance=1e-8)
    both = best({1: 0.0, 2: 0.01}, variance=1e-8)
    assert np.array_equal(_unshared([(first, second)]), _unshared([(both, both)]))
    assert _difference(first, second, np.zeros(1), 0.90).seeds == 2


def test_a_seeds_effect_is_as_sure_as_the_mean_over_its_learning_rates() -> None:
    rng = np.random.default_rng(5)
    points = [
        Point(float(x), 3.5 + 0.02 * float(x + 7) ** 2 + rng.normal(0, 0.01), s) for s in range(150) for x in GRID
    ]
    found = _best(points, None)
    assert found is not None
    seen = float(np.var(list(found.effects.values()), ddof=1))  # of 150 seeds that do not differ: to 12 %
    assert found.effect_variance == pytest.approx(0.01**2 / len(GRID), rel=0.1)
    assert found.effect_variance == pytest.approx(seen, rel=0.35)
