"""Runs grouped into curves, and everything a set of curves answers: optima, drifts, regrets, laws, verdicts on claims.

A curve's runs differ in learning rate and seed alone. Curves of one group differ in size alone, and a path is a row of
them along one axis. The same code serves a store's plans and a user's own table of runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.alignment import AlignmentRun, claim_estimates, fall_estimates
from nugpt.fit.comparison import Budgeted, compare, compare_at_cost, tuned
from nugpt.fit.drift import Drift, drift
from nugpt.fit.edge import Edge, stability_edge
from nugpt.fit.interval import Interval
from nugpt.fit.noise import NoiseModel, study_noise
from nugpt.fit.optimum import Optimum, optimum
from nugpt.fit.points import Point
from nugpt.fit.power_law import Observed, PowerLaw, lerp_power_law, power_law
from nugpt.fit.regression import fit_line
from nugpt.fit.regret import Cost, Sensitivity, regret, regret_at, sensitivity
from nugpt.fit.roles import profile
from nugpt.fit.shift import shift
from nugpt.fit.verdict import Estimate, Verdict, estimate_of, exponent_estimate, judge
from nugpt.spec.model import flops_per_token
from nugpt.spec.plan import Curve, Label
from nugpt.spec.record import RunRecord
from nugpt.spec.resolve import Extent
from nugpt.spec.run import RunSpec
from nugpt.spec.study import Claim
from nugpt.spec.study_rules import DRIFT, Rule

SIZES = ("width", "layers", "steps", "batch")  # the axes along which a table says how η goes
LABELS_OF_SIZE = ("heads", "n_heads", "layers", "n_layers", "steps", "batch", "axis", "held_out", "horizon")
LOSSES = ("val_loss", "val_loss_ema")
_KEPT = ("head_dim", "vocab_size", "seq_len", "rope_theta", "architecture")  # of a model, whatever its size


@dataclass(frozen=True)
class Measured:
    """A curve with what its runs gave."""

    label: Label = field(hash=False)
    group: str  # what its curves share but for size, as a key
    sizes: Mapping[str, float] = field(hash=False)  # axis → size
    points: tuple[Point, ...]
    records: tuple[RunRecord | None, ...] = field(default=(), repr=False)  # of each point; none for a user's own rows
    spec: RunSpec | None = field(default=None, repr=False)  # of every run but for lr and seed
    alignment: tuple[AlignmentRun, ...] = field(default=(), repr=False)  # of the runs that were measured

    @property
    def name(self) -> str:
        """The label in words."""
        return words(self.label)


def sizes_of(extent: Extent) -> dict[str, float]:
    """Where a run stands on each axis; a batch counts in tokens."""
    return dict(zip(SIZES, (extent.d_model, extent.n_layers, extent.steps, extent.batch_tokens), strict=True))


def words(label: Mapping[str, Any]) -> str:
    """A label, or a place, on one line."""
    return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in label.items())


def measured(
    curve: Curve,
    runs: Iterable[tuple[float, int, RunRecord]],
    loss: str = "val_loss",
    alignment: Iterable[AlignmentRun] = (),
) -> Measured:
    """A plan's curve with the (log2 η, seed, record) of each run that has ended; only a done run's loss counts."""
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}, but must be one of {', '.join(LOSSES)}")
    ended = list(runs)
    return Measured(
        label=curve.label,
        group=group_key(curve.spec),
        sizes=sizes_of(curve.spec.extent),
        points=tuple(
            Point(x, getattr(record, loss) if record.status == "done" else None, seed, record.status)
            for x, seed, record in ended
        ),
        records=tuple(record for _, _, record in ended),
        spec=curve.spec,
        alignment=tuple(alignment),
    )


@dataclass(frozen=True)
class OwnRun:
    """One row of a user's own table of runs."""

    lr: float
    loss: float | None
    seed: int = 0
    size: float | None = None
    group: str = ""
    status: str = "done"


def own_curves(runs: Iterable[OwnRun], size_name: str = "size", group_name: str = "group") -> list[Measured]:
    """A user's own runs as curves: one for each group and size, in that order."""
    points: dict[tuple[str, float | None], list[Point]] = {}
    for run in runs:
        if not math.isfinite(run.lr) or run.lr <= 0:
            raise ValueError(f"lr is {run.lr!r}, but must be a finite number above 0")
        if run.size is not None and (not math.isfinite(run.size) or run.size <= 0):
            raise ValueError(f"{size_name} is {run.size!r}, but must be a finite number above 0")
        point = Point(math.log2(run.lr), run.loss, run.seed, run.status)
        points.setdefault((run.group, run.size), []).append(point)
    found = []
    for (group, size), members in sorted(points.items(), key=lambda item: (item[0][0], item[0][1] or 0.0)):
        sizes = {} if size is None else {size_name: size}
        label: dict[str, str | float] = ({group_name: group} if group else {}) | sizes
        found.append(Measured(label, group, sizes, tuple(members)))
    return found


def group_key(spec: RunSpec) -> str:
    """What two runs share when they differ in size, learning rate and seed alone."""
    values, model = spec.to_dict(), spec.model
    for name in ("lr", "seed", "steps", "batch", "validations", "val_windows", "start"):
        values.pop(name)
    values["model"] = {name: values["model"][name] for name in _KEPT}
    values["model"] |= {"mlp": round(model.d_mlp / model.d_model, 2), "group": model.n_heads // model.n_kv_heads}
    values["schedule"]["warmup"] = round(spec.schedule.warmup / spec.steps, 2)  # as a share of the run
    return json.dumps(values, sort_keys=True)


def by_group(curves: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The curves of each group, in the order of their first."""
    groups: dict[str, list[Measured]] = {}
    for curve in curves:
        groups.setdefault(curve.group, []).append(curve)
    return groups


def group_names(curves: Sequence[Measured]) -> dict[str, str]:
    """A name for each group: what all its labels say beyond their size, and a number where that is not enough."""
    names: dict[str, str] = {}
    for group, members in by_group(curves).items():
        common = dict(members[0].label)
        for member in members[1:]:
            common = {k: v for k, v in common.items() if member.label.get(k) == v}
        said = {k: v for k, v in common.items() if k not in LABELS_OF_SIZE}
        spec = members[0].spec
        if spec is None:
            name = group or "all runs"
        else:
            table = said.pop("table", None) or said.pop("parametrization", None) or spec.table.name
            name = f"{table} {words(said)}".strip()
        names[group] = name if name not in names.values() else f"{name} ({len(names) + 1})"
    return names


@dataclass(frozen=True)
class CurveAnswer:
    """What one curve says."""

    curve: Measured
    optimum: Optimum
    edge: Edge
    sensitivity: Sensitivity


@dataclass(frozen=True)
class PathAnswer:
    """What the curves of one group say along one axis, the other sizes staying or going along."""

    group: str
    along: str
    others: Mapping[str, float] = field(hash=False)  # sizes that stay
    together: tuple[str, ...]  # axes that go along
    drift: Drift
    edge_drift: Drift
    base: float | None  # the size whose best η the regrets are for; none where no size has an optimum
    regrets: tuple[tuple[float, Cost], ...]  # size, and what the base's best η costs there
    curves: tuple[CurveAnswer, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The axis in words."""
        going = f" with {', '.join(self.together)}" if self.together else ""
        staying = f" at {words(self.others)}" if self.others else ""
        return f"{self.along}{going}{staying}"


@dataclass(frozen=True)
class Answers:
    """Everything that a set of curves says."""

    curves: tuple[CurveAnswer, ...]
    paths: tuple[PathAnswer, ...]
    laws: tuple[tuple[str, PowerLaw], ...]  # group, and η* as a power of what varies in it, where steps do
    names: Mapping[str, str] = field(hash=False)  # of the groups
    noise: NoiseModel
    level: float
    left_out: tuple[Measured, ...] = ()  # curves none of whose runs has ended


def answer(curves: Sequence[Measured], level: float = 0.90, bound: float = DRIFT) -> Answers:
    """Optimum, edge and sensitivity of every curve; drift and regret along every path; the law in iterations."""
    ended = [curve for curve in curves if curve.points]
    noise = study_noise([curve.points for curve in ended])
    found = tuple(_curve_answer(curve, level, noise) for curve in ended)
    groups = [[one for one in found if one.curve.group == group] for group in by_group(ended)]
    return Answers(
        curves=found,
        paths=tuple(path for members in groups for path in _paths(members, level, bound)),
        laws=tuple(law for members in groups for law in _laws(members, level)),
        names=group_names(curves),
        noise=noise,
        level=level,
        left_out=tuple(curve for curve in curves if not curve.points),
    )


def _curve_answer(curve: Measured, level: float, noise: NoiseModel) -> CurveAnswer:
    found = optimum(curve.points, level, noise)
    return CurveAnswer(curve, found, stability_edge(curve.points), sensitivity(found, level))


def _varying(members: Sequence[CurveAnswer]) -> list[str]:
    axes = members[0].curve.sizes
    return [axis for axis in axes if len({one.curve.sizes[axis] for one in members}) > 1]


def _paths(members: Sequence[CurveAnswer], level: float, bound: float) -> list[PathAnswer]:
    """Rows of two sizes or more along each axis that varies; one row along the first where all go together."""
    varying, found = _varying(members), []
    for along in varying:
        others = [axis for axis in varying if axis != along]
        rows: dict[tuple[float, ...], list[CurveAnswer]] = {}
        for one in members:
            rows.setdefault(tuple(one.curve.sizes[axis] for axis in others), []).append(one)
        for at, row in rows.items():
            if len({one.curve.sizes[along] for one in row}) > 1:
                found.append(_path(row, along, dict(zip(others, at, strict=True)), (), level, bound))
    if varying and not found:
        found.append(_path(members, varying[0], {}, tuple(varying[1:]), level, bound))
    return found


def _path(
    row: Sequence[CurveAnswer],
    along: str,
    others: Mapping[str, float],
    together: tuple[str, ...],
    level: float,
    bound: float,
) -> PathAnswer:
    row = sorted(row, key=lambda one: one.curve.sizes[along])
    base = _base_of(row, along)
    return PathAnswer(
        group=row[0].curve.group,
        along=along,
        others=others,
        together=together,
        drift=drift([(one.curve.sizes[along], one.optimum) for one in row], level, bound),
        edge_drift=drift([(one.curve.sizes[along], one.edge) for one in row], level, bound),
        base=None if base is None else base.curve.sizes[along],
        regrets=()
        if base is None
        else tuple(
            (one.curve.sizes[along], regret(base.optimum, one.optimum, level)) for one in row if one is not base
        ),
        curves=tuple(row),
    )


def _base_of(row: Sequence[CurveAnswer], along: str) -> CurveAnswer | None:
    """The size that the table's ratios are taken over where it was swept, or else the smallest with an optimum."""
    known = [one for one in row if one.optimum.log2_lr is not None]
    for one in known:
        spec = one.curve.spec
        if spec is not None and one.curve.sizes[along] == sizes_of(spec.base.extent)[along]:
            return one
    return known[0] if known else None


def _laws(members: Sequence[CurveAnswer], level: float) -> list[tuple[str, PowerLaw]]:
    """η* as a power of iterations, jointly with whatever else varies, where iterations do."""
    axes = _varying(members)
    observed = _observed(members, axes)
    if "steps" not in axes or not observed:
        return []
    return [(members[0].curve.group, power_law(observed, level))]


def _observed(members: Sequence[CurveAnswer], axes: Sequence[str]) -> list[Observed]:
    return [
        Observed({axis: one.curve.sizes[axis] for axis in axes}, one.optimum.log2_lr, one.optimum.deviation)
        for one in members
        if one.optimum.log2_lr is not None
    ]


# ── Verdicts on a study's claims ─────────────────────────────────────────────────────────────────────────────────────


def verdicts(claims: Sequence[Claim], answers: Answers) -> tuple[Verdict, ...]:
    """What the curves of a plan say about its study's claims, each by its own rule at its own level."""
    at_level: dict[float, Sequence[CurveAnswer]] = {answers.level: answers.curves}
    judged = []
    for claim in claims:
        level = claim.rule.level
        if level not in at_level:
            at_level[level] = [_curve_answer(one.curve, level, answers.noise) for one in answers.curves]
        judged.append(judge(claim.rule, _estimates(claim.rule, at_level[level], answers.noise)))
    return tuple(judged)


def _estimates(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """The numbers that a rule judges; none where this version cannot take them from the records."""
    kinds: dict[str, Callable[[Rule, Sequence[CurveAnswer], NoiseModel], list[Estimate]]] = {
        "no-drift": _slopes,
        "drift": _slopes,
        "slope-near": _slopes,
        "joint-slope": _joint_slope,
        "slope-change": _slope_change,
        "loss-not-worse": _differences,
        "loss-near": _differences,
        "sensitivity-not-worse": _sensitivities,
        "regret": _held_out,
        "prediction": _held_out,
        "multiplier": _multipliers,
        "multiplier-slope": _multiplier_slope,
        "lerp-slope": _lerp_slope,
        "lerp-spread": _lerp_spread,
        "shift": _shifts,
        "edge-shift": _shifts,
        "alignment": _alignment,
        "alignment-fall": _alignment,
    }
    return kinds[rule.kind](rule, found, noise) if rule.kind in kinds and found else []


def _of_table(found: Iterable[CurveAnswer], table: str | None) -> list[CurveAnswer]:
    return [one for one in found if table is None or one.curve.label.get("table") == table]


def _split(found: Sequence[CurveAnswer], by: str | None) -> list[tuple[str, list[CurveAnswer]]]:
    """The curves apart by a label, each part with its name; all together where there is none."""
    if by is None:
        return [("", list(found))]
    values = dict.fromkeys(one.curve.label.get(by) for one in found)
    return [(f"{by} {value}", [one for one in found if one.curve.label.get(by) == value]) for value in values]


def _number(one: CurveAnswer, name: str | None) -> float:
    value = one.curve.label.get(name or "")
    if not isinstance(value, (int, float)):
        raise ValueError(f"curve {one.curve.name!r} has no number {name!r} in its label, which a rule goes along")
    return float(value)


def _slopes(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    return [
        estimate_of(drift([(_number(one, rule.along), one.optimum) for one in part], rule.level), where)
        for where, part in _split(_of_table(found, rule.table), rule.by)
        if part
    ]


def _joint_slope(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    mine = _of_table(found, rule.table)
    axes = ["steps", "batch"] if rule.along in ("steps", "batch") else [str(rule.along), "steps"]
    known = [one for one in mine if one.optimum.log2_lr is not None]
    if not known:
        return []
    observed = [
        Observed({axis: _number(one, axis) for axis in axes}, float(one.optimum.log2_lr or 0.0), one.optimum.deviation)
        for one in known
    ]
    censored = any(one.optimum.verdict == "edge-censored" for one in mine)
    return [replace(exponent_estimate(power_law(observed, rule.level), str(rule.along)), censored=censored)]


def _slope_change(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """A line for each value of `by` with a level of its own, whose slopes change evenly with log2 of it."""
    known = [one for one in _of_table(found, rule.table) if one.optimum.log2_lr is not None]
    values = sorted({_number(one, rule.by) for one in known})
    if len(values) < 2:
        return []
    x = np.log2([_number(one, rule.along) for one in known])
    by = np.array([_number(one, rule.by) for one in known])
    rows = np.column_stack([*(by == value for value in values), x, x * np.log2(by)]).astype(np.float64)
    y = np.array([one.optimum.log2_lr for one in known], dtype=np.float64)
    line = fit_line(rows, y, np.array([one.optimum.deviation or 0.0 for one in known]))
    if line is None:
        return []
    last = len(values) + 1
    return [Estimate(float(line.coefficients[last]), line.interval(last, rule.level), rule.level)]


def _place(one: CurveAnswer) -> tuple[tuple[str, float], ...]:
    """Where a curve stands among those it is compared with: its size."""
    return tuple(one.curve.sizes.items())


def _differences(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    first, second = _of_table(found, rule.table), _of_table(found, rule.against)
    if rule.at is not None:
        return _differences_at_cost(rule, first, second, noise)
    theirs = {_place(one): one for one in second}
    pairs = [(one, theirs[_place(one)]) for one in first if _place(one) in theirs]
    differences = compare([(a.curve.points, b.curve.points) for a, b in pairs], rule.level, noise)
    return [estimate_of(d, _size_words(a)) for (a, _), d in zip(pairs, differences, strict=True)]


def _size_words(one: CurveAnswer) -> str:
    return words({k: v for k, v in one.curve.label.items() if k in LABELS_OF_SIZE[:6]})


def _differences_at_cost(
    rule: Rule, first: Sequence[CurveAnswer], second: Sequence[CurveAnswer], noise: NoiseModel
) -> list[Estimate]:
    """At the cost of each of the first's sizes; the second is tuned over whatever else was swept at each length."""

    def shape(one: CurveAnswer) -> tuple[float, float]:
        return one.curve.sizes["width"], one.curve.sizes["layers"]

    cost = _seconds if rule.at == "equal-time" else _flops
    estimates = []
    for one in first:
        theirs = sorted((o for o in second if shape(o) == shape(one)), key=lambda o: o.curve.sizes["steps"])
        budgets = []
        for _, same in groupby(theirs, key=lambda o: o.curve.sizes["steps"]):
            members = list(same)
            spent = [c for c in map(cost, members) if c is not None]
            if spent:
                budgets.append(Budgeted(median(spent), tuple(tuned([o.curve.points for o in members], noise))))
        own = cost(one)
        if own is not None and budgets:
            mine = [Budgeted(own, one.curve.points)]
            difference = compare_at_cost(mine, budgets, own, rule.level, noise)
            estimates.append(estimate_of(difference, _size_words(one)))
    return estimates


def _flops(one: CurveAnswer) -> float | None:
    spec = one.curve.spec
    if spec is None:
        return None
    return float(flops_per_token(spec.model)) * spec.batch * spec.model.seq_len * spec.steps


def _seconds(one: CurveAnswer) -> float | None:
    """Of one run: the median over those that ended as planned, of its share of its ensemble's time."""
    done = [r for r in one.curve.records if r is not None and r.status == "done" and r.wall_s > 0]
    return median(r.wall_s / r.carried_by.get("replicas", 1) for r in done) if done else None


def _sensitivities(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """One octave off, either side apart, at the largest size that both have; the two costs' errors are independent."""
    theirs = {_place(one): one for one in _of_table(found, rule.against)}
    pairs = [(one, theirs[_place(one)]) for one in _of_table(found, rule.table) if _place(one) in theirs]
    if not pairs:
        return []
    a, b = max(pairs, key=lambda pair: math.prod(pair[0].curve.sizes.values()))
    estimates = []
    for octaves, side in ((-1.0, "an octave below"), (1.0, "an octave above")):
        mine, other = a.sensitivity.at(octaves), b.sensitivity.at(octaves)
        value, interval = _less(mine, other)
        estimates.append(Estimate(value, interval, rule.level, f"{_size_words(a)}, {side}"))
    return estimates


def _less(a: Cost, b: Cost) -> tuple[float | None, Interval]:
    """One cost less another; infinite where only the first's learning rates fail, unknown where both do."""
    unknown = Interval(-math.inf, math.inf)
    if a.nats is None or b.nats is None or (math.isinf(a.nats) and math.isinf(b.nats)):
        return None, unknown
    if math.isinf(a.nats) or math.isinf(b.nats):
        end = math.inf if math.isinf(a.nats) else -math.inf
        return end, Interval(end, end)
    value = a.nats - b.nats
    down = math.hypot(a.nats - a.interval.low, b.interval.high - b.nats)
    up = math.hypot(a.interval.high - a.nats, b.nats - b.interval.low)
    return value, Interval(value - down, value + up)


def _held_out(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """What the smaller sizes' mean optimum, which is what a table that transfers predicts, is worth at larger ones."""
    mine = _of_table(found, rule.table)
    smaller = [o for o in mine if not o.curve.label.get("held_out")]
    estimates = []
    for one in (o for o in mine if o.curve.label.get("held_out")):
        axis = one.curve.label.get("axis")
        from_ = [o for o in smaller if axis == "all" or o.curve.label.get("axis") in (axis, "base")]
        predicted = _mean_optimum(from_)
        where = f"{rule.by} {axis}" if rule.by else _size_words(one)
        if predicted is None:
            estimates.append(Estimate(None, Interval(-math.inf, math.inf), rule.level, where))
        elif rule.kind == "regret":
            estimates.append(estimate_of(regret_at(one.optimum, predicted, rule.level), where))
        else:
            at, interval = one.optimum.log2_lr, one.optimum.interval
            off = Interval(interval.low - predicted, interval.high - predicted)
            estimates.append(Estimate(None if at is None else at - predicted, off, rule.level, where))
    return estimates


def _mean_optimum(found: Iterable[CurveAnswer]) -> float | None:
    """The mean of log2 η*, each weighing by its own precision."""
    known = [(o.optimum.log2_lr, o.optimum.deviation) for o in found if o.optimum.log2_lr is not None]
    if not known:
        return None
    weights = [1 / max(deviation or 0.0, 0.05) ** 2 for _, deviation in known]
    return float(np.average([x for x, _ in known if x is not None], weights=weights))


def _multipliers(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """The best multiplier of one role, each tried at its own best η, the other roles at the table's default."""
    key = f"{rule.of}_log2"
    estimates = []
    for where, part in _split(_of_table(found, rule.table), rule.by):
        swept = [one for one in part if key in one.curve.label and _others_at_default(one, str(rule.of))]
        if swept:
            best = optimum(profile([(_number(one, key), one.curve.points) for one in swept], noise), rule.level)
            estimates.append(Estimate(best.log2_lr, best.interval, rule.level, where))
    return estimates


def _others_at_default(one: CurveAnswer, role: str) -> bool:
    spec = one.curve.spec
    if spec is None:
        return False
    defaults = {name: 2.0 ** float(row.multiplier_log2) for name, row in spec.table.rows.items()}
    return all(name == role or math.isclose(value, defaults[name]) for name, value in spec.multipliers.items())


def _multiplier_slope(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """The slope of a role's best multiplier, from curves whose labels say the role and by how many octaves it moved."""
    mine = [one for one in _of_table(found, rule.table) if one.curve.label.get("role") in (rule.of, "none")]
    located = []
    for size in sorted({_number(one, rule.along) for one in mine}):
        part = [one for one in mine if _number(one, rule.along) == size]
        swept = profile([(_number(one, "octaves"), one.curve.points) for one in part], noise)
        located.append((size, optimum(swept, rule.level)))
    return [estimate_of(drift(located, rule.level), str(rule.of))] if located else []


def _shifts(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """How far the best η, or the edge, lies from where it is without what `by` names, at each size."""
    mine = _of_table(found, rule.table)
    plain = {_place(one): one for one in mine if not one.curve.label.get(rule.by or "")}
    estimates = []
    for one in mine:
        other = plain.get(_place(one))
        if other is None or other is one:
            continue
        pair = (one.edge, other.edge) if rule.kind == "edge-shift" else (one.optimum, other.optimum)
        value, interval = shift(*pair)
        estimates.append(Estimate(value, interval, rule.level, f"{rule.by} {one.curve.label[str(rule.by)]}"))
    return estimates


def _lerp(one: CurveAnswer, of: str) -> list[Mapping[str, float]]:
    """The statistics of α̂ at the learning rate nearest to the curve's optimum, of each seed."""
    at = one.optimum.log2_lr
    known = [
        (point, record.lerp[of])
        for point, record in zip(one.curve.points, one.curve.records, strict=False)
        if record is not None and point.trained and of in record.lerp
    ]
    if at is None or not known:
        return []
    nearest = min((point.log2_lr for point, _ in known), key=lambda x: abs(x - at))
    return [lerp for point, lerp in known if point.log2_lr == nearest]


def _lerp_slope(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    means = {
        int(_number(one, rule.along)): [lerp["mean"] for lerp in _lerp(one, str(rule.of))]
        for one in _of_table(found, rule.table)
    }
    if not any(means.values()):
        return []
    return [exponent_estimate(lerp_power_law(means, rule.level), "depth", str(rule.of))]


def _lerp_spread(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """Deviation over mean of each α̂, averaged over sizes, with a Student-t interval over them."""
    estimates = []
    for of in ("alpha_A", "alpha_M") if rule.of is None else (rule.of,):
        statistics = [_lerp(one, of) for one in _of_table(found, rule.table)]
        spreads = [float(np.mean([s["std"] / s["mean"] for s in seeds])) for seeds in statistics if seeds]
        if not spreads:
            continue
        half = math.inf
        if len(spreads) > 1:
            error = float(np.std(spreads, ddof=1)) / math.sqrt(len(spreads))
            half = float(special.stdtrit(len(spreads) - 1, (1 + rule.level) / 2)) * error
        mean = float(np.mean(spreads))
        estimates.append(Estimate(mean, Interval(mean - half, mean + half), rule.level, of))
    return estimates


def _alignment(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    runs = [run for one in _of_table(found, rule.table) for run in one.curve.alignment]
    if rule.kind == "alignment-fall":
        return fall_estimates(runs, str(rule.of), rule.level)
    return claim_estimates(runs, str(rule.of), rule.at, rule.by, rule.level)
