"""What `recommend` would have said of each swept size from the sizes below it, beside what was found there.

A size lies below another where no axis is larger and one is smaller. The recommendation is made from those alone; only
how much runs scatter is known from all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nugpt.fit.curves import Answers, CurveAnswer, among
from nugpt.fit.recommend import Recommendation, recommend
from nugpt.fit.regret import MOST, Cost, regret_at


@dataclass(frozen=True)
class Backtest:
    """One swept size, what smaller ones said of it, and what heeding them would have cost."""

    found: CurveAnswer
    said: Recommendation
    paid: Cost  # of the recommended η, by the size's own curve
    kept: Cost  # the same of the nearest smaller size's best η, kept as it is

    @property
    def off(self) -> float:
        """Octaves from the optimum that was said to the one that was found."""
        assert self.found.optimum.log2_lr is not None
        return self.found.optimum.log2_lr - self.said.plain

    @property
    def agrees(self) -> bool:
        """Whether the two optima are no farther apart than their intervals reach, as independent errors add up."""
        at, found, said = self.found.optimum.log2_lr, self.found.optimum.interval, self.said.interval
        assert at is not None
        assert said is not None
        if self.off > 0:
            return self.off <= math.hypot(said.high - self.said.plain, at - found.low)
        return -self.off <= math.hypot(self.said.plain - said.low, found.high - at)

    @property
    def loss_off(self) -> float | None:
        """Nats from the loss that was said to the one that was found; none where none was said."""
        said, found = self.said.loss, self.found.optimum.loss
        return None if said is None or said.loss is None or found is None else found - said.loss

    @property
    def loss_inside(self) -> bool:
        """Whether the loss that was found lies in the interval that was said, its own error left aside."""
        said, found = self.said.loss, self.found.optimum.loss
        return said is not None and said.interval is not None and found is not None and said.interval.contains(found)


def backtest(answers: Answers, group: str) -> tuple[Backtest, ...]:
    """Every size of a group that has an optimum and, below it, another that has one; from small to large."""
    members = [one for one in answers.curves if one.curve.group == group]
    tested = []
    for one in sorted(members, key=lambda one: tuple(one.curve.sizes.values())):
        below = [other for other in members if _below(other, one)]
        spec, known = one.curve.spec, [other for other in below if other.optimum.log2_lr is not None]
        if spec is None or one.optimum.log2_lr is None or not known:
            continue
        said = recommend(among(answers, below), group, spec, answers.level, force=True)
        paid, kept = (regret_at(one.optimum, at, answers.level) for at in (said.log2_lr, said.nearest_log2_lr))
        tested.append(Backtest(one, said, paid, kept))
    return tuple(tested)


def untested(answers: Answers, group: str, tested: Sequence[Backtest]) -> tuple[CurveAnswer, ...]:
    """Sizes of a group that lie above others and yet cannot be tested: they, or all below, have no enclosed optimum.

    An optimum beyond its grid is what a failed transfer may look like: without these the rest looks better than it is.
    """
    members = [one for one in answers.curves if one.curve.group == group]
    above = [one for one in members if any(_below(other, one) for other in members)]
    return tuple(one for one in above if one not in [other.found for other in tested])


def _below(one: CurveAnswer, other: CurveAnswer) -> bool:
    ratios = [one.curve.sizes[axis] / size for axis, size in other.curve.sizes.items()]
    return max(ratios) <= 1 and min(ratios) < 1


@dataclass(frozen=True)
class Tally:
    """What several of them come to; they share runs, and are no independent trials."""

    sizes: int
    agree: int
    off: float  # octaves, the mean of the distances
    paid: float  # nats, mean
    most: float  # nats; infinite where a recommended η would have failed
    failed: int  # sizes where it would have; their cost counts as that of a failure in the mean
    expected: float  # nats that the recommendations themselves expected, mean
    kept: float  # nats, mean, had the nearest smaller size's best η been kept
    losses: int  # sizes of which a loss was said
    losses_inside: int  # of these, how many were found within its interval
    loss_off: float | None  # nats, the mean of the distances


def tally(tested: Sequence[Backtest]) -> Tally:
    """Of one size or more."""
    paid = [_nats(one.paid) for one in tested]
    off = [abs(one.loss_off) for one in tested if one.loss_off is not None]
    return Tally(
        sizes=len(tested),
        agree=sum(one.agrees for one in tested),
        off=_mean(abs(one.off) for one in tested),
        paid=_mean(min(nats, MOST) for nats in paid),
        most=max(paid),
        failed=sum(math.isinf(nats) for nats in paid),
        expected=_mean(_expected(one.said) for one in tested),
        kept=_mean(min(_nats(one.kept), MOST) for one in tested),
        losses=len(off),
        losses_inside=sum(one.loss_inside for one in tested),
        loss_off=_mean(off) if off else None,
    )


def _nats(cost: Cost) -> float:
    assert cost.nats is not None  # a tested size has an optimum, and so a curve
    return cost.nats


def _expected(said: Recommendation) -> float:
    assert said.expected is not None  # it rests on a sweep
    return said.expected


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
