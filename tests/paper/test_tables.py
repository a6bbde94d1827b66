"""Table 1, Table 2 and the pre-norm table: every row at two targets, against numbers worked with a pocket calculator.

Wide: the paper's base (width 1020, 10 blocks, 9,750 steps, c = 0.03) to width 4080, 20 blocks, 78,000 steps;
m_width = 4, m_depth = 2, m_data = 8, at η = 0.008.
Small: a base of width 192, 2 blocks, 1,000 steps, c = 192^(−1/2), to width 432, 8 blocks, 27,000 steps;
m_width = 9/4, m_depth = 4, m_data = 27, at η = 0.006.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import pytest

from nugpt.spec import (
    Base,
    Extent,
    Resolved,
    flops_per_token,
    non_embedding_parameters,
    parametrization,
    preset,
    resolve,
    steps_at,
    tokens_at,
    total_parameters,
)
from nugpt.spec.parametrization import TABLES, untuned, with_data_exponent

# The literals carry twelve digits or more.
DIGITS = 1e-11

BATCH_TOKENS = 64 * 4096
TARGETS = {
    "wide": (
        Base(Extent(1020, 102, 10, 9_750, BATCH_TOKENS), 0.03),
        Extent(4080, 102, 20, 78_000, BATCH_TOKENS),
        0.008,
    ),
    "small": (Base.of(Extent(192, 48, 2, 1_000, 512)), Extent(432, 48, 8, 27_000, 512), 0.006),
}


class Expected(NamedTuple):
    """A table at a target: η_base, η of the matrices with and without the default multiplier, and the rescalers."""

    base: float
    input: float
    hidden: float
    output: float
    output_untuned: float
    alpha_init: float
    s_z_init: float
    scale: float  # of alpha_A, alpha_M, s_qk and s_z; that of s_u and s_nu is 1 everywhere
    alpha_gain: float
    s_qk_gain: float
    s_z_gain: float


NORMALIZED = {
    ("ngpt", "wide"): Expected(
        base=0.008,
        input=0.008,
        hidden=0.008,
        output=0.008,
        output_untuned=0.008,
        alpha_init=0.05,
        s_z_init=1.0,
        scale=0.0156556072771287,  # 4080^(−1/2)
        alpha_gain=3.19374388453426,
        s_qk_gain=63.8748776906852,
        s_z_gain=63.8748776906852,
    ),
    ("ngpt", "small"): Expected(
        base=0.006,
        input=0.006,
        hidden=0.006,
        output=0.006,
        output_untuned=0.006,
        alpha_init=0.05,
        s_z_init=1.0,
        scale=0.0481125224324688,  # 432^(−1/2)
        alpha_gain=1.03923048454133,
        s_qk_gain=20.7846096908265,
        s_z_gain=20.7846096908265,
    ),
    ("depth-mup", "wide"): Expected(
        base=0.008,
        input=0.004,  # /√4
        hidden=0.00141421356237310,  # /4/√2
        output=0.00141421356237310,  # /√4/2^(3/2)
        output_untuned=0.004,
        alpha_init=0.0353553390593274,  # /√2
        s_z_init=1.0,
        scale=0.03,
        alpha_gain=1.17851130197758,
        s_qk_gain=33.3333333333333,
        s_z_gain=33.3333333333333,
    ),
    ("depth-mup", "small"): Expected(
        base=0.006,
        input=0.004,  # ·2/3
        hidden=0.00133333333333333,  # ·4/9/√4
        output=0.00141421356237310,  # ·2/3/2^(3/2)
        output_untuned=0.004,
        alpha_init=0.025,  # /√4
        s_z_init=1.0,
        scale=0.0721687836487032,  # 192^(−1/2)
        alpha_gain=0.346410161513775,
        s_qk_gain=13.8564064605510,
        s_z_gain=13.8564064605510,
    ),
    ("completep", "wide"): Expected(
        base=0.008,
        input=0.004,
        hidden=0.002,  # /4
        output=0.00141421356237310,
        output_untuned=0.004,
        alpha_init=0.025,  # /2
        s_z_init=1.0,
        scale=0.03,
        alpha_gain=0.833333333333333,
        s_qk_gain=33.3333333333333,
        s_z_gain=33.3333333333333,
    ),
    ("completep", "small"): Expected(
        base=0.006,
        input=0.004,
        hidden=0.00266666666666667,  # ·4/9
        output=0.00141421356237310,
        output_untuned=0.004,
        alpha_init=0.0125,  # /4
        s_z_init=1.0,
        scale=0.0721687836487032,
        alpha_gain=0.173205080756888,
        s_qk_gain=13.8564064605510,
        s_z_gain=13.8564064605510,
    ),
    ("nugpt", "wide"): Expected(
        base=0.004,  # /∛8
        input=0.002,  # /∛8/√4
        hidden=0.00141421356237310,  # /∛8/4^(3/4)
        output=0.000707106781186548,  # /∛8/4^(3/4)/2
        output_untuned=0.00141421356237310,
        alpha_init=0.025,
        s_z_init=2.0,  # √4
        scale=0.03,
        alpha_gain=0.833333333333333,
        s_qk_gain=33.3333333333333,
        s_z_gain=66.6666666666667,
    ),
    ("nugpt", "small"): Expected(
        base=0.002,  # /∛27
        input=0.00133333333333333,
        hidden=0.00108866210790363,  # 1.5^(−3/2) = 0.544331053951817
        output=0.000544331053951817,
        output_untuned=0.00108866210790363,
        alpha_init=0.0125,
        s_z_init=1.5,
        scale=0.0721687836487032,
        alpha_gain=0.173205080756888,
        s_qk_gain=13.8564064605510,
        s_z_gain=20.7846096908265,
    ),
    ("nugpt-full-align", "wide"): Expected(
        base=0.004,
        input=0.002,
        hidden=0.001,  # /∛8/4
        output=0.001,
        output_untuned=0.001,
        alpha_init=0.025,
        s_z_init=2.0,
        scale=0.03,
        alpha_gain=0.833333333333333,
        s_qk_gain=33.3333333333333,
        s_z_gain=66.6666666666667,
    ),
    ("nugpt-full-align", "small"): Expected(
        base=0.002,
        input=0.00133333333333333,
        hidden=0.000888888888888889,  # ·4/9
        output=0.000888888888888889,
        output_untuned=0.000888888888888889,
        alpha_init=0.0125,
        s_z_init=1.5,
        scale=0.0721687836487032,
        alpha_gain=0.173205080756888,
        s_qk_gain=13.8564064605510,
        s_z_gain=20.7846096908265,
    ),
}

# role → learning rate, initial value, weight decay, ε; then the forward multipliers.
PRENORM = {
    "wide": (
        {
            "input": (0.008, 0.02, 0.1, 2.5e-17),
            "hidden": (0.002, 0.01, 0.4, 1.25e-17),
            "output": (0.008, 0.02, 0.1, 2.5e-17),  # ε of both embeddings: ·1/m_width
            "norm": (0.008, 1.0, 0.0, 1.25e-17),
        },
        {"residual": 0.5, "logit": 0.25},
    ),
    "small": (
        {
            "input": (0.006, 0.02, 0.1, 4.44444444444444e-17),
            "hidden": (0.00266666666666667, 0.0133333333333333, 0.225, 1.11111111111111e-17),
            "output": (0.006, 0.02, 0.1, 4.44444444444444e-17),
            "norm": (0.006, 1.0, 0.0, 1.11111111111111e-17),
        },
        {"residual": 0.25, "logit": 0.444444444444444},
    ),
}


def about(value: float) -> object:
    return pytest.approx(value, rel=DIGITS)


def resolved_at(target: str, table: str, **options: dict[str, float]) -> Resolved:
    base, extent, lr = TARGETS[target]
    return resolve(parametrization(table), base, extent, lr, **options)  # type: ignore[arg-type]


def test_every_built_in_table_is_worked_by_hand() -> None:
    by_hand = {table for table, _ in NORMALIZED} | {"prenorm-completep"}
    assert by_hand == set(TABLES)
    assert {target for _, target in NORMALIZED} == set(PRENORM) == set(TARGETS)


@pytest.mark.parametrize(("table", "target"), NORMALIZED)
def test_learning_rates(table: str, target: str) -> None:
    truth, ours = NORMALIZED[table, target], resolved_at(target, table)
    assert ours.lr == TARGETS[target][2]
    assert ours.lr_base == about(truth.base)
    assert ours["input"].lr == about(truth.input)
    assert ours["hidden"].lr == about(truth.hidden)
    assert ours["output"].lr == about(truth.output)
    for rescaler in ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z"):
        assert ours[rescaler].lr == about(truth.base), rescaler
    assert len(ours.rows) == 9


@pytest.mark.parametrize(("table", "target"), NORMALIZED)
def test_initial_values_scales_and_gains(table: str, target: str) -> None:
    truth, ours = NORMALIZED[table, target], resolved_at(target, table)
    rows = {
        "alpha_A": (truth.alpha_init, truth.scale, truth.alpha_gain),
        "alpha_M": (truth.alpha_init, truth.scale, truth.alpha_gain),
        "s_qk": (1.0, truth.scale, truth.s_qk_gain),
        "s_u": (1.0, 1.0, 1.0),
        "s_nu": (1.0, 1.0, 1.0),
        "s_z": (truth.s_z_init, truth.scale, truth.s_z_gain),
    }
    for role, (init, scale, gain) in rows.items():
        assert ours[role].init == about(init), role
        assert ours[role].scale == about(scale), role
        assert ours.gains[role] == about(gain), role
    assert set(ours.gains) == set(rows)


@pytest.mark.parametrize(("table", "target"), NORMALIZED)
def test_optimizer_constants(table: str, target: str) -> None:
    ours = resolved_at(target, table)
    assert ours.betas == (0.9, 0.95)
    assert {(row.weight_decay, row.eps) for row in ours.rows.values()} == {(0.0, 1e-16)}


@pytest.mark.parametrize("target", PRENORM)
def test_the_prenorm_table(target: str) -> None:
    rows, forward = PRENORM[target]
    ours = resolved_at(target, "prenorm-completep")
    assert set(ours.rows) == set(rows)
    for role, (lr, init, weight_decay, eps) in rows.items():
        row = ours[role]
        assert (row.lr, row.init, row.weight_decay) == (about(lr), about(init), about(weight_decay)), role
        assert row.eps == pytest.approx(eps, rel=DIGITS, abs=0.0), role
        assert (row.scale, row.multiplier) == (None, 1.0)
    assert ours.gains == {name: about(value) for name, value in forward.items()}
    assert ours.betas == (0.9, 0.95)


@pytest.mark.parametrize("table", ["ngpt", "depth-mup", "completep", "nugpt", "nugpt-full-align"])
def test_at_the_base_only_the_tuned_multiplier_is_left(table: str) -> None:
    base = TARGETS["wide"][0]
    ours = resolve(parametrization(table), base, base.extent, 0.008)
    output = {"ngpt": 0.008, "depth-mup": 0.00282842712474619, "completep": 0.00282842712474619}
    output |= {"nugpt": 0.004, "nugpt-full-align": 0.008}
    assert {role for role, row in ours.rows.items() if row.lr != about(0.008)} <= {"output"}
    assert ours["output"].lr == about(output[table])
    assert (ours["alpha_A"].init, ours["s_qk"].init, ours["s_z"].init) == (0.05, 1.0, 1.0)
    # 0.03 stands for 1020^(−1/2) = 0.0313: nGPT has the latter.
    assert ours["s_z"].scale == about(0.0313112145542575 if table == "ngpt" else 0.03)


@pytest.mark.parametrize(
    ("table", "multiplier"),
    [
        ("ngpt", 1.0),
        ("depth-mup", 0.353553390593274),  # 2^(−3/2)
        ("completep", 0.353553390593274),
        ("nugpt", 0.5),  # 2^(−1)
        ("nugpt-full-align", 1.0),
        ("prenorm-completep", 1.0),
    ],
)
def test_default_multipliers_are_of_the_output_matrix_alone(table: str, multiplier: float) -> None:
    ours = resolved_at("wide", table)
    assert ours["output"].multiplier == about(multiplier)
    assert {row.multiplier for role, row in ours.rows.items() if role != "output"} == {1.0}


@pytest.mark.parametrize(("table", "target"), NORMALIZED)
def test_untuned_forces_every_multiplier_to_one(table: str, target: str) -> None:
    base, extent, lr = TARGETS[target]
    tuned = parametrization(table)
    ours = resolve(untuned(tuned), base, extent, lr)
    assert ours["output"].lr == about(NORMALIZED[table, target].output_untuned)
    assert {row.multiplier for row in ours.rows.values()} == {1.0}
    others = set(ours.rows) - {"output"}
    assert {role: ours[role] for role in others} == {role: resolved_at(target, table)[role] for role in others}
    assert parametrization(table) is tuned  # the built-in table is as it was


@pytest.mark.parametrize(("table", "target"), NORMALIZED)
def test_multipliers_given_replace_the_defaults_and_touch_their_role_alone(table: str, target: str) -> None:
    truth, default = NORMALIZED[table, target], resolved_at(target, table)
    ours = resolved_at(target, table, multipliers={"output": 0.25, "input": 2.0, "s_u": 3.0})
    assert ours["output"].lr == about(truth.output_untuned / 4)  # not a quarter of the tuned one
    assert ours["input"].lr == about(truth.input * 2)
    assert ours["s_u"].lr == about(truth.base * 3)
    assert (ours["output"].multiplier, ours["input"].multiplier, ours["s_u"].multiplier) == (0.25, 2.0, 3.0)
    for role in set(ours.rows) - {"output", "input", "s_u"}:
        assert ours[role] == default[role]
    assert ours.gains == default.gains


def test_the_data_exponent_is_a_knob_of_each_table() -> None:
    base, extent, lr = TARGETS["wide"]
    token_corrected = resolve(with_data_exponent(parametrization("completep"), Fraction(-1, 3)), base, extent, lr)
    assert token_corrected.lr_base == about(0.004)
    assert token_corrected["hidden"].lr == about(0.001)
    assert token_corrected["s_z"].lr == about(0.004)
    assert token_corrected["s_z"].init == 1.0
    without = resolve(with_data_exponent(parametrization("nugpt"), Fraction(0)), base, extent, lr)
    assert without.lr_base == about(0.008)
    assert without["hidden"].lr == about(0.00282842712474619)


def test_ratios_count_iterations_not_tokens() -> None:
    base, extent, lr = TARGETS["wide"]
    m = resolve(parametrization("nugpt"), base, extent, lr).ratios
    assert (m.width, m.depth, m.data, m.batch) == (4.0, 2.0, 8.0, 1.0)
    m = resolve(
        replace(parametrization("nugpt"), batch=Fraction(1, 2)), base, replace(extent, batch_tokens=1024), lr
    ).ratios
    assert (m.data, m.batch) == (8.0, 1 / 256)


@pytest.mark.parametrize("table", sorted(TABLES))
def test_another_batch_is_refused_without_an_exponent(table: str) -> None:
    base, extent, lr = TARGETS["wide"]
    larger = replace(extent, batch_tokens=2 * BATCH_TOKENS)
    with pytest.raises(ValueError, match=rf"524288 tokens.*262144.*{table}.*batch exponent") as refusal:
        resolve(parametrization(table), base, larger, lr)
    assert "\n" not in str(refusal.value)


def test_a_batch_exponent_acts_on_every_learning_rate() -> None:
    base, extent, lr = TARGETS["wide"]
    four_times = replace(extent, batch_tokens=4 * BATCH_TOKENS)
    ours = resolve(replace(parametrization("nugpt"), batch=Fraction(1, 2)), base, four_times, lr)
    assert ours.lr_base == about(0.008)  # 0.004·√4
    assert ours["hidden"].lr == about(0.00282842712474619)
    assert ours["s_z"].lr == about(0.008)
    assert ours["alpha_A"].init == about(0.025)
    kept = resolve(replace(parametrization("nugpt"), batch=Fraction(0)), base, four_times, lr)
    assert kept.lr_base == about(0.004)


def test_weight_decay_given_replaces_the_tables() -> None:
    base, extent, lr = TARGETS["wide"]
    ours = resolve(parametrization("prenorm-completep"), base, extent, lr, weight_decay=0.2)
    assert {role: row.weight_decay for role, row in ours.rows.items()} == {
        "input": about(0.2),
        "hidden": about(0.8),
        "output": about(0.2),
        "norm": 0.0,
    }
    on_a_sphere = resolve(parametrization("nugpt"), base, extent, lr, weight_decay=0.2)
    assert {row.weight_decay for row in on_a_sphere.rows.values()} == {0.0}  # no row of the paper's tables decays


@pytest.mark.parametrize(
    ("name", "published", "total"),
    [
        # 12·L·d² + L·(d + 2·8d/3 + 2d) + 2·V·d + V, with d = 102·heads
        ("paper-l12h8", 0.26, 259_839_680),
        ("paper-l12h40", 3.22, 3_216_462_272),
        ("paper-l8h12", 0.39, 389_668_544),
        ("paper-l128h12", 2.55, 2_548_265_984),
    ],
)
def test_published_parameter_counts(name: str, published: float, total: int) -> None:
    _, model = preset(name)
    assert round(total_parameters(model) / 1e9, 2) == published
    assert total_parameters(model) == total


def test_the_base_run_of_the_paper() -> None:
    scale, model = preset("paper-l10h10")
    # 10·(12·1020² + 8.333…·1020), the latter exactly 8,500: s_qk 1020, s_u and s_nu 2720 each, two alphas 1020 each.
    assert non_embedding_parameters(model) == 124_933_000
    assert tokens_at(model, 20) == 2_498_660_000
    # 2,498,660,000 / 262,144 = 9531.6, up to a multiple of 250
    assert steps_at(model, 20, batch=64, round_to=250) == 9_750
    assert steps_at(model, 20, batch=64) == 9_532
    assert (scale.base_steps, scale.base_model) == (9_750, model)
    assert (scale.base.rescaler_scale, scale.base.extent) == (0.03, TARGETS["wide"][0].extent)


def test_flops_of_the_12_by_12_model() -> None:
    _, model = preset("paper-l12h12")
    # 6·(12·(12·1224² + 10,200) + 1224·100,352) + 6·12·1224·4096
    assert flops_per_token(model) == 2_393_115_840
    assert round(flops_per_token(model) / 1e9, 2) == 2.39
