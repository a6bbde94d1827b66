"""The optimum of a curve: planted truths, verdicts on every odd curve, and what must not matter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from tests.fit.synthetic import FAMILIES, sweep

from nugpt.fit import Interval, NoiseModel, Point, optimum, study_noise
from nugpt.fit.curve import FINE, QUICK, Effort, Shapes, shapes
from nugpt.fit.noise import curve_noise, noise_of, pool
from nugpt.fit.optimum import (
    VERDICTS,
    _deviation,
    _interval,
    _is_flat,
    _loss,
    _moved_by_seed,
    _open_sides,
    _optimum,
    _side,
)
from nugpt.fit.points import Levels, levels

# A curve of a prototype: 2400 steps at d_model 384, where a fit by hand gave -7.24.
REAL = {-8.0: 3.587, -7.5: 3.554, -7.0: 3.550, -6.5: 3.695, -6.0: 4.483}


def curve(losses: Mapping[float, float | None], seed: int = 0, status: str = "diverged") -> list[Point]:
    return [Point(x, y, seed, "done" if y is not None else status) for x, y in losses.items()]


def seeds(losses: Mapping[float, float], count: int, noise: float, rng_seed: int = 0) -> list[Point]:
    rng = np.random.default_rng(rng_seed)
    effects = rng.normal(0, 0.02, size=count)
    return [
        Point(x, y + effects[s] + rng.normal(0, noise), s) for s in range(count) for x, y in losses.items()
    ]  # fmt: skip


def test_a_real_curve() -> None:
    found = optimum(curve(REAL))
    assert found.verdict == "enclosed"
    assert found.log2_lr is not None
    assert abs(found.log2_lr - -7.24) < 0.06  # the hand fit had no error of its own; a quarter of the interval's half
    assert found.interval.contains(-7.24)
    assert found.interval.inside(Interval(-7.6, -6.8))
    assert found.best_point is not None
    assert found.best_point.log2_lr == -7.0
    assert found.loss is not None
    assert found.loss < 3.551
    assert found.window == Interval(-8.0, -6.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_nearly_no_noise_on_a_fine_grid_gives_the_planted_optimum(family: str) -> None:
    # What is left is the family's shape: none but one is what is fitted. A tenth of an octave costs below 0.003 nats.
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(8):
        one = sweep(rng, family, 3, 0.25, noise=0.0005, missing=0.0)
        found = optimum(one.points)
        assert found.verdict == "enclosed"
        assert found.log2_lr is not None
        errors.append(found.log2_lr - one.log2_lr)
    assert float(np.median(np.abs(errors))) < 0.1


def test_more_seeds_narrow_the_interval() -> None:
    # A single interval's width is itself uncertain with two seeds, so the mean of six.
    def width(count: int) -> float:
        return float(np.mean([optimum(seeds(REAL, count, 0.01, i)).interval.width for i in range(6)]))

    assert width(2) > width(5) > width(20)


def test_a_seed_effect_common_to_all_learning_rates_does_not_matter() -> None:
    points = seeds(REAL, 3, noise=0.003)
    moved = [replace(p, loss=(p.loss or 0.0) + 0.3 * p.seed) for p in points]
    a, b = optimum(points), optimum(moved)
    assert a.log2_lr == pytest.approx(b.log2_lr, abs=1e-6)  # the two-way fit is solved to rounding
    assert a.interval == pytest.approx(b.interval, abs=1e-6)


def test_a_shift_of_the_axis_shifts_the_answer() -> None:
    points = seeds(REAL, 3, noise=0.003)
    there = optimum([replace(p, log2_lr=p.log2_lr + 4) for p in points])
    here = optimum(points)
    assert there.interval == pytest.approx([end + 4 for end in here.interval], abs=1e-6)


def test_order_of_points_does_not_matter_and_the_answer_repeats() -> None:
    points = seeds(REAL, 3, noise=0.003)
    assert optimum(points) == optimum(points[::-1]) == optimum(points)


@pytest.mark.parametrize(
    ("log2_lrs", "own"),
    [
        ([-8, -7, -6, -5], False),
        ([-8, -7.5, -7, -6.5, -6], False),
        ([math.log2(x) for x in (1e-3, 3e-3, 1e-2, 3e-2)], False),  # as even as decimals go
        ([-8, -7.25, -7, -6.75, -6], True),
        ([-8, -7, -6, -5.5, -5], True),
        ([-7], False),
    ],
)
def test_on_a_grid_with_points_added_the_error_is_the_curves_own(log2_lrs: list[float], own: bool) -> None:
    losses = {x: 3.5 + 0.05 * (x + 6.8) ** 2 for x in log2_lrs}
    assert optimum(seeds(losses, 2, noise=0.001)).independent is own
    assert optimum(seeds(losses, 1, noise=0.001)).independent


def test_missing_seeds_do_not_move_a_level() -> None:
    # Seed 1 is half a nat worse everywhere; where it alone is missing, a plain mean would be half a nat lower.
    points = [Point(x, y + 0.5 * s, s) for x, y in REAL.items() for s in (0, 1) if (x, s) != (-7.5, 1)]
    found = optimum(points)
    assert found.best_point is not None
    assert found.best_point.log2_lr == -7.0
    assert found.best_point.loss == pytest.approx(3.550 + 0.25, abs=1e-6)


# Verdicts


def test_best_at_either_edge_is_censored_there() -> None:
    falling = optimum(curve({-9.0: 3.9, -8.5: 3.7, -8.0: 3.587}))
    assert (falling.verdict, falling.side, falling.log2_lr) == ("edge-censored", "right", None)
    assert falling.interval.high == math.inf
    assert falling.interval.low > -9
    rising = optimum(curve({-7.0: 3.550, -6.5: 3.695, -6.0: 4.483}))
    assert (rising.verdict, rising.side) == ("edge-censored", "left")
    assert rising.interval.low == -math.inf
    assert rising.interval.high < -6.5


@pytest.mark.parametrize(
    ("count", "steepness"),  # one seed is taken to be noisier than 0.003 nats an octave off can be seen through
    [(3, 0.003), *((count, steepness) for count in (1, 3) for steepness in (0.05, 1.0, 20.0, 100.0))],
)
def test_a_clean_curve_is_enclosed_however_steep_it_is(count: int, steepness: float) -> None:
    for grid in (np.arange(-10.0, -1.5, 1.0), np.arange(-6.0, 0.5, 0.5), np.arange(-6.0, 0.5, 1.0)):
        for left, right in ((1.0, 1.0), (0.3, 1.0), (1.0, 0.3)):  # a parabola, and one side gentler than the other
            u = grid + 3.2
            losses = 3 + steepness * np.where(u < 0, left, right) * u**2
            found = optimum(
                [Point(float(x), float(y), s) for x, y in zip(grid, losses, strict=True) for s in range(count)]
            )
            assert (found.verdict, found.side) == ("enclosed", None)
            assert found.log2_lr == pytest.approx(-3.2, abs=0.8)  # a coarse grid's nearest points are 0.2 and 0.8 away
            assert found.interval.inside(Interval(-4.5, -2.0))


@pytest.mark.parametrize("status", ["diverged", "stopped"])
def test_a_failure_next_to_the_best_encloses_it(status: str) -> None:
    found = optimum(curve({-8.5: 3.65, -8.0: 3.587, -7.5: 3.554, -7.0: 3.53, -6.5: None}, status=status))
    assert found.verdict == "enclosed"
    assert found.log2_lr is not None
    assert -7.5 < found.log2_lr < -6.5
    assert found.interval.high <= -6.5


def test_a_failure_beyond_a_best_at_the_left_edge_leaves_the_left_open() -> None:
    found = optimum(curve({-7.0: 3.55, -6.5: 3.70, -6.0: None}))
    assert (found.verdict, found.side) == ("edge-censored", "left")


def test_failures_are_not_fitted_whatever_loss_they_carry() -> None:
    with_failure = [*curve(REAL), Point(-5.5, 1.0, 0, "diverged"), Point(-9.0, 1.0, 0, "stopped")]
    found = optimum(with_failure)
    assert found.best_point is not None
    assert found.best_point.log2_lr == -7.0


@pytest.mark.parametrize("count", [1, 3])
def test_a_plateau_is_flat(count: int) -> None:
    plateau = dict.fromkeys((-8.0, -7.5, -7.0, -6.5, -6.0), 3.5)
    found = optimum(seeds(plateau, count, noise=0.004, rng_seed=1))
    assert found.verdict == "flat"
    assert found.log2_lr is None


def test_small_differences_are_no_plateau_when_the_noise_is_known_to_be_smaller() -> None:
    shallow = {x: 3.5 + 0.004 * (x + 7) ** 2 for x in (-9.0, -8.0, -7.0, -6.0, -5.0)}
    quiet = NoiseModel(variance=0.0003**2, dof=40)
    assert optimum(curve(dict(shallow)), pooled=quiet).verdict == "enclosed"
    loud = NoiseModel(variance=0.02**2, dof=40)
    assert optimum(curve(dict(shallow)), pooled=loud).verdict == "flat"


def test_everything_diverged() -> None:
    found = optimum(curve({-7.0: None, -6.0: None}))
    assert (found.verdict, found.side, found.log2_lr, found.loss) == ("edge-censored", "left", None, None)
    assert found.interval == Interval(-math.inf, -7.0)
    assert "no learning rate trained" in found.notes


def test_a_loss_that_is_no_number_counts_as_diverged() -> None:
    points = [*curve(REAL), Point(-5.5, math.nan, 0), Point(-5.0, math.inf, 0), Point(-4.5, None, 0)]
    found = optimum(points)
    assert found.verdict == "enclosed"
    assert any("3 done without a sensible loss" in note for note in found.notes)


def test_one_point() -> None:
    assert optimum([Point(-7.0, 3.5, 0)]).verdict == "edge-censored"
    assert optimum([Point(-7.0, 3.5, 0)]).side is None
    enclosed_above = optimum([Point(-7.0, 3.5, 0), Point(-6.0, None, 0, "diverged")])
    assert (enclosed_above.verdict, enclosed_above.side) == ("edge-censored", "left")


def test_three_points_of_one_seed() -> None:
    found = optimum(curve({-8.0: 3.587, -7.0: 3.550, -6.0: 4.483}))
    assert found.verdict == "enclosed"
    assert found.interval.inside(Interval(-8.0, -6.0))
    assert found.interval.width > optimum(curve(REAL)).interval.width  # fewer points know less


def test_duplicates_are_averaged() -> None:
    points = curve(REAL)
    doubled = [*points, *(replace(p, loss=(p.loss or 0) + 0.002) for p in points)]
    found = optimum(doubled)
    assert any("averaged" in note for note in found.notes)
    assert found.interval == pytest.approx(optimum(points).interval, abs=1e-6)


losses = st.one_of(st.none(), st.floats(-2, 20), st.sampled_from([math.nan, math.inf]))
points_of_any_kind = st.builds(
    Point,
    st.floats(-12, 0),
    losses,
    st.integers(0, 3),
    st.sampled_from(["done", "done", "done", "diverged", "stopped"]),
)


@given(st.lists(points_of_any_kind, min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_points_give_a_verdict(points: list[Point]) -> None:
    found = optimum(points)
    assert found.verdict in VERDICTS
    for value in (found.log2_lr, found.deviation, found.loss, found.loss_interval):
        assert (value is not None) == (found.verdict == "enclosed")
    assert found.interval.low <= found.interval.high
    if found.log2_lr is not None:
        assert found.interval.contains(found.log2_lr)
        assert found.interval.bounded
        assert found.loss is not None
        assert math.isfinite(found.loss)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": []}, "points is empty"),
        ({"points": curve({-7.0: 3.0}), "level": 90}, "level is 90"),
        ({"points": curve({-7.0: 3.0}), "level": math.nan}, "level is nan"),
        ({"points": curve({-7.0: 3.0}), "cliff": "left"}, "cliff is 'left', but must be one of right, either"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimum(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("status", "failed"), ("log2_lr", math.nan)])
def test_a_point_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        Point(**{"log2_lr": -7.0, "loss": 3.0, "seed": 0, "status": "done", field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [1e12, 1e200, -1e300])
def test_a_number_that_is_no_loss_counts_as_diverged(loss: float) -> None:
    runs = curve({-8.0: 3.6, -7.0: 3.5, -6.0: 3.7})
    found = optimum([*runs, Point(-5.0, loss, 0)])
    assert found.interval == optimum([*runs, Point(-5.0, None, 0, "diverged")]).interval
    assert any("1 done without a sensible loss" in note for note in found.notes)


# By hand, from draws that are given


LEVEL = levels(curve({-8.0: 3.2, -7.0: 3.0, -6.0: 3.2}))  # the best in the middle
FALLING = levels(curve({-8.0: 3.2, -7.0: 3.1, -6.0: 3.0}))
EVERYWHERE = Interval(-math.inf, math.inf)


def drawn(below: int, above: int, failed: Interval = EVERYWHERE) -> Shapes:
    """A thousand draws, so many of them to the left and to the right of what was tried."""
    x = np.array([-8.5] * below + [-5.5] * above + [-7.0] * (1000 - below - above))
    return Shapes(x, np.full(1000, 3.0), (), failed)


@pytest.mark.parametrize(
    ("tried", "below", "above", "level", "sides"),
    [
        (LEVEL, 49, 49, 0.90, (False, False)),  # up to 5 % on either side
        (LEVEL, 51, 49, 0.90, (True, False)),
        (LEVEL, 49, 51, 0.90, (False, True)),
        (LEVEL, 51, 51, 0.90, (True, True)),
        (LEVEL, 99, 101, 0.80, (False, True)),
        (FALLING, 0, 0, 0.90, (False, True)),  # the last point is the best
        (FALLING, 51, 0, 0.90, (True, True)),
    ],
)
def test_a_side_is_open_where_the_best_is_last_or_the_draws_lie_beyond(
    tried: Levels, below: int, above: int, level: float, sides: tuple[bool, bool]
) -> None:
    assert _open_sides(tried, drawn(below, above), level) == sides


def test_a_failure_closes_its_side() -> None:
    both = drawn(200, 200)
    assert _open_sides(LEVEL, replace(both, failed=Interval(-9.0, math.inf)), 0.90) == (False, True)
    assert _open_sides(LEVEL, replace(both, failed=Interval(-math.inf, -5.0)), 0.90) == (True, False)


def test_the_grid_goes_on_where_the_best_is_last_or_else_where_more_draws_are() -> None:
    assert _side(LEVEL, drawn(200, 100), True, True) == "left"
    assert _side(LEVEL, drawn(100, 200), True, True) == "right"
    assert _side(FALLING, drawn(200, 100), True, True) == "right"
    assert _side(levels(curve({-8.0: 3.0, -7.0: 3.1, -6.0: 3.2})), drawn(100, 200), True, True) == "left"
    assert _side(LEVEL, drawn(100, 200), True, False) == "left"
    assert _side(LEVEL, drawn(200, 100), False, True) == "right"
    assert _side(levels(curve({-7.0: 3.0})), drawn(0, 0), True, True) is None


def test_an_open_side_leaves_all_of_the_level_to_the_other() -> None:
    even = replace(drawn(0, 0), x=np.linspace(0.0, 1.0, 1001))
    assert _interval(even, False, False, 0.90) == pytest.approx((0.05, 0.95))
    assert _interval(even, True, False, 0.90) == pytest.approx((-math.inf, 0.90))
    assert _interval(even, False, True, 0.90) == pytest.approx((0.10, math.inf))
    assert _interval(even, True, True, 0.90) == EVERYWHERE
    normal = special.ndtri((np.arange(1000) + 0.5) / 1000)
    assert _deviation(0.3 * normal) == pytest.approx(0.3, rel=0.01)  # a thousand places of it


@pytest.mark.parametrize(("share", "flat"), [(0.99, True), (1.01, False)])
def test_levels_are_flat_where_an_f_test_does_not_tell_them_apart(share: float, flat: bool) -> None:
    # Five levels of three seeds, in units of 0.01 nats: the deviation of the noise, with 10 degrees of freedom.
    off = np.array([-1.0, 0.5, 0.0, 0.5, 0.0])
    between = 3 * float(np.sum((off - off.mean()) ** 2)) / 4
    off *= math.sqrt(share * float(stats.f.isf(0.05, 4, 10)) / between)
    tried = levels([Point(-8.0 + i, 3.5 + 0.01 * float(o), s) for i, o in enumerate(off) for s in range(3)])
    assert _is_flat(tried, NoiseModel(0.01**2, 10.0)) is flat
    assert not _is_flat(levels(curve({-7.0: 3.0})), NoiseModel(0.01**2, 10.0))  # one level tells nothing
    assert _is_flat(levels(curve({-8.0: 3.0, -7.0: 3.0})), NoiseModel(0.01**2, 10.0))


def test_the_loss_of_one_seed_and_of_several_is_that_of_any() -> None:
    # The draws agree, so that what is left is another seed's 0.02 nats, or the average of three.
    one = _loss(LEVEL, drawn(0, 0), NoiseModel(1e-4, 2.0), 0.90)
    # 1.645 deviations, and chance in a thousand draws of them
    assert (one[0], one[1]) == (3.0, pytest.approx((3 - 0.0329, 3 + 0.0329), abs=0.004))
    assert "taken to differ by 0.02 nats" in one[2][0]
    three = replace(LEVEL, seeds=(0, 1, 2))
    several = _loss(three, drawn(0, 0), NoiseModel(1e-4, 6.0, seed_variance=0.03**2, seed_dof=4.0), 0.90)
    half = 2.131847 * 0.03 / math.sqrt(3)  # the 95 % point of Student's t with four degrees of freedom
    assert several[1] == pytest.approx((3 - half, 3 + half), abs=1e-3)  # a thousand places of it
    assert several[2] == ()
    uneven = replace(drawn(0, 0), loss=np.repeat([3.0, 4.0], [600, 400]))
    for tried, noise in ((LEVEL, NoiseModel(1e-4, 2.0)), (three, NoiseModel(1e-4, 6.0, 1e-4, 4.0))):
        assert _loss(tried, uneven, noise, 0.90)[0] == 3.0  # the median


def test_one_seeds_optimum_moves_but_not_past_a_failure() -> None:
    moved = _moved_by_seed(drawn(0, 0))
    assert float(np.mean(moved.x)) == pytest.approx(-7.0, abs=0.01)  # 0.08 over √1000, four times
    assert float(np.std(moved.x)) == pytest.approx(0.08, rel=0.1)  # 2 % by chance
    bounded = _moved_by_seed(drawn(0, 0, Interval(-7.05, -6.98)))
    assert (float(bounded.x.min()), float(bounded.x.max())) == (-7.05, -6.98)


# Noise


def test_noise_is_recovered_and_seed_effects_are_kept_apart() -> None:
    points = [seeds(REAL, 6, noise=0.005, rng_seed=i) for i in range(40)]
    noise = study_noise(points)
    assert noise.deviation == pytest.approx(0.005, rel=0.1)  # 800 degrees of freedom: 2.5 %, four times over
    # 40 curves × 5: 0.02 to 5 %, three times over.
    assert math.sqrt(noise.seed_variance) == pytest.approx(0.02, rel=0.15)


def test_pooled_noise_matters_where_a_curve_has_one_seed() -> None:
    quiet, loud = (optimum(curve(REAL), pooled=NoiseModel(s**2, 30)) for s in (0.001, 0.03))
    assert quiet.interval.width < loud.interval.width


def test_a_curve_is_not_counted_twice_in_what_is_pooled() -> None:
    points = seeds(REAL, 3, noise=0.005)
    alone = optimum(points)
    assert optimum(points, pooled=curve_noise(levels(points))).interval == pytest.approx(alone.interval, abs=1e-9)


def test_pooling_weighs_by_degrees_of_freedom() -> None:
    both = pool([NoiseModel(1.0, 1.0), NoiseModel(4.0, 3.0)])
    assert (both.variance, both.dof) == ((1 * 1 + 4 * 3) / 4, 4)
    assert pool([]) == NoiseModel(0.0, 0.0)


def test_two_way_fit_against_hand_worked_numbers() -> None:
    # Seeds differ by 0.2 with residuals ±0.01 in a 2 × 2 table: squares 4 · 0.01², one degree of freedom.
    table = {(-8.0, 0): 3.01, (-8.0, 1): 3.19, (-7.0, 0): 2.99, (-7.0, 1): 3.21}
    fitted = levels([Point(x, y, s) for (x, s), y in table.items()])
    assert fitted.mean == pytest.approx([3.10, 3.10], abs=1e-6)
    assert fitted.seed_effects == pytest.approx([-0.1, 0.1], abs=1e-6)
    assert fitted.squares == pytest.approx(4e-4, rel=1e-3)
    assert fitted.dof == pytest.approx(1.0)


def test_grid_places_equal_but_for_rounding_are_one() -> None:
    fitted = levels([Point(-7.0, 3.0, 0), Point(-7.0 + 1e-9, 3.2, 1)])
    assert len(fitted.x) == 1
    assert list(itertools.chain(fitted.count)) == [2.0]


def test_what_verdicts_are_read_with_leaves_less_to_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    points, real = seeds(REAL, 3, 0.01, 0), np.random.default_rng

    def ends(effort: Effort) -> list[Interval]:
        found = []
        for seed in range(8):
            monkeypatch.setattr(np.random, "default_rng", lambda given, seed=seed: real([given, seed]))
            _optimum.cache_clear()  # which knows the points, and not the generator
            found.append(optimum(points, effort=effort).interval)
        return found

    quick, fine = ends(QUICK), ends(FINE)
    width = float(np.mean([interval.width for interval in fine]))
    strays = [max(np.std([i.low for i in some]), np.std([i.high for i in some])) / width for some in (quick, fine)]
    assert strays[1] < 0.06  # a thirtieth, and as much again for eight draws of it
    assert strays[1] < 0.6 * strays[0]


def test_what_one_seed_assumes_is_said_with_its_digits() -> None:
    found = optimum(curve({-8.0: 3.3, -7.0: 3.1, -6.0: 3.2}))
    assert any("its noise to be 0.015 nats by a prior alone" in note for note in found.notes)


@pytest.mark.parametrize(
    ("pooled", "words"),
    [
        (NoiseModel(0.0, 0.0), "by a prior alone"),
        (NoiseModel(0.01**2, 30.0), "by the roughness of the curves and a prior"),
        (NoiseModel(0.01**2, 30.0, 0.02**2, 2.0), "the noise as at the study's other curves"),
    ],
)
def test_what_one_seeds_noise_rests_on_is_said(pooled: NoiseModel, words: str) -> None:
    losses = {-8.0: 3.3, -7.0: 3.1, -6.0: 3.2}
    assert optimum(curve(losses), pooled=pooled).notes[-1].endswith(words)
    assert not any("one seed" in note for note in optimum(seeds(losses, 2, 0.001), pooled=pooled).notes)


@pytest.mark.parametrize("count", [1, 2])
def test_one_seed_alone_moves_the_optimum_beyond_what_its_curves_say(count: int) -> None:
    points = seeds(REAL, count, 0.003)
    found = optimum(points)
    assert found.shapes is not None
    own = shapes(levels(points), noise_of(levels(points), None))
    assert np.array_equal(found.shapes.x, own.x) is (count > 1)


def test_the_loss_of_seeds_that_are_not_paired_has_their_spread_by_hand() -> None:
    # Their effects are part of the noise, 0.03 nats, which the runs of each of three seeds have in common.
    apart = replace(LEVEL, seeds=(0, 1, 2), paired=False)
    _, interval, notes = _loss(apart, drawn(0, 0), NoiseModel(0.03**2, 4.0), 0.90)
    half = 2.131847 * 0.03 / math.sqrt(3)  # the 95 % point of Student's t with four degrees of freedom
    assert interval == pytest.approx((3 - half, 3 + half), abs=1e-3)  # a thousand places of it
    assert notes == ()


def test_the_loss_is_covered_where_each_seed_has_learning_rates_of_its_own() -> None:
    hits = []
    for trial in range(60):
        rng = np.random.default_rng([3, trial])
        runs = [
            Point(x + 0.004 * s, 3 + 0.05 * (x + 0.004 * s + 7) ** 2 + effect + rng.normal(0, 0.003), s)
            for s, effect in enumerate(rng.normal(0, 0.01, 3))
            for x in np.arange(-9.0, -4.9, 0.5)
        ]
        found = optimum(runs, pooled=study_noise([runs]))
        assert found.loss_interval is not None
        hits.append(found.loss_interval.contains(3.0))
    assert float(np.mean(hits)) > 0.8  # of 90 %; runs of a seed have its effect in common
