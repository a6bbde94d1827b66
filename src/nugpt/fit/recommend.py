"""From swept sizes to a target: the η that costs least in expectation, what it rests on, and how far it is carried.

The nearest swept size lends its curve. Its optimum is carried over, as the table says, and its uncertainty grows with
each octave of the way: by the store's own slope along that axis where it has one, else by what the table alone says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.curve import Shapes
from nugpt.fit.curves import Answers, CurveAnswer, PathAnswer
from nugpt.fit.drift import FAILS
from nugpt.fit.expected import expected_slope
from nugpt.fit.forecast import Forecast, Known, forecast
from nugpt.fit.interval import Array, Interval, central
from nugpt.fit.measured import as_built_in, sizes_of
from nugpt.fit.regret import MOST, Cost
from nugpt.spec.model import ModelConfig, total_parameters
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.plan import lr_at
from nugpt.spec.recipe import recipe_of
from nugpt.spec.run import RunSpec, run_flops

# Octaves beyond the swept sizes that are carried over without being forced: no farther than the paper's longest sweep
# (layers and iterations) is wide; the batch less far, since no table of the paper says how η goes with it.
LIMITS = {"width": 4.0, "layers": 4.0, "steps": 4.0, "batch": 2.0}
# Warned of, not followed: in our runs νGPT's η* falls the less with length the wider the model.
CROSSED = {"width": "steps", "steps": "width"}
OFFSETS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # octaves off the recommended η


@dataclass(frozen=True)
class Reach:
    """How far the target lies from what was swept, along one axis."""

    axis: str
    target: float
    low: float  # swept sizes
    high: float
    octaves: float  # from the size that lends its curve, with sign
    beyond: float  # outside the swept sizes, at least 0
    slope: float  # octaves of η* per octave that the way is taken to add
    deviation: float  # of that slope
    path: PathAnswer | None = field(default=None, repr=False)  # the store's sizes that show it; none: the table says so
    own: bool = False  # whether what shows it rests on the size that lends its curve

    @property
    def measured(self) -> bool:
        """Whether the store's sizes show the slope, or the table's prediction is taken."""
        return self.path is not None

    @property
    def supported(self) -> bool:
        """Whether it is no farther beyond the swept sizes than these reach themselves."""
        return self.beyond <= math.log2(self.high / self.low) + 1e-9


@dataclass(frozen=True)
class Recommendation:
    """A learning rate for a target, the plain optimum beside it, and what both rest on."""

    run: RunSpec  # complete, the recommended η in place
    log2_lr: float  # least expected cost
    nearest_log2_lr: float  # the nearest size's optimum
    plain: float  # that, carried over
    interval: Interval | None  # of the target's best log2 η; none without a sweep
    level: float
    expected: float | None  # nats that the recommended η is expected to cost at the target
    plain_expected: float | None  # the same of the plain optimum
    costs: tuple[tuple[float, Cost], ...]  # octaves off the recommended η, and what that costs
    reaches: tuple[Reach, ...]
    nearest: str  # the curve that was carried over, in words
    warnings: tuple[str, ...]
    flops: float
    tuning_flops: float | None
    runs: tuple[str, ...] = field(repr=False)  # hashes that it rests on
    loss: Forecast | None = None  # at the target's best η; none without a sweep

    def gpu_hours(self, tflops: float) -> float:
        """At so many 10¹² FLOP/s on each GPU, achieved and not peak."""
        if not math.isfinite(tflops) or tflops <= 0:
            raise ValueError(f"tflops is {tflops!r}, but must be a finite number above 0")
        return self.flops / (tflops * 1e12) / 3600


def choose_group(answers: Answers, table: str, name: str | None = None) -> str:
    """The one group of curves with this table as it is built in, or of all with this table the one of this name."""
    if name is not None:
        every = _with_table(answers, table)
        named = [group for group in every if answers.names[group] == name]
        if not named:
            names = "; ".join(answers.names[group] for group in every)
            raise ValueError(f"group is {name!r}, but table {table!r} has {names}")
        return named[0]
    found = groups_of(answers, table)
    if len(found) > 1:
        names = "; ".join(answers.names[group] for group in found)
        raise ValueError(f"table {table!r} has {len(found)} groups of curves ({names}): choose one with --group")
    return found[0]


def groups_of(answers: Answers, table: str) -> list[str]:
    """The groups of curves with this table, at least one; the table as it is built in before changed ones."""
    found = _with_table(answers, table)
    return [group for group, spec in found.items() if as_built_in(spec)] or list(found)


def _with_table(answers: Answers, table: str) -> dict[str, RunSpec]:
    """The groups with a table of this name, changed or not, and a run of each."""
    groups = {one.curve.group: one.curve.spec for one in answers.curves if one.curve.spec is not None}
    found = {group: spec for group, spec in groups.items() if spec.table.name == table}
    if not found:
        tables = ", ".join(sorted({spec.table.name for spec in groups.values()})) or "no table"
        raise ValueError(f"no ended run of table {table!r}, the store has {tables}")
    return found


def retarget(template: RunSpec, steps: int, batch: int | None = None, **model: int | None) -> RunSpec:
    """The target: the template's run with other sizes; derived sizes keep their ratio, warm-up its share of the run."""
    old = template.model
    given: dict[str, Any] = {name: value for name, value in model.items() if value is not None}
    heads = given.get("n_heads", old.n_heads)
    given.setdefault("n_kv_heads", max(1, heads * old.n_kv_heads // old.n_heads))
    if "d_mlp" not in given:
        d_model = heads * given.get("head_dim", old.head_dim)
        usual = 3 * old.d_mlp == 8 * old.d_model
        given["d_mlp"] = 0 if usual else round(d_model * old.d_mlp / old.d_model)
    made = replace(old, **given)
    if batch is None:  # as many tokens a step as in the template
        tokens = template.batch * old.seq_len
        if tokens % made.seq_len:
            raise ValueError(
                f"seq_len is {made.seq_len}, which does not divide the {tokens} tokens of a step: give batch"
            )
        batch = tokens // made.seq_len
    warmup = round(template.schedule.warmup / template.steps * steps)
    return replace(
        template, model=made, steps=steps, batch=batch, schedule=replace(template.schedule, warmup=warmup), start=None
    )


def recommend(
    answers: Answers, group: str, target: RunSpec, level: float = 0.90, force: bool = False
) -> Recommendation:
    """The recommendation for a target (whose own η is not looked at) from the curves of one group."""
    members = [one for one in answers.curves if one.curve.group == group]
    known = [one for one in members if one.optimum.log2_lr is not None]
    if not known:
        name = answers.names[group]
        raise ValueError(
            f"no curve of {name} has an enclosed optimum ({_verdicts(members)}): extend its learning rates"
        )
    goal = sizes_of(target.extent)
    nearest = min(known, key=lambda one: _farness(one, goal))
    reaches = _reaches(answers, known, nearest, goal)
    _refuse_beyond(reaches, force)
    drawn = nearest.optimum.shapes
    assert drawn is not None
    assert nearest.optimum.log2_lr is not None
    moved = _moved(drawn, reaches)
    best, plain = _least(drawn, moved), nearest.optimum.log2_lr + sum(r.slope * r.octaves for r in reaches)
    records = {r.hash: r for one in members for r in one.curve.records if r is not None}
    return Recommendation(
        run=replace(target, lr=lr_at(best)),
        log2_lr=best,
        nearest_log2_lr=nearest.optimum.log2_lr,
        plain=plain,
        interval=central(drawn.x + moved, level),
        level=level,
        expected=_expected(drawn, moved, best),
        plain_expected=_expected(drawn, moved, plain),
        costs=tuple((octaves, _cost(drawn, moved, best + octaves, level)) for octaves in OFFSETS),
        reaches=reaches,
        nearest=nearest.curve.name,
        warnings=(*_warnings(answers, group, reaches, members), *_one_seed(nearest)),
        flops=run_flops(target),
        tuning_flops=sum(record.flops for record in records.values()) or sum(_whole_flops(one) for one in members),
        runs=tuple(records),
        loss=_forecast(known, nearest, target, level),
    )


def from_base_lr(target: RunSpec, force: bool = False) -> Recommendation:
    """The same from a bare learning rate, the target's own: the table's prediction, without interval or cost."""
    base, goal = sizes_of(target.base.extent), sizes_of(target.extent)
    reaches = tuple(
        Reach(axis, goal[axis], at, at, way := math.log2(goal[axis] / at), abs(way), 0.0, doubt)
        for axis, at in base.items()
        for _, doubt in [expected_slope(target.table, axis)]
    )
    _refuse_beyond(reaches, force)
    words = ("no sweep: the learning rate is taken as given, and nothing says how sure it is",)
    at = math.log2(target.lr)
    return Recommendation(
        run=target,
        log2_lr=at,
        nearest_log2_lr=at,
        plain=at,
        interval=None,
        level=0.90,
        expected=None,
        plain_expected=None,
        costs=(),
        reaches=reaches,
        nearest="the base, by the learning rate that was given",
        warnings=(*words, *_unheeded(target.table, reaches)),
        flops=run_flops(target),
        tuning_flops=None,
        runs=(),
    )


def _whole_flops(one: CurveAnswer) -> float:
    """Of runs without records, as if each had gone to its end."""
    assert one.curve.spec is not None
    return run_flops(one.curve.spec) * len(one.curve.points)


def _forecast(known: Sequence[CurveAnswer], nearest: CurveAnswer, target: RunSpec, level: float) -> Forecast:
    """The target's loss; none where its tokens, their context or its proportions are others than in the sweep."""
    assert nearest.curve.spec is not None
    swept, ours = _beside_size(nearest.curve.spec.model), _beside_size(target.model)
    for name, here in ours.items():
        if here != swept[name]:
            why_not = f"{name} is {here}, and {swept[name]} in the sweep, whose losses say nothing of it"
            return Forecast(None, None, level, len(known), why_not)
    return forecast([_known(one) for one in known], sizes_of(target.extent), level)


def _beside_size(model: ModelConfig) -> dict[str, float]:
    """What a loss depends on beside the sizes of its law, to the digits that curves are grouped by."""
    return {
        "vocab_size": model.vocab_size,
        "seq_len": model.seq_len,
        "d_mlp / d_model": round(model.d_mlp / model.d_model, 2),
        "n_heads / n_kv_heads": model.n_heads // model.n_kv_heads,
    }


def _known(one: CurveAnswer) -> Known:
    """A size with an enclosed optimum, as a law of loss takes it."""
    best = one.optimum
    assert best.loss is not None
    assert best.loss_interval is not None
    return Known(one.curve.sizes, best.loss, _normal_deviation(best.loss_interval, best.level))


def _normal_deviation(interval: Interval, level: float) -> float:
    """Of the normal distribution whose central interval at this level is as wide."""
    return interval.width / (2 * float(special.ndtri((1 + level) / 2)))


def _farness(one: CurveAnswer, goal: Mapping[str, float]) -> tuple[float, ...]:
    """By octaves; of sizes equally far the one whose optimum is known best, then the largest."""
    # CHOICE: what is known best says most; plans come in no order that means anything.
    octaves = sum(abs(_octaves(one, goal, axis)) for axis in goal)
    return (round(octaves, 9), one.optimum.interval.width, *(-size for size in one.curve.sizes.values()))


def _octaves(one: CurveAnswer, goal: Mapping[str, float], axis: str) -> float:
    return math.log2(goal[axis] / one.curve.sizes[axis])


def _verdicts(members: Sequence[CurveAnswer]) -> str:
    return ", ".join(sorted({one.optimum.verdict for one in members}))


def _reaches(
    answers: Answers, known: Sequence[CurveAnswer], nearest: CurveAnswer, goal: Mapping[str, float]
) -> tuple[Reach, ...]:
    assert nearest.curve.spec is not None
    table = nearest.curve.spec.table
    paths = [path for path in answers.paths if path.group == nearest.curve.group]
    found = []
    for axis, target in goal.items():
        swept = [one.curve.sizes[axis] for one in known]
        low, high = min(swept), max(swept)
        way = _octaves(nearest, goal, axis) - _along_with(paths, nearest, goal, axis)
        along = [path for path in paths if path.along == axis and path.drift.slope is not None]
        path = min(along, key=lambda path: (_aside(path, nearest), path.drift.interval.width), default=None)
        slope, deviation = _slope(path, table, axis)
        beyond = max(0.0, math.log2(target / high), math.log2(low / target))
        own = path is not None and nearest in path.curves
        found.append(Reach(axis, target, low, high, way, beyond, slope, deviation, path, own))
    return tuple(found)


def _aside(path: PathAnswer, nearest: CurveAnswer) -> tuple[bool, float]:
    """Whether a path runs past a size rather than through it, and by how many octaves."""
    # CHOICE: a slope is taken where it was seen nearest, not where it is known best.
    sizes = path.curves[0].curve.sizes
    staying = [axis for axis in sizes if axis not in (path.along, *path.together)]
    return nearest not in path.curves, sum(abs(_octaves(nearest, sizes, axis)) for axis in staying)


def _along_with(paths: Sequence[PathAnswer], nearest: CurveAnswer, goal: Mapping[str, float], axis: str) -> float:
    """The octaves of an axis that a path on which it goes along with another one covers already."""
    for path in paths:
        if axis in path.together and path.drift.slope is not None:
            return _share(path, axis) * _octaves(nearest, goal, path.along)
    return 0.0


def _share(path: PathAnswer, axis: str) -> float:
    """Octaves of an axis that goes along, per octave of the path's own."""
    first, last = path.curves[0].curve.sizes, path.curves[-1].curve.sizes
    return math.log2(last[axis] / first[axis]) / math.log2(last[path.along] / first[path.along])


def _slope(path: PathAnswer | None, table: Parametrization, axis: str) -> tuple[float, float]:
    """The slope along an axis and its deviation: the table's prediction, sharpened by what was seen.

    A drift that is shown stands for itself: the table's prediction no longer counts.
    """
    expected, doubt = expected_slope(table, axis)
    if path is None:
        return expected, doubt
    assert path.drift.slope is not None
    deviation = _normal_deviation(path.drift.interval, path.drift.level)
    if path.drift.no_drift == FAILS:
        return path.drift.slope, deviation
    for other in path.together:
        slope, deviation_of_other = expected_slope(table, other)
        share = _share(path, other)
        expected, doubt = expected + share * slope, math.hypot(doubt, share * deviation_of_other)
    weight = doubt**2 / (doubt**2 + deviation**2)
    return weight * path.drift.slope + (1 - weight) * expected, math.sqrt(weight) * deviation


def _refuse_beyond(reaches: Sequence[Reach], force: bool) -> None:
    for reach in reaches:
        if reach.beyond > LIMITS[reach.axis] and not force:
            swept = f"{reach.low:g}" if reach.low == reach.high else f"{reach.low:g} to {reach.high:g}"
            raise ValueError(
                f"{reach.axis} is {reach.target:g}, {reach.beyond:.1f} octaves beyond what was swept ({swept}), "
                f"but at most {LIMITS[reach.axis]:g} are carried over: sweep a size nearer to it, or use --force"
            )


def _warnings(
    answers: Answers, group: str, reaches: Sequence[Reach], members: Sequence[CurveAnswer]
) -> tuple[str, ...]:
    found = []
    for reach in reaches:
        if reach.beyond and reach.low == reach.high:
            found.append(
                f"{reach.axis} was swept at {reach.low:g} only: nothing here shows that η holds over the "
                f"{reach.beyond:.1f} octaves to {reach.target:g}"
            )
        elif not reach.supported:
            found.append(
                f"{reach.axis} {reach.target:g} lies {reach.beyond:.1f} octaves beyond sizes that span "
                f"{math.log2(reach.high / reach.low):.1f} themselves"
            )
        if reach.octaves and not reach.measured and reach.slope:
            found.append(
                f"this table's learning rates go otherwise with {reach.axis} than νGPT's: without three swept sizes η* "
                f"is taken to make up for it, by {reach.slope:+.2f} ± {reach.deviation:.2f} octaves per octave"
            )
    crossed = _crossed(reaches)
    if crossed:
        found.append(
            f"how far η* moves was seen {' and '.join(crossed)}: in our runs of νGPT it depended on that "
            "(docs/recommend.md)"
        )
    going = {reach.axis: reach.path for reach in reaches if reach.octaves and reach.path is not None}
    for path in answers.paths:
        if path.group == group and path.along in going and path.drift.no_drift == FAILS:
            used = going[path.along]
            how = "follows it, since this table does not hold there" if path is used else f"goes by {used.name} instead"
            found.append(
                f"η* drifts along {path.name} by {path.drift.slope:+.2f} octaves per octave: the recommendation {how}"
            )
    censored = [one.curve.name for one in members if one.optimum.verdict == "edge-censored"]
    if censored:
        found.append(f"the optimum lies beyond the grid at {'; '.join(censored)}: these sizes are not used")
    return tuple(found)


def _crossed(reaches: Sequence[Reach]) -> list[str]:
    """Slopes over width that were seen an octave or more from the target's length, and the reverse."""
    targets = {reach.axis: reach.target for reach in reaches}
    found = []
    for reach in reaches:
        if reach.path is not None and reach.axis in CROSSED and abs(reach.octaves) >= 1:
            other = CROSSED[reach.axis]
            seen, *more = {one.curve.sizes[other] for one in reach.path.curves}
            away = abs(math.log2(targets[other] / seen))
            if not more and away >= 1:
                found.append(f"over {reach.axis} at {other} {seen:g} ({away:.1f} octaves from the target's)")
    return found


def _unheeded(table: Parametrization, reaches: Sequence[Reach]) -> list[str]:
    """What νGPT's exponents have to say of another table's learning rate that is taken as given."""
    expected = [(reach, *expected_slope(table, reach.axis)) for reach in reaches if reach.octaves]
    return [
        f"this table's learning rates go otherwise with {reach.axis} than νGPT's, by which its best η moves by "
        f"{slope:+.2f} ± {deviation:.2f} octaves per octave: {slope * reach.octaves:+.2f} to this target, not followed"
        for reach, slope, deviation in expected
        if slope
    ]


def _one_seed(nearest: CurveAnswer) -> tuple[str, ...]:
    if nearest.optimum.seeds > 1:
        return ()
    return ("the nearest size was swept with one seed: how far another would move its optimum is assumed, not seen",)


def _moved(drawn: Shapes, reaches: Sequence[Reach]) -> Array:
    """How far the way moves each draw's optimum.

    A slope that rests on the nearest size too has it at an end of its line: where that optimum is too high, so is the
    slope away from it. Its error goes with the draw's; that of any other slope is independent.
    """
    own = math.sqrt(sum((r.deviation * r.octaves) ** 2 for r in reaches if r.own))
    word = math.sqrt(sum((r.deviation * r.octaves) ** 2 for r in reaches if not r.own))
    place = (np.argsort(np.argsort(drawn.x)) + 0.5) / len(drawn.x)
    chance = np.random.default_rng(23).standard_normal(len(drawn.x))
    moved: Array = sum(r.slope * r.octaves for r in reaches) + own * special.ndtri(place) + word * chance
    return moved


def _paid(drawn: Shapes, moved: Array, log2_lr: float) -> Array:
    """Nats above each draw's minimum at the target, whose curve is the nearest size's, moved; failures move with it."""
    at = log2_lr - moved
    failed = (at >= drawn.failed.high) | (at <= drawn.failed.low)
    return np.where(failed, math.inf, drawn.excess(at))


def _expected(drawn: Shapes, moved: Array, log2_lr: float) -> float:
    return float(np.mean(np.minimum(_paid(drawn, moved, log2_lr), MOST)))


def _least(drawn: Shapes, moved: Array) -> float:
    """log2 of the η that costs least in expectation."""
    at = drawn.x + moved
    low, high, best = float(at.min()) - 0.5, float(at.max()), 0.0
    for _ in range(3):  # each time around the best of the time before: the expected cost has one valley
        grid = np.linspace(low, high, 25)
        best = float(grid[int(np.argmin([_expected(drawn, moved, x) for x in grid]))])
        low, high = best - (high - low) / 12, best + (high - low) / 12
    return best


def _cost(drawn: Shapes, moved: Array, log2_lr: float, level: float) -> Cost:
    draws = _paid(drawn, moved, log2_lr)
    low, middle, high = (
        float(np.quantile(draws, share, method="inverted_cdf")) for share in ((1 - level) / 2, 0.5, (1 + level) / 2)
    )
    return Cost(middle, Interval(low, high), level)


# ── What is written: plain values for JSON and TOML ──────────────────────────────────────────────────────────────────


def facts(found: Recommendation, tflops: float | None = None) -> dict[str, Any]:
    """Everything about a recommendation but the run itself; what has no bound is none."""
    share = None if found.tuning_flops is None else found.tuning_flops / found.flops
    return {
        "lr": found.run.lr,
        "log2_lr": found.log2_lr,
        "plain_log2_lr": found.plain,
        "interval": None if found.interval is None else [_finite(end) for end in found.interval],
        "level": found.level,
        "expected_nats": found.expected,
        "plain_expected_nats": found.plain_expected,
        "costs": [
            {"octaves": octaves, "nats": _finite(cost.nats), "interval": [_finite(end) for end in cost.interval]}
            for octaves, cost in found.costs
        ],
        "reach": [
            {
                "axis": r.axis,
                "target": r.target,
                "swept": [r.low, r.high],
                "octaves": r.octaves,
                "beyond": r.beyond,
                "slope": r.slope,
                "slope_deviation": r.deviation,
                "measured": r.measured,
            }
            for r in found.reaches
        ],
        "loss": None if found.loss is None else _loss_facts(found.loss),
        "nearest": found.nearest,
        "warnings": list(found.warnings),
        "parameters": total_parameters(found.run.model),
        "flops": found.flops,
        "tflops": tflops,
        "gpu_hours": None if tflops is None else found.gpu_hours(tflops),
        "tuning_flops": found.tuning_flops,
        "tuning_share": share,
        "runs": list(found.runs),
    }


def _loss_facts(found: Forecast) -> dict[str, Any]:
    ends = None if found.interval is None else list(found.interval)
    return {"nats": found.loss, "interval": ends, "sizes": found.sizes, "why_not": found.why_not}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def recipe(found: Recommendation, tflops: float | None = None) -> dict[str, Any]:
    """A run that describes itself: its spec, every number that its table gives, and how η was found."""
    return recipe_of(found.run, facts(found, tflops))
