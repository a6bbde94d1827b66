"""Verdicts on claims: a rule that was fixed before the runs, and the intervals that the runs gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nugpt.fit.comparison import Difference
from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED, Drift, within
from nugpt.fit.interval import Interval
from nugpt.fit.power_law import PowerLaw
from nugpt.fit.regret import Cost
from nugpt.fit.roles import RoleExponent
from nugpt.spec.study_rules import Rule

# A size whose optimum lies beyond its grid contradicts these, so they cannot hold over the sizes that are left; nor can
# they where sizes do not lie on a line, whose slope says little of any two of them.
NEED_EVERY_SIZE = ("no-drift", "slope-near", "joint-slope", "multiplier-slope")


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and where it was taken."""

    value: float | None
    interval: Interval
    level: float
    where: str = ""  # such as "heads 8"
    censored: bool = False  # some size that belongs to it has its optimum beyond its grid
    bent: bool = False  # of a slope: its sizes do not lie on a line


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim."""

    rule: Rule
    answer: str | None  # holds, does not hold or not decided here; none for an open question, which bounds nothing
    estimates: tuple[Estimate, ...]
    reason: str


def estimate_of(answer: Drift | Cost | Difference | RoleExponent, where: str = "") -> Estimate:
    """An answer as the estimate that a rule judges; a role's is the slope of its best multiplier."""
    if isinstance(answer, RoleExponent):
        return estimate_of(answer.slope, where or answer.role)
    if isinstance(answer, Drift):
        return Estimate(answer.slope, answer.interval, answer.level, where, answer.censored, answer.bent)
    return Estimate(answer.nats, answer.interval, answer.level, where)


def exponent_estimate(law: PowerLaw, name: str, where: str = "") -> Estimate:
    """The exponent of one variable of a law; unbounded where the law does not determine it."""
    interval = law.intervals.get(name, Interval(-math.inf, math.inf))
    return Estimate(law.exponents.get(name), interval, law.level, where)


def judge(rule: Rule, estimates: Sequence[Estimate]) -> Verdict:
    """A claim holds if every interval lies within the rule's bounds, and fails if one lies wholly outside."""
    given = tuple(estimates)
    for one in given:
        if not math.isclose(one.level, rule.level):
            raise ValueError(
                f"level of the estimate is {one.level!r}, but the rule {rule.kind!r} asks for {rule.level!r}"
            )
    if not rule.decides:
        return Verdict(rule, None, given, "an open question: the estimates are the answer")
    if not given:
        return Verdict(rule, UNDECIDED, given, "there is no estimate")
    allowed = Interval(
        -math.inf if rule.low is None else rule.low,
        math.inf if rule.high is None else rule.high,
    )
    answers = [_one(rule, one, allowed) for one in given]
    for answer in (FAILS, UNDECIDED):
        found = [(one, why) for one, (verdict, why) in zip(given, answers, strict=True) if verdict == answer]
        if found:
            return Verdict(rule, answer, given, "; ".join(_located(one, why) for one, why in found))
    return Verdict(
        rule, HOLDS, given, "; ".join(_located(one, why) for one, (_, why) in zip(given, answers, strict=True))
    )


def caveat(rule: Rule, estimate: Estimate) -> str | None:
    """Why an estimate within the rule's bounds does not hold all the same."""
    if rule.kind not in NEED_EVERY_SIZE:
        return None
    if estimate.censored:
        return "a size has its optimum beyond its grid"
    return "an average: its sizes do not lie on a line" if estimate.bent else None


def _one(rule: Rule, estimate: Estimate, allowed: Interval) -> tuple[str, str]:
    if estimate.value is None:
        return UNDECIDED, "no estimate"
    verdict = within(estimate.interval, allowed)
    found = f"{estimate.value:.3g} ({_end(estimate.interval.low)} to {_end(estimate.interval.high)})"
    why = caveat(rule, estimate)
    if verdict != HOLDS or why is None:
        return verdict, found
    return UNDECIDED, why if estimate.censored else f"{found}, {why}"


def _end(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unbounded"


def _located(estimate: Estimate, why: str) -> str:
    return f"{estimate.where}: {why}" if estimate.where else why
