"""The normalised transformer in float64 NumPy, written from the paper's equations alone, as a truth to compare with.

Shapes: B batch, T time, D d_model, N query heads, K key-value heads, H d_key (head dimension), F d_MLP, V vocabulary.
Weights are stored as PyTorch stores them, (out, in).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Params = dict[str, Array]
Gradients = Callable[[Params, int], Mapping[str, Array]]

GAINS = ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z")

# The storage axis that has d_model components: the unit vectors lie along it.
SPHERE_AXIS = {
    "E_in": 1,
    "E_out": 1,
    "W_q": 1,
    "W_k": 1,
    "W_v": 1,
    "W_O": 0,
    "W_u": 1,
    "W_nu": 1,
    "W_oMLP": 0,
}


class Forward(TypedDict):
    """What the forward pass computes."""

    h: list[Array]  # 2·blocks + 1 of (B, T, D): h[2i] enters block i, h[2i + 1] is its half-way state, h[-1] the last
    blocks: list[dict[str, Array]]  # per block: attention_branch's and mlp_branch's values, h_A and h_M (B, T, D)
    logits: Array  # (B, T, V)


def norm(y: Array, axis: int = -1) -> Array:
    """Norm(y) = y / ‖y‖₂ along an axis, undefined for a zero vector."""
    length = np.sqrt(np.sum(y * y, axis=axis, keepdims=True))
    if not np.all(length > 0):
        raise ValueError(f"Norm needs vectors of positive length, got a smallest length of {length.min()}")
    unit: Array = y / length
    return unit


def silu(y: Array) -> Array:
    """SiLU(y) = y·σ(y), the sigmoid by way of tanh so that no exponential overflows."""
    return y * 0.5 * (1.0 + np.tanh(0.5 * y))


def rope(x_BTNH: Array, positions_BT: NDArray[np.int64], theta: float) -> Array:
    """Rotate the pair (i, i + H/2) by the angle position·theta^(−2i/H)."""
    head_dim = x_BTNH.shape[-1]
    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}, rotation of pairs needs an even number")
    half = head_dim // 2
    rotated = np.empty_like(x_BTNH)
    for i in range(half):
        angle_BT1 = (positions_BT * theta ** (-2.0 * i / head_dim))[:, :, None]
        x1, x2 = x_BTNH[..., i], x_BTNH[..., i + half]
        rotated[..., i] = x1 * np.cos(angle_BT1) - x2 * np.sin(angle_BT1)
        rotated[..., i + half] = x1 * np.sin(angle_BT1) + x2 * np.cos(angle_BT1)
    return rotated


def causal_heads(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, scale: float) -> Array:
    """Head_n = Σ_{m ≤ n} softmax_m(scale·q_n·k_m) v_m, query head j reading key-value head j // (N/K)."""
    batch, time, n_heads, _ = q_BTNH.shape
    group = n_heads // k_BTKH.shape[2]
    heads_BTNH = np.empty_like(q_BTNH)
    for b in range(batch):
        for j in range(n_heads):
            for n in range(time):
                k_seen, v_seen = k_BTKH[b, : n + 1, j // group], v_BTKH[b, : n + 1, j // group]
                scores = scale * (k_seen @ q_BTNH[b, n, j])
                weights = np.exp(scores - scores.max())  # a common factor cancels in the quotient
                heads_BTNH[b, n, j] = (weights / weights.sum()) @ v_seen
    return heads_BTNH


def split_heads(y_BTX: Array, n_heads: int, head_dim: int) -> Array:
    """Head j is the components j·head_dim … (j + 1)·head_dim."""
    if y_BTX.shape[-1] != n_heads * head_dim:
        raise ValueError(f"a projection has {y_BTX.shape[-1]} outputs, {n_heads} heads of {head_dim} need another size")
    return y_BTX.reshape(*y_BTX.shape[:2], n_heads, head_dim)


def count_blocks(params: Mapping[str, Array]) -> int:
    """The number of blocks the names speak of, which must be numbered from 0 without a hole."""
    found = {int(match[1]) for match in (re.match(r"blocks\.(\d+)\.", name) for name in params) if match}
    if found != set(range(len(found))):
        raise ValueError(f"blocks are numbered {sorted(found)}, expected 0 to {len(found) - 1}")
    return len(found)


def check_inputs(
    gains: Mapping[str, float],
    names: tuple[str, ...],
    tokens: NDArray[np.int64],
    vocabulary: int,
    n_heads: int,
    n_kv_heads: int,
) -> None:
    """Refuse what NumPy would take in silence: missing gains, negative ids, heads that do not divide."""
    if set(gains) != set(names):
        raise ValueError(f"gains are {sorted(gains)}, expected {sorted(names)}")
    if tokens.ndim != 2:
        raise ValueError(f"tokens have shape {tokens.shape}, expected (B, T)")
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ValueError(f"tokens range from {tokens.min()} to {tokens.max()}, expected 0 to {vocabulary - 1}")
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads {n_heads} is not a multiple of n_kv_heads {n_kv_heads}")


def positions_of(tokens: NDArray[np.int64], positions: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Positions as (B, T): the given ones, (T,) or (B, T), or 0, 1, 2, …; causality goes by index, not by these."""
    if positions is None:
        positions = np.arange(tokens.shape[1])
    return np.broadcast_to(np.asarray(positions), tokens.shape)


def attention_branch(
    p: Mapping[str, Array],
    s_qk_KH: Array,
    h: Array,
    positions_BT: NDArray[np.int64],
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    rope_theta: float,
) -> dict[str, Array]:
    """q' (B, T, N, H), k' and v (B, T, K, H), the heads' outputs (B, T, N, H) and W_O's, `attention` (B, T, D)."""
    if s_qk_KH.shape != (n_kv_heads, head_dim):
        raise ValueError(f"s_qk has shape {s_qk_KH.shape}, expected {(n_kv_heads, head_dim)}")
    s_of_queries_NH = np.repeat(s_qk_KH, n_heads // n_kv_heads, axis=0)  # row j is the one of j's group
    q_BTNH = rope(split_heads(h @ p["W_q.weight"].T, n_heads, head_dim), positions_BT, rope_theta)
    q_BTNH = norm(q_BTNH) * s_of_queries_NH  # (6)
    k_BTKH = rope(split_heads(h @ p["W_k.weight"].T, n_kv_heads, head_dim), positions_BT, rope_theta)
    k_BTKH = norm(k_BTKH) * s_qk_KH  # (7)
    v_BTKH = split_heads(h @ p["W_v.weight"].T, n_kv_heads, head_dim)  # (8)
    heads_BTNH = causal_heads(q_BTNH, k_BTKH, v_BTKH, np.sqrt(head_dim))
    attention = heads_BTNH.reshape(*h.shape[:2], n_heads * head_dim) @ p["W_O.weight"].T  # (9)
    return {"q": q_BTNH, "k": k_BTKH, "v": v_BTKH, "heads": heads_BTNH, "attention": attention}


def mlp_branch(p: Mapping[str, Array], s_u: Array, s_nu: Array, h: Array) -> dict[str, Array]:
    """u and ν (B, T, F), and `mlp` (B, T, D) = W_oMLP(SiLU(ν) ⊙ u)."""
    d_model = h.shape[-1]
    u = (h @ p["W_u.weight"].T) * s_u
    nu = (h @ p["W_nu.weight"].T) * s_nu * np.sqrt(d_model)
    return {"u": u, "nu": nu, "mlp": (silu(nu) * u) @ p["W_oMLP.weight"].T}


def _under(p: Mapping[str, Array], prefix: str) -> Params:
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


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
) -> Forward:
    """The normalised transformer from token ids (B, T) to logits (B, T, V), keeping what it meets on the way."""
    p = {name: np.asarray(value, dtype=np.float64) for name, value in params.items()}
    tokens = np.asarray(tokens)
    check_inputs(gains, GAINS, tokens, p["E_in.weight"].shape[0], n_heads, n_kv_heads)
    positions_BT = positions_of(tokens, positions)

    h = p["E_in.weight"][tokens]  # h¹ = E_in x; a row as it is stored
    hs, blocks = [h], []
    for i in range(count_blocks(p)):
        block = _under(p, f"blocks.{i}.")
        # nonnegative: the absolute value of the scaled vector
        alpha_A = np.abs(gains["alpha_A"] * block["alpha_A.stored"])
        alpha_M = np.abs(gains["alpha_M"] * block["alpha_M.stored"])
        s_qk_KH = gains["s_qk"] * block["attention.s_qk.stored"]
        s_u, s_nu = gains["s_u"] * block["mlp.s_u.stored"], gains["s_nu"] * block["mlp.s_nu.stored"]

        attended = attention_branch(
            _under(block, "attention."),
            s_qk_KH,
            h,
            positions_BT,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            rope_theta=rope_theta,
        )
        h_A = norm(attended["attention"])  # (1)
        h = norm(h + alpha_A * (h_A - h))  # (2)
        hs.append(h)

        fed = mlp_branch(_under(block, "mlp."), s_u, s_nu, h)
        h_M = norm(fed["mlp"])  # (3)
        h = norm(h + alpha_M * (h_M - h))  # (4)
        hs.append(h)
        blocks.append(attended | fed | {"h_A": h_A, "h_M": h_M})

    logits = gains["s_z"] * p["s_z.stored"] * (h @ p["E_out.weight"].T)  # (5)
    return Forward(h=hs, blocks=blocks, logits=logits)


def cross_entropy(logits: Array, targets: NDArray[np.int64]) -> float:
    """The mean over all tokens of log Σ exp(z) − z_target."""
    largest = logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]
    chosen = np.take_along_axis(logits, np.asarray(targets)[..., None], axis=-1)[..., 0]
    return float(np.mean(log_sum - chosen))


def loss(
    params: Mapping[str, Array],
    gains: Mapping[str, float],
    tokens: NDArray[np.int64],
    targets: NDArray[np.int64],
    **shape: Any,
) -> float:
    """The mean cross-entropy of the forward pass; `shape` holds forward's keyword arguments."""
    return cross_entropy(forward(params, gains, tokens, **shape)["logits"], targets)


def retract(params: Mapping[str, Array]) -> Params:
    """Unit vectors along d_model in every matrix; rescalers pass unchanged."""
    return {name: _on_sphere(name, np.asarray(value, dtype=np.float64)) for name, value in params.items()}


def _on_sphere(name: str, value: Array) -> Array:
    if name.endswith(".stored"):
        return value.copy()
    matrix = name.removesuffix(".weight").rpartition(".")[2]
    if matrix not in SPHERE_AXIS:
        raise ValueError(f"parameter {name!r} is unknown, expected a rescaler or one of {sorted(SPHERE_AXIS)}")
    return norm(value, axis=SPHERE_AXIS[matrix])


def adam_retract_trajectory(
    params: Mapping[str, Array],
    grads_fn: Gradients,
    lrs_per_name: Mapping[str, float],
    steps: int,
    betas: tuple[float, float],
    eps: float,
) -> list[Params]:
    """The parameters before and after each of `steps` steps of Adam and retraction, gradients from grads_fn(params, t).

    w(t+1) = w(t) − η m̂ / (√v̂ + ε), the first parameters taken as they are given.
    """
    beta_1, beta_2 = betas
    now = {name: np.array(value, dtype=np.float64) for name, value in params.items()}
    if set(lrs_per_name) != set(now):
        raise ValueError(f"learning rates name {sorted(lrs_per_name)}, expected {sorted(now)}")
    m = {name: np.zeros_like(value) for name, value in now.items()}
    v = {name: np.zeros_like(value) for name, value in now.items()}
    trajectory = [now]
    for t in range(steps):
        gradients = grads_fn(now, t)
        moved = {}
        for name, w in now.items():
            g = np.asarray(gradients[name], dtype=np.float64)
            m[name] = beta_1 * m[name] + (1.0 - beta_1) * g
            v[name] = beta_2 * v[name] + (1.0 - beta_2) * g * g
            m_hat = m[name] / (1.0 - beta_1 ** (t + 1))
            v_hat = v[name] / (1.0 - beta_2 ** (t + 1))
            moved[name] = w - lrs_per_name[name] * m_hat / (np.sqrt(v_hat) + eps)
        now = retract(moved)
        trajectory.append(now)
    return trajectory


def gradient_by_differences(
    f: Callable[[Params], float], params: Mapping[str, Array], name: str, index: tuple[int, ...], step: float
) -> float:
    """∂f/∂params[name][index] by the central difference (f(+step) − f(−step)) / (2·step)."""
    values = []
    for sign in (1.0, -1.0):
        shifted = {key: np.array(value, dtype=np.float64) for key, value in params.items()}
        shifted[name][index] += sign * step
        values.append(f(shifted))
    return (values[0] - values[1]) / (2.0 * step)
