"""What the curves of a plan say about its study's claims: for each kind of rule, the numbers that it judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import median

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.alignment import at_one_rate, change_estimates, claim_estimates, fall_estimates
from nugpt.fit.comparison import Budgeted, compare, compare_at_cost, tuned
from nugpt.fit.curve import FINE
from nugpt.fit.curves import Answers, CurveAnswer, curve_answer
from nugpt.fit.drift import drift
from nugpt.fit.interval import Interval
from nugpt.fit.noise import NoiseModel
from nugpt.fit.optimum import optimum
from nugpt.fit.power_law import Observed, lerp_power_law, power_law
from nugpt.fit.regression import fit_line
from nugpt.fit.regret import Cost, regret_at
from nugpt.fit.roles import profile
from nugpt.fit.shift import shift
from nugpt.fit.verdict import Estimate, Verdict, estimate_of, exponent_estimate, judge
from nugpt.spec.model import flops_per_token
from nugpt.spec.record import device_seconds
from nugpt.spec.study import Claim
from nugpt.spec.study_rules import Rule


def verdicts(claims: Sequence[Claim], answers: Answers) -> tuple[Verdict, ...]:
    """What the curves of a plan say about its study's claims, each by its own rule at its own level."""
    at_level: dict[float, Sequence[CurveAnswer]] = {answers.level: answers.curves}
    judged = []
    for claim in claims:
        level = claim.rule.level
        if level not in at_level:
            at_level[level] = [curve_answer(one.curve, level, answers.noise) for one in answers.curves]
        judged.append(judge(claim.rule, _estimates(claim.rule, at_level[level], answers.noise)))
    return tuple(judged)


def _estimates(rule: Rule, found: Sequence[CurveAnswer], noise: NoiseModel) -> list[Estimate]:
    """The numbers that a rule judges; none where this version cannot take them from the records."""
    kinds: dict[str, Callable[[Rule, Sequence[CurveAnswer]], list[Estimate]]] = {
        "no-drift": _slopes,
        "drift": _slopes,
        "slope-near": _slopes,
        "joint-slope": _joint_slope,
        "slope-change": _slope_change,
        "loss-not-worse": partial(_differences, noise=noise),
        "loss-near": partial(_differences, noise=noise),
        "sensitivity-not-worse": _sensitivities,
        "regret": _held_out,
        "prediction": _held_out,
        "multiplier": partial(_multipliers, noise=noise),
        "multiplier-slope": partial(_multiplier_slope, noise=noise),
        "lerp-slope": _lerp_slope,
        "lerp-spread": _lerp_spread,
        "shift": _shifts,
        "edge-shift": _shifts,
        "alignment": _alignment,
        "alignment-fall": _alignment,
        "alignment-change": _alignment,
    }
    return kinds[rule.kind](rule, found) if rule.kind in kinds and found else []


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


def _slopes(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
    return [
        estimate_of(drift([(_number(one, rule.along), one.optimum) for one in part], rule.level), where)
        for where, part in _split(_of_table(found, rule.table), rule.by)
        if part
    ]


def _joint_slope(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
    mine = _of_table(found, rule.table)
    axes = ["steps", "batch"] if rule.along in ("steps", "batch") else [str(rule.along), "steps"]
    known = [one for one in mine if one.optimum.log2_lr is not None]
    if not known:
        return []
    observed = [
        Observed(
            {axis: _number(one, axis) for axis in axes},
            float(one.optimum.log2_lr or 0.0),
            one.optimum.deviation,
            one.optimum.independent,
        )
        for one in known
    ]
    censored = any(one.optimum.verdict == "edge-censored" for one in mine)
    law = power_law(observed, rule.level)
    bent = law.line is not None and law.line.bent()
    return [replace(exponent_estimate(law, str(rule.along)), censored=censored, bent=bent)]


def _slope_change(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
    """A line for each value of `by` with a level of its own, whose slopes change evenly with log2 of it."""
    known = [one for one in _of_table(found, rule.table) if one.optimum.log2_lr is not None]
    values = sorted({_number(one, rule.by) for one in known})
    if len(values) < 2:
        return []
    x = np.log2([_number(one, rule.along) for one in known])
    by = np.array([_number(one, rule.by) for one in known])
    rows = np.column_stack([*(by == value for value in values), x, x * np.log2(by)]).astype(np.float64)
    y = np.array([one.optimum.log2_lr for one in known], dtype=np.float64)
    deviations = np.array([one.optimum.deviation or 0.0 for one in known])
    line = fit_line(rows, y, deviations, any(one.optimum.independent for one in known))
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
    return [estimate_of(d, _size_words(a, first)) for (a, _), d in zip(pairs, differences, strict=True)]


def _size_words(one: CurveAnswer, among: Sequence[CurveAnswer]) -> str:
    """A curve's size by what tells it from those of the others; all of it where nothing does."""
    sizes = one.curve.sizes
    varies = [axis for axis in sizes if len({other.curve.sizes.get(axis) for other in among}) > 1]
    told = {"width": "d_model {:,.0f}", "layers": "{:,.0f} layers", "steps": "{:,.0f} steps", "batch": "batch {:,.0f}"}
    return ", ".join(told.get(axis, f"{axis} {{:g}}").format(sizes[axis]) for axis in varies or sizes)


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
            estimates.append(estimate_of(difference, _size_words(one, first)))
    return estimates


def _flops(one: CurveAnswer) -> float | None:
    spec = one.curve.spec
    if spec is None:
        return None
    return float(flops_per_token(spec.model)) * spec.batch * spec.model.seq_len * spec.steps


def _seconds(one: CurveAnswer) -> float | None:
    """Of one run: the least of those that ended as planned. What others took beyond it is not the model's doing."""
    done = [r for r in one.curve.records if r is not None and r.status == "done" and r.wall_s > 0]
    return min(map(device_seconds, done)) if done else None


def _sensitivities(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
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
        estimates.append(
            Estimate(value, interval, rule.level, f"{_size_words(a, [mine for mine, _ in pairs])}, {side}")
        )
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


def _held_out(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
    """What the smaller sizes' mean optimum, which is what a table that transfers predicts, is worth at larger ones."""
    mine, by = _of_table(found, rule.table), rule.by or "axis"
    smaller = [o for o in mine if not o.curve.label.get("held_out")]
    estimates = []
    for one in (o for o in mine if o.curve.label.get("held_out")):
        axis = one.curve.label.get(by)
        from_ = [o for o in smaller if axis == "all" or o.curve.label.get(by) in (axis, "base")]
        predicted = _mean_optimum(from_)
        where = f"{rule.by} {axis}" if rule.by else _size_words(one, mine)
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
            points = profile([(_number(one, key), one.curve.points) for one in swept], noise)
            best = optimum(points, rule.level, cliff="either", effort=FINE)
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
        located.append((size, optimum(swept, rule.level, cliff="either", effort=FINE)))
    return [estimate_of(drift(located, rule.level), str(rule.of))] if located else []


def _shifts(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
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


def _lerp_slope(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
    means = {
        int(_number(one, rule.along)): [lerp["mean"] for lerp in _lerp(one, str(rule.of))]
        for one in _of_table(found, rule.table)
    }
    if not any(means.values()):
        return []
    return [exponent_estimate(lerp_power_law(means, rule.level), "depth", str(rule.of))]


def _lerp_spread(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
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


def _alignment(rule: Rule, found: Sequence[CurveAnswer]) -> list[Estimate]:
    measured = [run for one in _of_table(found, rule.table) for run in one.curve.alignment]
    lengths = sorted({run.steps for run in measured})
    runs = [run for steps in lengths for run in at_one_rate([run for run in measured if run.steps == steps])]
    if rule.kind == "alignment-fall":
        return fall_estimates(runs, str(rule.of), rule.level)
    if rule.kind == "alignment-change":
        return change_estimates(runs, str(rule.of), rule.at, rule.level)
    return claim_estimates(runs, str(rule.of), rule.at, rule.by, rule.level)
