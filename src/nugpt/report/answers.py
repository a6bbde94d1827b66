"""What a plan's runs say, in the form that figures, charts and tables share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nugpt.fit.claims import verdicts
from nugpt.fit.curves import Answers, CurveAnswer, PathAnswer, answer
from nugpt.fit.points import levels
from nugpt.fit.power_law import Observed, PowerLaw, lerp_power_law, power_law
from nugpt.fit.verdict import Verdict
from nugpt.report.layout import TABLES, Panel, is_multiplier, key_text, label_text, panels, printable, text, varying
from nugpt.report.source import CurveRuns, PlanRuns, Run
from nugpt.spec.study import Claim

SIZE_WORDS = {"width": "width (d_model)", "layers": "layers", "steps": "iterations", "batch": "batch (tokens)"}
COEFFICIENTS = {"alpha_A": "α̂_A", "alpha_M": "α̂_M"}


@dataclass(frozen=True)
class Judged:
    """A claim, the verdict on it, and the curves that its rule reads."""

    claim: Claim
    verdict: Verdict
    curves: tuple[CurveRuns, ...]


@dataclass(frozen=True)
class Series:
    """One curve of a picture: its name there, its runs, and what they say (none while none has ended)."""

    name: str
    runs: CurveRuns
    answer: CurveAnswer | None
    means: tuple[tuple[float, float], ...]  # (log2 η, loss of the average seed)


@dataclass(frozen=True)
class Picture:
    """Curves of loss against η that are drawn together."""

    title: str
    along: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Path:
    """Optima and edges over one size, with the line through the optima."""

    name: str  # of the group
    answer: PathAnswer
    curves: tuple[CurveRuns, ...]  # in the order of the answer's
    law: PowerLaw | None


@dataclass(frozen=True)
class Tried:
    """One value of a multiplier: the loss reached there."""

    log2_multiplier: float
    loss: float
    low: float | None  # interval of the loss, where the optimum over η is enclosed
    high: float | None
    curve: CurveRuns


@dataclass(frozen=True)
class MultiplierLine:
    """The loss reached over one role's multiplier, everything else staying."""

    role: str
    name: str
    tried: tuple[Tried, ...]

    @property
    def lowest(self) -> float:
        """What the others are drawn above: sizes differ by more than multipliers do."""
        return min(one.loss for one in self.tried)


@dataclass(frozen=True)
class Coefficient:
    """The mean effective α̂ at one depth's best η, of one seed, and its spread over components."""

    layers: int
    mean: float
    std: float
    run: Run


@dataclass(frozen=True)
class LerpLine:
    """One coefficient over depth, with the power law through it."""

    table: str
    role: str
    at: tuple[Coefficient, ...]
    law: PowerLaw


@dataclass(frozen=True)
class PlanAnswer:
    """Everything that the report says about a plan."""

    plan: PlanRuns
    fitted: Answers
    judged: tuple[Judged, ...]
    pictures: tuple[Picture, ...]
    paths: tuple[Path, ...]
    multipliers: tuple[MultiplierLine, ...]
    lerps: tuple[LerpLine, ...]
    states: Mapping[str, int] = field(hash=False)  # how many runs are in which state

    @property
    def title(self) -> str:
        """The study's, or the plan's name."""
        return self.plan.study.title if self.plan.study else self.plan.name

    def runs_of(self, one: CurveAnswer) -> CurveRuns:
        """The runs behind an answer."""
        return next(curve for curve in self.plan.curves if curve.measured is one.curve)


def answer_plan(plan: PlanRuns, level: float = 0.90) -> PlanAnswer:
    """All that a plan's runs say."""
    fitted = answer([curve.measured for curve in plan.curves], level)
    by_curve = {id(one.curve): one for one in fitted.curves}
    states: dict[str, int] = {}
    for run in (run for curve in plan.curves for run in curve.runs):
        states[run.state] = states.get(run.state, 0) + 1
    return PlanAnswer(
        plan=plan,
        fitted=fitted,
        judged=_judged(plan, fitted),
        pictures=tuple(
            _picture(panel, by_curve)
            for panel in panels(plan)
            if any(has_grid(curve) and id(curve.measured) in by_curve for _, curve in panel.series)
        ),
        paths=_paths(plan, fitted),
        multipliers=_multipliers(plan, by_curve),
        lerps=_lerps(plan, by_curve, level),
        states=states,
    )


def has_grid(curve: CurveRuns) -> bool:
    """Whether a curve has several learning rates, so that there is an optimum to look for."""
    return len({run.log2_lr for run in curve.runs}) > 1


def _judged(plan: PlanRuns, fitted: Answers) -> tuple[Judged, ...]:
    if plan.study is None:
        return ()
    claims = plan.study.claims
    found = verdicts(claims, fitted)
    return tuple(Judged(claim, one, _read_by(claim, plan)) for claim, one in zip(claims, found, strict=True))


def _read_by(claim: Claim, plan: PlanRuns) -> tuple[CurveRuns, ...]:
    tables = (claim.rule.table, claim.rule.against)
    return tuple(c for c in plan.curves if claim.rule.table is None or table_of(c) in tables)


def table_of(curve: CurveRuns) -> str | None:
    """The table that a curve's label or spec names."""
    spec = curve.measured.spec
    named = next((curve.label[key] for key in TABLES if key in curve.label), None)
    return str(named) if named is not None else (spec.table.name if spec is not None else None)


def _picture(panel: Panel, by_curve: Mapping[int, CurveAnswer]) -> Picture:
    series = []
    for value, curve in panel.series:
        name = text(panel.along, value) if panel.along else str(value or panel.title)
        level = levels(curve.measured.points)
        means = tuple((float(x), float(y)) for x, y in zip(level.x, level.mean, strict=True))
        series.append(Series(name, curve, by_curve.get(id(curve.measured)), means))
    return Picture(panel.title, key_text(panel.along), tuple(series))


def _paths(plan: PlanRuns, fitted: Answers) -> tuple[Path, ...]:
    runs = {id(curve.measured): curve for curve in plan.curves}
    found = []
    for path in fitted.paths:
        curves = tuple(runs[id(one.curve)] for one in path.curves)
        if not all(map(has_grid, curves)):
            continue
        found.append(Path(printable(fitted.names[path.group]), path, curves, _law(path, fitted.level)))
    return tuple(found)


def _law(path: PathAnswer, level: float) -> PowerLaw | None:
    """The line that the path's drift is the slope of, as a law that can be drawn."""
    observed = [
        Observed(
            {path.along: one.curve.sizes[path.along]},
            one.optimum.log2_lr,
            one.optimum.deviation,
            one.optimum.independent,
        )
        for one in path.curves
        if one.optimum.log2_lr is not None
    ]
    return power_law(observed, level) if len(observed) >= 3 and path.drift.slope is not None else None


def _multipliers(plan: PlanRuns, by_curve: Mapping[int, CurveAnswer]) -> tuple[MultiplierLine, ...]:
    keys = varying(plan.curves)
    roles: list[str] = [key.removesuffix("_log2").removeprefix("multiplier.") for key in keys if is_multiplier(key)]
    if "octaves" in keys:
        named = dict.fromkeys(str(curve.label.get("role")) for curve in plan.curves)
        roles = [role for role in roles if role != "octaves"] + [role for role in named if role != "none"]
    lines = []
    for role in roles:
        others = [key for key in keys if key not in (f"{role}_log2", f"multiplier.{role}", "octaves", "role")]
        others = _needed(plan.curves, others)
        groups: dict[str, list[Tried]] = {}
        for curve in plan.curves:
            tried = _tried(curve, role, by_curve.get(id(curve.measured)))
            if tried is not None:
                groups.setdefault(label_text(curve, others), []).append(tried)
        for name, found in groups.items():
            if len({one.log2_multiplier for one in found}) > 1:
                lines.append(MultiplierLine(role, name, tuple(sorted(found, key=lambda t: t.log2_multiplier))))
    return tuple(lines)


def _needed(curves: Sequence[CurveRuns], keys: Sequence[str]) -> list[str]:
    """The keys without those that the ones before already settle (as layers are where they equal heads)."""
    needed: list[str] = []
    for key in keys:
        before = len({tuple(c.label.get(k) for k in needed) for c in curves})
        if len({tuple(c.label.get(k) for k in (*needed, key)) for c in curves}) > before:
            needed.append(key)
    return needed


def _tried(curve: CurveRuns, role: str, found: CurveAnswer | None) -> Tried | None:
    at = multiplier_of(curve, role)
    if at is None or found is None or found.optimum.reached is None:
        return None
    interval = found.optimum.loss_interval
    return Tried(
        at, found.optimum.reached, interval.low if interval else None, interval.high if interval else None, curve
    )


def multiplier_of(curve: CurveRuns, role: str) -> float | None:
    """log2 of the role's multiplier that a label speaks of; none where it speaks of another role."""
    label = curve.label
    value = label.get(f"{role}_log2")
    if value is None and label.get("role") in (role, "none"):
        value = label.get("octaves")
    if isinstance(value, (int, float)):
        return float(value)
    factor = label.get(f"multiplier.{role}")
    return math.log2(factor) if isinstance(factor, (int, float)) and factor > 0 else None


def _lerps(plan: PlanRuns, by_curve: Mapping[int, CurveAnswer], level: float) -> tuple[LerpLine, ...]:
    """Each table's coefficients over depth, where nothing else varies with it."""
    found: dict[tuple[str, str, tuple[float | None, ...]], list[Coefficient]] = {}
    for curve in plan.curves:
        sizes = curve.measured.sizes
        stays = tuple(sizes.get(axis) for axis in ("width", "steps", "batch"))
        for role in COEFFICIENTS:
            for run, mean, std in _at_best(curve, by_curve.get(id(curve.measured)), role):
                one = Coefficient(int(sizes["layers"]), mean, std, run)
                found.setdefault((table_of(curve) or "", role, stays), []).append(one)
    lines = []
    for (table, role, _), at in found.items():
        means: dict[int, list[float]] = {}
        for one in at:
            means.setdefault(one.layers, []).append(one.mean)
        if len(means) > 1:
            lines.append(LerpLine(table, role, tuple(at), lerp_power_law(means, level)))
    return tuple(lines)


def _at_best(curve: CurveRuns, found: CurveAnswer | None, role: str) -> list[tuple[Run, float, float]]:
    """The seeds' runs at the learning rate of the grid next to the optimum, and what α̂ is there."""
    best = found.optimum.log2_lr if found is not None else None
    runs = [run for run in curve.runs if run.trained and isinstance(run.lerp.get(role), Mapping)]
    if best is None or not runs:
        return []
    nearest = min((run.log2_lr for run in runs), key=lambda x: abs(x - best))
    at = [(run, run.lerp[role]["mean"], run.lerp[role]["std"]) for run in runs if run.log2_lr == nearest]
    return [(run, float(mean), float(std)) for run, mean, std in at if mean > 0]
