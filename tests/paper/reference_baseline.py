"""The plain pre-norm transformer in float64 NumPy, the baseline's truth to compare with; shapes as in reference.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from tests.paper.reference import (
    Array,
    causal_heads,
    check_inputs,
    count_blocks,
    cross_entropy,
    positions_of,
    rope,
    silu,
    split_heads,
)

GAINS = ("residual", "logit")
RMS_EPSILON = 1e-6


class BaselineForward(TypedDict):
    """What the forward pass computes; `attention` and `mlp` have one entry per block."""

    h: list[Array]  # 2·blocks + 1 of (B, T, D): h[2i] enters block i, h[2i + 1] is its half-way state, h[-1] the last
    attention: list[Array]  # (B, T, D), before the residual gain
    mlp: list[Array]  # (B, T, D), before the residual gain
    logits: Array  # (B, T, V)


def rms_norm(y: Array, weight: Array) -> Array:
    """weight ⊙ y / √(mean(y²) + 1e-6) over the last axis."""
    if weight.shape != y.shape[-1:]:
        raise ValueError(f"a norm's weight has shape {weight.shape}, expected {y.shape[-1:]}")
    scaled: Array = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + RMS_EPSILON)
    return scaled * weight


def forward(
    params: Mapping[str, Array],
    gains: Mapping[str, float],
    tokens: NDArray[np.int64],
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    rope_theta: float,
    positions: NDArray[np.int64] | None = None,
) -> BaselineForward:
    """The pre-norm transformer from token ids (B, T) to logits (B, T, V); QK-norm where the block has its weights."""
    p = {name: np.asarray(value, dtype=np.float64) for name, value in params.items()}
    tokens = np.asarray(tokens)
    check_inputs(gains, GAINS, tokens, p["E_in.weight"].shape[0], n_heads, n_kv_heads)
    positions_BT = positions_of(tokens, positions)

    h = p["E_in.weight"][tokens]
    hs, attentions, mlps = [h], [], []
    for i in range(count_blocks(p)):
        block = f"blocks.{i}."
        x = rms_norm(h, p[block + "norm_A.weight"])
        q_BTNH = split_heads(x @ p[block + "attention.W_q.weight"].T, n_heads, head_dim)
        k_BTKH = split_heads(x @ p[block + "attention.W_k.weight"].T, n_kv_heads, head_dim)
        v_BTKH = split_heads(x @ p[block + "attention.W_v.weight"].T, n_kv_heads, head_dim)
        with_norm = [block + f"attention.{name}_norm.weight" in p for name in "qk"]
        if with_norm[0] != with_norm[1]:
            raise ValueError(f"{block}attention has {with_norm} as (q_norm, k_norm), expected both or neither")
        if all(with_norm):
            q_BTNH = rms_norm(q_BTNH, p[block + "attention.q_norm.weight"])
            k_BTKH = rms_norm(k_BTKH, p[block + "attention.k_norm.weight"])
        q_BTNH, k_BTKH = rope(q_BTNH, positions_BT, rope_theta), rope(k_BTKH, positions_BT, rope_theta)
        heads_BTNH = causal_heads(q_BTNH, k_BTKH, v_BTKH, 1.0 / np.sqrt(head_dim))
        attention = heads_BTNH.reshape(*tokens.shape, n_heads * head_dim) @ p[block + "attention.W_O.weight"].T
        h = h + gains["residual"] * attention
        hs.append(h)

        x = rms_norm(h, p[block + "norm_M.weight"])
        gated = silu(x @ p[block + "mlp.W_nu.weight"].T) * (x @ p[block + "mlp.W_u.weight"].T)
        mlp = gated @ p[block + "mlp.W_oMLP.weight"].T
        h = h + gains["residual"] * mlp
        hs.append(h)
        attentions.append(attention)
        mlps.append(mlp)

    logits = gains["logit"] * (rms_norm(h, p["norm_out.weight"]) @ p["E_out.weight"].T)
    return BaselineForward(h=hs, attention=attentions, mlp=mlps, logits=logits)


def loss(
    params: Mapping[str, Array],
    gains: Mapping[str, float],
    tokens: NDArray[np.int64],
    targets: NDArray[np.int64],
    **shape: Any,
) -> float:
    """The mean cross-entropy of the forward pass; `shape` holds forward's keyword arguments."""
    return cross_entropy(forward(params, gains, tokens, **shape)["logits"], targets)
