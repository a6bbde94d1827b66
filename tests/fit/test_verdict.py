"""Verdicts: a rule's bounds and the intervals that runs gave."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nugpt.fit import Cost, Difference, Drift, Estimate, Interval, estimate_of, exponent_estimate, judge, power_law
from nugpt.fit.power_law import Observed
from nugpt.fit.roles import RoleExponent
from nugpt.spec.study_rules import Rule


def estimate(low: float, high: float, where: str = "", censored: bool = False) -> Estimate:
    return Estimate((low + high) / 2, Interval(low, high), 0.90, where, censored)


NO_DRIFT = Rule("no-drift", low=-0.1, high=0.1)
FALLS = Rule("drift", high=-0.1)
RISES = Rule("drift", low=0.1)
NOT_WORSE = Rule("loss-not-worse", high=0.01)


@pytest.mark.parametrize(
    ("rule", "low", "high", "answer"),
    [
        (NO_DRIFT, -0.05, 0.09, "holds"),
        (NO_DRIFT, -0.05, 0.11, "not decided here"),
        (NO_DRIFT, -0.11, 0.05, "not decided here"),
        (NO_DRIFT, 0.11, 0.3, "does not hold"),
        (NO_DRIFT, -0.3, -0.11, "does not hold"),
        (RISES, 0.2, math.inf, "holds"),
        (RISES, 0.0, 0.2, "not decided here"),
        (RISES, -0.05, 0.05, "does not hold"),
        (FALLS, -0.5, -0.2, "holds"),
        (FALLS, -0.5, 0.0, "not decided here"),
        (FALLS, -0.05, 0.05, "does not hold"),
        (NOT_WORSE, -0.3, 0.009, "holds"),
        (NOT_WORSE, 0.0, 0.02, "not decided here"),
        (NOT_WORSE, 0.02, 0.03, "does not hold"),
        (NOT_WORSE, -math.inf, math.inf, "not decided here"),
    ],
)
def test_one_estimate(rule: Rule, low: float, high: float, answer: str) -> None:
    given = Estimate(0.0, Interval(low, high), 0.90)
    assert judge(rule, [given]).answer == answer


def test_every_size_must_hold_and_one_can_refute() -> None:
    good, vague, bad = estimate(-0.05, 0.05, "heads 2"), estimate(-1, 1, "heads 4"), estimate(0.2, 0.3, "heads 8")
    assert judge(NO_DRIFT, [good, good]).answer == "holds"
    assert judge(NO_DRIFT, [good, vague]).answer == "not decided here"
    refuted = judge(NO_DRIFT, [good, vague, bad])
    assert refuted.answer == "does not hold"
    assert refuted.reason == "heads 8: 0.25 (0.2 to 0.3)"
    assert judge(NO_DRIFT, [good, replace(good, where="")]).reason == "heads 2: 0 (-0.05 to 0.05); 0 (-0.05 to 0.05)"
    unbounded = replace(good, interval=Interval(-math.inf, 0.05))
    assert judge(NO_DRIFT, [unbounded]).reason == "heads 2: 0 (unbounded to 0.05)"


def test_a_size_beyond_its_grid_forbids_no_drift_but_not_drift() -> None:
    assert judge(NO_DRIFT, [estimate(-0.05, 0.05, censored=True)]).answer == "not decided here"
    assert judge(NO_DRIFT, [estimate(0.2, 0.3, censored=True)]).answer == "does not hold"
    assert judge(FALLS, [estimate(-0.5, -0.2, censored=True)]).answer == "holds"


def test_an_average_of_sizes_that_lie_on_no_line_does_not_hold_for_each() -> None:
    bent = replace(estimate(-0.05, 0.05), bent=True)
    assert judge(NO_DRIFT, [bent]).answer == "not decided here"
    assert judge(NO_DRIFT, [bent]).reason.endswith("an average: its sizes do not lie on a line")
    assert judge(NO_DRIFT, [replace(estimate(0.2, 0.3), bent=True)]).answer == "does not hold"
    assert judge(FALLS, [replace(estimate(-0.5, -0.2), bent=True)]).answer == "holds"  # on the whole it falls


def test_an_open_question_has_no_verdict() -> None:
    given = judge(Rule("drift"), [estimate(-0.5, 0.5)])
    assert (given.answer, len(given.estimates)) == (None, 1)


def test_nothing_estimated_decides_nothing() -> None:
    assert judge(NO_DRIFT, []).answer == "not decided here"
    unknown = Estimate(None, Interval(-math.inf, math.inf), 0.90, "heads 2")
    assert judge(NO_DRIFT, [unknown]).reason == "heads 2: no estimate"


def test_the_level_must_be_the_rules() -> None:
    with pytest.raises(ValueError, match=r"level of the estimate is 0\.9, but the rule 'no-drift' asks for 0\.95"):
        judge(Rule("no-drift", low=-0.1, high=0.1, level=0.95), [estimate(0, 0)])


def test_answers_become_estimates() -> None:
    slope = Drift(0.2, Interval(0.1, 0.3), "does not hold", 0.1, (1.0, 2.0, 4.0), (8.0,), 0.9, censored=True)
    assert estimate_of(slope, "nugpt") == Estimate(0.2, Interval(0.1, 0.3), 0.9, "nugpt", censored=True)
    assert estimate_of(Cost(0.1, Interval(0, 0.2), 0.9)).value == 0.1
    assert estimate_of(Difference(0.1, Interval(0, 0.2), 3, 0.9)).interval == Interval(0, 0.2)
    law = power_law([Observed({"steps": 2.0**i}, -i / 3, 0.01) for i in range(4)])
    assert exponent_estimate(law, "steps").value == pytest.approx(-1 / 3)
    assert exponent_estimate(law, "batch") == Estimate(None, Interval(-math.inf, math.inf), 0.9)


def test_a_roles_exponent_is_judged_by_the_slope_of_its_multiplier() -> None:
    slope = Drift(0.2, Interval(0.1, 0.3), "does not hold", 0.1, (1.0, 2.0, 4.0), (), 0.9, bent=True)
    role = RoleExponent("hidden", -0.75, slope, -0.55, Interval(-0.65, -0.45))
    assert estimate_of(role) == Estimate(0.2, Interval(0.1, 0.3), 0.9, "hidden", bent=True)
    assert estimate_of(role, "nugpt").where == "nugpt"
