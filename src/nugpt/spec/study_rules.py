"""What decides a claim, as data fixed before the runs: an estimate, and the bounds that its interval must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

# kind → what is estimated. A slope is in octaves of the first per octave of the second.
KINDS: dict[str, str] = {
    "no-drift": "slope of the best η",
    "drift": "slope of the best η",
    "slope-near": "slope of the best η",
    "joint-slope": "slope of the best η, fitted jointly with the plan's other axes",
    "slope-change": "change of the slope of the best η per octave of `by`",
    "loss-not-worse": "difference of the best losses, in nats, at every size",
    "loss-near": "difference of the best losses, in nats, at every size",
    "sensitivity-not-worse": "difference of the losses paid one octave off the best η, in nats, at the largest size",
    "regret": "loss paid for the η that smaller sizes predict, in nats",
    "prediction": "best η found over best η predicted, in octaves",
    "multiplier": "log2 of the best multiplier",
    "multiplier-slope": "slope of the best multiplier",
    "lerp-slope": "slope of the mean effective `of` at each size's best η",
    "lerp-spread": "standard deviation of the effective α̂ over components and layers, as a share of its mean",
    "shift": "best η with `by` less that without, in octaves",
    "edge-shift": "stability edge with `by` less that without, in octaves",
    "alignment": "alignment exponent `of`, averaged over layers, as a power of width, or at each of fewer than three",
    "alignment-fall": "alignment exponent `of` at the start less that at the end, at each width",
    "alignment-change": "change per octave of `by` of the alignment exponent `of`, averaged over layers and widths",
}
SYMBOLS = {"omega": "ω", "max(alpha, nu)": "max(α, ν)", "alpha_A": "α̂_A", "alpha_M": "α̂_M"}
DRIFT = 0.1  # octaves per octave: a slope inside ±0.1 is no drift


@dataclass(frozen=True)
class Rule:
    """A claim holds if its estimate's interval lies in [low, high], not if it lies outside altogether; else: undecided.

    A rule without bounds belongs to an open question: the estimate and its interval are the answer.
    """

    kind: str
    table: str | None = None  # the label `table` of the curves it reads; None: all
    against: str | None = None  # the table that the first is compared with
    along: str | None = None  # the label whose values are the sizes of a slope
    by: str | None = None  # the label that splits the curves into slopes of their own
    of: str | None = None  # which multiplier's role, or which alignment exponent
    at: str | None = None  # which part of what was measured: end, loss-weighted, equal-time, held-out
    low: float | None = None  # None: no bound
    high: float | None = None
    level: float = 0.90  # of the interval

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rule is {self.kind!r}, but must be one of {', '.join(KINDS)}")
        for name in ("low", "high"):
            bound = getattr(self, name)
            if bound is not None and not math.isfinite(bound):
                raise ValueError(f"{name} of rule {self.kind!r} is {bound!r}, but must be a finite number, or none")
        if self.kind == "alignment-change" and self.by != "steps":
            raise ValueError(f"by of rule {self.kind!r} is {self.by!r}, but must be 'steps'")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"rule {self.kind!r} has the bounds {self.low!r} and {self.high!r}, but low must be below")
        if not 0.5 <= self.level < 1:
            raise ValueError(f"level of rule {self.kind!r} is {self.level!r}, but must be a share from 0.5 to below 1")

    @property
    def decides(self) -> bool:
        """Whether it gives a verdict, rather than an estimate alone."""
        return self.low is not None or self.high is not None


def describe(rule: Rule) -> str:
    """The rule in words, on one line."""
    kind, of = KINDS[rule.kind], SYMBOLS.get(rule.of or "", rule.of or "")
    words = [kind.replace("`by`", rule.by or "").replace("`of`", of)]
    if rule.by == "layer":
        words = [words[0].replace(", averaged over layers", "")]
    words += [f"of {of}"] if of and "`of`" not in kind else []
    words += [f"over {rule.along}"] if rule.along else []
    words += [f"by {rule.by}"] if rule.by and "`by`" not in kind else []
    words += [f"({rule.at})"] if rule.at else []
    if rule.table:
        words.append(f"for {rule.table}" if rule.against is None else f"for {rule.table} less {rule.against}")
    return f"{' '.join(words)}: {bounds(rule)}"


def bounds(rule: Rule) -> str:
    """What the interval must keep, in words."""
    return f"{rule.level:.0%} interval {allowed(rule)}" if rule.decides else f"{rule.level:.0%} interval, no verdict"


def allowed(rule: Rule) -> str:
    """Where the interval of a claim that holds lies."""
    low, high = ("" if end is None else f"{end:.3g}".replace("-", "−") for end in (rule.low, rule.high))
    if low and high:
        return f"from {low} to {high}"
    return f"at least {low}" if low else f"at most {high}"
