"""A study: a claim or question, the rule that decides it, fixed before the runs, and its plan at each scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nugpt.spec.plan import Curve, Policy
from nugpt.spec.study_rules import Rule


@dataclass(frozen=True)
class Setting:
    """What a plan needs that a study cannot know: the data set's content hash and the precision of matrix products."""

    data: str
    vocab_size: int
    precision: str = "float32"
    # Role → factor on its learning rate, instead of the tables' defaults where a study does not sweep them: what was
    # tuned on the base. There all tables of the normalized family are one model, so that one tuning serves all.
    multipliers: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Claim:
    """One sentence that the study's runs hold, refute, or leave undecided, by its rule."""

    text: str
    rule: Rule


@dataclass(frozen=True)
class Study:
    """One figure of the paper or one question beyond it; the same definition at every scale."""

    id: str  # the TeX label without `fig:`, or our own
    title: str
    varies: str
    claims: tuple[Claim, ...]
    curves: Callable[[str, Setting], tuple[Curve, ...]]  # scale → curves
    figure: str | None = None  # the paper's label
    measures: tuple[str, ...] = ()  # measurements that its runs take beside the loss
    policy: Mapping[str, Policy] = field(default_factory=dict, hash=False)  # by scale; the default where none is given
    limits: str = ""  # what runs below the paper's scale cannot say, for whoever reads the verdicts
