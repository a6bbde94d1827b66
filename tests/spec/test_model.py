"""Model shapes and their counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nugpt.core.init import build
from nugpt.spec import (
    ModelConfig,
    flops_per_token,
    non_embedding_parameters,
    parameter_shapes,
    preset,
    steps_at,
    tokens_at,
    total_parameters,
)
from nugpt.spec.model import ARCHITECTURES

GOOD: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "head_dim": 6, "vocab_size": 29, "seq_len": 16}


def test_what_is_left_out_is_filled_in() -> None:
    config = ModelConfig(**GOOD)
    assert (config.d_model, config.d_kv, config.n_kv_heads, config.d_mlp) == (24, 24, 4, 64)
    assert (config.rope_theta, config.architecture) == (10_000.0, "normalized")
    grouped = ModelConfig(**GOOD, n_kv_heads=2, d_mlp=7, rope_theta=500_000)
    assert (grouped.d_model, grouped.d_kv, grouped.d_mlp, grouped.rope_theta) == (24, 12, 7, 500_000.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 0}, "n_layers is 0, but must be a whole number of at least 1"),
        ({"n_heads": 0}, "n_heads is 0, but must be a whole number of at least 1"),
        ({"n_heads": -2}, "n_heads is -2,"),
        ({"head_dim": 0}, "head_dim is 0,"),
        ({"head_dim": 7}, "head_dim is 7, but must be even"),
        ({"head_dim": 6.0}, "head_dim is 6.0,"),
        ({"vocab_size": "29"}, "vocab_size is '29',"),
        ({"seq_len": True}, "seq_len is True,"),
        ({"n_kv_heads": 3}, "n_kv_heads is 3, but must divide n_heads, which is 4"),
        ({"n_kv_heads": 8}, "n_kv_heads is 8, but must divide n_heads"),
        ({"n_kv_heads": -1}, "n_kv_heads is -1,"),
        ({"d_mlp": -1}, "d_mlp is -1,"),
        ({"head_dim": 4, "n_heads": 1}, "d_mlp must be given: 8/3 of d_model = 4 is not a whole number"),
        ({"rope_theta": 1.0}, "rope_theta is 1.0, but must be a finite number above 1"),
        ({"rope_theta": math.nan}, "rope_theta is nan"),
        ({"rope_theta": math.inf}, "rope_theta is inf"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"architecture": ["normalized"]}, "architecture is ['normalized'], but must be one of"),
        ({"architecture": "ngpt"}, "architecture is 'ngpt', but must be one of normalized, prenorm, prenorm-qknorm"),
    ],
)
def test_a_wrong_field_is_refused_in_one_line_that_names_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        ModelConfig(**(GOOD | changes))
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)


whole = st.integers(-1, 6) | st.sampled_from([12, 33])
configs = st.fixed_dictionaries(
    {
        "n_layers": st.integers(-1, 4),
        "n_heads": whole,
        "head_dim": whole,
        "vocab_size": st.integers(-1, 50),
        "seq_len": st.integers(-1, 50),
    },
    optional={
        "n_kv_heads": st.integers(-1, 6),
        "d_mlp": st.integers(-1, 50),
        "rope_theta": st.floats() | st.integers(),
        "architecture": st.sampled_from([*ARCHITECTURES, "other"]),
    },
)


def built_or_refused(values: dict[str, Any]) -> tuple[ModelConfig | None, str]:
    try:
        return ModelConfig(**values), ""
    except ValueError as refusal:
        return None, str(refusal)


@settings(max_examples=300)
@given(configs)
def test_any_config_builds_and_counts_or_is_refused_in_one_line(values: dict[str, Any]) -> None:
    config, refusal = built_or_refused(values)
    if config is None:
        assert len(refusal.splitlines()) == 1
        assert any(name in refusal for name in ModelConfig.__dataclass_fields__)
        return
    named = [(name, tuple(parameter.shape)) for name, parameter in build(config, device="meta").named_parameters()]
    assert named == list(parameter_shapes(config).items())
    total = sum(math.prod(shape) for _, shape in named)
    embeddings = 2 * config.vocab_size * config.d_model
    rescalers = config.vocab_size if config.architecture == "normalized" else 0
    assert total_parameters(config) == total
    assert non_embedding_parameters(config) == total - embeddings - rescalers
    assert ModelConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_counts_by_hand(architecture: str) -> None:
    config = ModelConfig(**GOOD, n_kv_heads=2, d_mlp=7, architecture=architecture)
    # per block: W_q, W_O 24·24; W_k, W_v 12·24; W_u, W_nu, W_oMLP 7·24
    matrices = 2 * (2 * 576 + 2 * 288 + 3 * 168)
    vectors = {
        "normalized": 2 * (2 * 6 + 2 * 7 + 2 * 24),
        "prenorm": 2 * 2 * 24 + 24,
        "prenorm-qknorm": 2 * (2 * 24 + 2 * 6) + 24,
    }[architecture]
    assert non_embedding_parameters(config) == matrices + vectors
    outside = 2 * 29 * 24 + (29 if architecture == "normalized" else 0)
    assert total_parameters(config) == matrices + vectors + outside
    assert flops_per_token(config) == 6 * (matrices + vectors + 29 * 24) + 6 * 2 * 24 * 16


def test_tokens_and_steps_round_up() -> None:
    config = ModelConfig(**GOOD)
    count = non_embedding_parameters(config)
    assert tokens_at(config, 20) == 20 * count
    assert tokens_at(config, 0.5) == math.ceil(count / 2)
    assert count % 1024
    assert tokens_at(config, 1 / 1024) == count // 1024 + 1
    per_step = 16 * 4
    assert steps_at(config, 20, batch=4) == math.ceil(20 * count / per_step)
    assert steps_at(config, 20, batch=4, round_to=250) % 250 == 0
    assert 0 <= steps_at(config, 20, batch=4, round_to=250) - 20 * count / per_step < 250
    # already a multiple: nothing is added
    exact = per_step * 250 / count
    assert steps_at(config, exact * (1 - 1e-9), batch=4, round_to=250) == 250


@pytest.mark.parametrize("ratio", [0, -1.0, math.nan, math.inf])
def test_a_wrong_ratio_of_tokens_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=f"tokens per parameter is {ratio!r}"):
        tokens_at(ModelConfig(**GOOD), ratio)


@pytest.mark.parametrize(
    ("batch", "round_to", "named"),
    [
        (0, 1, "batch is 0"),
        (2.5, 1, "batch is 2.5"),
        (True, 1, "batch is True"),
        ("4", 1, "batch is '4'"),
        (1, 0, "rounding of steps is 0"),
        (1, 1.5, "rounding of steps is 1.5"),
    ],
)
def test_a_wrong_batch_or_rounding_is_refused(batch: Any, round_to: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        steps_at(ModelConfig(**GOOD), 20, batch, round_to)


def test_from_dict_names_what_is_unknown_or_missing() -> None:
    values = ModelConfig(**GOOD).to_dict()
    with pytest.raises(ValueError, match="unknown field 'n_head'"):
        ModelConfig.from_dict(values | {"n_head": 4})
    del values["seq_len"]
    with pytest.raises(ValueError, match="lacks the field 'seq_len'"):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize("name", ["paper-l12h12", "evidence-l4h8", "tiny-l2h1"])
def test_presets_have_an_mlp_of_exactly_8_thirds(name: str) -> None:
    _, config = preset(name)
    assert 3 * config.d_mlp == 8 * config.d_model
