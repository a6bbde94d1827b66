"""Recommendations: planted optima and cliffs, the table's own numbers, how far they are carried, what is written."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import special
from tests.fit.synthetic import FAMILIES, Shape, study, sweep

from nugpt.core.init import initial_value
from nugpt.core.optim import param_groups
from nugpt.fit.curve import CLIFF, Shapes
from nugpt.fit.curves import Answers, CurveAnswer, Measured, answer, measured
from nugpt.fit.drift import FAILS
from nugpt.fit.interval import Interval
from nugpt.fit.points import Point
from nugpt.fit.recommend import (
    LIMITS,
    Reach,
    Recommendation,
    _cost,
    _expected,
    _least,
    _moved,
    _paid,
    choose_group,
    from_base_lr,
    recipe,
    recommend,
    retarget,
)
from nugpt.fit.regret import MOST
from nugpt.spec import Base, Extent, ModelConfig, Schedule, load_table, parameter_shapes, resolve
from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.recipe import NO_DATA, read_recipe, rules
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec, run_flops
from nugpt.spec.toml import to_toml

MODEL = ModelConfig(n_layers=2, n_heads=2, head_dim=24, vocab_size=384, seq_len=16)
BASE = Base.of(Extent.of(MODEL, 100, 4))
HEADS = (1, 2, 4)


def make_spec(heads: int = 2, **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "model": replace(MODEL, n_heads=heads, n_kv_heads=0, d_mlp=0),
        "table": load_table("nugpt"),
    }
    fields |= {"base": BASE, "lr": 1.0, "steps": 100, "batch": 4, "data": "0" * 16}
    return RunSpec(**(fields | changes))


def record_of(spec: RunSpec, point: Point) -> RunRecord:
    """The record of a made-up run."""
    return RunRecord(
        hash=replace(spec, lr=2.0**point.log2_lr, seed=point.seed).hash,
        status=point.status,
        steps=spec.steps,
        tokens=spec.steps * spec.batch * spec.model.seq_len,
        flops=1e9,
        wall_s=1.0,
        val_loss=point.loss,
        val_loss_ema=point.loss,
        train_loss=point.loss,
        diverged_at=None if point.status == "done" else 3,
    )


def curve_of(spec: RunSpec, points: Sequence[Point]) -> Measured:
    """A curve of a plan whose runs ended so."""
    label = {"table": spec.table.name, "heads": spec.model.n_heads, "layers": spec.model.n_layers, "steps": spec.steps}
    made = Curve(label, spec, tuple({p.log2_lr for p in points}), tuple({p.seed for p in points}))
    return measured(made, [(p.log2_lr, p.seed, record_of(spec, p)) for p in points], "val_loss")


def planted(
    seed: int, at: Callable[[int], float] = lambda heads: -7.0, family: str = "exponential", **options: Any
) -> tuple[Answers, Shape]:
    """Widths whose optima lie where planted, and the shape they share."""
    rng = np.random.default_rng(seed)
    optima = np.array([at(heads) for heads in HEADS])
    sweeps = study(rng, family, 3, optima, same_shape=True, spacing=0.5, **options)
    curves = [curve_of(make_spec(heads), one.points) for heads, one in zip(HEADS, sweeps, strict=True)]
    return answer(curves), sweeps[0].shape


def recommended(
    answers: Answers, heads: int = 8, steps: int = 100, force: bool = False, **model: Any
) -> Recommendation:
    target = retarget(make_spec(), steps, n_heads=heads, **model)
    return recommend(answers, choose_group(answers, "nugpt"), target, force=force)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return planted(1)[0]


def test_the_recommended_rate_is_on_the_safe_side_and_costs_less_than_the_plain_optimum() -> None:
    # The target's optimum is off the swept ones by what is assumed of an unswept slope; its shape is theirs.
    rng = np.random.default_rng(0)
    costs, inside = [], []
    for trial in range(25):
        found, shape = planted(trial, family=list(FAMILIES)[trial % len(FAMILIES)])
        if not any(one.optimum.verdict == "enclosed" for one in found.curves):
            continue
        got = recommended(found, heads=16, steps=400)
        assert got.interval is not None
        assert got.log2_lr <= got.plain
        spread = math.sqrt(sum((r.deviation * r.octaves) ** 2 for r in got.reaches))
        for truth in -7.0 + spread * rng.standard_normal(50):
            costs.append([min(float(shape(np.asarray(x - truth))), MOST) for x in (got.log2_lr, got.plain)])
            inside.append(got.interval.contains(truth))
    cautious, plain = np.mean(costs, axis=0)
    assert len(costs) >= 20 * 50
    assert cautious < 0.95 * plain  # the difference is systematic: a twentieth is far more than the trials' scatter
    assert np.mean(inside) > 0.8  # of 90 %, less what a few dozen sweeps of several shapes scatter


def test_the_expected_costs_are_ordered_and_the_cliff_is_on_the_right(answers: Answers) -> None:
    got = recommended(answers)
    assert got.expected is not None
    assert got.plain_expected is not None
    assert got.expected <= got.plain_expected
    cost = {octaves: one.nats for octaves, one in got.costs}
    assert cost[0.0] is not None
    assert cost[0.0] < min(c for octaves, c in cost.items() if octaves and c is not None)
    assert (cost[1.0] or 0) > 3 * (cost[-1.0] or 0)


def test_every_number_is_the_tables_own(answers: Answers) -> None:
    got = recommended(answers, heads=8, steps=800, n_layers=4)
    model = ModelConfig(n_layers=4, n_heads=8, head_dim=24, vocab_size=384, seq_len=16)
    assert got.run.model == model
    expected = resolve(load_table("nugpt"), BASE, Extent.of(model, 800, 4), got.run.lr)
    assert got.run.resolved() == expected
    # By hand: m_width 4, m_depth 2, m_data 8, so η_hidden = η · 8^(-1/3) · 4^(-3/4) and α starts at 0.05 / 2.
    row = got.run.resolved()["hidden"]
    assert row.lr == pytest.approx(got.run.lr / 2 / 4**0.75, rel=1e-12)
    assert got.run.resolved()["alpha_A"].init == pytest.approx(0.025, rel=1e-12)
    assert got.run.lr == pytest.approx(2.0**got.log2_lr, rel=1e-11)  # rounded to 12 digits, as every run's η


def test_the_interval_widens_with_the_way(answers: Answers) -> None:
    near, far, farther = (recommended(answers, heads=heads).interval for heads in (4, 16, 32))
    assert near is not None
    assert far is not None
    assert farther is not None
    assert near.width < far.width < farther.width
    longer = recommended(answers, heads=4, steps=1600).interval
    assert longer is not None
    # Four octaves of a slope known to 0.2 add a deviation of 0.8 to what is known at the nearest size.
    own = near.width / (2 * 1.645)
    assert longer.width / (2 * 1.645) == pytest.approx(math.hypot(own, 0.8), rel=0.1)  # of 2048 draws


def test_a_target_that_was_swept_keeps_its_own_optimum(answers: Answers) -> None:
    got = recommended(answers, heads=2)
    own = next(one for one in answers.curves if one.curve.label["heads"] == 2)
    assert got.plain == own.optimum.log2_lr
    assert got.nearest == own.curve.name
    assert not got.warnings
    assert all(reach.octaves == 0 for reach in got.reaches)


def test_a_drift_that_is_shown_is_followed_and_named() -> None:
    found, _ = planted(3, lambda heads: -7.0 - 0.6 * math.log2(heads))
    (path,) = found.paths
    assert path.drift.no_drift == "does not hold"
    got = recommended(found, heads=16)
    # As it was seen, not drawn towards none: 1.645 deviations to either side.
    assert got.reaches[0].slope == path.drift.slope
    assert got.reaches[0].deviation == pytest.approx(path.drift.interval.width / 2 / 1.644854)
    line = -7.0 - 0.6 * math.log2(16)
    assert got.interval is not None
    assert got.interval.contains(line)
    assert got.plain == pytest.approx(
        line, abs=0.3
    )  # two octaves of a slope known to about 0.07, and an optimum's error
    assert any("drifts along width" in warning for warning in got.warnings)


def test_a_drift_at_another_length_is_named_and_not_said_to_be_followed() -> None:
    short, long = (planted(3, at)[0] for at in (lambda heads: -7.0 - 0.6 * math.log2(heads), lambda heads: -7.0))
    longer = [
        curve_of(replace(one.curve.spec, steps=400), one.curve.points)
        for one in long.curves
        if one.curve.spec is not None
    ]
    both = answer([*(one.curve for one in short.curves), *longer])
    (told,) = [warning for warning in recommended(both, heads=8, steps=400).warnings if "drifts" in warning]
    assert re.fullmatch(
        r"η\* drifts along width at steps=100 by -0\.\d\d octaves per octave: "
        r"the recommendation goes by width at steps=400 instead",
        told,
    )
    (told,) = [warning for warning in recommended(both, heads=8, steps=100).warnings if "drifts" in warning]
    assert told.endswith("the recommendation follows it, since this table does not hold there")


def test_one_size_of_another_table_is_carried_on_by_what_its_exponents_lack() -> None:
    rng = np.random.default_rng(7)
    points = sweep(rng, "exponential", 3, 0.5, 0.004, optimum=-7.0).points
    found = answer([curve_of(make_spec(table=load_table("ngpt")), points)])
    (one,) = found.curves
    assert one.optimum.log2_lr is not None
    target = retarget(make_spec(table=load_table("ngpt")), 400, n_heads=8)
    got = recommend(found, choose_group(found, "ngpt"), target)
    # Two octaves of width at −5/8, two of iterations at −1/3.
    assert got.nearest_log2_lr == one.optimum.log2_lr
    assert got.plain == pytest.approx(one.optimum.log2_lr - 2 * 5 / 8 - 2 / 3, abs=1e-9)
    told = [w for w in got.warnings if "go otherwise" in w]
    assert ["width" in told[0], "-0.62 ± 0.12" in told[0], "steps" in told[1], "-0.33 ± 0.20" in told[1]] == [True] * 4
    assert len(told) == 2
    ours = answer([curve_of(make_spec(), points)])
    kept = recommend(ours, choose_group(ours, "nugpt"), retarget(make_spec(), 400, n_heads=8))
    assert kept.plain == kept.nearest_log2_lr
    assert not any("go otherwise" in w for w in kept.warnings)


@pytest.mark.parametrize(
    ("table", "steps", "expected"),
    [
        ("nugpt-full-align", (100, 100, 100), 1 / 8),
        ("completep", (100, 100, 100), 0.0),
        ("completep", (100, 400, 1600), -2 / 3),  # with two octaves of iterations to each of width
    ],
)
def test_an_undecided_slope_is_drawn_towards_what_the_table_is_expected_to_do(
    table: str, steps: tuple[int, ...], expected: float
) -> None:
    """Three widths, alone or with their length, whose optima lie about one another: their slope and the word meet."""
    rng = np.random.default_rng(11)
    sweeps = study(rng, "exponential", 2, np.array([-7.0, -6.95, -6.9]), same_shape=True, spacing=0.5)
    specs = [make_spec(h, table=load_table(table), steps=s) for h, s in zip(HEADS, steps, strict=True)]
    found = answer([curve_of(spec, one.points) for spec, one in zip(specs, sweeps, strict=True)])
    (path,) = found.paths
    assert path.drift.slope is not None
    assert path.drift.no_drift != "does not hold"
    target = retarget(specs[-1], steps[-1], n_heads=16)
    width = recommend(found, choose_group(found, table), target).reaches[0]
    own = path.drift.interval.width / (2 * 1.6448536269514722)
    wanted = [float(NUGPT.rows[role].lr.width - load_table(table).rows[role].lr.width) for role in ("hidden", "output")]
    doubt = math.hypot(0.1, (max(0.0, *wanted) - min(0.0, *wanted)) / math.sqrt(12))  # what the input wants is 0
    if len(set(steps)) > 1:
        doubt = math.hypot(doubt, 2 * 0.2)  # two octaves of a slope over iterations that is known to 0.2
    # The mean of two normal numbers of the same thing, each weighing by its precision.
    meet = (path.drift.slope / own**2 + expected / doubt**2) / (1 / own**2 + 1 / doubt**2)
    assert width.slope == pytest.approx(meet, rel=1e-6)
    assert width.deviation == pytest.approx((1 / own**2 + 1 / doubt**2) ** -0.5, rel=1e-6)


def test_of_sizes_equally_far_the_best_known_one_lends_its_curve_in_whatever_order_they_come() -> None:
    rng = np.random.default_rng(13)
    points = [sweep(rng, "exponential", seeds, 0.5, 0.004, optimum=-7.0).points for seeds in (2, 5)]
    curves = [curve_of(make_spec(2, steps=200), points[0]), curve_of(make_spec(4, steps=100), points[1])]
    for order in (curves, curves[::-1]):
        found = answer(order)
        wide, narrow = sorted(found.curves, key=lambda one: -one.optimum.interval.width)
        assert narrow.optimum.interval.width < wide.optimum.interval.width
        assert recommended(found, heads=4, steps=200).nearest == narrow.curve.name


def test_the_error_of_a_slope_that_the_nearest_size_is_not_part_of_is_its_own() -> None:
    """Three widths in short runs show a slope; one width in long runs lends its curve, and its error is another."""
    rng = np.random.default_rng(17)
    sweeps = study(rng, "exponential", 3, np.full(4, -7.0), same_shape=True, spacing=0.5)
    specs = [*(make_spec(heads) for heads in HEADS), make_spec(4, steps=1600)]
    found = answer([curve_of(spec, one.points) for spec, one in zip(specs, sweeps, strict=True)])
    apart, together = recommended(found, heads=64, steps=1600), recommended(found, heads=64, steps=100)
    reach = {name: next(r for r in got.reaches if r.axis == "width") for name, got in (("a", apart), ("t", together))}
    assert [(r.measured, r.own) for r in reach.values()] == [(True, False), (True, True)]
    assert reach["a"].octaves == reach["t"].octaves == 4
    for got, adds in ((apart, math.hypot), (together, lambda a, b: a + b)):
        near = recommended(found, heads=4, steps=got.run.steps)
        assert near.interval is not None
        assert got.interval is not None
        of_slope = 4 * next(r.deviation for r in got.reaches if r.axis == "width")
        # Independent errors add as squares, one that goes with the other's adds to it; 2,048 draws scatter a little.
        assert got.interval.width / 3.29 == pytest.approx(adds(near.interval.width / 3.29, of_slope), rel=0.1)


def test_a_group_is_chosen_by_name() -> None:
    points = sweep(np.random.default_rng(3), "exponential", 3, 0.5, 0.004, optimum=-7.0).points
    plain, warm = make_spec(), make_spec(schedule=Schedule(warmup=5))
    found = answer([curve_of(plain, points), curve_of(warm, points)])
    names = list(found.names.values())
    assert len(names) == 2
    for name in names:
        assert found.names[choose_group(found, "nugpt", name)] == name
    with pytest.raises(ValueError, match=r"2 groups of curves .*: choose one with --group"):
        choose_group(found, "nugpt")
    with pytest.raises(ValueError, match=f"group is 'mine', but table 'nugpt' has {names[0]}"):
        choose_group(found, "nugpt", "mine")
    changed = answer([curve_of(plain, points), curve_of(make_spec(multipliers={"output": 1.0}), points)])
    assert changed.names[choose_group(changed, "nugpt")] == "nugpt", "as it is built in, where nothing is said"
    (other,) = [name for name in changed.names.values() if name != "nugpt"]
    assert changed.names[choose_group(changed, "nugpt", other)] == other


def test_of_paths_that_the_nearest_size_is_not_on_the_nearest_one_lends_its_slope(answers: Answers) -> None:
    (near,) = answers.paths

    def moved(one: CurveAnswer, **sizes: float) -> CurveAnswer:
        return replace(one, curve=replace(one.curve, sizes={**one.curve.sizes, **sizes}))

    surer = replace(near.drift, slope=0.3, interval=Interval(0.29, 0.31))
    far = replace(near, drift=surer, curves=tuple(moved(one, steps=1600.0) for one in near.curves))
    alone = moved(near.curves[-1], width=192.0, steps=200.0)
    both = replace(answers, curves=(*answers.curves, alone), paths=(far, near))
    width = recommended(both, heads=16, steps=200).reaches[0]
    assert (width.axis, width.octaves, width.path) == ("width", 1.0, near)
    on_it = replace(both, paths=(replace(far, curves=(*far.curves, alone)), near))
    assert recommended(on_it, heads=16, steps=200).reaches[0].slope == pytest.approx(0.3, abs=0.01)


def test_what_was_swept_at_one_size_only_is_warned_of(answers: Answers) -> None:
    layers, steps = recommended(answers, heads=4, steps=400, n_layers=4).warnings
    assert layers.startswith("layers was swept at 2 only: nothing here shows that η holds over the 1.0 octaves to 4")
    assert steps.startswith("steps was swept at 100 only: nothing here shows that η holds over the 2.0 octaves to 400")
    assert not recommended(answers, heads=16).warnings  # two octaves beyond two
    (width,) = recommended(answers, heads=32).warnings
    assert width == "width 768 lies 3.0 octaves beyond sizes that span 2.0 themselves"


def test_a_slope_over_width_that_was_seen_at_another_length_is_warned_of(answers: Answers) -> None:
    """By an octave or more of either: in our runs it depends on the length, and that over length on the width."""
    *_, crossed = recommended(answers, heads=8, steps=200).warnings
    assert crossed == (
        "how far η* moves was seen over width at steps 100 (1.0 octaves from the target's): "
        "in our runs of νGPT it depended on that (docs/recommend.md)"
    )
    for target in ({"heads": 4, "steps": 400}, {"heads": 16, "steps": 190}, {"heads": 5, "steps": 400}):
        assert not any("depended" in one for one in recommended(answers, **target).warnings), target
    (path,) = answers.paths
    longer = tuple(
        replace(one, curve=replace(one.curve, sizes={**one.curve.sizes, "steps": 100.0 * 2**i}))
        for i, one in enumerate(path.curves)
    )
    together = replace(answers, paths=(replace(path, curves=longer),))
    assert not any("depended" in one for one in recommended(together, heads=16, steps=400).warnings)


def test_a_target_below_what_was_swept_is_beyond_it_too(answers: Answers) -> None:
    reach = {one.axis: one for one in recommended(answers, heads=4, steps=25).reaches}["steps"]
    assert (reach.octaves, reach.beyond) == (-2.0, 2.0)
    with pytest.raises(ValueError, match=r"steps is 5, 4\.3 octaves beyond what was swept"):
        recommended(answers, heads=4, steps=5)


def test_the_drift_of_another_group_is_not_warned_of(answers: Answers) -> None:
    (path,) = answers.paths
    drifts = replace(path, drift=replace(path.drift, no_drift=FAILS))
    assert not recommended(replace(answers, paths=(path, replace(drifts, group="another"))), heads=16).warnings
    (warned,) = recommended(replace(answers, paths=(drifts,)), heads=16).warnings
    assert warned.startswith("η* drifts along width by ")


def test_sizes_whose_optimum_lies_beyond_their_grid_are_named_and_not_used(answers: Answers) -> None:
    first, *rest = answers.curves
    beyond = replace(first, optimum=replace(first.optimum, verdict="edge-censored", log2_lr=None))
    got = recommended(replace(answers, curves=(beyond, *rest)), heads=8)
    assert got.warnings == (f"the optimum lies beyond the grid at {first.curve.name}: these sizes are not used",)
    assert (got.reaches[0].low, got.reaches[0].high) == (48, 96)


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ({"heads": 128}, r"width is 3072, 5.0 octaves beyond what was swept \(24 to 96\)"),
        ({"steps": 3200}, r"steps is 3200, 5.0 octaves beyond what was swept \(100\)"),
        ({"n_layers": 64}, r"layers is 64, 5.0 octaves beyond what was swept \(2\)"),
    ],
)
def test_beyond_the_limit_it_refuses_unless_forced(answers: Answers, target: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        recommended(answers, **{"heads": 4, **target})
    assert "at most 4" in str(refused.value)
    assert "--force" in str(refused.value)
    assert recommended(answers, **{"heads": 4, **target}, force=True).warnings
    assert set(LIMITS.values()) == {4.0, 2.0}


def test_exactly_the_limit_is_carried_over(answers: Answers) -> None:
    assert recommended(answers, heads=64).reaches[0].beyond == 4.0


def test_another_batch_needs_an_exponent(answers: Answers) -> None:
    with pytest.raises(ValueError, match="no batch exponent"):
        retarget(make_spec(), 100, 8)
    table = replace(load_table("nugpt"), batch=Fraction(1, 2))
    target = retarget(make_spec(table=table), 100, 16)
    got = recommend(answers, choose_group(answers, "nugpt"), target)
    assert got.run.resolved().lr_base == pytest.approx(2 * got.run.lr)  # (16/4)^(1/2)
    with pytest.raises(ValueError, match="batch is 2048"):
        recommend(answers, choose_group(answers, "nugpt"), retarget(make_spec(table=table), 100, 128))


def test_sizes_that_grow_together_are_one_path() -> None:
    rng = np.random.default_rng(5)
    curves = []
    for n in (1, 2, 4):
        spec = make_spec(n, model=ModelConfig(n, n, 24, 384, 16), steps=100 * n * n)
        curves.append(curve_of(spec, sweep(rng, "exponential", 3, 0.5, 0.004, optimum=-7.0).points))
    found = answer(curves)
    (path,) = found.paths
    assert (path.along, path.together) == ("width", ("layers", "steps"))
    got = recommended(found, heads=8, n_layers=8, steps=6400)
    on_path = {reach.axis: reach.octaves for reach in got.reaches}
    assert on_path == pytest.approx({"width": 1.0, "layers": 0.0, "steps": 0.0, "batch": 0.0})
    off_path = {reach.axis: reach.octaves for reach in recommended(found, heads=8, n_layers=4, steps=6400).reaches}
    assert off_path == pytest.approx({"width": 1.0, "layers": -1.0, "steps": 0.0, "batch": 0.0})


def test_without_an_enclosed_optimum_there_is_no_recommendation() -> None:
    rising = [Point(x, 3.0 + 0.2 * (x + 9), seed) for x in (-9.0, -8.0, -7.0) for seed in (0, 1)]
    found = answer([curve_of(make_spec(), rising)])
    with pytest.raises(ValueError, match="edge-censored"):
        recommended(found)


def test_the_group_is_chosen_by_its_table_as_it_is_built_in(answers: Answers) -> None:
    points = answers.curves[0].curve.points
    plain, changed = make_spec(), make_spec(multipliers={"output": 1.0})
    found = answer([curve_of(changed, points), curve_of(plain, points)])
    assert choose_group(found, "nugpt") == curve_of(plain, points).group
    others = answer([curve_of(changed, points), curve_of(make_spec(multipliers={"output": 2.0}), points)])
    with pytest.raises(ValueError, match="2 groups of curves"):
        choose_group(others, "nugpt")
    with pytest.raises(ValueError, match="no ended run of table 'ngpt', the store has nugpt"):
        choose_group(found, "ngpt")


def test_what_is_not_given_keeps_its_proportions() -> None:
    model = ModelConfig(2, 4, 24, 384, 16, n_kv_heads=2, d_mlp=192)
    spec = make_spec(model=model, schedule=Schedule(warmup=10))
    target = retarget(spec, 500, n_heads=8)
    assert (target.model.n_kv_heads, target.model.d_mlp) == (4, 384)
    assert target.schedule.warmup == 50
    assert retarget(make_spec(), 100, n_heads=8).model.d_mlp == ModelConfig(2, 8, 24, 384, 16).d_mlp
    of_64 = ModelConfig(2, 2, 64, 384, 16, d_mlp=384)
    base = Base.of(Extent.of(of_64, 100, 4))
    assert retarget(make_spec(model=of_64, base=base), 100, n_heads=8).model.d_mlp == 3 * 8 * 64
    assert retarget(make_spec(), 100, seq_len=32).batch == 2
    with pytest.raises(ValueError, match="seq_len is 48"):
        retarget(make_spec(), 100, seq_len=48)


def test_costs_in_flops_and_hours(answers: Answers) -> None:
    got = recommended(answers)
    assert got.tuning_flops == 1e9 * len(got.runs)
    assert len(got.runs) == sum(len(one.curve.points) for one in answers.curves)
    assert got.flops == run_flops(got.run)
    assert got.gpu_hours(0.5) == pytest.approx(got.flops / 5e11 / 3600)
    with pytest.raises(ValueError, match="tflops is 0"):
        got.gpu_hours(0.0)


def test_a_slopes_error_goes_with_the_draws_where_it_rests_on_them() -> None:
    # Draws of deviation 0.3; slopes of 0.5 and −0.25 known to 0.2 and 0.1, carried over 2 octaves and 1.
    place = np.random.default_rng(0).permutation((np.arange(4000) + 0.5) / 4000)
    drawn = Shapes(0.3 * special.ndtri(place), np.zeros(4000), (), Interval(-math.inf, math.inf))
    own = Reach("width", 4.0, 1.0, 1.0, 2.0, 2.0, 0.5, 0.2, own=True)
    word = Reach("steps", 2.0, 1.0, 1.0, 1.0, 1.0, -0.25, 0.1)
    assert _moved(drawn, [own]) == pytest.approx(2 * 0.5 + 2 * 0.2 * special.ndtri(place), abs=1e-9)
    alone = _moved(drawn, [word])
    assert float(np.mean(alone)) == pytest.approx(-0.25, abs=0.01)  # chance in 4000 draws of 0.1
    assert float(np.std(alone)) == pytest.approx(0.1, rel=0.05)
    assert abs(float(np.corrcoef(drawn.x, alone)[0, 1])) < 0.06  # four times 1/√4000
    assert _moved(drawn, [own, word]) == pytest.approx(_moved(drawn, [own]) + alone, abs=1e-9)


def test_failures_move_with_the_curve() -> None:
    # s·((e^{ku} − 1)/k − u) + q·u² with next to no slope: a parabola of 0.1 nats an octave off −7 and −6.
    shape = np.tile([1.0, *np.log([1e-9, 4.0, 0.1])], (2, 1)).T
    drawn = Shapes(np.array([-7.0, -6.0]), np.zeros(2), ((CLIFF, shape),), Interval(-9.0, -5.0))
    assert _paid(drawn, np.zeros(2), -6.0) == pytest.approx([0.1, 0.0], abs=1e-6)
    moved = np.array([1.0, 1.0])
    assert _paid(drawn, moved, -4.5) == pytest.approx([0.1 * 1.5**2, 0.1 * 0.5**2], abs=1e-6)
    assert list(_paid(drawn, moved, -4.0)) == [math.inf] * 2
    assert list(_paid(drawn, moved, -8.0)) == [math.inf] * 2
    assert _expected(drawn, moved, -4.0) == MOST  # a failure costs no more than that


def test_the_interval_of_a_cost_by_hand() -> None:
    # Parabolas of 0.1 nats an octave off, their minima moved to lie evenly 0.1 to 1.9 octaves below.
    shape = np.tile([1.0, *np.log([1e-9, 4.0, 0.1])], (4001, 1)).T
    drawn = Shapes(np.linspace(-8.9, -7.1, 4001), np.zeros(4001), ((CLIFF, shape),), Interval(-math.inf, math.inf))
    for level, low, high in ((0.90, 0.19, 1.81), (0.50, 0.55, 1.45)):
        found = _cost(drawn, np.ones(4001), -6.0, level)
        assert (found.nats, found.level) == (pytest.approx(0.1, rel=0.01), level)
        assert found.interval == pytest.approx((0.1 * low**2, 0.1 * high**2), rel=0.01)


@pytest.mark.parametrize("spread", [0.0, 0.2, 1.0])
def test_the_recommended_rate_costs_least_of_all(spread: float) -> None:
    # The same cliff at places that lie evenly around −7 and are moved by an octave; costs written out.
    s, k, q = 0.05, 4.0, 0.01
    places = -7.0 + spread * np.linspace(-1.0, 1.0, 201)
    shape = np.tile([1.0, *np.log([s, k, q])], (201, 1)).T
    drawn = Shapes(places, np.zeros(201), ((CLIFF, shape),), Interval(-math.inf, math.inf))
    tried = np.arange(-8.5, -4.5, 0.002)
    u = tried[:, None] - (places + 1.0)
    costs = np.minimum(s * ((np.exp(k * u) - 1) / k - u) + q * u**2, MOST).mean(1)
    assert _least(drawn, np.ones(201)) == pytest.approx(float(tried[int(np.argmin(costs))]), abs=0.01)


def test_from_a_bare_learning_rate() -> None:
    got = from_base_lr(replace(retarget(make_spec(data=NO_DATA), 200, n_heads=8), lr=0.01))
    assert got.run.lr == 0.01
    assert (got.interval, got.level) == (None, 0.90)
    assert len(got.warnings) == 1, "νGPT's own learning rates go with every size"
    assert {reach.axis: reach.octaves for reach in got.reaches} == {"width": 2, "layers": 0, "steps": 1, "batch": 0}
    with pytest.raises(ValueError, match="width is 1536"):
        from_base_lr(retarget(make_spec(data=NO_DATA), 200, n_heads=64))
    theirs = retarget(make_spec(data=NO_DATA, table=load_table("ngpt")), 200, n_heads=8)
    other = from_base_lr(replace(theirs, lr=0.01))
    assert other.run.lr == 0.01, "what was given is kept, and the rest is said"
    _, width, steps = other.warnings
    assert "width" in width
    assert "-0.62 ± 0.12 octaves per octave: -1.25 to this target, not followed" in width  # two octaves
    assert "-0.33 ± 0.20 octaves per octave: -0.33 to this target, not followed" in steps


@pytest.mark.parametrize(
    "form", [lambda v: json.loads(json.dumps(v, allow_nan=False)), lambda v: tomllib.loads(to_toml(v))]
)
def test_a_recipe_is_read_back_as_the_same_run(answers: Answers, form: Callable[[Any], Any]) -> None:
    got = recommended(answers, heads=16)
    values = form(recipe(got, tflops=400.0))
    assert read_recipe(values) == got.run
    assert read_recipe(values).hash == got.run.hash
    assert read_recipe(values, data="another").data == "another"
    assert values["recommended"]["lr"] == got.run.lr
    assert [(r["axis"], r["swept"]) for r in values["recommended"]["reach"]] == [
        ("width", [24, 96]),
        ("layers", [2, 2]),
        ("steps", [100, 100]),
        ("batch", [64, 64]),
    ]
    for role, row in got.run.resolved().rows.items():
        assert values["resolved"]["rows"][role]["lr"] == row.lr
    assert values["resolved"]["gains"] == dict(got.run.resolved().gains)


def test_a_recipe_without_data_says_so() -> None:
    values = recipe(from_base_lr(replace(make_spec(data=NO_DATA), lr=0.01)))
    assert values["run"]["data"] is None
    assert read_recipe(values).data == NO_DATA
    assert read_recipe(values, data="1" * 16).data == "1" * 16


def test_a_recipe_that_contradicts_itself_is_refused(answers: Answers) -> None:
    values = recipe(recommended(answers))
    values["resolved"]["rows"]["hidden"]["lr"] *= 1.01
    with pytest.raises(ValueError, match="as the learning rate of hidden, but its table gives"):
        read_recipe(values)
    for broken in (
        {},
        {"kind": "nugpt recipe", "format": 2},
        {**values, "run": 3},
        {**values, "resolved": None},
        {**values, "resolved": {"rows": 3}},
    ):
        with pytest.raises(ValueError, match="recipe"):
            read_recipe(broken)


@pytest.mark.parametrize("table", ["nugpt", "ngpt", "prenorm-completep"])
def test_rules_give_every_tensor_what_our_own_trainer_gives_it(table: str) -> None:
    family = load_table(table).family
    run = make_spec(
        table=load_table(table),
        lr=0.01,
        steps=300,
        grad_clip=0.7,
        model=replace(MODEL, n_heads=4, n_kv_heads=0, d_mlp=0, architecture=family),
    )
    written = rules(run)
    assert (written["steps"], written["batch"], written["seq_len"]) == (300, run.batch, run.model.seq_len)
    assert written["grad_clip"] == 0.7
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    resolved, shapes = run.resolved(), parameter_shapes(run.model)
    named = [(name, _meta(shape)) for name, shape in shapes.items()]
    groups = {name: group for group in param_groups(named, resolved, run.model.roles) for name in group["names"]}
    for name, shape in shapes.items():
        (rule,) = [rule for rule in written["rules"] if re.fullmatch(rule["pattern"], name)]
        group = groups[name]
        assert (rule["lr"], rule["weight_decay"], rule["eps"]) == (group["lr"], group["weight_decay"], group["eps"])
        start = initial_value(name, shape, 0, resolved, run.model.roles)
        if rule["initial_value"] is not None:
            assert start.eq(start.new_tensor(rule["initial_value"])).all()
        elif rule["sphere_axis"] is None:
            # The deviation of n normal numbers scatters by 1/√(2n): the smallest matrix has a few thousand.
            assert float(start.std()) == pytest.approx(rule["initial_std"], rel=0.06)
        else:
            assert start.norm(dim=rule["sphere_axis"]).sub(1).abs().max() < 1e-5
        assert rule["sphere_axis"] == run.model.roles(name).axis
        assert rule["forward_multiplier"] == resolved.gains.get(rule["role"], 1.0)
    assert written["forward"] == {k: v for k, v in resolved.gains.items() if k in ("residual", "logit")}


def _meta(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.empty(shape, device="meta")


def test_one_seed_is_warned_of(answers: Answers) -> None:
    one = [
        replace(curve.curve, points=tuple(p for p in curve.curve.points if p.seed == 0), records=())
        for curve in answers.curves
    ]
    assert any("one seed" in warning for warning in recommended(answer(one)).warnings)
    assert not any("one seed" in warning for warning in recommended(answers).warnings)
