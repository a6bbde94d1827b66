"""Recommendations held against sizes that were swept: planted optima, what lies below what, and what it comes to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.fit.synthetic import study
from tests.fit.test_recommend import HEADS, curve_of, make_spec, planted

from nugpt.fit.backtest import Backtest, backtest, tally
from nugpt.fit.curves import Answers, Measured, among, answer
from nugpt.fit.recommend import choose_group, recommend


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


def test_sums_are_those_of_the_rows() -> None:
    sizes = back(planted(3, lambda heads: -7.0 - 0.8 * math.log2(heads))[0])
    sums = tally(sizes)
    paid = [one.paid.nats or 0.0 for one in sizes]
    assert (sums.sizes, sums.agree) == (2, sum(one.agrees for one in sizes))
    assert sums.paid == pytest.approx(np.mean(paid))
    assert sums.most == max(paid)
    assert sums.kept == pytest.approx(np.mean([one.kept.nats for one in sizes]))
    assert sums.off == pytest.approx(np.mean([abs(one.off) for one in sizes]))
    assert sums.expected == pytest.approx(np.mean([one.said.expected for one in sizes]))
