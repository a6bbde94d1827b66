"""The numbers of a verdict in words, with the digits that their error allows: all of them, or the one that decides."""

from __future__ import annotations

import math

from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED
from nugpt.fit.interval import Interval
from nugpt.fit.verdict import Estimate, caveat, judge
from nugpt.report.answers import Judged
from nugpt.report.words import NONE, UNBOUNDED, between, number
from nugpt.spec.study_rules import SYMBOLS, Rule

# Where an estimate is of: symbols as the paper has them, axes as a reader calls them.
PLACES = SYMBOLS | {
    "axis heads": "over width",
    "axis layers": "over depth",
    "axis steps": "over length",
    "axis all": "over all three",
}


def estimate(one: Judged) -> str:
    """Of several, the one that decides: of those with the verdict's answer, the nearest to a bound or furthest beyond.

    Of an open question, the lowest and the highest.
    """
    verdict, rule = one.verdict, one.claim.rule
    if len(verdict.estimates) < 2:
        return estimates(one)
    n = len(verdict.estimates)
    if verdict.answer is None:
        known = sorted((e for e in verdict.estimates if e.value is not None), key=lambda e: float(e.value or 0.0))
        ends = "; ".join(map(_estimate, dict.fromkeys((known[0], known[-1])))) if known else "no estimate"
        return f"{ends}; the lowest and the highest of {n}" if n > 2 and known else ends
    alike = [e for e in verdict.estimates if judge(rule, (e,)).answer == verdict.answer]
    share = {HOLDS: "both within" if n == 2 else f"all {n} within", FAILS: f"{len(alike)} of {n} outside"}
    chosen = min(alike, key=lambda e: _room(rule, e, verdict.answer == HOLDS))
    return f"{_estimate(chosen)}; {share.get(verdict.answer, f'{len(alike)} of {n} not decided')}"


def _room(rule: Rule, one: Estimate, holds: bool) -> float:
    """How far an interval that holds, or a value of one that does not, lies within the rule's nearer bound."""
    low, high = one.interval if holds else (one.value, one.value)
    if low is None or high is None:
        return -math.inf
    below = math.inf if rule.low is None else low - rule.low
    return min(below, math.inf if rule.high is None else rule.high - high)


def estimates(one: Judged) -> str:
    """Each number of a verdict with its interval and its place; or why there is none."""
    parts = [*map(_estimate, one.verdict.estimates), *_why_not(one)]
    return "; ".join(parts) or one.verdict.reason


def _why_not(one: Judged) -> list[str]:
    """Why a claim is not decided whose intervals all lie within its bounds."""
    verdict = one.verdict
    known = bool(verdict.estimates) and all(e.value is not None for e in verdict.estimates)
    if verdict.answer == UNDECIDED and known and all(_room(verdict.rule, e, True) >= 0 for e in verdict.estimates):
        return [*dict.fromkeys(why for e in verdict.estimates if (why := caveat(verdict.rule, e)))]
    return []


def _estimate(one: Estimate) -> str:
    return "".join(in_words(one))


def in_words(one: Estimate, level: str = "") -> tuple[str, str, str]:
    """An estimate in words: what stands before its value, the value, and its interval, with words on the level."""
    where = f"{PLACES.get(one.where, one.where)}: " if one.where else ""
    if one.value is None:
        bound = between(one.interval)
        return f"{where}no estimate" + (f", {bound}" if bound not in (NONE, UNBOUNDED) else ""), "", ""
    digits = _digits(one.interval)
    bound = between(one.interval, digits)
    told = f"{bound}{level}" if bound != UNBOUNDED else "no interval: too few runs"
    return where, number(one.value, digits), f" ({told})"


def _digits(interval: Interval) -> int:
    """After the point: as many as show the interval's width to two digits, but two or three."""
    width = interval.high - interval.low
    return min(3, max(2, 1 - math.floor(math.log10(width)))) if 0 < width < math.inf else 2
