"""Drift, power laws and role exponents: planted slopes come back, and what cannot be decided is not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.fit.synthetic import study

from nugpt.fit import (
    Edge,
    EdgeRule,
    Interval,
    Observed,
    Optimum,
    Point,
    drift,
    lerp_power_law,
    optimum,
    power_law,
    profile,
    role_exponents,
    stability_edge,
    study_noise,
)
from nugpt.fit.regression import fit_line


def at(log2_lr: float | None, deviation: float = 0.03, verdict: str | None = None) -> Optimum:
    """An optimum with nothing but a place."""
    known = log2_lr is not None
    return Optimum(
        verdict=verdict or ("enclosed" if known else "edge-censored"),
        side=None,
        log2_lr=log2_lr,
        interval=Interval(-math.inf, math.inf),
        deviation=deviation if known else None,
        loss=None,
        loss_interval=None,
        best_point=None,
        window=None,
        level=0.9,
    )


@pytest.mark.parametrize(("slope", "answer"), [(0.0, "holds"), (-0.4, "does not hold"), (0.1, "not decided here")])
def test_no_drift_is_an_equivalence_test(slope: float, answer: str) -> None:
    found = drift([(2.0**i, at(-7.0 + slope * i)) for i in range(5)])
    assert found.slope == pytest.approx(slope)
    assert found.no_drift == answer


def test_optima_that_bend_are_said_to() -> None:
    straight, bent = [-0.3, -0.1, 0.1, 0.3, 0.5], [-0.3, -0.1, 0.1, 0.55, 1.0]
    for places, bends in ((straight, False), (bent, True)):
        found = drift([(2.0**i, at(y, deviation=0.05)) for i, y in enumerate(places)])
        x, y = np.arange(5.0), np.array(places)
        squares = float(np.sum(((y - np.polyval(np.polyfit(x, y, 1), x)) / 0.05) ** 2))
        odds = float(stats.chi2.sf(squares, 3))
        said = [note for note in found.notes if "do not lie on a line" in note]
        assert bool(said) is (odds < 0.05) is bends
        assert not said or f"(by chance in {odds:.2g} of cases)" in said[0]
        assert found.bent is bends


def test_no_drift_needs_a_line() -> None:
    level = drift([(2.0**i, at(-7.0 + 0.02 * (-1) ** i)) for i in range(6)])
    bowed = drift([(2.0**i, at(-7.0 + 0.06 * abs(i - 2.5), deviation=0.02)) for i in range(6)])
    for found in (level, bowed):
        assert found.interval.inside(Interval(-0.1, 0.1))
    assert (level.bent, level.no_drift) == (False, "holds")
    assert (bowed.bent, bowed.no_drift) == (True, "not decided here")


def test_what_fails_does_so_on_no_line_and_beyond_a_grid_too() -> None:
    bowed = drift([(2.0**i, at(-7.0 + 0.1 * i**2, deviation=0.02)) for i in range(6)])
    assert (bowed.bent, bowed.no_drift) == (True, "does not hold")
    beyond = drift([*((2.0**i, at(-7.0 + 0.4 * i)) for i in range(5)), (32.0, at(None))])
    assert (beyond.censored, beyond.no_drift) == (True, "does not hold")


@pytest.mark.parametrize(("deviation", "counts_as"), [(0.05, 0.05), (0.02, 0.02), (0.001, 0.02)])
@pytest.mark.parametrize(("third", "share"), [({}, 0.45), ({"seeds": 1}, 1.0), ({"refined": True}, 1.0)])
def test_a_drifts_interval_by_hand(deviation: float, counts_as: float, third: dict[str, Any], share: float) -> None:
    # Σ(x − mean)² is 10 over five sizes an octave apart, and 1, −2, 0, 2, −1 has neither mean nor slope: halved, their
    # squares are 2.5 of the deviations'. Six points' worth of the share that is a size's own joins them; 1.833113 is
    # the 95 % point of Student's t with 6 + 5 − 2 degrees of freedom.
    sizes = []
    for i, off in enumerate((1, -2, 0, 2, -1)):
        one = at(-7.0 + 0.3 * i + 0.5 * counts_as * off, deviation)
        sizes.append((2.0**i, replace(one, **third) if i == 2 else one))
    found = drift(sizes)
    half = 1.833113 * counts_as * math.sqrt((6 * share + 2.5) / 9 / 10)
    assert found.slope == pytest.approx(0.3)
    assert found.interval == pytest.approx((0.3 - half, 0.3 + half), rel=1e-6)


def test_an_interval_that_covers_zero_is_not_enough() -> None:
    found = drift([(2.0**i, at(-7.0, deviation=0.4)) for i in range(3)])
    assert found.interval.contains(0.0)
    assert found.no_drift == "not decided here"


@pytest.mark.parametrize("optima", [[], [at(-7.0)], [at(-7.0), at(-7.0)], [at(-7.0), at(-7.0), at(None)]])
def test_fewer_than_three_sizes_decide_nothing(optima: list[Optimum]) -> None:
    found = drift([(2.0**i, one) for i, one in enumerate(optima)])
    assert (found.slope, found.no_drift) == (None, "not decided here")
    assert found.interval == Interval(-math.inf, math.inf)
    known = sum(one.log2_lr is not None for one in optima)
    assert found.notes[-1] == f"{known} sizes with an optimum, but a slope needs 3"
    assert not found.bent


@pytest.mark.parametrize("sizes", [(2.0, 2.0, 2.0), (2.0, 4.0, 4.0, 4.0)])
def test_three_optima_of_fewer_sizes_decide_nothing(sizes: tuple[float, ...]) -> None:
    found = drift([(size, at(-7.0)) for size in sizes])
    assert (found.slope, found.no_drift) == (None, "not decided here")
    assert found.notes == (f"{len(set(sizes))} sizes with an optimum, but a slope needs 3",)


def test_a_size_beyond_its_grid_forbids_no_drift_and_a_flat_one_does_not() -> None:
    sizes = [(2.0**i, at(-7.0)) for i in range(4)]
    beyond = drift([*sizes, (16.0, at(None))])
    assert (beyond.no_drift, beyond.dropped, beyond.censored) == ("not decided here", (16.0,), True)
    why = "a size whose optimum lies beyond its grid cannot be part of no drift"
    assert beyond.notes == ("size 16 has no enclosed optimum", why)
    flat = drift([*sizes, (16.0, at(None, verdict="flat"))])
    assert (flat.no_drift, flat.dropped) == ("holds", (16.0,))


def test_a_vague_optimum_weighs_little() -> None:
    sizes = [(2.0**i, at(-7.0)) for i in range(4)]
    found = drift([*sizes, (16.0, at(-9.0, deviation=2.0))])
    assert found.slope == pytest.approx(0.0, abs=0.01)  # weight (0.03/2)² of the others'


def test_scatter_beyond_the_deviations_widens_the_interval() -> None:
    quiet = drift([(2.0**i, at(-7.0)) for i in range(6)])
    loud = drift([(2.0**i, at(-7.0 + 0.2 * (-1) ** i)) for i in range(6)])
    assert loud.interval.width > 2 * quiet.interval.width


def test_edges_drift_too() -> None:
    edges: list[tuple[float, Edge]] = []
    for i in range(4):
        grid = {x: (None if x > -5.9 - 0.5 * i else 3.5 + 0.1 * abs(x + 7.5)) for x in np.arange(-9.0, -4.0, 0.25)}
        points = [Point(float(x), y, 0, "done" if y is not None else "diverged") for x, y in grid.items()]
        edges.append((2.0**i, stability_edge(points, EdgeRule())))
    found = drift(edges)
    assert found.interval.contains(-0.5)
    assert found.no_drift == "does not hold"


def test_edges_count_with_their_whole_error() -> None:
    edges = []
    for i in range(5):
        points = [Point(-10.0 + i, 3.5, 0), Point(-8.0 + i, 3.4, 0), Point(-7.0 + i, None, 0, "diverged")]
        edges.append((2.0**i, stability_edge(points)))
    found = drift(edges)
    half = 1.833113 / math.sqrt(12) * math.sqrt(6 / 9 / 10)  # as above, of brackets an octave wide
    assert found.interval == pytest.approx((1 - half, 1 + half), rel=1e-6)


@pytest.mark.parametrize("size", [0.0, -1.0, math.inf])
def test_a_size_is_above_zero(size: float) -> None:
    with pytest.raises(ValueError, match="size is"):
        drift([(size, at(-7.0))])


def test_a_drifts_level_is_one() -> None:
    with pytest.raises(ValueError, match="level is 90"):
        drift([(2.0**i, at(-7.0)) for i in range(3)], level=90)


# Power laws


def test_a_law_of_two_variables_without_noise() -> None:
    places = [{"steps": t, "batch": b} for t in (500.0, 2000.0, 8000.0) for b in (16.0, 64.0)]
    observed = [Observed(p, -2.0 - math.log2(p["steps"]) / 3 + math.log2(p["batch"]) / 2, 0.02) for p in places]
    law = power_law(observed)
    assert law.exponents == pytest.approx({"batch": 0.5, "steps": -1 / 3})
    assert law.constant == pytest.approx(-2.0)
    predicted = law.log2_at({"steps": 32_000.0, "batch": 32.0})
    assert predicted is not None
    value, interval = predicted
    assert value == pytest.approx(-2.0 - math.log2(32_000) / 3 + 2.5)
    inside = law.log2_at({"steps": 2000.0, "batch": 32.0})
    assert inside is not None
    assert interval.width > inside[1].width  # further out is less sure


@pytest.mark.parametrize(("deviation", "counts_as"), [(0.05, 0.05), (0.0, 0.02)])
@pytest.mark.parametrize(("independent", "share"), [((), 0.45), ((0,), 1.0)])
def test_the_interval_of_a_law_by_hand(
    deviation: float, counts_as: float, independent: tuple[int, ...], share: float
) -> None:
    # As that of a drift, whose line it is: four values an octave apart have Σ(x − mean)² = 5 and no scatter here.
    # 1.859548 is the 95 % point of Student's t with 6 + 4 − 2 degrees of freedom.
    values = [Observed({"steps": 2.0**i}, -i / 3, deviation) for i in range(4)]
    law = power_law([replace(one, independent=True) if i in independent else one for i, one in enumerate(values)])
    half = 1.859548 * counts_as * math.sqrt(6 * share / 8 / 5)
    assert law.intervals["steps"] == pytest.approx((-1 / 3 - half, -1 / 3 + half), rel=1e-6)


def test_a_value_without_a_deviation_leaves_all_without() -> None:
    # Then the scatter alone says how sure the line is: here there is none.
    law = power_law([Observed({"steps": 2.0**i}, -i / 3, 0.05 if i else None) for i in range(4)])
    assert law.intervals["steps"].width == pytest.approx(0.0, abs=1e-12)


def test_a_variable_that_does_not_vary_is_left_out() -> None:
    law = power_law([Observed({"steps": t, "batch": 32.0}, -math.log2(t) / 3, 0.02) for t in (1.0, 2.0, 4.0)])
    assert set(law.exponents) == {"steps"}
    assert "batch does not vary" in law.notes


def test_variables_that_move_together_are_not_told_apart() -> None:
    law = power_law([Observed({"steps": t, "batch": 2 * t}, -math.log2(t), 0.02) for t in (1.0, 2.0, 4.0, 8.0)])
    assert (law.exponents, law.constant) == ({}, None)
    assert law.log2_at({"steps": 2.0, "batch": 2.0}) is None


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_values_give_no_law(count: int) -> None:
    law = power_law([Observed({"steps": 2.0**i}, 0.0, 0.1) for i in range(count)])
    assert law.exponents == {}


def test_lines_against_the_closed_form() -> None:
    # Without deviations it is the textbook line: slope Sxy/Sxx, variance s²/Sxx, n − 2 degrees of freedom.
    x, y = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 0.4, 0.3, -1.2])
    line = fit_line(np.column_stack([np.ones(4), x]), y)
    assert line is not None
    sxx = float(np.sum((x - x.mean()) ** 2))
    slope = float(np.sum((x - x.mean()) * y)) / sxx
    rest = y - y.mean() - slope * (x - x.mean())
    error = math.sqrt(float(rest @ rest) / 2 / sxx)
    assert line.coefficients[1] == pytest.approx(slope)
    # 2.919986 is the 95 % point of Student's t with two degrees of freedom.
    assert line.interval(1, 0.90) == pytest.approx((slope - 2.919986 * error, slope + 2.919986 * error), rel=1e-6)


def test_the_lerp_law_covers_its_exponent_as_often_as_it_says() -> None:
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(1000):
        alphas = {d: [float(d**-0.5 * np.exp(rng.normal(0, 0.1))) for _ in range(2)] for d in (2, 4, 8, 16)}
        hits += lerp_power_law(alphas).intervals["depth"].contains(-0.5)
    assert 0.87 < hits / 1000 < 0.93  # exact at 0.9: three binomial deviations of 0.0095


def test_the_seeds_of_a_depth_are_averaged_in_logarithms() -> None:
    law = lerp_power_law({depth: [2.0**-depth, 2.0**-depth, 8 * 2.0**-depth] for depth in (1, 2, 4)})
    plain = lerp_power_law({depth: [2 * 2.0**-depth] for depth in (1, 2, 4)})  # (0 + 0 + 3)/3 octaves more
    assert law.exponents == pytest.approx(plain.exponents)
    assert law.constant == pytest.approx(plain.constant)


def test_lerp_means_that_are_no_numbers_are_left_out() -> None:
    law = lerp_power_law({2: [0.5], 4: [0.35, math.nan], 8: [0.25], 16: [0.0]})
    assert law.values == 3
    with pytest.raises(ValueError, match="must hold a mean above 0"):
        lerp_power_law({2: [math.nan]})


def test_refusals_of_power_laws() -> None:
    with pytest.raises(ValueError, match="observed is empty"):
        power_law([])
    for size in (0, -1.0, math.inf):
        with pytest.raises(ValueError, match=f"steps is {size}"):
            Observed({"steps": size}, 1.0)
    with pytest.raises(ValueError, match="log2_value is nan"):
        Observed({"steps": 1.0}, math.nan)
    with pytest.raises(ValueError, match="level is 90"):
        power_law([Observed({"steps": 1.0}, 1.0)], level=90)
    with pytest.raises(ValueError, match="all must name the same"):
        power_law([Observed({"steps": 1.0}, 1.0), Observed({"batch": 1.0}, 1.0)])


# Roles


def test_role_exponents_add_the_slope_of_the_multiplier() -> None:
    widths = (96.0, 192.0, 384.0, 768.0)
    optima = {
        "hidden": [(w, at(0.1)) for w in widths],
        "output": [(w, at(-1.0 - 0.25 * math.log2(w / 96))) for w in widths],
    }
    hidden, output = role_exponents(optima, {"hidden": -0.75, "output": -0.75})
    assert hidden.exponent == pytest.approx(-0.75)
    assert hidden.slope.no_drift == "holds"
    assert output.exponent == pytest.approx(-1.0)
    assert output.slope.no_drift == "does not hold"
    assert output.interval.contains(-1.0)
    width = output.interval.width
    assert output.interval.high == pytest.approx(-1.0 + width / 2)
    assert output.slope.interval.high == pytest.approx(-0.25 + width / 2)
    (half,) = role_exponents({"output": optima["output"]}, {"output": -0.75}, level=0.5, bound=1.0)
    assert (half.slope.level, half.slope.no_drift) == (0.5, "holds")
    assert half.interval.width < width
    assert output.slope.level == 0.90
    with pytest.raises(ValueError, match="role 'input' was swept"):
        role_exponents({"input": []}, {"hidden": 0.0})


def test_a_multiplier_is_profiled_over_learning_rates() -> None:
    # The loss is lowest at a multiplier of 2^-1; each multiplier's own best learning rate lies elsewhere.
    multipliers = np.array([-3.0, -2.0, -1.0, 0.0, 1.0])
    losses = list(3.5 + 0.03 * (multipliers + 1) ** 2)
    swept = study(
        np.random.default_rng(4), "exponential", 3, -7 + 0.3 * multipliers, same_shape=True, spacing=0.5, losses=losses
    )
    curves = [(float(multiplier), one.points) for multiplier, one in zip(multipliers, swept, strict=True)]
    points = profile(curves, study_noise([runs for _, runs in curves]))
    assert {p.seed for p in points} == {0, 1, 2}
    noise = study_noise([runs for _, runs in curves])
    for point in points:
        alone = [run for run in dict(curves)[point.log2_lr] if run.seed == point.seed]
        assert point.loss == optimum(alone, pooled=noise).reached
    found = optimum(points, cliff="either")
    assert found.verdict == "enclosed"
    assert found.interval.contains(-1.0)


def test_a_multiplier_at_which_nothing_trains_has_failed() -> None:
    (only,) = profile([(1.0, [Point(-7.0, None, 0, "diverged")])])
    assert (only.status, only.loss) == ("diverged", None)


def test_a_multiplier_whose_best_learning_rate_lies_beyond_its_grid_counts_with_what_it_reached() -> None:
    falling = [Point(-9.0 + i / 2, 3.0 - 0.05 * i, 0) for i in range(6)]
    assert optimum(falling).verdict == "edge-censored"
    (only,) = profile([(1.0, falling)])
    assert (only.status, only.loss) == ("done", pytest.approx(2.75))
