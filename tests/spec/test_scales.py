"""Scales and the grammar of presets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nugpt.spec import SCALES, ModelConfig, parametrization, preset, preset_names, resolve
from nugpt.spec.resolve import Extent
from nugpt.spec.scales import scale_named


def test_the_papers_setting() -> None:
    scale, model = preset("paper-l12h28")
    assert (model.n_layers, model.n_heads, model.head_dim, model.d_model, model.d_mlp) == (12, 28, 102, 2856, 7616)
    assert (model.vocab_size, model.seq_len, model.rope_theta) == (100_352, 4096, 10_000.0)
    assert (scale.batch, scale.fixed_steps, scale.round_steps_to) == (64, 80_000, 250)
    assert (scale.base_model.d_model, scale.base_model.n_layers) == (1020, 10)
    assert (scale.base.extent.steps, scale.base.rescaler_scale) == (9_750, 0.03)


@given(st.sampled_from(sorted(SCALES)), st.integers(1, 200), st.integers(1, 64))
def test_any_number_of_layers_and_heads_is_a_preset(name: str, layers: int, heads: int) -> None:
    scale, model = preset(f"{name}-l{layers}h{heads}")
    assert scale is SCALES[name]
    assert model == scale.model(layers, heads)
    assert (model.n_layers, model.n_heads, model.head_dim) == (layers, heads, scale.head_dim)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "paper",
        "huge-l2h2",
        "paper-l12",
        "paper-h12",
        "paper-h12l12",
        "paper_l2h2",
        "PAPER-l2h2",
        "paper-l2h2 ",
        "paper-l-2h2",
        "paper-l2.5h2",
        "paper-l2h2\n",
        "lab-l2h2x",
        3,
        None,
        ["tiny-l2h2"],
    ],
)
def test_another_spelling_is_refused_with_the_grammar(name: Any) -> None:
    with pytest.raises(ValueError, match="unknown preset") as refusal:
        preset(name)
    assert repr(name) in str(refusal.value)
    assert "SCALE-lLAYERShHEADS" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(("name", "field"), [("tiny-l0h2", "n_layers"), ("tiny-l2h0", "n_heads")])
def test_a_preset_without_layers_or_heads_is_refused(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        preset(name)


def test_every_listed_preset_exists_once() -> None:
    names = preset_names()
    assert len(names) == len(set(names))
    assert {preset(name)[0].name for name in names} == set(SCALES)
    assert {"paper-l12h8", "paper-l12h40", "paper-l8h12", "paper-l128h12", "paper-l10h10", "paper-l16h16"} <= set(names)


@pytest.mark.parametrize("name", SCALES)
def test_a_scales_base_is_where_every_ratio_is_one(name: str) -> None:
    scale = SCALES[name]
    target = Extent.of(scale.base_model, scale.base_steps, scale.batch)
    for table in ("ngpt", "nugpt"):
        m = resolve(parametrization(table), scale.base, target, 0.1).ratios
        assert (m.width, m.depth, m.data, m.batch) == (1.0, 1.0, 1.0, 1.0)
    assert (
        ModelConfig(scale.base_layers, scale.base_heads, scale.head_dim, scale.vocab_size, scale.seq_len)
        == scale.base_model
    )


@pytest.mark.parametrize("name", [name for name in SCALES if name != "paper"])
def test_below_the_papers_scale_the_base_moves_as_ngpt_does(name: str) -> None:
    scale = SCALES[name]
    assert scale.head_dim % 48 == 0
    assert scale.base.rescaler_scale == pytest.approx(scale.base_model.d_model**-0.5, rel=1e-15)
    target = Extent.of(scale.base_model, scale.base_steps, scale.batch)
    ours, theirs = (resolve(parametrization(table), scale.base, target, 0.1) for table in ("nugpt", "ngpt"))
    assert ours.gains == pytest.approx(theirs.gains, rel=1e-14)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scale 'big', known are paper, evidence, lab, tiny"):
        scale_named("big")
