"""What a rule judges, by hand: curves whose optima, costs and coefficients are given, and the numbers they come to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.fit.test_recommend import make_spec, record_of
from tests.fit.test_slopes import at

from nugpt.fit.claims import verdicts
from nugpt.fit.curves import Answers, CurveAnswer
from nugpt.fit.edge import stability_edge
from nugpt.fit.interval import Interval
from nugpt.fit.measured import Measured
from nugpt.fit.noise import NoiseModel
from nugpt.fit.optimum import Optimum
from nugpt.fit.points import Point
from nugpt.fit.regret import Cost, Sensitivity
from nugpt.fit.verdict import Estimate
from nugpt.spec.study import Claim
from nugpt.spec.study_rules import Rule

POINTS = (Point(-7.0, 3.0, 0),)
UNBOUNDED = Interval(-math.inf, math.inf)


def one(
    found: Optimum,
    sizes: dict[str, float] | None = None,
    costs: tuple[tuple[float, Cost], ...] = (),
    **label: str | float | bool,
) -> CurveAnswer:
    """What a curve is taken to say."""
    curve = Measured(label, "group", sizes or {}, POINTS)
    return CurveAnswer(curve, found, stability_edge(POINTS), Sensitivity(costs))


def estimates(rule: Rule, *curves: CurveAnswer) -> tuple[Estimate, ...]:
    (found,) = verdicts([Claim("It does.", rule)], Answers(curves, (), (), {}, NoiseModel(0.0, 0.0), 0.90))
    return found.estimates


def known(log2_lr: float, low: float, high: float) -> Optimum:
    return replace(at(log2_lr), interval=Interval(low, high))


# Held out


def smaller() -> list[CurveAnswer]:
    """A base, a wide and a long curve; the last two are known half as well, and the base's 0.01 counts as 0.05."""
    return [
        one(at(-6.0, deviation=0.01), axis="base", held_out=False),
        one(at(-7.0, deviation=0.1), axis="heads", held_out=False),
        one(at(-9.0, deviation=0.1), axis="steps", held_out=False),
        one(at(None), axis="heads", held_out=False),  # says nothing
    ]


@pytest.mark.parametrize(
    ("axis", "predicted"),
    [("heads", (4 * -6 - 7) / 5), ("steps", (4 * -6 - 9) / 5), ("all", (4 * -6 - 7 - 9) / 6), ("layers", -6.0)],
)
def test_a_prediction_is_the_weighted_mean_of_the_axis_and_the_base(axis: str, predicted: float) -> None:
    held_out = one(known(-6.5, -6.7, -6.4), axis=axis, held_out=True)
    (found,) = estimates(Rule("prediction", by="axis"), *smaller(), held_out)
    assert found.where == f"axis {axis}"
    assert found.value == pytest.approx(-6.5 - predicted)
    assert found.interval == pytest.approx((-6.7 - predicted, -6.4 - predicted))


def test_what_is_held_out_is_named_by_its_size_where_no_label_splits_it() -> None:
    held_out = one(known(-6.5, -6.7, -6.4), {"steps": 400.0}, axis="heads", held_out=True)
    (found,) = estimates(Rule("prediction"), *smaller(), held_out)
    assert (found.where, found.value) == ("400 steps", pytest.approx(-6.5 + 6.2))


def test_a_prediction_of_what_has_no_optimum_is_bounded_by_its_interval() -> None:
    beyond = one(replace(at(None), interval=Interval(-6.7, math.inf)), axis="layers", held_out=True)
    (found,) = estimates(Rule("prediction", by="axis"), *smaller(), beyond)
    assert (found.value, found.interval) == (None, pytest.approx((-0.7, math.inf)))


@pytest.mark.parametrize("kind", ["prediction", "regret"])
def test_without_an_optimum_below_nothing_is_predicted(kind: str) -> None:
    (found,) = estimates(Rule(kind, by="axis"), smaller()[-1], one(at(-6.5), axis="heads", held_out=True))
    assert (found.value, found.interval) == (None, UNBOUNDED)


# Sensitivity


def priced(table: str, layers: float, below: Cost, above: Cost) -> CurveAnswer:
    return one(at(-7.0), {"layers": layers}, ((-1.0, below), (1.0, above)), table=table)


def cost(nats: float | None, low: float = 0.0, high: float = math.inf) -> Cost:
    return Cost(nats, Interval(low, high), 0.90)


RISES = Rule("sensitivity-not-worse", table="nugpt", against="ngpt", high=0.0)


def test_costs_are_subtracted_at_the_largest_size_that_both_have() -> None:
    free = cost(0.0, 0.0, 0.0)
    below, above = estimates(
        RISES,
        priced("nugpt", 4, cost(0.3, 0.26, 0.33), cost(2.0, 1.88, 2.12)),
        priced("nugpt", 2, free, free),
        priced("nugpt", 8, free, free),
        priced("ngpt", 2, free, free),
        priced("ngpt", 4, cost(0.1, 0.06, 0.13), cost(1.0, 0.91, 1.05)),
    )
    # Errors that face each other add in quadrature: 0.3 − 0.26 with 0.13 − 0.1, and 0.33 − 0.3 with 0.1 − 0.06.
    assert (below.value, below.interval) == (pytest.approx(0.2), pytest.approx((0.2 - 0.05, 0.2 + 0.05)))
    assert (above.value, above.interval) == (pytest.approx(1.0), pytest.approx((1 - 0.13, 1 + 0.15)))
    assert (below.where, above.where) == ("4 layers, an octave below", "4 layers, an octave above")


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (cost(math.inf), cost(0.1, 0.0, 0.2), (math.inf, Interval(math.inf, math.inf))),
        (cost(0.1, 0.0, 0.2), cost(math.inf), (-math.inf, Interval(-math.inf, -math.inf))),
        (cost(math.inf), cost(math.inf), (None, UNBOUNDED)),
        (cost(None), cost(0.1, 0.0, 0.2), (None, UNBOUNDED)),
        (cost(0.1, 0.0, 0.2), cost(None), (None, UNBOUNDED)),
    ],
)
def test_failures_and_unknown_costs_are_told_apart(
    mine: Cost, theirs: Cost, expected: tuple[float | None, Interval]
) -> None:
    found = estimates(RISES, priced("nugpt", 4, mine, mine), priced("ngpt", 4, theirs, theirs))
    assert [(side.value, side.interval) for side in found] == [expected] * 2


def test_tables_that_share_no_size_are_not_compared() -> None:
    free = cost(0.0)
    assert estimates(RISES, priced("nugpt", 4, free, free), priced("ngpt", 2, free, free)) == ()


# LERP coefficients


def with_lerp(found: Optimum, spreads: list[tuple[float, float | None]]) -> CurveAnswer:
    """One run for each (log2 η, spread over a mean of 0.5), a seed each; it diverged where it has none."""
    points, records = [], []
    for seed, (x, spread) in enumerate(spreads):
        point = Point(x, None if spread is None else 3.0, seed, "diverged" if spread is None else "done")
        alpha = {"mean": 0.5, "std": 0.5 * (9.0 if spread is None else spread)}
        points.append(point)
        records.append(replace(record_of(make_spec(), point), lerp={"alpha_A": alpha}))
    answer = one(found)
    return replace(answer, curve=replace(answer.curve, points=tuple(points), records=tuple(records)))


def test_the_spread_of_a_coefficient_is_a_mean_over_sizes() -> None:
    # The rates nearest to the optima are taken, seeds averaged: 0.5 and 0.7. Their mean has the error 0.1, and 6.313752
    # is the 95 % point of Student's t with one degree of freedom.
    near_first = with_lerp(at(-7.2), [(-8.0, 3.0), (-7.0, 0.4), (-7.0, 0.4), (-7.0, 0.7), (-7.0, None), (-6.0, 3.0)])
    near_second = with_lerp(at(-7.8), [(-8.0, 0.7), (-7.0, 3.0)])
    without = with_lerp(at(None), [(-8.0, 3.0)])
    rule = Rule("lerp-spread", of="alpha_A")
    (found,) = estimates(rule, near_first, near_second, without)
    assert found.value == pytest.approx(0.6)
    assert found.interval == pytest.approx((0.6 - 0.6313752, 0.6 + 0.6313752), abs=1e-6)
    (alone,) = estimates(rule, near_first)
    assert (alone.value, alone.interval) == (pytest.approx(0.5), UNBOUNDED)
    assert estimates(Rule("lerp-spread", of="alpha_M"), near_first) == ()


# Multipliers


def tried(log2: float, loss: float, multipliers: dict[str, float] | None) -> CurveAnswer:
    """A curve of one run, whose spec has these multipliers (none: no spec)."""
    answer = one(at(None), output_log2=log2)
    spec = None if multipliers is None else make_spec(multipliers=multipliers)
    return replace(answer, curve=replace(answer.curve, points=(Point(-7.0, loss, 0),), spec=spec))


def test_a_multiplier_is_read_where_the_others_are_the_tables() -> None:
    rule = Rule("multiplier", of="output")
    places = (-3.0, -2.0, -1.0, 0.0, 1.0)
    alone = [tried(x, 3 + 0.2 * (x + 1) ** 2, {"output": 2.0**x}) for x in places]
    (found,) = estimates(rule, *alone)
    assert found.value == pytest.approx(-1.0, abs=0.1)  # half an octave off costs 0.05 nats
    # The table has an input's at 1 and knows of no spec: neither of these may count.
    others = [tried(1.0, 2.0, {"output": 2.0, "input": 4.0}), tried(1.0, 2.0, None)]
    assert estimates(rule, *alone, *others) == (found,)
    assert estimates(rule, *others) == ()
    assert estimates(rule, one(at(None), input_log2=0.0)) == ()


# Slopes


def test_each_part_has_a_slope_of_its_own() -> None:
    sizes = (1.0, 2.0, 4.0)
    curves = [one(at(-7.0 + s * math.log2(w)), width=w, steps=n) for n, s in ((8, 0.3), (2, -0.5)) for w in sizes]
    found = estimates(Rule("drift", along="width", by="steps"), *curves)
    assert {part.where: part.value for part in found} == pytest.approx({"steps 8": 0.3, "steps 2": -0.5})
    (mine,) = estimates(
        Rule("drift", table="ngpt", along="width"), *(with_table(c, "ngpt") for c in curves[:3]), curves[3]
    )
    assert mine.value == pytest.approx(0.3)


def with_table(answer: CurveAnswer, table: str) -> CurveAnswer:
    return replace(answer, curve=replace(answer.curve, label={**answer.curve.label, "table": table}))


def test_a_joint_slope_says_what_its_sizes_leave_open() -> None:
    places = [(steps, batch) for steps in (1.0, 2.0, 4.0) for batch in (1.0, 2.0)]
    straight = [one(at(-7.0 - math.log2(t) / 2 + math.log2(b)), steps=t, batch=b) for t, b in places]
    (plain,) = estimates(Rule("joint-slope", along="steps"), *straight)
    assert (plain.value, plain.censored, plain.bent) == (pytest.approx(-0.5), False, False)
    (batch,) = estimates(Rule("joint-slope", along="batch"), *straight)
    assert batch.value == pytest.approx(1.0)
    (beyond,) = estimates(Rule("joint-slope", along="steps"), *straight, one(at(None), steps=8.0, batch=1.0))
    assert (beyond.value, beyond.censored) == (pytest.approx(-0.5), True)
    bowed = [one(at(-7.0 + math.log2(t) ** 2), steps=t, batch=b) for t, b in places]
    assert estimates(Rule("joint-slope", along="steps"), *bowed)[0].bent
    assert estimates(Rule("joint-slope", along="steps"), one(at(None), steps=8.0, batch=1.0)) == ()


def test_a_change_of_slope_needs_two_lengths() -> None:
    rule = Rule("slope-change", along="heads", by="steps")
    places = [(heads, steps) for heads in (1.0, 2.0, 4.0) for steps in (2.0, 8.0)]
    curves = [one(at(-7.0 + 0.3 * math.log2(h) * math.log2(t) + t), heads=h, steps=t) for h, t in places]
    (found,) = estimates(rule, *curves)
    assert found.value == pytest.approx(0.3)
    vague = one(at(-3.0, deviation=9.0), heads=8.0, steps=8.0)
    assert estimates(rule, *curves, vague)[0].value == pytest.approx(0.3, abs=0.001)  # weighs (0.03/9)²
    assert estimates(rule, *curves[::2]) == ()  # of one length
    assert estimates(rule, *curves[:3]) == ()  # fewer than the unknowns


def test_a_rule_goes_along_numbers() -> None:
    with pytest.raises(ValueError, match="curve 'heads=two' has no number 'heads' in its label"):
        estimates(Rule("drift", along="heads"), one(at(-7.0), heads="two"))
