"""Width exponents from measured alignment: planted ones come back, a constant factor does not disturb the slope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from nugpt.fit.alignment import (
    LARGER,
    QUANTITIES,
    AlignmentRun,
    alignment_run,
    at_one_rate,
    change_estimates,
    claim_estimates,
    fall_estimates,
    implied,
    layer_means,
    left_out,
    mean_estimate,
    over_layers,
    over_loss,
    over_steps,
    suggested_table,
    weights,
)
from nugpt.spec import load_table
from nugpt.spec.resolve import Base, Extent, resolve
from nugpt.spec.table_file import table_from_dict, table_to_toml

STEPS = (1, 2, 4, 8, 16, 32, 64, 100)
LOSSES = (6.9, 6.5, 5.9, 5.2, 4.6, 4.2, 4.0, 4.05)  # the last rises: it weighs nothing
LOSS_0 = 7.0
MATRICES = ("W_q", "W_k", "W_v", "W_O", "W_u", "W_nu", "W_oMLP")
PLANTED = {"alpha": 0.6, "omega": 0.5, "nu": 0.75}


def make_run(
    width: int,
    seed: int = 0,
    layers: int = 3,
    exponents: Mapping[str, float] = PLANTED,
    factor: float = 1.0,
    noise: float = 0.0,
    at: Mapping[int, float] | None = None,
) -> AlignmentRun:
    """Ratios that are factor · d_in^exponent, as an exponent at this width; `at`: what is added at a step."""
    rng = np.random.default_rng((width, seed))
    d_in = {matrix: (8 * width // 3 if matrix == "W_oMLP" else width) for matrix in (*MATRICES, "E_out")}

    def values(quantity: str, step: int) -> dict[str, list[float]]:
        found = {}
        for matrix, size in d_in.items():
            count = 1 if matrix == "E_out" else layers
            exact = exponents[quantity] + math.log(factor) / math.log(size) + (at or {}).get(step, 0.0)
            found[matrix] = [exact + noise * rng.standard_normal() / math.log2(size) for _ in range(count)]
        return found

    rows = [
        {"step": step, "kind": "alignment", "loss": loss, "loss_0": LOSS_0}
        | {quantity: values(quantity, step) for quantity in QUANTITIES}
        | {"per_token": {quantity: values(quantity, step) for quantity in QUANTITIES}}
        for step, loss in zip(STEPS, LOSSES, strict=True)
    ]
    return AlignmentRun(f"{width}-{seed}", width, layers, seed, 100, d_in, tuple(rows))


@pytest.mark.parametrize("part", ["hidden", "output"])
@pytest.mark.parametrize("weighting", ["uniform", "loss", "first"])
@pytest.mark.parametrize(("quantity", "planted"), PLANTED.items())
def test_the_slope_gives_back_what_was_planted_whatever_the_factor(
    part: str, weighting: str, quantity: str, planted: float
) -> None:
    runs = [make_run(width, factor=3.0) for width in (48, 96, 192, 384)]
    found = implied(runs, part, weighting, quantity)
    # W_oMLP's 8/3 of the width is a factor too, the same at all widths.
    assert found.slope is not None
    assert found.slope.value == pytest.approx(planted, abs=1e-9)
    assert found.per_token is not None
    assert found.per_token.value == pytest.approx(planted, abs=1e-9)
    for width, single in found.at_widths:
        assert single.value is not None
        shift = math.log(3) / math.log(width)
        assert single.value - planted == pytest.approx(shift, rel=0.2)  # at one width it is not what was planted
        assert single.value - planted > 0.1


def test_a_factor_of_two_shifts_an_exponent_by_an_eighth_at_width_192() -> None:
    (_, plain), (_, shifted) = (
        implied([make_run(192, factor=factor)], "output", "uniform", "alpha").at_widths[0] for factor in (1.0, 2.0)
    )
    assert shifted.value is not None
    assert plain.value is not None
    assert round(shifted.value - plain.value, 2) == 0.13


def test_the_larger_of_the_two_is_taken_and_named() -> None:
    runs = [make_run(width) for width in (48, 96, 192)]
    found = implied(runs, "hidden", "loss")
    assert (found.quantity, found.slope and found.slope.value) == ("nu", pytest.approx(0.75))
    other = [make_run(width, exponents=PLANTED | {"alpha": 0.9}) for width in (48, 96, 192)]
    assert implied(other, "hidden", "loss").quantity == "alpha"


def test_below_three_widths_there_is_no_slope_and_no_regime() -> None:
    found = implied([make_run(48), make_run(96)], "hidden", "loss")
    assert found.slope is None
    assert found.regimes == ()
    assert found.estimate == found.at_widths[-1][1]
    assert "2 of the 3 widths" in found.reading


@pytest.mark.parametrize(
    ("planted", "reading"),
    [
        (0.5, "no alignment (0.5)"),
        (0.75, "mid alignment (0.75)"),
        (1.0, "full alignment (1)"),
        (0.63, "between 0.5 and 0.75"),
        (1.2, "above all of 1/2, 3/4 and 1"),
        (0.3, "below all of 1/2, 3/4 and 1"),
    ],
)
def test_the_regimes_are_read_off_the_interval(planted: float, reading: str) -> None:
    exponents = {"alpha": 0.2, "omega": 0.5, "nu": planted}
    runs = [make_run(w, seed, exponents=exponents, noise=0.02) for w in (48, 96, 192, 384) for seed in (0, 1)]
    assert implied(runs, "hidden", "uniform").reading == reading


def test_much_noise_decides_nothing() -> None:
    runs = [make_run(width, noise=3.0) for width in (48, 96, 192)]
    assert implied(runs, "output", "first").reading.startswith("not decided here: ")


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_cover_as_often_as_they_say(level: float) -> None:
    """Layers of a run share a part of their deviation, as layers of one training do; slopes of three widths."""
    rng = np.random.default_rng(0)
    covered, trials = 0, 120
    for _ in range(trials):
        runs = []
        for width in (48, 96, 192):
            for seed in (0, 1):
                shared = 0.1 * rng.standard_normal() / math.log2(width)
                run = make_run(width, seed, exponents={q: v + shared for q, v in PLANTED.items()})
                jitter = 0.1 * rng.standard_normal((len(STEPS), 3)) / math.log2(width)
                rows = []
                for i, row in enumerate(run.rows):
                    nu = {m: [v + jitter[i, j % 3] for j, v in enumerate(vs)] for m, vs in row["nu"].items()}
                    rows.append({**row, "nu": nu})
                runs.append(replace(run, rows=tuple(rows)))
        found = implied(runs, "hidden", "uniform", "nu", level)
        assert found.slope is not None
        covered += found.slope.interval.contains(0.75)
    # The wider of two intervals: at least the level, within the 2.5 deviations of so many trials.
    assert covered / trials >= level - 2.5 * math.sqrt(level * (1 - level) / trials)


def test_weights_by_hand() -> None:
    run = make_run(48)
    assert weights(run, "uniform") == [1, 1, 2, 4, 8, 16, 32, 36]
    assert weights(run, "loss") == pytest.approx([0.1, 0.4, 0.6, 0.7, 0.6, 0.4, 0.2, 0.0])
    assert weights(run, "first") == [1, 1, 1, 0, 0, 0, 0, 0]
    assert weights(run, "start") == [1, 1, 1, 1, 0, 0, 0, 0]
    assert weights(run, "end") == [0, 0, 0, 0, 0, 0, 0, 1]
    lost = replace(run, rows=({**run.rows[0], "loss": None}, *run.rows[1:]))
    assert weights(lost, "loss")[:3] == pytest.approx([0.0, 0.0, 0.6])  # what is not known weighs nothing
    with pytest.raises(ValueError, match="weighting is 'los'"):
        weights(run, "los")


def test_a_weighted_mean_by_hand() -> None:
    run = make_run(48, at={1: 0.2, 2: 0.1})
    first = layer_means(run, "nu", "output", "first")
    assert first == pytest.approx([0.75 + (0.2 + 0.1 + 0.0) / 3])
    loss = layer_means(run, "nu", "hidden", "loss")
    assert loss == pytest.approx([0.75 + (0.1 * 0.2 + 0.4 * 0.1) / 3.0] * 3)
    scaled = layer_means(run, "omega", "output", "uniform", scaled=True)
    assert scaled == pytest.approx([(0.5 + (0.2 + 0.1) / 100) * math.log2(48)])


def test_what_was_not_defined_is_left_out() -> None:
    run = make_run(48)
    rows: list[dict[str, Any]] = [dict(row) for row in run.rows]
    for row in rows[:-1]:
        row["nu"] = {matrix: [None] * len(values) for matrix, values in row["nu"].items()}
    assert layer_means(replace(run, rows=tuple(rows)), "nu", "output", "uniform") == pytest.approx([0.75])
    rows[-1]["nu"] = rows[0]["nu"]
    empty = replace(run, rows=tuple(rows))
    assert layer_means(empty, "nu", "output", "uniform") == [None]
    assert implied([empty], "hidden", "uniform").quantity == "alpha"


def test_the_papers_views() -> None:
    run = make_run(48, at={1: 0.2})
    steps = over_steps([run], "nu", "hidden")
    assert [place.x for place in steps] == list(STEPS)
    assert steps[0].mean == pytest.approx(0.95)
    assert steps[1].mean == pytest.approx(0.75)
    falling = over_loss([run], "nu", "output")
    assert [place.x for place in falling] == pytest.approx(sorted(LOSS_0 - loss for loss in LOSSES))
    layers = over_layers([run], "nu")
    assert [place.x for place in layers] == [1, 2, 3]
    assert layers[0].mean == pytest.approx(0.75 + 0.2 / 100)


def test_a_claim_is_judged_by_the_slope_where_there_are_widths() -> None:
    many = [make_run(width, seed, factor=2.0) for width in (48, 96, 192) for seed in (0, 1)]
    hidden, output = claim_estimates(many, LARGER, "loss-weighted", None, 0.9)
    assert hidden.value == pytest.approx(0.75)
    assert output.value == pytest.approx(0.75)
    assert [one.where for one in (hidden, output)] == ["hidden, slope over width", "output, slope over width"]
    few = claim_estimates(many[:2], "omega", "end", None, 0.9)
    assert [one.where for one in few] == ["width 48, hidden", "width 48, output"]
    assert few[0].value == pytest.approx(0.5 + 1 / math.log2(48), abs=0.01)
    by_layer = claim_estimates(many, "omega", None, "layer", 0.9)
    assert [one.where for one in by_layer] == [f"layer {i}, slope over width" for i in (1, 2, 3)]
    at_one = claim_estimates(many[:2], "omega", None, "layer", 0.9)
    assert [one.where for one in at_one] == [f"layer {i}, width 48" for i in (1, 2, 3)]
    assert by_layer[0].value == pytest.approx(0.5)
    assert claim_estimates([], "omega", "end", None, 0.9) == []
    with pytest.raises(ValueError, match="at is 'begin'"):
        claim_estimates(many, "omega", "begin", None, 0.9)


def test_one_seed_bounds_the_output_by_nothing() -> None:
    (output,) = [e for e in claim_estimates([make_run(48)], "omega", "end", None, 0.9) if "output" in e.where]
    assert not output.interval.bounded


def test_a_fall_is_the_start_less_the_end() -> None:
    runs = [make_run(48, seed, at={1: 0.3, 2: 0.3, 4: 0.3, 8: 0.1}) for seed in (0, 1)]
    hidden, output = fall_estimates(runs, LARGER, 0.9)
    assert hidden.value == pytest.approx(0.25)
    assert output.value == pytest.approx(0.25)
    assert hidden.where == "width 48, hidden"


def lengthened(run: AlignmentRun, times: int) -> AlignmentRun:
    """The same measurements, of a run so many times as long."""
    return replace(run, steps=times * run.steps, rows=tuple({**row, "step": times * row["step"]} for row in run.rows))


def test_a_change_with_length_is_a_slope_per_octave_of_each_layer() -> None:
    # At the end α is 0.1 lower with four times the steps: 0.05 an octave, whatever a width's constant factor.
    runs = []
    for width, seed in ((48, 0), (48, 1), (96, 0)):
        short = make_run(width, seed, factor=2.0, at={100: 0.3})
        runs += [short, lengthened(make_run(width, seed, factor=2.0, at={100: 0.2}), 4)]
    runs.append(make_run(192, at={100: 0.9}))  # of one length alone: it says nothing
    hidden, output = change_estimates(runs, LARGER, "end", 0.9)
    assert (hidden.where, output.where) == ("hidden", "output")
    assert hidden.value == pytest.approx(-0.05)
    assert output.value == pytest.approx(-0.05)
    assert hidden.interval.high < -0.049
    assert change_estimates(runs[:1], LARGER, "end", 0.9) == []
    with pytest.raises(ValueError, match="at is 'begin'"):
        change_estimates(runs, LARGER, "begin", 0.9)


def test_a_claim_by_length_keeps_lengths_apart() -> None:
    short = [make_run(width, seed, factor=2.0) for width in (48, 96, 192) for seed in (0, 1)]
    long = [lengthened(make_run(width, factor=2.0, at={100: 0.1}), 4) for width in (48, 96)]
    found = claim_estimates([*long, *short], LARGER, "end", "steps", 0.9)
    by_itself = claim_estimates(short, LARGER, "end", None, 0.9) + claim_estimates(long, LARGER, "end", None, 0.9)
    steps, longer = f"{short[0].steps:,} steps", f"{long[0].steps:,} steps"
    assert [one.where for one in found[:2]] == [f"{steps}, {part}, slope over width" for part in ("hidden", "output")]
    assert [one.where for one in found[2:4]] == [f"{longer}, width 48, hidden", f"{longer}, width 96, hidden"]
    assert [one.value for one in found] == [one.value for one in by_itself]


def test_rows_become_a_run_and_others_do_not(nugpt_spec: Any) -> None:
    rows = list(make_run(48).rows)
    run = alignment_run(nugpt_spec, [{"step": 3, "kind": "train"}, *reversed(rows)])
    assert run is not None
    assert [row["step"] for row in run.rows] == list(STEPS)
    assert run.d_in["W_oMLP"] == nugpt_spec.model.d_mlp
    assert run.d_in["W_O"] == nugpt_spec.model.d_model
    assert alignment_run(nugpt_spec, [{"step": 3, "kind": "train"}]) is None


@pytest.fixture
def nugpt_spec() -> Any:
    from tests.report.small import study_plans

    return study_plans("alignment_val", scale="tiny")[0].specs()[0]


def test_a_table_is_suggested_with_the_measured_exponents_alone() -> None:
    import tomllib

    table = load_table("nugpt")
    runs = [make_run(w, exponents={"alpha": 0.6, "omega": 0.5, "nu": 0.684}) for w in (48, 96, 192)]
    hidden, output = (implied(runs, part, "loss") for part in ("hidden", "output"))
    made = suggested_table(table, hidden, output, "mine")
    assert made.rows["hidden"].lr.width == made.rows["output"].lr.width == Fraction(-68, 100)
    back = table_from_dict(tomllib.loads(table_to_toml(made)))
    assert back == made
    rows = {role: row for role, row in made.rows.items() if role not in ("hidden", "output")}
    assert rows == {role: table.rows[role] for role in rows}
    assert (made.rows["output"].multiplier_log2, made.base) == (table.rows["output"].multiplier_log2, table.base)
    single = implied(runs[:1], "hidden", "loss")
    with pytest.raises(ValueError, match="hidden: 1 of the 3 widths that a slope needs, and a table is derived from a"):
        suggested_table(table, single, output, "mine")


def test_a_suggested_table_trains_with_the_measured_exponent_whatever_eta_base_has_of_width() -> None:
    runs = [make_run(w, exponents={"alpha": 0.6, "omega": 0.5, "nu": 0.67}) for w in (48, 96, 192)]
    hidden, output = (implied(runs, part, "loss") for part in ("hidden", "output"))
    same = load_table("nugpt")
    rows = {
        role: replace(row, lr=replace(row.lr, width=row.lr.width + Fraction(1, 4), d_model=Fraction(1, 8)))
        for role, row in same.rows.items()
    }
    shifted = replace(same, rows=rows, base=replace(same.base, width=Fraction(-1, 4), d_model=Fraction(-1, 8)))
    made = suggested_table(shifted, hidden, output, "mine")
    for role in ("hidden", "output"):
        sizes = [Extent(w, 48, 4, 100, 4096) for w in (48, 192)]
        rates = [resolve(made, Base.of(sizes[0]), size, 0.01).rows[role].lr for size in sizes]
        assert math.log2(rates[1] / rates[0]) / 2 == pytest.approx(-0.67)


def test_runs_of_one_width_and_seed_are_refused_instead_of_one_standing_for_the_others() -> None:
    runs = [make_run(w) for w in (48, 96, 192)]
    other = replace(runs[1], id="other", lr=0.02)
    with pytest.raises(ValueError, match="2 runs are of width 96 and seed 0, but must differ in width or seed"):
        implied([*runs, other], "hidden", "loss")


def test_of_several_learning_rates_one_is_taken_that_has_the_most_and_then_the_lowest_loss() -> None:
    def at(rate: float, widths: Sequence[int], loss: float) -> list[AlignmentRun]:
        runs = [replace(make_run(w), lr=rate) for w in widths]
        return [replace(r, rows=(*r.rows[:-1], {**r.rows[-1], "loss": loss})) for r in runs]

    low, mid, high = at(0.01, (48, 96, 192), 4.2), at(0.02, (48, 96, 192), 4.1), at(0.04, (48, 96), 3.0)
    assert at_one_rate([*low, *mid, *high]) == mid
    assert at_one_rate([*high, *low]) == low
    assert at_one_rate(low) == low
    assert at_one_rate([]) == []


def test_a_slope_is_of_the_seeds_that_have_every_width_of_it_and_says_which_runs_those_are() -> None:
    whole = [make_run(w, seed) for seed in (0, 1) for w in (48, 96, 192, 384)]
    part = [make_run(w, seed=2) for w in (48, 96, 192)]
    found = implied([*whole, *part], "hidden", "loss")
    assert found.slope == implied(whole, "hidden", "loss").slope
    assert set(found.runs) == {run.id for run in whole}
    # No seed has all four, but one has three.
    uneven = [*part, make_run(384, seed=3)]
    found = implied(uneven, "hidden", "loss")
    assert found.slope == implied(part, "hidden", "loss").slope
    assert set(found.runs) == {run.id for run in part}
    # Three widths, and no seed with all of them.
    scattered = implied([make_run(48, 0), make_run(96, 1), make_run(192, 2)], "hidden", "loss")
    assert scattered.slope is None
    assert scattered.runs == ()
    assert scattered.reading == "no seed was measured at the 3 widths that a slope needs: not decided here"
    with pytest.raises(ValueError, match="hidden: no seed was measured at the 3 widths"):
        suggested_table(load_table("nugpt"), scattered, scattered, "mine")


def test_a_mean_has_students_interval_by_hand() -> None:
    # The deviation of 1, 2, 3, 6 is √(14/3); 2.353363 is the 95 % point of Student's t with three degrees of freedom.
    found = mean_estimate([1.0, 2.0, 3.0, 6.0], 0.90, "here")
    half = 2.353363 * math.sqrt(14 / 3 / 4)
    assert (found.value, found.where) == (3.0, "here")
    assert found.interval == pytest.approx((3 - half, 3 + half), abs=1e-5)
    assert mean_estimate([3.0], 0.90).interval == (-math.inf, math.inf)


def test_each_tokens_own_norms_are_a_check_apart() -> None:
    """Planted 0.2 below what the norms of all tokens give, over three widths and at one."""
    runs = []
    for width in (96, 192, 384):
        plain, lower = make_run(width), make_run(width, exponents={name: x - 0.2 for name, x in PLANTED.items()})
        rows = [{**row, "per_token": other["per_token"]} for row, other in zip(plain.rows, lower.rows, strict=True)]
        runs.append(replace(plain, rows=tuple(rows)))
    for some in (runs, runs[-1:]):
        found = implied(some, "hidden", "uniform", "omega")
        assert found.estimate is not None
        assert found.per_token is not None
        assert found.estimate.value == pytest.approx(0.5)
        assert found.per_token.value == pytest.approx(0.3)


def test_runs_that_no_slope_is_of_are_named() -> None:
    runs = [*(make_run(width) for width in (96, 192, 384)), make_run(96, seed=1), make_run(192, seed=1)]
    found = implied(runs, "hidden", "uniform", "omega")
    assert [run.id for run in left_out(runs, [found])] == ["96-1", "192-1"]
    assert left_out(runs[:2], [implied(runs[:2], "hidden", "uniform", "omega")]) == []  # where there is no slope


def test_a_slope_is_of_the_most_widths_then_of_the_most_seeds_then_of_the_largest() -> None:
    # Seed 0 has four widths, seed 1 three of them and another: of as many, those with the larger sizes.
    runs = [make_run(width) for width in (96, 192, 384, 768)] + [make_run(width, 1) for width in (96, 192, 384, 1536)]
    found = implied(runs, "hidden", "uniform", "omega")
    assert found.runs == ("96-1", "192-1", "384-1", "1536-1")
    third = [*runs, *(make_run(width, 2) for width in (96, 192, 384, 768))]  # which more seeds have in full
    assert implied(third, "hidden", "uniform", "omega").runs == tuple(
        f"{width}-{seed}" for seed in (0, 2) for width in (96, 192, 384, 768)
    )
