"""Noise by hand: of one curve, of a study's, and what both and the prior come to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from nugpt.fit import NoiseModel, optimum
from nugpt.fit.noise import (
    OFF_BY,
    PRIOR_DOF,
    UNREPEATED_VARIANCE,
    USUALLY_ALIKE,
    curve_noise,
    like_others,
    noise_of,
    pool,
    residual_noise,
    study_noise,
)
from nugpt.fit.points import Levels, Point, levels

# On six even places this has nothing of any cubic (a discrete orthogonal polynomial of the fourth degree); squares 28.
ROUGH = np.array([1.0, -3.0, 2.0, 2.0, -3.0, 1.0])
PLACES = np.arange(6) - 2.5


def levels_of(effects: tuple[float, ...], squares: float, dof: float) -> Levels:
    """Two learning rates, each of as many seeds as there are effects."""
    two = np.full(2, float(len(effects)))
    return Levels(
        np.array([-8.0, -7.0]), np.full(2, 3.0), two, tuple(range(len(effects))), np.array(effects), squares, dof, ()
    )


REPEATED = levels_of((-0.2, 0.0, 0.2), squares=0.03, dof=3.0)
SINGLE = levels_of((0.0,), squares=0.0, dof=0.0)


def rough(scale: float, height: float = 9.0) -> Levels:
    """One seed: a parabola with that on it, and a seventh place farther out and up."""
    x = np.append(PLACES, 10.0)
    mean = np.append(3 + 0.01 * PLACES**2 + scale * ROUGH, 3 + height)
    return Levels(x, mean, np.ones(7), (0,), np.zeros(1), 0.0, 0.0, ())


def test_a_curves_own_noise() -> None:
    # 0.03/3 between points; 0.08/2 between seeds, of which 0.01 · 3/6 is the noise of their points.
    found = curve_noise(REPEATED)
    assert (found.variance, found.dof) == (pytest.approx(0.01), 3.0)
    assert (found.seed_variance, found.seed_dof) == (pytest.approx(0.04 - 0.005), 2.0)
    two = curve_noise(levels_of((-0.1, 0.1), squares=0.01, dof=1.0))
    assert (two.seed_variance, two.seed_dof) == (pytest.approx(0.02 / 1 - 0.01 * 2 / 4), 1.0)
    # 0.0002/2 between seeds is less than their points' noise: a tenth of it is left.
    alike = curve_noise(levels_of((-0.01, 0.0, 0.01), squares=0.03, dof=3.0))
    assert alike.seed_variance == pytest.approx(1e-5)
    assert curve_noise(SINGLE) == NoiseModel(0.0, 0.0, 0.0, 0.0)


def test_roughness_is_what_a_cubic_near_the_best_leaves() -> None:
    found = residual_noise(rough(0.001))
    assert (found.variance, found.dof) == (pytest.approx(28e-6 / 2), 2.0)
    assert residual_noise(rough(0.001, height=0.5)) == found, "where the curve is steep a cubic does not follow it"
    assert residual_noise(SINGLE) == NoiseModel(0.0, 0.0)  # a cubic goes through all of it


def test_seeds_are_pooled_by_their_degrees_of_freedom_and_counted_once() -> None:
    both = pool([NoiseModel(1.0, 1.0, 4.0, 1.0), NoiseModel(4.0, 3.0, 1.0, 2.0)])
    assert both == NoiseModel((1 + 12) / 4, 4.0, (4 + 2) / 3, 2.0)


def test_a_study_is_read_by_its_seeds_where_one_curve_repeats_them_and_else_by_roughness() -> None:
    single = [Point(x, y, 0) for x, y in zip(PLACES, rough(0.001).mean, strict=False)]
    assert study_noise([single]).variance == pytest.approx(28e-6 / 2)
    # Residuals of ±0.01 in a 2 × 2 table leave one degree of freedom.
    table = {(-8.0, 0): 3.01, (-8.0, 1): 3.19, (-7.0, 0): 2.99, (-7.0, 1): 3.21}
    repeated = [Point(x, y, seed) for (x, seed), y in table.items()]
    found = study_noise([single, repeated])
    assert (found.variance, found.dof) == (pytest.approx(4e-4, rel=1e-3), pytest.approx(1.0))


def test_what_is_known_about_a_curve_alone() -> None:
    # A prior of two degrees of freedom: 0.006 nats where seeds are repeated, 0.015 where none is.
    assert noise_of(SINGLE, None) == NoiseModel(0.015**2, 2.0)
    found = noise_of(REPEATED, None)
    assert (found.variance, found.dof) == (pytest.approx((2 * 0.006**2 + 0.03) / 5), 5.0)
    assert (found.seed_variance, found.seed_dof) == (pytest.approx(0.035), 2.0)


PRIOR = NoiseModel(0.006**2, 2.0)


def test_one_more_curve_is_like_others_as_by_drawing_what_they_have_in_common() -> None:
    """The answer on a grid against draws from the prior, weighed by how likely they make the variances seen."""
    generator = np.random.default_rng(3)
    seen = ((2e-4, 6.0), (1.1e-3, 9.0), (6e-5, 4.5))
    draws = 400_000
    alike = USUALLY_ALIKE * np.exp(OFF_BY * generator.standard_normal(draws))
    alike = np.where((alike > 0.5) & (alike < 60.0), alike, 3.0)  # as far as the grid goes; one in twenty is beyond
    common = PRIOR.dof * PRIOR.variance / generator.chisquare(PRIOR.dof, draws)
    weight = (alike != 3.0).astype(np.float64)
    for variance, dof in seen:
        weight *= stats.f.pdf(variance / common, dof, alike) / common
    one_more = np.log(common * alike / generator.chisquare(alike))
    mean = np.average(one_more, weights=weight)
    spread = np.average((one_more - mean) ** 2, weights=weight)
    found = like_others(seen, PRIOR)
    # Effectively some thousands of draws; and the grid's ends lie half a step outside of what is drawn.
    assert special.polygamma(1, found.dof / 2) == pytest.approx(spread, rel=0.05)
    assert np.log(found.variance * found.dof / 2) - special.digamma(found.dof / 2) == pytest.approx(mean, abs=0.05)


@pytest.mark.parametrize("alike", [1.5, 4.0, 40.0])
def test_how_alike_curves_are_is_recovered_from_many(alike: float) -> None:
    generator = np.random.default_rng(4)
    true = 0.01**2 * alike / generator.chisquare(alike, 300)
    found = like_others(tuple((v * generator.chisquare(8.0) / 8.0, 8.0) for v in true), PRIOR)
    # Of 300 the logarithm of so many degrees of freedom is known to about 0.15, worse where curves are much alike.
    assert found.dof == pytest.approx(alike, rel=0.5)
    assert found.deviation == pytest.approx(0.01, rel=0.1)


def test_curves_that_scatter_alike_say_more_of_one_another() -> None:
    same = like_others(((1e-4, 6.0),) * 6, PRIOR)
    apart = like_others(((1e-5, 6.0), (1e-4, 6.0), (1e-3, 6.0)) * 2, PRIOR)
    assert same.dof > 3 * apart.dof
    assert same.deviation == pytest.approx(0.01, rel=0.1)
    assert like_others(((1e-4, 6.0),) * 2, PRIOR).dof < same.dof
    assert like_others((), PRIOR) == like_others(((0.1, 0.0),), PRIOR) == PRIOR
    exact = like_others(((0.0, 6.0),) * 3, PRIOR)  # runs that agree to the bit: less than the prior, and little is sure
    assert 0 < exact.deviation < 0.003
    assert exact.dof < 1


def test_the_others_of_a_study_count_without_this_one() -> None:
    three = replace(pool([curve_noise(REPEATED), NoiseModel(0.02, 4.0, 0.05, 2.0), NoiseModel(0.03, 5.0)]))
    study = replace(three, curves=((0.02, 4.0), (curve_noise(REPEATED).variance, 3.0), (0.03, 5.0)))
    like = like_others(((0.02, 4.0), (0.03, 5.0)), PRIOR)
    found = noise_of(REPEATED, study)
    assert found.variance == pytest.approx((0.03 + like.dof * like.variance) / (3 + like.dof))
    assert found.dof == pytest.approx(3 + like.dof)
    # Seeds: 0.035 of this curve's two, and the study's, which counts this one's already.
    assert found.seed_variance == pytest.approx((2 * 0.035 + 2 * study.seed_variance) / 4)
    assert found.seed_dof == 2.0
    # Some seeds of a curve: the whole of it is one of the others.
    part = noise_of(levels_of((-0.2, 0.2), squares=0.01, dof=1.0), study)
    all_three = like_others(study.curves, PRIOR)
    assert part.variance == pytest.approx((0.01 + all_three.dof * all_three.variance) / (1 + all_three.dof))


def test_a_model_that_names_no_curves_is_one_curve_and_this_one() -> None:
    found = noise_of(REPEATED, NoiseModel(0.002, 53.0, 0.05, 4.0))
    like = like_others((((0.002 * 53 - 0.03) / 50, 50.0),), PRIOR)
    assert found.variance == pytest.approx((0.03 + like.dof * like.variance) / (3 + like.dof))
    assert (found.seed_variance, found.seed_dof) == (pytest.approx((2 * 0.035 + 4 * 0.05) / 6), 4.0)
    less = noise_of(REPEATED, NoiseModel(0.016, 3.0, 0.05, 4.0))  # nothing is left
    assert (less.variance, less.dof) == (pytest.approx((2 * 0.006**2 + 0.03) / 5), 5.0)


def test_a_study_names_the_noise_of_its_curves() -> None:
    table = {(-8.0, 0): 3.01, (-8.0, 1): 3.19, (-7.0, 0): 2.99, (-7.0, 1): 3.21}
    repeated = [Point(x, y, seed) for (x, seed), y in table.items()]
    single = [Point(x, y, 0) for x, y in zip(PLACES, rough(0.001).mean, strict=False)]
    assert study_noise([single, repeated]).curves == ((curve_noise(levels(repeated)).variance, pytest.approx(1.0)),)
    assert study_noise([single, single]).curves == ((pytest.approx(28e-6 / 2), 2.0),) * 2


def test_a_curve_of_one_seed_beside_others() -> None:
    # Others that repeat seeds: the small prior, and nothing of this curve's to take off.
    seeds = noise_of(rough(0.001), NoiseModel(0.002, 10.0, 0.05, 2.0))
    like = like_others(((0.002, 10.0),), PRIOR)
    assert (seeds.variance, seeds.dof) == (pytest.approx(like.variance), pytest.approx(like.dof))
    assert (seeds.seed_variance, seeds.seed_dof) == (pytest.approx(0.05), 2.0)
    # Others of one seed too: the large prior, and this curve's own roughness is taken off.
    single = noise_of(rough(0.001), NoiseModel(0.002, 10.0))
    like = like_others((((0.02 - 28e-6) / 8, 8.0),), NoiseModel(0.015**2, 2.0))
    assert (single.variance, single.dof) == (pytest.approx(like.variance), pytest.approx(like.dof))
    alone = noise_of(rough(0.001), residual_noise(rough(0.001)))
    assert (alone.variance, alone.dof) == (pytest.approx(0.015**2), 2.0)


def test_a_loud_curve_has_a_wider_interval_than_a_quiet_one_of_its_study() -> None:
    """The same shape and seeds; the second curve's losses stray ten times as far."""
    generator = np.random.default_rng(8)

    def curve(noise: float) -> list[Point]:
        return [
            Point(x, 3 + 0.06 * (x + 7) ** 2 + generator.normal(0.0, noise), seed)
            for x in np.arange(-9, -4.9, 0.5)
            for seed in range(3)
        ]

    quiet, loud = [curve(0.002) for _ in range(3)], curve(0.02)
    pooled = study_noise([*quiet, loud])
    assert optimum(loud, pooled=pooled).interval.width > 2 * optimum(quiet[0], pooled=pooled).interval.width


@pytest.mark.parametrize("field", ["variance", "dof", "seed_variance", "seed_dof"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_refusals(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}"):
        NoiseModel(**{"variance": 1.0, "dof": 1.0, field: value})


@pytest.mark.parametrize("design", ["a seed for every run", "no seed at two neighbours", "rounded learning rates"])
def test_seeds_that_do_not_link_the_learning_rates_count_as_noise(design: str) -> None:
    """A level that is not told from its seeds' effects by the data must not be told by the solver's choice."""
    generator = np.random.default_rng(5)
    effects = generator.normal(0.0, 0.01, 3)
    points = []
    for i in range(9):
        x = -9 + i / 2
        for seed in range(3):
            loss = 3 + 0.05 * (x + 7) ** 2 + effects[seed] + generator.normal(0.0, 0.003)
            if design == "a seed for every run":
                points.append(Point(x, loss, 100 * i + seed))
            elif design == "rounded learning rates":
                points.append(Point(x + 0.004 * (seed == 1), loss, seed))
            elif (seed == 0) == (i % 2 == 0):
                points.append(Point(x, loss, seed))
    curve = levels(points)
    assert not curve.paired
    best = optimum(points, pooled=study_noise([points]))
    assert best.verdict == "enclosed"
    assert best.interval.low < -7 < best.interval.high
    assert best.log2_lr == pytest.approx(-7, abs=0.2)
    assert best.loss == pytest.approx(3, abs=0.02)  # two deviations of a seed
    assert sum("what a seed does counts as noise" in note for note in best.notes) == 1


def test_an_unpaired_curve_has_its_seeds_in_its_noise_and_leaves_that_of_paired_ones_alone() -> None:
    generator = np.random.default_rng(6)
    effects = generator.normal(0.0, 0.05, 200)
    shape = {x: 3 + 0.05 * (x + 7) ** 2 for x in np.arange(-9, -5, 0.5)}
    paired = [Point(x, y + effects[s] + generator.normal(0.0, 0.002), s) for s in range(4) for x, y in shape.items()]
    unpaired = [
        Point(x, y + effects[(k := 4 * i + s)] + generator.normal(0.0, 0.002), k)
        for s in range(4)
        for i, (x, y) in enumerate(shape.items())
    ]
    pooled = study_noise([paired, unpaired])
    assert pooled == study_noise([paired])
    assert noise_of(levels(paired), pooled).deviation < 0.006
    assert noise_of(levels(unpaired), pooled).deviation > 0.02  # a seed's is 0.05, the rest's 0.002
    assert noise_of(levels(unpaired), study_noise([unpaired])).deviation > 0.02


def test_the_noise_of_an_unpaired_curve_by_hand() -> None:
    unpaired = replace(levels_of((-0.2, 0.0, 0.2), squares=0.03, dof=3.0), paired=False)
    assert curve_noise(unpaired) == NoiseModel(0.03 / 3, 3.0), "its noise has what a seed does in it"
    prior = PRIOR_DOF * UNREPEATED_VARIANCE
    alone = noise_of(unpaired, None)
    assert (alone.variance, alone.dof, alone.seed_dof) == (pytest.approx((prior + 0.03) / (PRIOR_DOF + 3)), 5.0, 0.0)
    # Ten degrees of freedom of paired curves, of which it is none: their noise, and what a seed does there.
    large = NoiseModel(UNREPEATED_VARIANCE, PRIOR_DOF)
    like = like_others(((0.0004, 10.0),), large)
    beside = noise_of(unpaired, NoiseModel(0.0004, 10.0, 0.0005, 2.0))
    assert beside.variance == pytest.approx((0.03 + like.dof * (like.variance + 0.0005)) / (3 + like.dof))
    assert (beside.dof, beside.seed_variance, beside.seed_dof) == (pytest.approx(3 + like.dof), 0.0, 0.0)
    # Pooled with another unpaired one of 0.01 and five degrees of freedom, it counts once.
    like = like_others(((0.01 / 5, 5.0),), large)
    both = noise_of(unpaired, pool([curve_noise(unpaired), NoiseModel(0.01 / 5, 5.0)]))
    assert both.variance == pytest.approx((0.03 + like.dof * like.variance) / (3 + like.dof))
    assert both.dof == pytest.approx(3 + like.dof)


@pytest.mark.parametrize(("near", "dof"), [(3, 0.0), (4, 0.0), (5, 1.0), (6, 2.0)])
def test_a_cubic_leaves_what_points_it_has_above_four(near: int, dof: float) -> None:
    every = rough(0.001)
    some = replace(every, x=every.x[:near], mean=every.mean[:near], count=every.count[:near])
    found = residual_noise(some)
    assert found.dof == dof
    assert (found.variance > 0) == (dof > 0)
