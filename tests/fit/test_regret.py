"""What a wrong learning rate costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.fit.synthetic import FAMILIES, sweep

from nugpt.fit import Interval, Optimum, Point, cautious_lr, optimum, regret, regret_at, sensitivity
from nugpt.fit.curve import CLIFF, Shapes


def parabola(centre: float, seeds: int = 2, curvature: float = 0.1) -> Optimum:
    rng = np.random.default_rng(0)
    grid = np.arange(centre - 2, centre + 2.1, 0.5)
    points = [
        Point(float(x), 3.5 + curvature * float(x - centre) ** 2 + rng.normal(0, 0.001), s)
        for x in grid
        for s in range(seeds)
    ]
    return optimum(points)


def test_regret_of_a_planted_shift() -> None:
    cost = regret(parabola(-7.0), parabola(-8.0))
    assert cost.nats == pytest.approx(0.1, rel=0.2)  # curvature × 1²; a fifth is the shape's own freedom at this noise
    assert cost.interval.contains(0.1)
    assert cost.interval.low > 0.05


def test_no_shift_may_cost_nothing() -> None:
    cost = regret(parabola(-7.0), parabola(-7.0))
    assert cost.interval.low == 0.0
    assert cost.interval.high < 0.003


def test_a_given_learning_rate_is_certain() -> None:
    own = parabola(-8.0)
    assert regret_at(own, -7.0).interval.width <= regret(parabola(-7.0), own).interval.width * 1.05


def test_where_learning_rates_failed_the_cost_is_unbounded() -> None:
    losses = {-9.0: 3.7, -8.5: 3.62, -8.0: 3.56, -7.5: 3.58}
    points = [Point(x, y, 0) for x, y in losses.items()]
    own = optimum([*points, Point(-7.0, None, 0, "diverged")])
    assert regret_at(own, -6.8).nats == regret_at(own, -7.0).nats == math.inf
    assert math.isfinite(regret_at(own, -7.001).nats or 0.0)
    assert regret_at(own, -8.0).interval.high < 0.1


def test_without_an_optimum_nothing_is_claimed() -> None:
    beyond = optimum([Point(x, -x, 0) for x in (-8.0, -7.0, -6.0)])
    unknown = regret(beyond, parabola(-7.0))
    assert (unknown.nats, unknown.interval) == (None, Interval(0.0, math.inf))
    assert sensitivity(beyond).at(1.0).interval == Interval(0.0, math.inf)
    assert regret(parabola(-7.0), beyond).interval.high == math.inf
    assert sensitivity(beyond).at(1.0).nats is None
    assert cautious_lr(beyond) is None
    nothing = optimum([Point(-7.0, None, 0, "diverged")])
    assert regret(parabola(-7.0), nothing).nats is None


def test_sensitivity_tells_the_sides_apart() -> None:
    rng = np.random.default_rng(2)
    one = sweep(rng, "exponential", 3, 0.25, noise=0.002, missing=0.0)
    costs = sensitivity(optimum(one.points))
    for octaves in (-1.0, -0.5, 0.5, 1.0):
        truth = float(one.shape(np.asarray(octaves)))
        assert costs.at(octaves).nats == pytest.approx(truth, rel=0.3)  # the shape one octave off, from 3 noisy seeds
    left, right = costs.at(-1.0).nats, costs.at(1.0).nats
    assert left is not None
    assert right is not None
    assert right > 2 * left


def shape_draws(s: float, k: float, q: float) -> np.ndarray:
    """The same shape a hundred times and once, its cliff on the right."""
    return np.tile([1.0, *np.log([s, k, q])], (101, 1)).T


def even(low: float, high: float) -> Optimum:
    """Parabolas of 0.1 nats an octave off, their minima evenly between two places."""
    shape = np.tile([1.0, *np.log([1e-9, 4.0, 0.1])], (4001, 1)).T
    place = np.linspace(low, high, 4001)
    shapes = Shapes(place, np.full(4001, 3.5), ((CLIFF, shape),), Interval(-math.inf, math.inf))
    return replace(parabola(-7.0), log2_lr=(low + high) / 2, shapes=shapes)


def test_costs_by_hand() -> None:
    # The minimum lies 0.1 to 1.9 octaves below: 1 in the middle, 0.19 and 1.81 at 5 % from the ends. What is left is
    # 5 % of roughness, and chance in it.
    moved = regret_at(even(-7.9, -6.1), -6.0)
    assert moved.nats == pytest.approx(0.1, rel=0.05)
    assert moved.interval == pytest.approx((0.1 * 0.19**2, 0.1 * 1.81**2), rel=0.08)
    # From 0.4 above to 1.4 below: it may not have moved, and a tenth lies more than 1.22 off.
    unmoved = regret_at(even(-7.9, -6.1), -6.5)
    assert unmoved.interval == pytest.approx((0.0, 0.1 * 1.22**2), rel=0.05)


def test_a_regret_has_the_errors_of_both_optima() -> None:
    # The base's best lies 0.6 to 1.4 octaves above, evenly: 0.64 and 1.36 at 5 % from the ends.
    found = regret(even(-6.9, -6.1), even(-7.5, -7.5))
    assert found.nats == pytest.approx(0.1, rel=0.05)
    assert found.interval == pytest.approx((0.1 * 0.64**2, 0.1 * 1.36**2), rel=0.05)
    # As much again by the size's own, independently: 0.2 to 1.8 octaves in all, a triangle.
    both = regret(even(-6.9, -6.1), even(-7.9, -7.1))
    ends = (0.2 + 0.8 * math.sqrt(0.1), 1.8 - 0.8 * math.sqrt(0.1))
    assert both.interval == pytest.approx([0.1 * end**2 for end in ends], rel=0.12)  # 4 % by chance at the lower end


def test_what_is_certain_but_for_roughness() -> None:
    certain = even(-7.0, -7.0)
    low, high = 0.1 * math.exp(-1.645 * 0.05), 0.1 * math.exp(1.645 * 0.05)
    for cost in (regret_at(certain, -6.0), sensitivity(certain).at(1.0), sensitivity(certain).at(-1.0)):
        assert cost.nats == pytest.approx(0.1, rel=0.005)  # 5 % of 4001 draws' chance, several times over
        assert cost.interval == pytest.approx((low, high), rel=0.005)


def test_the_cautious_choice_leans_away_from_the_cliff() -> None:
    # Draws that differ in the place of the optimum alone, evenly to both sides: what remains is the cliff.
    found = parabola(-7.0)
    x = -7.0 + np.linspace(-0.3, 0.3, 101)
    cliff = shape_draws(0.05, 4.0, 0.01)
    shapes = Shapes(x, np.full(101, 3.5), ((CLIFF, cliff),), Interval(-math.inf, math.inf))
    cautious = cautious_lr(replace(found, log2_lr=-7.0, shapes=shapes))
    assert cautious is not None
    assert -7.3 < cautious < -7.01
    level = shape_draws(1e-9, 4.0, 0.1)
    even = cautious_lr(replace(found, log2_lr=-7.0, shapes=replace(shapes, groups=((CLIFF, level),))))
    assert even == pytest.approx(-7.0, abs=0.01)  # the grid of the search


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cautious_choice_costs_no_more_than_the_optimum_in_expectation(family: str) -> None:
    found = optimum(sweep(np.random.default_rng(3), family, 2, 0.5, noise=0.01, missing=0.0).points)
    cautious = cautious_lr(found)
    assert cautious is not None
    assert found.shapes is not None
    assert found.log2_lr is not None
    expected = [float(np.mean(found.shapes.excess(x))) for x in (cautious, found.log2_lr)]
    assert expected[0] <= expected[1] * 1.01  # the grid of the search
