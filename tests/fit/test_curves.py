"""Curves, paths and claims: planted laws in a study's own runs give the verdicts that they must."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.fit.test_recommend import MODEL, curve_of, make_spec, record_of

from nugpt.fit.claims import verdicts
from nugpt.fit.curves import Answers, answer
from nugpt.fit.measured import Measured, OwnRun, group_key, group_names, measured, own_curves
from nugpt.fit.points import Point
from nugpt.fit.verdict import Verdict
from nugpt.spec import ModelConfig, Schedule, load_table
from nugpt.spec.loss import loss_name
from nugpt.spec.plan import Curve
from nugpt.spec.study import Setting
from nugpt.studies import plan, study

SETTING = Setting(data="0" * 16, vocab_size=1024)
OFFSETS = np.arange(-2.25, 2.5, 0.5)  # octaves around a planted optimum, which is no point of the grid


def loss_at(u: float) -> float:
    """Nats above the best: a gentle left side and a cliff on the right."""
    return 0.05 * (math.expm1(4 * u) / 4 - u) + 0.02 * u * u


def runs(
    curve: Curve,
    optimum: float,
    best: float = 3.0,
    lerp: Callable[[str], dict[str, float]] | None = None,
    **changes: Any,
) -> Measured:
    """Runs of three seeds around a planted optimum; at the curve's only learning rate where it has but one."""
    seeds = (0, 1, 2)
    grid = [optimum + x for x in OFFSETS] if len(curve.log2_lrs) > 1 else list(curve.log2_lrs)
    rng = np.random.default_rng(int(curve.key, 16) % 2**32)
    ended = []
    for x in grid:
        for seed in seeds:
            height = loss_at(x - optimum)
            failed = height > 2.5
            loss = best + height + 0.01 * (seed - 1) + rng.normal(0, 0.001)
            point = Point(x, None if failed else loss, seed, "diverged" if failed else "done")
            record = record_of(curve.spec, point)
            if lerp is not None and not failed:
                record = replace(record, lerp={role: lerp(role) for role in ("alpha_A", "alpha_M")})
            ended.append((x, seed, replace(record, **changes)))
    return measured(replace(curve, log2_lrs=tuple(grid), seeds=seeds), ended, "val_loss")


def judged(id: str, scale: str, made: Callable[[Curve], Measured]) -> list[Verdict]:
    """The verdicts on a study's claims when its curves are made so."""
    chosen = study(id)
    curves = plan(chosen, scale, SETTING).curves
    return list(verdicts(chosen.claims, answer([made(curve) for curve in curves])))


def answers_of(found: list[Verdict]) -> list[str | None]:
    return [verdict.answer for verdict in found]


def size(curve: Curve, name: str) -> float:
    value = curve.label[name]
    assert isinstance(value, (int, float))
    return float(value)


@pytest.mark.parametrize(
    ("slope", "expected"),
    [(-0.5, ["holds", "holds", "holds"]), (0.0, ["does not hold", "holds", "holds"])],
)
def test_a_drift_over_width_and_a_better_loss(slope: float, expected: list[str]) -> None:
    def made(curve: Curve) -> Measured:
        ngpt = curve.label["table"] == "ngpt"
        return runs(curve, -6.0 + (slope * math.log2(size(curve, "heads")) if ngpt else 0.0), 3.05 if ngpt else 3.0)

    assert answers_of(judged("width-fixed-steps", "tiny", made)) == expected


def test_a_worse_loss_at_one_size_is_enough_to_refute() -> None:
    def made(curve: Curve) -> Measured:
        worse = curve.label["table"] == "nugpt" and curve.label["heads"] == 4
        return runs(curve, -6.0, 3.1 if worse else 3.0)

    found = judged("width-fixed-steps", "tiny", made)
    assert found[2].answer == "does not hold"
    assert found[2].reason.startswith("d_model 192: ")
    assert len(found[2].estimates) == 3


def test_sensitivity_at_the_largest_depth() -> None:
    def steeper(curve: Curve) -> Measured:
        made = runs(curve, -6.0)
        if curve.label["table"] != "nugpt":
            return made
        points = tuple(replace(p, loss=p.loss and 3.0 + 3 * (p.loss - 3.0)) for p in made.points)
        return replace(made, points=points)

    assert judged("depth-sweeps", "tiny", steeper)[3].answer == "does not hold"
    flat = judged("depth-sweeps", "tiny", lambda curve: runs(curve, -6.0))
    assert answers_of(flat)[:2] == ["holds", "holds"]
    assert flat[3].answer != "does not hold"
    assert [e.where.rpartition(", ")[2] for e in flat[3].estimates] == ["an octave below", "an octave above"]


def test_the_law_in_iterations() -> None:
    for exponent, expected in ((-1 / 3, "holds"), (0.0, "does not hold")):
        found = judged(
            "steps-sweep-ngpt-ours",
            "tiny",
            lambda curve, e=exponent: runs(curve, -6.0 + e * math.log2(size(curve, "steps"))),  # type: ignore[misc]
        )
        assert answers_of(found) == [expected]


def test_batch_and_iterations_jointly() -> None:
    def made(curve: Curve) -> Measured:
        return runs(curve, -6.0 + 0.5 * math.log2(size(curve, "batch")) - math.log2(size(curve, "steps")) / 3)

    batch, steps = judged("batch-by-steps", "tiny", made)
    assert batch.answer is None
    assert batch.estimates[0].value == pytest.approx(0.5, abs=0.05)  # optima known to a few hundredths of an octave
    assert batch.estimates[0].interval.contains(0.5)
    assert steps.answer == "holds"


@pytest.mark.parametrize(("change", "expected"), [(0.3, "holds"), (-0.3, "does not hold")])
def test_a_slope_that_changes_with_the_length(change: float, expected: str) -> None:
    def made(curve: Curve) -> Measured:
        heads, steps = math.log2(size(curve, "heads")), math.log2(size(curve, "steps"))
        return runs(curve, -6.0 + change * steps * heads - 0.2 * steps)

    found = judged("run-length-by-width", "tiny", made)
    assert found[0].answer == expected
    assert found[0].estimates[0].interval.contains(change)
    assert len(found[1].estimates) == 2  # a slope for each length
    assert [verdict.answer for verdict in found[2:]] == [expected, None]  # CompleteP's were planted alike


@pytest.mark.parametrize("slope", [0.0, 0.7])
def test_a_roles_best_multiplier_over_width(slope: float) -> None:
    def made(curve: Curve) -> Measured:
        role, octaves = curve.label["role"], size(curve, "octaves")
        centre = slope * math.log2(size(curve, "heads") / 4) if role in ("hidden", "none") else 0.0
        return runs(curve, curve.log2_lrs[0], 3.0 + loss_at(octaves - centre))

    found = judged("role-sweeps", "lab", made)
    (hidden,) = found[0].estimates
    assert hidden.where == "hidden"
    assert hidden.interval.contains(slope)
    assert found[0].answer == ("does not hold" if slope else "holds")  # noise of 0.001 nats: known to below 0.1


def test_the_best_multiplier_of_one_role() -> None:
    def made(curve: Curve) -> Measured:
        height = loss_at(size(curve, "output_log2") + 1) + loss_at(size(curve, "input_log2") - 0.2)
        return runs(curve, -6.0, 3.0 + height)

    output, input_ = judged("both-eta-input-output-sweep", "lab", made)
    assert [e.where for e in output.estimates] == ["heads 2", "heads 4"]
    assert all(e.interval.contains(-1.0) and e.interval.width < 1.5 for e in output.estimates)
    assert output.answer != "does not hold"
    assert input_.answer is None
    assert all(e.interval.contains(0.2) for e in input_.estimates)


def test_what_was_held_out() -> None:
    def made(curve: Curve) -> Measured:
        late = curve.label["held_out"] and curve.label["axis"] == "steps" and curve.label["table"] == "nugpt"
        return runs(curve, -6.6 if late else -6.0)

    predicted, cost, ngpt, completep = judged("held-out", "tiny", made)
    by_axis = {e.where: e.value for e in predicted.estimates}
    assert by_axis["axis steps"] == pytest.approx(-0.6, abs=0.1)  # of optima known to a few hundredths
    assert by_axis["axis heads"] == pytest.approx(0.0, abs=0.1)
    assert (predicted.answer, cost.answer) == ("does not hold", "does not hold")
    assert "axis steps" in cost.reason
    assert (ngpt.answer, completep.answer) == (None, None)
    assert len(ngpt.estimates) == 4


def test_longer_runs_held_out_at_each_width() -> None:
    def made(curve: Curve) -> Measured:
        heads = size(curve, "heads")
        return runs(curve, -6.0 - (0.6 / heads if curve.label["held_out"] else 0.0) - 0.4 * heads)

    falls, missed, cost = judged("held-out-steps", "tiny", made)
    assert {e.where: e.value for e in missed.estimates} == pytest.approx(
        {"heads 1": -0.6, "heads 2": -0.3, "heads 3": -0.2}, abs=0.1
    )
    assert falls.estimates[0].interval.low > 0
    assert [e.where for e in cost.estimates] == ["heads 1", "heads 2", "heads 3"]
    assert (falls.answer, missed.answer, cost.answer) == (None, None, None)


def test_against_a_baseline_at_equal_flops_and_at_equal_time() -> None:
    def made(curve: Curve) -> Measured:
        if curve.label["table"] == "nugpt":
            # Noted by the engine: the ensemble that it ended in was another than those it was trained in.
            found = runs(curve, -6.0, 3.00, wall_s=9.0, carried_by={"replicas": 1, "device_s": 1.2})
            slow = [replace(r, carried_by={"device_s": 2.5}) for r in found.records[1:] if r is not None]
            return replace(found, records=(found.records[0], *slow))  # which says nothing of what a run needs
        tuned = 3.05 if curve.label["weight_decay"] == 0.1 else 3.2
        longer = curve.label["horizon"] != 1.0
        return runs(curve, -8.0, tuned - (0.2 if longer else 0.0), wall_s=1.25 if longer else 1.0)

    flops, time = judged("against-llama", "tiny", made)
    assert flops.answer == "holds"
    assert [e.value for e in flops.estimates] == pytest.approx([-0.05, -0.05], abs=0.01)
    # At 1.2 of 1 to 1.25 seconds most of the longer run's gain counts: straight in the logarithm of time.
    share = math.log(1.2) / math.log(1.25)
    assert time.answer == "does not hold"
    assert [e.value for e in time.estimates] == pytest.approx([-0.05 + 0.2 * share] * 2, abs=0.015)


def test_lerp_coefficients_over_depth() -> None:
    def made(curve: Curve) -> Measured:
        mean = 0.3 * size(curve, "layers") ** -0.5
        spread = 0.8 + 0.01 * size(curve, "layers")
        return runs(curve, -6.0, lerp=lambda role: {"mean": mean, "std": spread * mean})

    found = judged("depth-sweep-baseline-alpha-power-law", "tiny", made)
    assert answers_of(found) == ["holds", "holds", "holds"]
    assert found[0].estimates[0].value == pytest.approx(-0.5, abs=1e-6)


def test_what_has_no_records_yet_is_not_decided() -> None:
    empty = judged("width-fixed-steps", "tiny", lambda curve: measured(curve, [], "val_loss"))
    assert set(answers_of(empty)) == {"not decided here"}
    alignment = judged("alignment_val", "tiny", lambda curve: runs(curve, -6.0))
    assert set(answers_of(alignment)) == {"not decided here"}


def test_paths_follow_one_axis_at_a_time() -> None:
    points = [Point(-7 + x, 3 + loss_at(x), seed) for x in OFFSETS[:-1] for seed in (0, 1)]
    sizes = [(1, 100), (2, 100), (4, 100), (2, 200), (2, 400)]
    found = answer([curve_of(make_spec(heads, steps=steps), points) for heads, steps in sizes])
    assert [(path.along, dict(path.others)) for path in found.paths] == [
        ("width", {"steps": 100}),
        ("steps", {"width": 48}),
    ]
    assert [path.base for path in found.paths] == [48, 100]  # the table's base, where it was swept
    assert [[size for size, _ in path.regrets] for path in found.paths] == [[24, 96], [200, 400]]
    assert found.paths[0].drift.slope == pytest.approx(0.0, abs=1e-9)
    ((_, law),) = found.laws
    assert law.exponents == pytest.approx({"steps": 0.0, "width": 0.0}, abs=1e-9)


def test_a_regret_is_what_the_bases_best_costs_at_the_other_size() -> None:
    # Parabolas of 0.1 nats an octave off the base's best, and 0.4 off the other's, an octave below it.
    rng = np.random.default_rng(6)
    runs = [
        OwnRun(2.0**x, 3 + q * (x - at) ** 2 + rng.normal(0, 0.001), seed, (("width", width),))
        for width, at, q in ((100.0, -7.0, 0.1), (200.0, -8.0, 0.4))
        for x in at + np.arange(-2.0, 2.1, 0.5)
        for seed in (0, 1)
    ]
    (path,) = answer(own_curves(runs)).paths
    ((width, cost),) = path.regrets
    assert (path.base, width) == (100.0, 200.0)
    assert cost.nats == pytest.approx(0.4, rel=0.2)  # a fifth is the shape's own freedom at this noise


def test_groups_are_what_differs_beyond_size() -> None:
    base = make_spec()
    same = [
        make_spec(4),
        make_spec(steps=700),
        make_spec(lr=0.3, seed=4),
        make_spec(model=replace(MODEL, n_layers=7)),
    ]
    assert {group_key(spec) for spec in same} == {group_key(base)}
    warm = [make_spec(steps=steps, schedule=Schedule(warmup=steps // 20)) for steps in (100, 400)]
    assert group_key(warm[0]) == group_key(warm[1]) != group_key(base)
    others = [
        make_spec(multipliers={"output": 1.0}),
        make_spec(table=load_table("ngpt")),
        make_spec(data="1" * 16),
        make_spec(precision="bfloat16"),
        make_spec(model=ModelConfig(2, 2, 24, 512, 16)),
    ]
    assert len({group_key(spec) for spec in (base, *others)}) == 6
    points = [Point(-7.0, 3.0, 0)]
    names = group_names([curve_of(spec, points) for spec in (base, *others)])
    assert len(set(names.values())) == 6
    assert names[group_key(others[1])] == "ngpt"


def test_a_users_own_rows_become_curves() -> None:
    rows = [
        OwnRun(2.0**x, 3 + loss_at(x + 7), seed, (("width", width),), "ours")
        for width in (64, 128)
        for x in (-8, -7, -6)
        for seed in (0, 1)
    ]
    curves = own_curves([*rows, OwnRun(0.5, None, 0, (("width", 64),), "ours", "diverged")], "table")
    assert [dict(curve.label) for curve in curves] == [{"table": "ours", "width": 64}, {"table": "ours", "width": 128}]
    assert [len(curve.points) for curve in curves] == [7, 6]
    found: Answers = answer(curves)
    assert [path.name for path in found.paths] == ["width"]
    for wrong in (OwnRun(0.0, 3.0), OwnRun(math.nan, 3.0), OwnRun(0.1, 3.0, 0, (("width", -1.0),))):
        with pytest.raises(ValueError, match="above 0"):
            own_curves([wrong])


def test_the_loss_can_be_the_running_mean() -> None:
    spec = make_spec()
    record = replace(record_of(spec, Point(-7.0, 3.0, 0)), val_loss_ema=3.5)
    made = Curve({}, spec, (-7.0,), (0, 1))
    assert measured(made, [(-7.0, 0, record)], "val_loss").points[0].loss == 3.0
    assert measured(made, [(-7.0, 0, record)], "val_loss_ema").points[0].loss == 3.5
    with pytest.raises(ValueError, match="loss is 'train_loss'"):
        measured(made, [], "train_loss")


def test_which_loss_curves_are_read_from() -> None:
    spec = make_spec()
    several, one = Curve({}, spec, (-7.0,), (0, 1)), Curve({}, spec, (-7.0,), (0,))
    # So few validations went into its average that it still holds the first ones.
    few = Curve({}, replace(spec, validations=10), (-7.0,), (0,))
    assert loss_name([one]) == loss_name([one, one]) == "val_loss_ema"
    for mixed in ([several], [several, one], [one, several], [few], [one, few]):
        assert loss_name(mixed) == "val_loss"
