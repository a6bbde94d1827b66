"""Recommendations held against sizes that were swept: planted optima, what lies below what, and what it comes to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.fit.synthetic import study
from tests.fit.test_recommend import HEADS, curve_of, make_spec, planted

from nugpt.fit.backtest import Backtest, backtest, tally, untested
from nugpt.fit.curves import Answers, Measured, among, answer
from nugpt.fit.interval import Interval
from nugpt.fit.recommend import choose_group, recommend
from nugpt.fit.regret import MOST, regret_at
from nugpt.spec import load_table


def back(answers: Answers) -> tuple[Backtest, ...]:
    return backtest(answers, choose_group(answers, "nugpt"))


def heads(one: Backtest) -> int:
    return int(one.found.curve.label["heads"])


def test_where_nothing_drifts_smaller_sizes_are_right_and_cost_next_to_nothing() -> None:
    found, _ = planted(1)
    sizes = back(found)
    assert [heads(one) for one in sizes] == [2, 4], "the smallest has none below it"
    assert all(one.agrees for one in sizes)
    for one in sizes:
        assert one.said.plain == pytest.approx(-7.0, abs=0.25)
        assert one.paid.nats is not None
        assert one.paid.nats < 0.01
        assert one.kept.nats == pytest.approx(one.paid.nats, abs=0.005)


def test_a_drift_that_two_sizes_cannot_show_is_missed_by_it_and_costs_what_the_curve_says() -> None:
    found, shape = planted(3, lambda heads: -7.0 - 0.8 * math.log2(heads))
    second, third = back(found)
    assert not second.agrees, "one size below it shows no slope"
    assert second.off == pytest.approx(-0.8, abs=0.25)
    assert second.paid.nats == pytest.approx(float(shape(np.asarray(second.said.log2_lr + 7.8))), rel=0.4)
    assert third.off == pytest.approx(-0.8, abs=0.35), "a slope of two sizes counts as none"
    assert second.said.nearest_log2_lr == pytest.approx(-7.0, abs=0.25)
    off = second.said.nearest_log2_lr + 7.8
    assert second.kept.nats == pytest.approx(float(shape(np.asarray(off))), rel=0.4), "of the first size's own best"


def test_a_recommendation_rests_on_what_lies_below_alone() -> None:
    found, _ = planted(1)
    second, third = back(found)
    group = choose_group(found, "nugpt")
    below = among(found, [one for one in found.curves if one.curve.label["heads"] != 4])
    assert below.left_out == ()
    assert {len(path.curves) for path in below.paths} == {2}
    again = recommend(below, group, make_spec(4))
    assert (third.said.log2_lr, third.said.interval) == (again.log2_lr, again.interval)
    # With the largest size's optimum elsewhere, and its scatter as it was, no other word is said of the others.
    moved = [curve if curve.label["heads"] != 4 else _moved(curve, 1.5) for curve in (o.curve for o in found.curves)]
    other_second, other_third = back(answer(moved))
    assert other_second.said.plain == pytest.approx(second.said.plain, abs=1e-6)
    assert other_third.said.plain == pytest.approx(third.said.plain, abs=1e-6)
    assert other_third.off == pytest.approx(third.off + 1.5, abs=0.05)
    assert not other_third.agrees


def _moved(curve: Measured, octaves: float) -> Measured:
    return replace(curve, points=tuple(replace(p, log2_lr=p.log2_lr + octaves) for p in curve.points))


def test_a_size_that_is_larger_along_any_axis_is_not_below() -> None:
    rng = np.random.default_rng(5)
    specs = [make_spec(2, steps=200), make_spec(4, steps=100), make_spec(4, steps=200)]
    sweeps = study(rng, "exponential", 3, np.full(3, -7.0), same_shape=True, spacing=0.5)
    found = answer([curve_of(spec, one.points) for spec, one in zip(specs, sweeps, strict=True)])
    (only,) = back(found)
    assert (heads(only), only.found.curve.sizes["steps"]) == (4, 200)


def test_sizes_without_an_optimum_are_neither_tested_nor_lent_from() -> None:
    found, _ = planted(1)
    curves = [one.curve for one in found.curves]
    # Of the smallest size the lower half of the grid alone: its best lies at the edge.
    cut = replace(curves[0], points=tuple(p for p in curves[0].points if p.log2_lr < -7.2))
    sizes = back(answer([cut, *curves[1:]]))
    assert [heads(one) for one in sizes] == [HEADS[-1]]
    assert "heads=2" in sizes[0].said.nearest


def placed(said: tuple[float, float, float], found: tuple[float, float, float]) -> Backtest:
    """Two optima with the ends of their intervals, by hand."""
    one = back(planted(1)[0])[0]
    optimum = replace(one.found.optimum, log2_lr=found[1], interval=Interval(found[0], found[2]))
    word = replace(one.said, plain=said[1], interval=Interval(said[0], said[2]))
    return replace(one, found=replace(one.found, optimum=optimum), said=word)


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        # Said −7, from −7.6 to −6.7. Above it: 0.3 of its own and 0.4 of the found one's lower side make 0.5.
        ((-6.91, -6.51, -6.41), True),
        ((-6.89, -6.49, -6.39), False),  # though the intervals overlap, and 0.51 is less than 0.3 + 0.4
        # Below it: 0.6 of its own and 0.8 of the found one's upper side make 1.
        ((-8.09, -7.99, -7.19), True),
        ((-8.11, -8.01, -7.21), False),
        ((-7.1, -7.0, -6.2), True),
    ],
)
def test_optima_agree_as_far_as_the_facing_sides_of_their_intervals_reach_together(
    found: tuple[float, float, float], agrees: bool
) -> None:
    one = placed((-7.6, -7.0, -6.7), found)
    assert one.off == pytest.approx(found[1] + 7.0)
    assert one.agrees == agrees


def test_larger_sizes_never_speak_even_where_they_would_say_otherwise() -> None:
    """Four widths on a steep line: with the larger ones every word would be another."""
    rng = np.random.default_rng(9)
    optima = np.array([-7.0, -7.6, -8.2, -8.8])
    sweeps = study(rng, "exponential", 3, optima, same_shape=True, spacing=0.5)
    curves = [curve_of(make_spec(h), s.points) for h, s in zip((1, 2, 4, 8), sweeps, strict=True)]
    whole = {heads(one): one.said for one in back(answer(curves))}
    assert list(whole) == [2, 4, 8]
    assert "heads=1 " in whole[2].nearest
    assert "heads=2 " in whole[4].nearest
    assert "heads=4 " in whole[8].nearest
    assert whole[2].plain == whole[2].nearest_log2_lr, "no slope is seen in one size"
    assert whole[4].plain == whole[4].nearest_log2_lr, "nor in two"
    assert whole[8].plain == pytest.approx(-8.8, abs=0.3), "three show it"
    counts = [len(curve.points) for curve in curves]
    assert [len(said.runs) for said in whole.values()] == [sum(counts[:n]) for n in (1, 2, 3)]


def test_the_recommended_rate_is_charged_and_not_the_plain_optimum() -> None:
    """A cliff on the right makes the recommended η the smaller one; what it costs is read off at it."""
    for one in back(planted(1)[0]):
        assert one.said.log2_lr < one.said.plain
        again = regret_at(one.found.optimum, one.said.log2_lr, one.said.level)
        assert one.paid == again
        assert one.paid != regret_at(one.found.optimum, one.said.plain, one.said.level)
        assert one.kept == regret_at(one.found.optimum, one.said.nearest_log2_lr, one.said.level)


def test_the_level_is_that_of_the_answers() -> None:
    curves = [one.curve for one in planted(1)[0].curves]
    narrow, wide = (back(answer(curves, level))[0] for level in (0.5, 0.9))
    assert narrow.said.level == narrow.paid.level == 0.5
    assert narrow.said.interval is not None
    assert wide.said.interval is not None
    assert narrow.said.interval.width < 0.6 * wide.said.interval.width


def test_sizes_that_could_not_be_tested_are_named() -> None:
    found, _ = planted(1)
    small, middle, large = (one.curve for one in found.curves)

    def cut(curve: Measured) -> Measured:
        return replace(curve, points=tuple(p for p in curve.points if p.log2_lr < -7.2))

    def left_out(*curves: Measured) -> list[Any]:
        answers = answer(curves)
        tested = back(answers)
        return [one.curve.label["heads"] for one in untested(answers, choose_group(answers, "nugpt"), tested)]

    assert left_out(small, middle, large) == []
    assert left_out(small, middle, cut(large)) == [4], "its own optimum is not enclosed"
    assert left_out(cut(small), middle, large) == [2], "no optimum below it is"


def test_a_recommendation_that_fails_counts_as_a_failure() -> None:
    one, other = back(planted(1)[0])
    lost = replace(one, paid=replace(one.paid, nats=math.inf))
    sums = tally([lost, other])
    assert other.paid.nats is not None
    assert (sums.failed, sums.most) == (1, math.inf)
    assert sums.paid == pytest.approx((MOST + other.paid.nats) / 2)


def test_sums_are_those_of_the_rows() -> None:
    sizes = [placed((-7.6, -7.0, -6.7), (at - 0.1, at, at + 0.1)) for at in (-6.9, -7.3, -9.0)]
    sums = tally(sizes)
    assert sums.off == pytest.approx((0.1 + 0.3 + 2.0) / 3), "distances, whatever their signs"
    assert (sums.sizes, sums.agree, sums.failed) == (3, 2, 0)
    sizes = list(back(planted(3, lambda heads: -7.0 - 0.8 * math.log2(heads))[0]))
    sums = tally(sizes)
    paid = [one.paid.nats or 0.0 for one in sizes]
    assert (sums.sizes, sums.agree) == (2, sum(one.agrees for one in sizes))
    assert sums.paid == pytest.approx(np.mean(paid))
    assert sums.most == max(paid)
    assert sums.kept == pytest.approx(np.mean([one.kept.nats for one in sizes]))
    assert sums.expected == pytest.approx(np.mean([one.said.expected for one in sizes]))


def test_a_kept_learning_rate_is_the_smaller_sizes_own_where_the_table_says_that_it_moves() -> None:
    sweeps = study(np.random.default_rng(9), "exponential", 3, np.array([-7.0, -8.0]), same_shape=True, spacing=0.5)
    specs = [make_spec(h, table=load_table("ngpt")) for h in (1, 4)]
    found = answer([curve_of(spec, one.points) for spec, one in zip(specs, sweeps, strict=True)])
    (only,) = backtest(found, choose_group(found, "ngpt"))
    small, large = (one.optimum for one in found.curves)
    assert small.log2_lr is not None
    assert only.said.plain == pytest.approx(small.log2_lr - 2 * 5 / 8)
    assert only.kept == regret_at(large, small.log2_lr, found.level)
    assert only.kept != regret_at(large, only.said.plain, found.level)


def test_a_size_farther_than_is_carried_over_by_default_is_tested_too() -> None:
    sweeps = study(np.random.default_rng(9), "exponential", 3, np.array([-7.0, -7.0]), same_shape=True, spacing=0.5)
    specs = [make_spec(2, steps=steps) for steps in (100, 3200)]
    found = answer([curve_of(spec, one.points) for spec, one in zip(specs, sweeps, strict=True)])
    (only,) = back(found)
    assert [reach.beyond for reach in only.said.reaches if reach.axis == "steps"] == [5.0]
    with pytest.raises(ValueError, match=r"5\.0 octaves beyond"):
        recommend(among(found, found.curves[:1]), choose_group(found, "nugpt"), specs[1])
