"""Every study of the paper and beyond: its runs at four scales against hand-written sizes, tables, steps and counts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction as F
from pathlib import Path
from typing import Any

import pytest
from tests.studies.page import h200_seconds, planned, setting

import nugpt.studies
from nugpt.spec.model import non_embedding_parameters
from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.resolve import resolve
from nugpt.spec.run import run_flops
from nugpt.spec.scales import SCALES
from nugpt.spec.study import Setting
from nugpt.studies import EVIDENCE, STUDIES, plan, study
from nugpt.studies.held_out import BASE
from nugpt.sweep.cost import CORE_FLOPS, refined

IDS = list(STUDIES)
SCALE_NAMES = ("paper", "evidence", "lab", "tiny")

# Both tables of the method's section on studies, row by row.
OF_THE_PAPER = [
    "width-fixed-steps",
    "mup-drifts-ours-not",
    "depth-sweeps",
    "depth-mup-depth-sweep",
    "width-sweep-ngpt-ours-with-token-corr",
    "steps-sweep-ngpt-ours",
    "width-sweep-ngpt-ours-without-tc-corrections",
    "alignment_val",
    "alignment_val_loss_weighted",
    "alignment_val_layer_dependence",
    "alignment_val_l12h28",
    "alignment_val_loss_weighted_l12h28",
    "alignment_val_layer_dependence_l12h28",
    "depth-sweep-baseline-alpha-power-law",
    "depth-sweep-ours-alpha-power-law",
    "both-eta-input-output-sweep",
    "width-sweep-ngpt-mup-vs-muppr",
    "width-sweep-ngpt-mup-vs-muppr-tuned",
]
BEYOND = [
    "alignment-by-length",
    "run-length-by-width",
    "role-sweeps",
    "depth-mup-roles",
    "batch-by-steps",
    "against-llama",
    "against-llama-clipped",
    "against-llama-warmup",
    "held-out",
    "held-out-steps",
    "width-fresh-seeds",
    "mup-drifts-fresh-seeds",
    "run-length-fresh-seeds",
    "width-all-seeds",
    "warmup-at-base",
    "multipliers-at-base",
    "rescaler-rate",
]

WIDTHS = [(12, 8), (12, 12), (12, 16), (12, 20), (12, 28), (12, 40)]
DEPTHS = [(8, 12), (16, 12), (32, 12), (64, 12), (128, 12)]
FIXED = [80_000]
# 20 × non-embedding parameters over 64 × 4096 tokens, by hand: 12·d² and 25/3·d of rescalers a layer, up to 250s.
ASPECT = {(8, 8): 5_000, (10, 10): 9_750, (16, 16): 39_250, (20, 20): 76_250}
GROWN = {(12, 8): 7_500, (12, 12): 16_500, (12, 16): 29_500, (12, 20): 45_750, (12, 28): 89_750, (12, 40): 183_000}

# id → tables, (layers, heads), steps, seeds, runs at the paper's scale.
PAPER: dict[str, tuple[list[str], list[tuple[int, int]], list[int], int, int]] = {
    "width-fixed-steps": (["ngpt", "nugpt"], WIDTHS, FIXED, 1, 2 * 6 * 9),
    "mup-drifts-ours-not": (["completep", "nugpt"], WIDTHS, FIXED, 1, 2 * 6 * 9),
    "depth-sweeps": (["ngpt", "nugpt"], DEPTHS, FIXED, 1, 2 * 5 * 9),
    "depth-mup-depth-sweep": (["depth-mup", "nugpt"], DEPTHS, FIXED, 1, 2 * 5 * 9),
    "width-sweep-ngpt-ours-with-token-corr": (["ngpt", "nugpt"], list(ASPECT), list(ASPECT.values()), 3, 2 * 4 * 9 * 3),
    "steps-sweep-ngpt-ours": (["nugpt"], [(12, 12)], [5_000, 10_000, 20_000, 40_000, 80_000], 1, 5 * 11),
    "width-sweep-ngpt-ours-without-tc-corrections": (["nugpt"], list(GROWN), list(GROWN.values()), 1, 6 * 11),
    "alignment_val": (["nugpt"], [(12, 12)], FIXED, 1, 1),
    "alignment_val_loss_weighted": (["nugpt"], [(12, 12)], FIXED, 1, 1),
    "alignment_val_layer_dependence": (["nugpt"], [(12, 12)], FIXED, 1, 1),
    "alignment_val_l12h28": (["nugpt"], [(12, 28)], FIXED, 1, 1),
    "alignment_val_loss_weighted_l12h28": (["nugpt"], [(12, 28)], FIXED, 1, 1),
    "alignment_val_layer_dependence_l12h28": (["nugpt"], [(12, 28)], FIXED, 1, 1),
    "depth-sweep-baseline-alpha-power-law": (["ngpt"], DEPTHS, FIXED, 1, 5 * 9),
    "depth-sweep-ours-alpha-power-law": (["nugpt"], DEPTHS, FIXED, 1, 5 * 9),
    "both-eta-input-output-sweep": (["nugpt"], [(10, 10), (16, 16)], [9_750, 39_250], 1, 2 * 3 * 5 * 3),
    "width-sweep-ngpt-mup-vs-muppr": (
        ["completep", "nugpt-full-align"], list(ASPECT), list(ASPECT.values()), 1, 2 * 4 * 9,
    ),
    "width-sweep-ngpt-mup-vs-muppr-tuned": (
        ["completep", "nugpt-full-align"], list(ASPECT), list(ASPECT.values()), 1, 2 * 4 * 9,
    ),
    "alignment-by-length": (["nugpt"], [(12, 8), (12, 16), (12, 40)], [5_000, 20_000, 80_000], 1, 3 * 3),
    "run-length-by-width": (
        ["nugpt", "completep"],
        [(12, 8), (12, 16), (12, 40)],
        [5_000, 20_000, 80_000],
        1,
        2 * 3 * 3 * 9,
    ),
    "role-sweeps": (["nugpt"], [(12, 8), (12, 16), (12, 40)], FIXED, 1, 3 * (1 + 4 * 4)),
    "depth-mup-roles": (["depth-mup"], [(8, 12), (32, 12), (128, 12)], FIXED, 1, 3 * (1 + 4)),
    "batch-by-steps": (
        ["nugpt"], [(10, 10)], [2_500, 5_000, 10_000, 20_000, 40_000, 80_000], 1, 2 * 4 * 11,
    ),
    "against-llama": (
        ["nugpt", "prenorm-completep"], [(12, 12), (12, 28)], [80_000, 100_000], 1, 2 * (1 + 3 + 1) * 9,
    ),
    "against-llama-clipped": (["nugpt", "prenorm-completep"], [(12, 12), (12, 28)], FIXED, 1, 2 * (1 + 2) * 9),
    "against-llama-warmup": (["nugpt", "prenorm-completep"], [(12, 12), (12, 28)], FIXED, 1, 2 * (1 + 2) * 9),
    "held-out": (
        ["ngpt", "completep", "nugpt"],
        [(12, 12), (12, 8), (12, 16), (8, 12), (16, 12), (12, 40), (48, 12), (24, 28)],
        [5_000, 10_000, 20_000, 40_000, 80_000],
        1,
        3 * (7 + 4) * 9,
    ),
    "held-out-steps": (
        ["nugpt"], [(12, 8), (12, 16), (12, 40)], [5_000, 10_000, 20_000, 80_000], 1, 3 * 4 * 9,
    ),
    "width-fresh-seeds": (["nugpt"], WIDTHS, FIXED, 1, 6 * 9),
    "mup-drifts-fresh-seeds": (["completep"], WIDTHS, FIXED, 1, 6 * 9),
    "run-length-fresh-seeds": (
        ["nugpt"], [(12, 8), (12, 16), (12, 40)], [5_000, 10_000, 80_000], 1, 3 * 3 * 9,
    ),
    "width-all-seeds": (["nugpt"], WIDTHS, FIXED, 2, 6 * 2 * 9),
    "warmup-at-base": (["ngpt", "nugpt"], [(10, 10)], [9_750], 1, 2 * 2 * 9),
    "multipliers-at-base": (["nugpt"], [(10, 10)], [9_750], 1, 3 * 5 * 3),
    "rescaler-rate": (
        ["nugpt", "nugpt-rescalers-doubled", "nugpt-lower-constant"],
        [(12, 8), (12, 16), (12, 40)],
        FIXED,
        1,
        (3 + 3 + 2) * 9,
    ),
}  # fmt: skip


# At `evidence`.
HALF_OCTAVES = (
    "both-eta-input-output-sweep", "multipliers-at-base", "against-llama-clipped", "against-llama-warmup",
    "rescaler-rate",
)  # fmt: skip


def shape(curve: Curve) -> tuple[int, int]:
    return curve.spec.model.n_layers, curve.spec.model.n_heads


def of_table(made: Plan, name: str) -> list[Curve]:
    return [curve for curve in made.curves if curve.label["table"] == name]


def labels(made: Plan, name: str) -> set[Any]:
    return {curve.label[name] for curve in made.curves if name in curve.label}


def test_every_row_of_both_tables_has_a_study_in_order() -> None:
    assert OF_THE_PAPER + BEYOND == IDS
    assert set(PAPER) == set(IDS)
    for id, made in STUDIES.items():
        assert made.figure == (f"fig:{id}" if id in OF_THE_PAPER else None)


@pytest.mark.parametrize("id", IDS)
def test_a_study_is_the_file_of_its_name(id: str) -> None:
    module = getattr(nugpt.studies, id.replace("-", "_"))
    assert module.STUDY is STUDIES[id]
    assert STUDIES[id].id == id
    assert Path(module.__file__).read_text(encoding="utf-8").startswith(f'"""`{id}`: ')


@pytest.mark.parametrize("scale", SCALE_NAMES)
@pytest.mark.parametrize("id", IDS)
def test_each_scale_has_a_plan_of_valid_runs_each_once(id: str, scale: str) -> None:
    made = planned(STUDIES[id], scale)
    assert (made.name, made.study, made.scale) == (f"{id}-{scale}", id, scale)
    specs = made.specs()
    assert specs
    assert len({spec.hash for spec in specs}) == len(specs)
    again = Plan.from_dict(made.to_dict())
    assert again == made
    assert again.hash == made.hash
    at = SCALES[scale]
    for curve in made.curves:
        assert curve.spec.base == at.base
        assert (curve.spec.model.head_dim, curve.spec.model.seq_len) == (at.head_dim, at.seq_len)
        assert (curve.spec.validations, curve.spec.val_windows) == (at.validations, at.val_windows)
        assert {"table", "layers", "heads", "steps"} <= set(curve.label)
        assert (curve.label["layers"], curve.label["heads"]) == shape(curve)
        assert (curve.label["table"], curve.label["steps"]) == (curve.spec.table.name, curve.spec.steps)
    told_apart = [tuple(sorted(curve.label.items())) for curve in made.curves]
    assert len(set(told_apart)) == len(told_apart)


@pytest.mark.parametrize("id", IDS)
def test_the_papers_sizes_tables_steps_and_counts(id: str) -> None:
    made = planned(STUDIES[id], "paper")
    tables, sizes, steps, seeds, runs = PAPER[id]
    assert list(dict.fromkeys(curve.spec.table.name for curve in made.curves)) == tables
    assert list(dict.fromkeys(shape(curve) for curve in made.curves)) == sizes
    assert sorted({curve.spec.steps for curve in made.curves}) == sorted(steps)
    assert {len(curve.seeds) for curve in made.curves} == {seeds}
    assert len(made.specs()) == runs
    assert {(c.spec.model.head_dim, c.spec.model.vocab_size, c.spec.model.seq_len) for c in made.curves} == {
        (102, 100_352, 4096)
    }
    if id != "batch-by-steps":
        assert {curve.spec.batch for curve in made.curves} == {64}


def test_steps_go_with_their_size_at_20_tokens_per_parameter() -> None:
    for id, wanted in (
        ("width-sweep-ngpt-ours-with-token-corr", ASPECT),
        ("width-sweep-ngpt-mup-vs-muppr", ASPECT),
        ("width-sweep-ngpt-ours-without-tc-corrections", GROWN),
    ):
        assert {shape(curve): curve.spec.steps for curve in planned(STUDIES[id], "paper").curves} == wanted


@pytest.mark.parametrize(
    ("id", "tokens"),
    [
        ("width-sweep-ngpt-ours-with-token-corr", {"paper": 20, "evidence": 10, "lab": 5, "tiny": 0.15}),
        ("width-sweep-ngpt-mup-vs-muppr", {"paper": 20, "evidence": 10, "lab": 5, "tiny": 0.15}),
        ("width-sweep-ngpt-mup-vs-muppr-tuned", {"paper": 20, "evidence": 10, "lab": 5, "tiny": 0.15}),
        ("width-sweep-ngpt-ours-without-tc-corrections", {"paper": 20, "evidence": 5, "lab": 5, "tiny": 0.2}),
        ("both-eta-input-output-sweep", {"paper": 20, "evidence": 5, "lab": 5}),
    ],
)
def test_the_horizon_is_proportional_to_parameters_up_to_rounding(id: str, tokens: dict[str, float]) -> None:
    for scale, per_parameter in tokens.items():
        at = SCALES[scale]
        for curve in planned(STUDIES[id], scale).curves:
            wanted = per_parameter * non_embedding_parameters(curve.spec.model) / (at.batch * at.seq_len)
            assert wanted <= curve.spec.steps < wanted + at.round_steps_to


@pytest.mark.parametrize("id", IDS)
def test_the_same_definition_at_every_scale(id: str) -> None:
    """Tables and what the labels name do not depend on the scale; nor does whether layers, heads or steps vary."""
    plans = [planned(STUDIES[id], scale) for scale in SCALE_NAMES]
    assert len({tuple(dict.fromkeys(c.spec.table.name for c in made.curves)) for made in plans}) == 1
    assert len({frozenset(name for c in made.curves for name in c.label) for made in plans}) == 1
    varying = {
        tuple(name for name in ("layers", "heads", "steps") if len(labels(made, name)) > 1)
        for made in plans
        # At these the paper's figure shows one width; and multipliers at `tiny` are swept at a fixed length.
        if not id.startswith("alignment") and not (id.startswith("both-eta") and made.scale == "tiny")
    }
    assert len(varying) <= 1


@pytest.mark.parametrize("scale", SCALE_NAMES)
@pytest.mark.parametrize("id", IDS)
def test_seeds_are_paired_and_grids_even(id: str, scale: str) -> None:
    """A study's seeds count up from one first seed, so that any two curves share theirs; one ladder of η."""
    coarse = scale == "evidence" and id not in HALF_OCTAVES
    spacing = 1.0 if scale == "tiny" or coarse else 0.5
    fresh = id.endswith("-fresh-seeds") or id == "rescaler-rate"
    first = {"evidence": 3, "lab": 2}.get(scale, 1) if fresh else 0
    for curve in planned(STUDIES[id], scale).curves:
        if id != "width-all-seeds":  # whose seeds are those of two studies
            assert curve.seeds == tuple(range(first, first + len(curve.seeds)))
        steps = {b - a for a, b in zip(curve.log2_lrs, curve.log2_lrs[1:], strict=False)}
        assert steps <= {spacing}
        parts = 4 if id == "depth-mup-roles" else 2  # that one starts from what another study's finer grid found
        assert all((parts * x).is_integer() for x in curve.log2_lrs)
    for spec in planned(STUDIES[id], scale).specs():
        assert 2**-14 <= spec.lr <= 2**-1


def test_seeds_by_scale() -> None:
    for id in ("width-fixed-steps", "width-sweep-ngpt-ours-with-token-corr", "steps-sweep-ngpt-ours"):
        for scale, most in (("evidence", 3), ("lab", 2), ("tiny", 1)):
            assert max(len(curve.seeds) for curve in planned(STUDIES[id], scale).curves) == most


def test_how_plans_go_on() -> None:
    for id in IDS:
        policies = {scale: planned(STUDIES[id], scale).policy for scale in SCALE_NAMES}
        one_lr = {len(curve.log2_lrs) for curve in planned(STUDIES[id], "paper").curves} == {1}
        if one_lr:
            assert set(policies.values()) == {Policy(extend=0)}, id
        else:
            assert policies["paper"] == Policy()
            coarse = id in HALF_OCTAVES
            assert policies["evidence"] == (
                Policy(extend=2) if coarse else Policy(extend=3, spacing=1.0, refine=(0.25,))
            )
            assert policies["tiny"].extend == 1, "a minute or two leaves room for one more point"


def test_only_the_single_runs_have_one_learning_rate() -> None:
    single = {id for id in IDS if {len(c.log2_lrs) for c in planned(STUDIES[id], "evidence").curves} == {1}}
    assert single == {id for id in IDS if id.startswith("alignment")} | {"role-sweeps", "depth-mup-roles"}


# Tables as stated.


def test_no_correction_of_m_data_where_it_is_fitted() -> None:
    for id in ("steps-sweep-ngpt-ours", "width-sweep-ngpt-ours-without-tc-corrections", "batch-by-steps"):
        for scale in SCALE_NAMES:
            for curve in planned(STUDIES[id], scale).curves:
                assert curve.spec.resolved().lr_base == curve.spec.lr


def test_the_law_over_iterations_is_fitted_on_one_grid() -> None:
    for id in ("steps-sweep-ngpt-ours", "width-sweep-ngpt-ours-without-tc-corrections", "batch-by-steps"):
        for scale in SCALE_NAMES:
            assert len({curve.log2_lrs for curve in planned(STUDIES[id], scale).curves}) == 1


def test_other_tables_are_the_papers_own() -> None:
    from nugpt.spec.parametrization import TABLES

    derived = {
        "steps-sweep-ngpt-ours",
        "width-sweep-ngpt-ours-without-tc-corrections",
        "batch-by-steps",
        "width-sweep-ngpt-mup-vs-muppr",
        "width-sweep-ngpt-mup-vs-muppr-tuned",
        "rescaler-rate",
    }
    for id in set(IDS) - derived:
        for curve in planned(STUDIES[id], "lab").curves:
            assert curve.spec.table == TABLES[curve.spec.table.name], id


@pytest.mark.parametrize(
    ("id", "log2"),
    [
        ("width-sweep-ngpt-mup-vs-muppr", {"completep": 0.0, "nugpt-full-align": 0.0}),
        ("width-sweep-ngpt-mup-vs-muppr-tuned", {"completep": -1.5, "nugpt-full-align": -1.0}),
    ],
)
def test_logit_scalings_both_carry_m_data_and_their_multiplier(id: str, log2: dict[str, float]) -> None:
    for scale in SCALE_NAMES:
        made = planned(STUDIES[id], scale)
        for curve in made.curves:
            assert curve.spec.table.base.data == F(-1, 3)
            assert curve.spec.multipliers["output"] == 2.0 ** log2[curve.spec.table.name]
            assert {f for role, f in curve.spec.multipliers.items() if role != "output"} == {1.0}
        sizes = [[shape(curve) for curve in of_table(made, name)] for name in log2]
        assert sizes[0] == sizes[1]


def test_width_exponents_of_the_run_length_study() -> None:
    made = planned(STUDIES["run-length-by-width"], "evidence")
    found = {
        c.spec.table.name: (c.spec.table.rows["hidden"].lr.width, c.spec.table.rows["output"].lr.width)
        for c in made.curves
    }
    assert found == {"nugpt": (F(-3, 4), F(-3, 4)), "completep": (F(-1), F(-1, 2))}
    assert {c.spec.table.rows["input"].lr.width for c in made.curves} == {F(-1, 2)}
    assert {(c.label["table"], c.label["width_exponent"]) for c in made.curves} == {
        ("nugpt", -0.75),
        ("completep", -1.0),
    }


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_multipliers_of_input_and_output_are_swept_as_a_grid(scale: str) -> None:
    made = planned(STUDIES["both-eta-input-output-sweep"], scale)
    assert len(made.curves) == len(labels(made, "heads")) * len(labels(made, "input_log2")) * len(
        labels(made, "output_log2")
    )
    assert len(labels(made, "heads")) == 2
    assert {-2, -1, 0} <= labels(made, "output_log2"), "the multiplier that is claimed has a neighbour on either side"
    for curve in made.curves:
        assert curve.spec.multipliers["input"] == 2.0 ** float(curve.label["input_log2"])
        assert curve.spec.multipliers["output"] == 2.0 ** float(curve.label["output_log2"])


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_role_sweeps_move_one_group_at_a_time(scale: str) -> None:
    made = planned(STUDIES["role-sweeps"], scale)
    default = {"output": 0.5} | dict.fromkeys(
        ("input", "hidden", "alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z"), 1.0
    )
    groups = {
        "none": set(),
        "hidden": {"hidden"},
        "input": {"input"},
        "output": {"output"},
        "rescalers": {"alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z"},
    }
    assert labels(made, "role") == set(groups)
    assert len(labels(made, "heads")) >= 3
    for curve in made.curves:
        moved = {role for role, factor in curve.spec.multipliers.items() if factor != default[role]}
        assert moved == groups[str(curve.label["role"])]
        assert {curve.spec.multipliers[r] / default[r] for r in moved} <= {2.0 ** float(curve.label["octaves"])}
    per_role = Counter((c.label["heads"], c.label["role"]) for c in made.curves)
    assert all(count == 1 if role == "none" else count >= 2 for (_, role), count in per_role.items())
    assert {c.label["octaves"] for c in made.curves} >= {-1, 0, 1}, "the default is enclosed"


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_rescalers_alone_are_doubled_and_the_constant_alone_is_lower(scale: str) -> None:
    made = planned(STUDIES["rescaler-rate"], scale)
    plain = {curve.label["heads"]: curve for curve in of_table(made, "nugpt")}
    constant = 0.015 if scale == "paper" else 0.03
    for curve in made.curves:
        own, found = (c.spec.resolved() for c in (plain[curve.label["heads"]], curve))
        assert found.gains == own.gains or curve.label["table"] == "nugpt-lower-constant"
        for role, row in found.rows.items():
            rescaler = role.startswith(("alpha", "s_"))
            twice = 2.0 if rescaler and curve.label["table"] == "nugpt-rescalers-doubled" else 1.0
            assert row.lr == pytest.approx(twice * own.rows[role].lr), role
            if curve.label["table"] == "nugpt-lower-constant" and role in ("alpha_A", "alpha_M", "s_qk", "s_z"):
                assert row.scale == constant < own.rows[role].scale
            else:
                assert row.scale == own.rows[role].scale
    assert {curve.log2_lrs for curve in made.curves} == {curve.log2_lrs for curve in plain.values()}


def test_rescalers_are_doubled_from_what_was_tuned_on_the_base() -> None:
    tuned = {"alpha_A": 0.5, "s_z": 4.0, "output": 0.25}
    made = plan(STUDIES["rescaler-rate"], "tiny", replace(setting("tiny"), multipliers=tuned))
    for curve in made.curves:
        twice = 2.0 if curve.label["table"] == "nugpt-rescalers-doubled" else 1.0
        rows = curve.spec.resolved().rows
        own = replace(curve.spec, table=NUGPT, multipliers=tuned).resolved().rows
        for role, row in rows.items():
            times = twice if role.startswith(("alpha", "s_")) else 1.0
            assert row.lr == pytest.approx(times * own[role].lr), role


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_depth_mup_roles_move_hidden_alone_around_the_tables_own(scale: str) -> None:
    made = planned(STUDIES["depth-mup-roles"], scale)
    assert len(labels(made, "layers")) == 3
    assert len({curve.log2_lrs for curve in made.curves}) == 1, "one learning rate at all depths"
    for curve in made.curves:
        spec, octaves = curve.spec, float(curve.label["octaves"])
        assert spec.table.name == "depth-mup"
        own = resolve(spec.table, spec.base, spec.base.extent, 1.0).rows
        factors = {role: spec.multipliers[role] / own[role].multiplier for role in own}
        assert factors == dict.fromkeys(own, 1.0) | {"hidden": 2.0**octaves}
    assert {-1, 0, 1, 2} <= labels(made, "octaves"), "the rise by half an octave an octave of depth has room above it"


def test_a_deeper_model_without_the_correction_is_among_depth_mup_roles() -> None:
    """Where the multiplier undoes the square root of depth, η_hidden is what it is at the base's depth."""
    made = planned(STUDIES["depth-mup-roles"], "evidence")
    rates = {(c.spec.model.n_layers, c.label["octaves"]): c.spec.resolved().rows["hidden"].lr for c in made.curves}
    assert rates[16, 1] == pytest.approx(rates[4, 0])  # 16 layers are 4 times the base's 4: a factor of 1/2


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_batches_share_token_budgets(scale: str) -> None:
    made = planned(STUDIES["batch-by-steps"], scale)
    budgets = Counter(curve.spec.batch * curve.spec.steps for curve in made.curves)
    assert len(budgets) == 2
    assert set(budgets.values()) == {len(labels(made, "batch"))}
    assert len(labels(made, "batch")) >= 3
    assert SCALES[scale].batch in labels(made, "batch")
    for curve in made.curves:
        assert curve.spec.table.batch == 0
        assert curve.spec.batch == curve.label["batch"]


def test_another_batch_is_refused_without_an_exponent() -> None:
    """What the study's exponent of 0 is there for."""
    spec = next(c.spec for c in planned(STUDIES["batch-by-steps"], "lab").curves if c.spec.batch == 16)
    with pytest.raises(ValueError, match="no batch exponent"):
        replace(spec, table=replace(spec.table, batch=None))


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_the_baseline_is_tuned_and_at_equal_flops(scale: str) -> None:
    made = planned(STUDIES["against-llama"], scale)
    ours = {shape(curve): curve for curve in of_table(made, "nugpt")}
    plain = of_table(made, "prenorm-completep")
    assert len(ours) == 2
    for curve in plain:
        assert curve.spec.model.architecture == "prenorm"
        assert curve.spec.weight_decay == curve.label["weight_decay"]
        assert curve.spec.schedule.warmup == curve.spec.steps // 20 > 0
        ratio = run_flops(curve.spec) / run_flops(ours[shape(curve)].spec)
        # Rescalers are counted as parameters and norms are too: a difference of under 1 %, except by length.
        assert ratio == pytest.approx(float(curve.label["horizon"]), rel=0.01)
    at_equal_flops = [c for c in plain if c.label["horizon"] == 1.0]
    assert all(len({c.label["weight_decay"] for c in at_equal_flops if shape(c) == s}) >= 2 for s in ours)
    assert {shape(c) for c in plain if c.label["horizon"] == 1.25} == set(ours)
    assert {c.spec.weight_decay for c in ours.values()} == {0.0}
    assert {c.spec.schedule.warmup for c in ours.values()} == {0}


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_the_clipped_baseline_differs_from_the_other_in_clipping_and_warm_up_alone(scale: str) -> None:
    made, other = (planned(STUDIES[id], scale) for id in ("against-llama-clipped", "against-llama"))
    tuned = [c for c in of_table(other, "prenorm-completep") if c.label["horizon"] == 1.0]
    unclipped = {shape(c): c.spec for c in tuned if c.spec.weight_decay == 0.1}
    warmups: dict[tuple[int, int], set[int]] = {}
    for curve in of_table(made, "prenorm-completep"):
        spec, beside = curve.spec, unclipped[shape(curve)]
        schedule = replace(beside.schedule, warmup=spec.schedule.warmup)
        assert spec == replace(beside, grad_clip=1.0, schedule=schedule)
        assert (curve.label["clip"], curve.label["warmup"]) == (1.0, spec.schedule.warmup)
        warmups.setdefault(shape(curve), set()).add(spec.schedule.warmup * 20 // spec.steps)
    assert warmups == {of: {1, 4} for of in unclipped}
    ours = {shape(c): c.spec for c in of_table(made, "nugpt")}
    assert ours == {shape(c): c.spec for c in of_table(other, "nugpt")}
    assert {(c.grad_clip, c.schedule.warmup) for c in ours.values()} == {(None, 0)}


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_a_longer_warm_up_goes_on_where_the_clipped_baseline_ended(scale: str) -> None:
    made, other = (planned(STUDIES[id], scale) for id in ("against-llama-warmup", "against-llama-clipped"))
    before = {(shape(c), c.label["warmup"]): c for c in other.curves}
    plain = of_table(made, "prenorm-completep")
    assert {c.spec.schedule.warmup / c.spec.steps for c in plain} == {0.2, 0.5}
    shared = [c for c in made.curves if (shape(c), c.label["warmup"]) in before]
    assert len(shared) == 4, "νGPT and one step in five, at both shapes"
    assert all(c.spec == before[shape(c), c.label["warmup"]].spec for c in shared)
    long = {shape(c): c.spec for c in shared if c.label["warmup"]}
    for curve in plain:
        spec, beside = curve.spec, long[shape(curve)]
        assert spec == replace(beside, schedule=replace(beside.schedule, warmup=spec.schedule.warmup))


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_longer_runs_are_held_out_at_every_width(scale: str) -> None:
    made, other = (planned(STUDIES[id], scale) for id in ("held-out-steps", "held-out"))
    of_steps = [c for c in of_table(other, "nugpt") if c.label["axis"] == "steps"]
    longest = [c.spec.steps for c in of_steps if c.label["held_out"]]
    widths = {c.label["heads"] for c in made.curves}
    assert len(widths) == 3
    for width in widths:
        curves = [c for c in made.curves if c.label["heads"] == width]
        lengths = {flag: [c.spec.steps for c in curves if c.label["held_out"] == flag] for flag in (0, 1)}
        assert len(lengths[0]) >= 2
        assert lengths[1] == longest


def test_lengths_held_out_of_the_evidence_are_other_studies_runs_where_these_have_them() -> None:
    made = planned(STUDIES["held-out-steps"], "evidence")
    there = {
        spec.hash for id in ("held-out", "run-length-by-width") for spec in planned(STUDIES[id], "evidence").specs()
    }
    new = [spec for spec in made.specs() if spec.hash not in there]
    assert {(spec.model.n_heads, spec.steps) for spec in new} == {(8, 1_000), (16, 1_000)}


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_held_out_sizes_lie_beyond_the_smaller_ones(scale: str) -> None:
    made = planned(STUDIES["held-out"], scale)
    flags = [curve.label["held_out"] for curve in made.curves]
    assert flags == sorted(flags), "the smaller sizes come first"
    for table in ("ngpt", "completep", "nugpt"):
        smaller = [c for c in of_table(made, table) if not c.label["held_out"]]
        larger = {c.label["axis"]: c for c in of_table(made, table) if c.label["held_out"]}
        (base,) = [c for c in smaller if c.label["axis"] == "base"]
        assert set(larger) == {"heads", "layers", "steps", "all"}
        for axis in ("heads", "layers", "steps"):
            seen = [int(c.label[axis]) for c in smaller]
            assert int(larger[axis].label[axis]) >= 2 * max(seen)
            assert int(larger[axis].label[axis]) >= 3 * int(base.label[axis])
            assert len(set(seen)) >= 2
            assert int(larger["all"].label[axis]) > int(base.label[axis])
            others = {"heads", "layers", "steps"} - {axis}
            assert all(larger[axis].label[o] == base.label[o] for o in others)


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_studies_share_the_runs_that_they_have_in_common(scale: str) -> None:
    def hashes(id: str, table: str) -> set[str]:
        return {run.hash for c in of_table(planned(STUDIES[id], scale), table) for run in c.runs().values()}

    assert hashes("mup-drifts-ours-not", "nugpt") == hashes("width-fixed-steps", "nugpt")
    assert hashes("depth-mup-depth-sweep", "nugpt") == hashes("depth-sweeps", "nugpt")
    assert hashes("depth-sweep-ours-alpha-power-law", "nugpt") == hashes("depth-sweeps", "nugpt")
    assert hashes("depth-sweep-baseline-alpha-power-law", "ngpt") == hashes("depth-sweeps", "ngpt")
    for end in ("", "_l12h28"):
        views = [hashes(f"alignment_val{view}{end}", "nugpt") for view in ("", "_loss_weighted", "_layer_dependence")]
        assert views[0] == views[1] == views[2]
    assert hashes("alignment_val", "nugpt").isdisjoint(hashes("alignment_val_l12h28", "nugpt"))


@pytest.mark.parametrize("scale", ["paper", "evidence", "lab"])
@pytest.mark.parametrize("id", IDS)
def test_no_two_runs_of_a_plan_are_the_same_under_another_name(id: str, scale: str) -> None:
    """Tables agree at the base's width; a plan that runs both there would pay twice for one result."""
    seen, made = set(), planned(STUDIES[id], scale)
    for curve in made.curves:
        numbers = curve.spec.resolved().to_dict()
        what = {key: value for key, value in numbers.items() if key not in ("table", "ratios")}
        seen.add(repr((what, curve.spec.model, curve.spec.steps, curve.spec.batch, curve.spec.schedule)))
    # Untuned, the two scalings of the logits are one at the base, which both of the figure's panels show.
    at_base = any(shape(c) == (SCALES[scale].base_layers, SCALES[scale].base_heads) for c in made.curves)
    twice = 1 if id == "width-sweep-ngpt-mup-vs-muppr" and at_base else 0
    assert len(seen) == len(made.curves) - twice


def test_measures() -> None:
    for id, made in STUDIES.items():
        wanted = ("alignment",) if id.startswith("alignment") else ("lerp",) if "alpha-power-law" in id else ()
        assert made.measures == wanted


# What a scale may cost.


@pytest.mark.parametrize("id", IDS)
def test_tiny_fits_two_cores_for_a_minute_or_two(id: str) -> None:
    # 200 core-seconds of training at the measured 30 GFLOP/s of a core.
    assert sum(map(run_flops, planned(STUDIES[id], "tiny").specs())) <= 200 * CORE_FLOPS == 6e12


@pytest.mark.parametrize("id", IDS)
def test_lab_fits_five_minutes_of_a_gpu(id: str) -> None:
    # Four of training, at the step times first measured: the fifth is for compiling, validation and added points.
    assert sum(map(h200_seconds, planned(STUDIES[id], "lab").specs())) <= 4 * 60 + 5


def test_step_times_are_those_measured() -> None:
    measured_ms = {4: 1.81, 8: 3.70, 16: 9.16}  # one H200, 4 layers, by heads
    curves = of_table(planned(STUDIES["width-fixed-steps"], "evidence"), "nugpt")
    by_heads = {int(curve.label["heads"]): h200_seconds(curve.spec) / curve.spec.steps for curve in curves}
    for heads, ms in measured_ms.items():
        assert 1e3 * by_heads[heads] == pytest.approx(ms, rel=0.07)


# The evidence of one GPU, row by row: studies → tables, layers, widths (d_model), steps, seeds of each width or depth.
EVIDENCE_ROWS: dict[str, tuple[set[str], set[str], set[int], set[int], set[int]]] = {
    "width": (
        {"width-fixed-steps", "mup-drifts-ours-not"},
        {"ngpt", "nugpt", "completep"}, {4}, {192, 384, 768, 1536}, {2_000},
    ),
    "token horizon": ({"steps-sweep-ngpt-ours"}, {"nugpt"}, {4}, {384}, {400, 800, 1_600, 3_200, 6_400}),
    "depth": (
        {"depth-sweeps", "depth-mup-depth-sweep"}, {"ngpt", "nugpt", "depth-mup"}, {4, 8, 16, 32}, {192}, {2_000},
    ),
    "run length": ({"run-length-by-width"}, {"nugpt", "completep"}, {4}, {192, 384, 768}, {2_000, 8_000}),
    "roles": ({"role-sweeps"}, {"nugpt"}, {4}, {192, 384, 768}, {2_000}),
    "roles over depth": ({"depth-mup-roles"}, {"depth-mup"}, {4, 16, 32}, {192}, {2_000}),
    "baseline": (
        {"against-llama", "against-llama-clipped", "against-llama-warmup"},
        {"nugpt", "prenorm-completep"}, {4}, {384, 768}, {2_000, 2_500},
    ),
    "first": ({"warmup-at-base", "multipliers-at-base"}, {"ngpt", "nugpt"}, {4}, {192}, {2_000}),
}  # fmt: skip


@pytest.mark.parametrize("row", EVIDENCE_ROWS)
def test_the_design_of_the_evidence(row: str) -> None:
    ids, tables, layers, widths, steps = EVIDENCE_ROWS[row]
    assert ids <= set(EVIDENCE[row])
    curves = [curve for id in ids for curve in planned(STUDIES[id], "evidence").curves]
    assert {curve.spec.table.name for curve in curves} == tables
    assert {curve.spec.model.n_layers for curve in curves} == layers
    assert {curve.spec.model.d_model for curve in curves} == widths
    assert {curve.spec.steps for curve in curves} == steps
    assert {(c.spec.model.head_dim, c.spec.model.seq_len, c.spec.batch * 512) for c in curves} == {(48, 512, 16_384)}


def test_alignment_is_measured_in_runs_of_every_length_that_another_study_has_too() -> None:
    assert STUDIES["alignment-by-length"].measures == ("alignment",)
    made, whole = (planned(STUDIES[id], "evidence") for id in ("alignment-by-length", "run-length-by-width"))
    assert {spec.hash for spec in made.specs()} < {spec.hash for spec in whole.specs()}
    assert {spec.lr for spec in made.specs()} == {2**-7}
    short = {spec.hash for spec in made.specs() if spec.steps == 2_000}
    assert short < {spec.hash for spec in planned(STUDIES["alignment_val"], "evidence").specs()}


@pytest.mark.parametrize(
    ("id", "of", "table"),
    [
        ("width-fresh-seeds", "width-fixed-steps", "nugpt"),
        ("mup-drifts-fresh-seeds", "mup-drifts-ours-not", "completep"),
    ],
)
@pytest.mark.parametrize("scale", SCALES)
def test_fresh_seeds_are_the_width_study_again_on_others(scale: str, id: str, of: str, table: str) -> None:
    made, first = (planned(STUDIES[name], scale) for name in (id, of))
    again = of_table(first, table)
    assert [(curve.spec, curve.log2_lrs) for curve in made.curves] == [(curve.spec, curve.log2_lrs) for curve in again]
    for one, other in zip(made.curves, again, strict=True):
        assert not {*one.seeds} & {*other.seeds}
        assert len(one.seeds) == max(len(other.seeds), 2 if scale == "evidence" else 1)
    assert not {spec.hash for spec in made.specs()} & {spec.hash for spec in first.specs()}


@pytest.mark.parametrize("scale", SCALES)
def test_run_length_is_asked_again_of_the_shorter_and_the_longest_runs_on_seeds_of_no_other_study(scale: str) -> None:
    made, first = (planned(STUDIES[id], scale) for id in ("run-length-fresh-seeds", "held-out-steps"))
    again = [one for one in first.curves if one.spec.steps != BASE[scale].steps]
    assert [(one.spec, one.log2_lrs) for one in made.curves] == [(one.spec, one.log2_lrs) for one in again]
    assert {len(one.seeds) for one in made.curves} == {2 if scale in ("lab", "evidence") else 1}
    assert {*made.curves[0].label} == {"table", "layers", "heads", "steps"}, (
        "a slope is of all lengths: none is held out"
    )
    if scale == "evidence":  # where there are runs that had been seen
        mine = {spec.hash for spec in made.specs()}
        for id in set(IDS) - {made.study}:
            assert not mine & {spec.hash for spec in planned(STUDIES[id], scale).specs()}, id


@pytest.mark.parametrize("scale", SCALES)
def test_all_seeds_are_those_of_both_width_studies_and_no_run_is_new(scale: str) -> None:
    together, fixed, fresh = (
        planned(STUDIES[f"width-{of}"], scale) for of in ("all-seeds", "fixed-steps", "fresh-seeds")
    )
    runs = {spec.hash for curve in of_table(fixed, "nugpt") for spec in curve.runs().values()}
    assert {spec.hash for spec in together.specs()} == runs | {spec.hash for spec in fresh.specs()}
    assert len(together.specs()) == len(runs) + len(fresh.specs())
    assert together.policy == fixed.policy


def test_seeds_and_points_of_the_evidence() -> None:
    def seeds(id: str, axis: str) -> dict[object, int]:
        return {curve.label[axis]: len(curve.seeds) for curve in planned(STUDIES[id], "evidence").curves}

    assert seeds("width-fixed-steps", "heads") == {4: 3, 8: 3, 16: 2, 32: 1}  # fewer where a run takes a minute
    assert seeds("depth-sweeps", "layers") == {4: 2, 8: 2, 16: 2, 32: 2}
    fine = {curve.label["heads"]: curve.fine for curve in planned(STUDIES["width-fixed-steps"], "evidence").curves}
    assert fine == {4: 2, 8: 2, 16: 2, 32: 1}
    sizes = Counter(len(curve.log2_lrs) for curve in planned(STUDIES["width-fixed-steps"], "evidence").curves)
    assert sizes == {3: 8}


def test_batches_and_budgets_of_the_evidence() -> None:
    curves = planned(STUDIES["batch-by-steps"], "evidence").curves
    assert {curve.spec.batch * 512 for curve in curves} == {8_192, 16_384, 32_768, 65_536}
    assert len({curve.spec.batch * curve.spec.steps for curve in curves}) == 2


def test_held_out_shapes_of_the_evidence() -> None:
    made = planned(STUDIES["held-out"], "evidence")
    found = {
        c.label["axis"]: (c.spec.model.d_model, c.spec.model.n_layers, c.spec.steps)
        for c in made.curves
        if c.label["held_out"]
    }
    assert found == {
        "heads": (768, 4, 2_000),
        "layers": (192, 16, 2_000),
        "steps": (192, 4, 8_000),
        "all": (768, 8, 4_000),
    }
    assert {c.spec.table.name for c in made.curves} == {"ngpt", "completep", "nugpt"}
    (points,) = {len(c.log2_lrs) + 2 * c.fine for c in made.curves if c.label["axis"] == "all"}
    assert points == 5


def test_the_aspect_ratio_of_the_evidence_needs_at_most_four_epochs() -> None:
    curves = planned(STUDIES["width-sweep-ngpt-ours-with-token-corr"], "evidence").curves
    heads = [curve.spec.model.n_heads for curve in curves]
    assert max(heads) == 4 * min(heads)
    assert all(c.spec.steps * c.spec.batch * c.spec.model.seq_len <= 4 * 105e6 for c in curves)


def test_all_evidence_takes_about_five_hours_of_a_gpu_with_its_refinement() -> None:
    assert sorted(id for ids in EVIDENCE.values() for id in ids) == sorted(IDS)
    specs = {spec.hash: spec for id in IDS for spec in refined(planned(STUDIES[id], "evidence"))}
    assert sum(map(h200_seconds, specs.values())) <= 5.2 * 3600


def test_on_the_base_every_table_is_the_same_model_but_for_its_default_multipliers() -> None:
    """Why one tuning of the multipliers serves all tables."""
    from nugpt.spec.parametrization import TABLES

    for scale in ("evidence", "lab", "tiny"):
        spec = planned(STUDIES["multipliers-at-base"], scale).curves[0].spec
        assert spec.extent == SCALES[scale].base.extent or scale == "tiny"  # which is shorter than its base
        given = dict.fromkeys(spec.multipliers, 1.0)
        numbers = []
        for table in TABLES.values():
            if table.family == "normalized":
                found = replace(spec, table=table, multipliers=given, steps=SCALES[scale].base_steps).resolved()
                numbers.append((found.rows, found.gains, found.lr_base))
        assert len(numbers) >= 5  # the paper's, and whichever were added
        for other in numbers[1:]:
            assert other[2] == pytest.approx(numbers[0][2])
            for role, row in other[0].items():
                for name in ("lr", "init", "scale", "eps"):
                    assert getattr(row, name) == pytest.approx(getattr(numbers[0][0][role], name)), (role, name)


def test_what_was_tuned_on_the_base_goes_into_every_study_that_does_not_sweep_it() -> None:
    given = replace(setting("lab"), multipliers={"output": 0.25})
    made = plan(STUDIES["width-fixed-steps"], "lab", given)
    assert {curve.spec.multipliers["output"] for curve in made.curves} == {0.25}
    assert {curve.spec.multipliers["input"] for curve in made.curves} == {1.0}
    llama = plan(STUDIES["against-llama"], "lab", given)
    assert {c.spec.multipliers["output"] for c in llama.curves if c.label["table"] == "nugpt"} == {0.25}
    plain = {c.spec.multipliers["output"] for c in llama.curves if c.label["table"] != "nugpt"}
    assert plain == {
        c.spec.multipliers["output"] for c in of_table(planned(STUDIES["against-llama"], "lab"), "prenorm-completep")
    }
    roles = plan(STUDIES["role-sweeps"], "lab", given)
    assert {c.spec.multipliers["output"] / 0.25 for c in roles.curves if c.label["role"] == "output"} == {
        0.25,
        0.5,
        2,
        4,
    }
    swept = plan(STUDIES["both-eta-input-output-sweep"], "lab", given)
    assert swept.hash == planned(STUDIES["both-eta-input-output-sweep"], "lab").hash


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_warm_up_is_all_that_differs_at_the_base(scale: str) -> None:
    made = planned(STUDIES["warmup-at-base"], scale)
    for table in ("ngpt", "nugpt"):
        without, with_ = of_table(made, table)
        assert (without.label["warmup"], with_.label["warmup"]) == (0.0, 0.05)
        assert without.spec.schedule.warmup == 0
        assert with_.spec.schedule.warmup == round(with_.spec.steps / 20) > 0
        assert replace(with_.spec, schedule=without.spec.schedule) == without.spec
        assert with_.log2_lrs == without.log2_lrs


def test_evidence_sees_each_token_once_where_length_is_studied() -> None:
    for curve in planned(STUDIES["steps-sweep-ngpt-ours"], "evidence").curves:
        assert curve.spec.steps * curve.spec.batch * curve.spec.model.seq_len <= 105e6


# How studies are asked for.


def test_what_a_setting_gives_is_in_every_run() -> None:
    given = Setting(data="f" * 16, vocab_size=50_304, precision="bfloat16")
    for made in STUDIES.values():
        for curve in plan(made, "lab", given).curves:
            assert (curve.spec.data, curve.spec.model.vocab_size, curve.spec.precision) == (
                "f" * 16,
                50_304,
                "bfloat16",
            )


def test_an_unknown_study_is_refused_with_what_lies_near() -> None:
    with pytest.raises(ValueError, match=r"^unknown study 'width-fixed-step', near it: width-fixed-steps") as error:
        study("width-fixed-step")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="unknown study 'zzz', known are width-fixed-steps, "):
        study("zzz")
    assert study("held-out") is STUDIES["held-out"]


@pytest.mark.parametrize("id", IDS)
def test_an_unknown_scale_is_refused(id: str) -> None:
    with pytest.raises(ValueError, match="unknown scale 'huge', known are paper, evidence, lab, tiny"):
        plan(STUDIES[id], "huge", setting("lab"))
    with pytest.raises(ValueError, match="unknown scale 'huge'"):
        STUDIES[id].curves("huge", setting("lab"))


def test_importing_studies_imports_nothing_heavy() -> None:
    code = (
        "import sys, nugpt.studies; print([m for m in ('torch', 'numpy', 'scipy', 'rich', 'tyro') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_studies_import_spec_alone() -> None:
    for path in Path(nugpt.studies.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nugpt"):
                assert node.module.startswith(("nugpt.spec", "nugpt.studies")), path.name
