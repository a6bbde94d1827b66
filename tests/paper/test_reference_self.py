"""The NumPy references against cases worked by hand, closed forms, torch in float64 and properties they must have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.paper import reference, reference_baseline
from tests.paper.reference import Array, Params

# Two float64 computations of one formula, a few hundred operations of order 1 each: rounding stays far below this.
ROUNDING = 1e-12

SHAPE: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "rope_theta": 100.0}
D_MODEL, D_MLP, VOCABULARY, BLOCKS = 10, 14, 17, 2
GAINS = {"alpha_A": 1.7, "alpha_M": 0.6, "s_qk": 1.3, "s_u": 0.8, "s_nu": 1.1, "s_z": 4.0}
BASELINE_GAINS = {"residual": 0.7, "logit": 1.9}


def matrices(rng: np.random.Generator) -> Params:
    """Gaussian matrices of every role, queries wider than keys so that a swapped axis cannot pass."""
    queries, keys = SHAPE["n_heads"] * SHAPE["head_dim"], SHAPE["n_kv_heads"] * SHAPE["head_dim"]
    shapes = {"E_in": (VOCABULARY, D_MODEL), "E_out": (VOCABULARY, D_MODEL)}
    for i in range(BLOCKS):
        shapes |= {
            f"blocks.{i}.attention.W_q": (queries, D_MODEL),
            f"blocks.{i}.attention.W_k": (keys, D_MODEL),
            f"blocks.{i}.attention.W_v": (keys, D_MODEL),
            f"blocks.{i}.attention.W_O": (D_MODEL, queries),
            f"blocks.{i}.mlp.W_u": (D_MLP, D_MODEL),
            f"blocks.{i}.mlp.W_nu": (D_MLP, D_MODEL),
            f"blocks.{i}.mlp.W_oMLP": (D_MODEL, D_MLP),
        }
    return {f"{name}.weight": rng.standard_normal(shape) for name, shape in shapes.items()}


def normalised_model(seed: int = 0) -> Params:
    """A retracted model whose rescalers all differ, one sign among the alphas negative."""
    rng = np.random.default_rng(seed)
    params = reference.retract(matrices(rng))
    params["s_z.stored"] = rng.uniform(0.5, 1.5, VOCABULARY)
    for i in range(BLOCKS):
        params[f"blocks.{i}.attention.s_qk.stored"] = rng.uniform(0.5, 1.5, (SHAPE["n_kv_heads"], SHAPE["head_dim"]))
        params[f"blocks.{i}.mlp.s_u.stored"] = rng.uniform(0.5, 1.5, D_MLP)
        params[f"blocks.{i}.mlp.s_nu.stored"] = rng.uniform(0.5, 1.5, D_MLP)
        for name in ("alpha_A", "alpha_M"):
            params[f"blocks.{i}.{name}.stored"] = rng.uniform(0.1, 0.4, D_MODEL)
            params[f"blocks.{i}.{name}.stored"][i] *= -1.0
    return params


def baseline_model(*, qk_norm: bool, seed: int = 0) -> Params:
    """A pre-norm model of the same shape whose norm weights all differ."""
    rng = np.random.default_rng(seed)
    params = matrices(rng)
    sizes = {"norm_out": D_MODEL}
    for i in range(BLOCKS):
        sizes |= {f"blocks.{i}.norm_A": D_MODEL, f"blocks.{i}.norm_M": D_MODEL}
        if qk_norm:
            sizes |= {f"blocks.{i}.attention.{name}_norm": SHAPE["head_dim"] for name in "qk"}
    return params | {f"{name}.weight": rng.uniform(0.5, 1.5, size) for name, size in sizes.items()}


def token_batch(seed: int = 1, batch: int = 2, time: int = 5) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batch, time))


def test_one_token_by_hand() -> None:
    params = {
        "E_in.weight": np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]),
        "blocks.0.attention.W_q.weight": np.eye(2),
        "blocks.0.attention.W_k.weight": np.eye(2),
        "blocks.0.attention.W_v.weight": np.eye(2),
        "blocks.0.attention.W_O.weight": np.array([[0.0, 1.0], [1.0, 0.0]]),
        "blocks.0.attention.s_qk.stored": np.array([[2.0, 3.0]]),
        "blocks.0.alpha_A.stored": np.array([0.1, -0.1]),
        "blocks.0.mlp.W_u.weight": np.array([[1.0, 0.0], [0.6, 0.8]]),
        "blocks.0.mlp.W_nu.weight": np.array([[0.0, 1.0], [0.8, -0.6]]),
        "blocks.0.mlp.W_oMLP.weight": np.array([[1.0, 0.6], [0.0, 0.8]]),
        "blocks.0.mlp.s_u.stored": np.array([2.0, 1.0]),
        "blocks.0.mlp.s_nu.stored": np.array([2.0, 20.0]),
        "blocks.0.alpha_M.stored": np.array([0.5, 1.0]),
        "E_out.weight": np.array([[1.0, 0.0], [0.0, 1.0], [0.6, -0.8]]),
        "s_z.stored": np.array([1.0, 2.0, 3.0]),
    }
    gains = {"alpha_A": 5.0, "alpha_M": 0.5, "s_qk": 7.0, "s_u": 2.0, "s_nu": 0.5, "s_z": 10.0}
    out = reference.forward(params, gains, np.array([[1]]), n_heads=1, n_kv_heads=1, head_dim=2, rope_theta=1e4)

    # A lone token attends to itself with weight 1, whatever q and k are: its value (0.6, 0.8), swapped by W_O.
    assert out["blocks"][0]["attention"][0, 0] == pytest.approx([0.8, 0.6], abs=ROUNDING)
    # |5·(0.1, −0.1)| = (0.5, 0.5): half-way between (0.6, 0.8) and (0.8, 0.6), then to length 1.
    c = math.sqrt(0.5)
    assert out["h"][1][0, 0] == pytest.approx([c, c], abs=ROUNDING)
    # u = (c, 1.4c) ⊙ (4, 2); ν = (c, 0.2c) ⊙ (1, 10)·√2 = (1, 2).
    assert out["blocks"][0]["u"][0, 0] == pytest.approx([4.0 * c, 2.8 * c], abs=ROUNDING)
    assert out["blocks"][0]["nu"][0, 0] == pytest.approx([1.0, 2.0], abs=ROUNDING)
    first, second = 4.0 * c / (1.0 + math.exp(-1.0)), 2.0 * 2.8 * c / (1.0 + math.exp(-2.0))
    mlp = (first + 0.6 * second, 0.8 * second)
    assert out["blocks"][0]["mlp"][0, 0] == pytest.approx(mlp, abs=ROUNDING)
    # α̂_M = (0.25, 0.5), one component at a time.
    length = math.hypot(*mlp)
    x, y = c + 0.25 * (mlp[0] / length - c), c + 0.5 * (mlp[1] / length - c)
    h = (x / math.hypot(x, y), y / math.hypot(x, y))
    assert out["h"][2][0, 0] == pytest.approx(h, abs=ROUNDING)
    logits = (10.0 * h[0], 20.0 * h[1], 30.0 * (0.6 * h[0] - 0.8 * h[1]))
    assert out["logits"][0, 0] == pytest.approx(logits, abs=10 * ROUNDING)  # values of order 10


def test_two_tokens_attention_by_hand() -> None:
    """(6) and (7) rotate, normalise, rescale, in this order; the softmax scale is +√d_key; angle = position."""
    params = {
        "E_in.weight": np.eye(2),
        "blocks.0.attention.W_q.weight": 3.0 * np.eye(2),  # not unit vectors, so that q's Norm has work to do
        "blocks.0.attention.W_k.weight": 5.0 * np.eye(2),
        "blocks.0.attention.W_v.weight": np.eye(2),
        "blocks.0.attention.W_O.weight": np.eye(2),
        "blocks.0.attention.s_qk.stored": np.array([[1.0, 0.5]]),
        "blocks.0.alpha_A.stored": np.ones(2),
        "blocks.0.mlp.W_u.weight": np.eye(2),
        "blocks.0.mlp.W_nu.weight": np.eye(2),
        "blocks.0.mlp.W_oMLP.weight": np.eye(2),
        "blocks.0.mlp.s_u.stored": np.ones(2),
        "blocks.0.mlp.s_nu.stored": np.ones(2),
        "blocks.0.alpha_M.stored": np.zeros(2),
        "E_out.weight": np.eye(2),
        "s_z.stored": np.ones(2),
    }
    gains = dict.fromkeys(reference.GAINS, 1.0) | {"s_qk": 2.0}
    out = reference.forward(params, gains, np.array([[0, 1]]), n_heads=1, n_kv_heads=1, head_dim=2, rope_theta=1e4)

    # Token 0 keeps (1, 0); token 1, (0, 1), turns by one radian to (−sin 1, cos 1); both are scaled by (2, 1).
    assert out["blocks"][0]["q"][0, :, 0] == pytest.approx(
        np.array([[2.0, 0.0], [-2.0 * math.sin(1.0), math.cos(1.0)]]), abs=ROUNDING
    )
    assert out["blocks"][0]["k"] == pytest.approx(out["blocks"][0]["q"], abs=ROUNDING)
    to_0 = math.exp(math.sqrt(2.0) * -4.0 * math.sin(1.0))
    to_1 = math.exp(math.sqrt(2.0) * (4.0 * math.sin(1.0) ** 2 + math.cos(1.0) ** 2))
    expected = [[1.0, 0.0], [to_0 / (to_0 + to_1), to_1 / (to_0 + to_1)]]
    assert out["blocks"][0]["attention"][0] == pytest.approx(np.array(expected), abs=ROUNDING)


def test_rope_is_complex_multiplication() -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 1, 6))
    positions = np.array([[0, 1, 5, 12]])
    rotated = reference.rope(x, positions, 100.0)
    as_complex = x[..., :3] + 1j * x[..., 3:]
    angles = positions[0][:, None] * np.array([1.0, 100.0 ** (-1 / 3), 100.0 ** (-2 / 3)])
    turned = as_complex * np.exp(1j * angles)[None, :, None, :]
    assert rotated == pytest.approx(np.concatenate([turned.real, turned.imag], axis=-1), abs=ROUNDING)


def test_attention_is_torchs() -> None:
    out = reference.forward(normalised_model(), GAINS, token_batch(), **SHAPE)
    q, k, v = (torch.from_numpy(out["blocks"][1][name]).transpose(1, 2) for name in "qkv")
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)  # query heads 0, 1 share head 0; 2, 3 head 1
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=math.sqrt(6))
    assert out["blocks"][1]["heads"] == pytest.approx(heads.transpose(1, 2).numpy(), abs=ROUNDING)


def test_grouped_queries_are_repeated_key_value_heads() -> None:
    grouped = normalised_model()
    full = dict(grouped)
    for i in range(BLOCKS):
        for name in ("W_k", "W_v"):
            key = f"blocks.{i}.attention.{name}.weight"
            full[key] = np.repeat(grouped[key].reshape(2, 6, D_MODEL), 2, axis=0).reshape(24, D_MODEL)
        key = f"blocks.{i}.attention.s_qk.stored"
        full[key] = np.repeat(grouped[key], 2, axis=0)
    tokens = token_batch()
    few = reference.forward(grouped, GAINS, tokens, **SHAPE)["logits"]
    many = reference.forward(full, GAINS, tokens, **(SHAPE | {"n_kv_heads": 4}))["logits"]
    assert few == pytest.approx(many, abs=ROUNDING)


def test_the_future_does_not_reach_the_past() -> None:
    tokens = token_batch()
    changed = tokens.copy()
    changed[:, 3] = (changed[:, 3] + 1) % VOCABULARY
    pairs = [
        [reference.forward(normalised_model(), GAINS, ids, **SHAPE)["logits"] for ids in (tokens, changed)],
        [
            reference_baseline.forward(baseline_model(qk_norm=True), BASELINE_GAINS, ids, **SHAPE)["logits"]
            for ids in (tokens, changed)
        ],
    ]
    for before, after in pairs:
        # Not bitwise: a matrix product may sum a row differently when other rows change.
        assert after[:, :3] == pytest.approx(before[:, :3], abs=ROUNDING)
        assert np.all(np.abs(after[:, 3:] - before[:, 3:]).max(axis=-1) > 1e-3)


def test_only_differences_of_positions_matter_when_s_qk_is_equal_in_each_pair() -> None:
    """A rescaler after RoPE commutes with the rotation if, and in general only if, a pair's two components agree."""
    params = normalised_model()
    tokens = token_batch()

    def drift(model: Params) -> float:
        here, there = (
            reference.forward(model, GAINS, tokens, **SHAPE, positions=np.arange(5) + offset)["logits"]
            for offset in (0, 37)
        )
        return float(np.abs(here - there).max())

    paired = dict(params)
    for i in range(BLOCKS):
        key = f"blocks.{i}.attention.s_qk.stored"
        paired[key] = np.concatenate([params[key][:, :3], params[key][:, :3]], axis=-1)
    assert drift(paired) < ROUNDING
    assert drift(params) > 1e-4


@pytest.mark.parametrize("qk_norm", [False, True])
def test_only_differences_of_positions_matter_in_the_baseline(qk_norm: bool) -> None:
    params, tokens = baseline_model(qk_norm=qk_norm), token_batch()
    here, there = (
        reference_baseline.forward(params, BASELINE_GAINS, tokens, **SHAPE, positions=np.arange(5) + offset)["logits"]
        for offset in (0, 37)
    )
    assert there == pytest.approx(here, abs=100 * ROUNDING)  # unnormalised weights: hidden states reach about 100
    stretched = reference_baseline.forward(params, BASELINE_GAINS, tokens, **SHAPE, positions=2 * np.arange(5))
    assert np.abs(stretched["logits"] - here).max() > 1e-3


def test_every_hidden_state_is_a_unit_vector() -> None:
    out = reference.forward(normalised_model(), GAINS, token_batch(), **SHAPE)
    assert len(out["h"]) == 2 * BLOCKS + 1
    for state in [*out["h"], *(block[name] for block in out["blocks"] for name in ("h_A", "h_M"))]:
        assert state.shape == (2, 5, D_MODEL)
        assert np.linalg.norm(state, axis=-1) == pytest.approx(np.ones((2, 5)), abs=ROUNDING)


@pytest.mark.parametrize("name", reference.GAINS)
def test_only_gain_times_stored_matters(name: str) -> None:
    params = normalised_model()
    doubled = {key: value * 2.0 if key.endswith(f"{name}.stored") else value for key, value in params.items()}
    tokens = token_batch()
    logits = reference.forward(params, GAINS, tokens, **SHAPE)["logits"]
    # Exactly: a factor of two changes no significand.
    same = reference.forward(doubled, GAINS | {name: GAINS[name] / 2.0}, tokens, **SHAPE)["logits"]
    assert np.array_equal(same, logits)
    different = reference.forward(doubled, GAINS, tokens, **SHAPE)["logits"]
    # A common factor of s_u is a factor of the whole MLP, which (3) takes out; every other rescaler's size matters.
    assert (np.abs(different - logits).max() > 1e-3) == (name != "s_u")


@pytest.mark.parametrize("name", ["alpha_A", "alpha_M"])
def test_the_sign_of_alpha_does_not_matter(name: str) -> None:
    params, tokens = normalised_model(), token_batch()
    flipped = {key: -value if key.endswith(f"{name}.stored") else value for key, value in params.items()}
    before, after = (reference.forward(p, GAINS, tokens, **SHAPE)["logits"] for p in (params, flipped))
    assert np.array_equal(after, before)


def test_each_component_of_s_u_matters() -> None:
    params = normalised_model()
    changed = params | {"blocks.1.mlp.s_u.stored": params["blocks.1.mlp.s_u.stored"] * np.linspace(0.5, 2.0, D_MLP)}
    before, after = (reference.forward(p, GAINS, token_batch(), **SHAPE)["logits"] for p in (params, changed))
    assert np.abs(after - before).max() > 1e-3


def test_retract_normalises_along_d_model() -> None:
    rng = np.random.default_rng(0)
    raw = matrices(rng) | {"s_z.stored": rng.standard_normal(VOCABULARY)}
    done = reference.retract(raw)
    assert np.array_equal(done["s_z.stored"], raw["s_z.stored"])
    for name, value in done.items():
        if name == "s_z.stored":
            continue
        # The one axis of length d_model, which no other size of this model equals.
        axis = value.shape.index(D_MODEL)
        others = value.shape[1 - axis]
        assert np.linalg.norm(value, axis=axis) == pytest.approx(np.ones(others), abs=ROUNDING), name
        factors = raw[name] / value
        assert factors == pytest.approx(np.broadcast_to(factors.mean(axis, keepdims=True), factors.shape)), name
        assert np.all(factors > 0), name


def test_retract_refuses_an_unknown_parameter() -> None:
    with pytest.raises(ValueError, match=r"blocks\.0\.bias"):
        reference.retract({"blocks.0.bias": np.ones(3)})


def test_loss_is_torchs_cross_entropy() -> None:
    params, tokens, targets = normalised_model(), token_batch(), token_batch(seed=2)
    logits = reference.forward(params, GAINS, tokens, **SHAPE)["logits"]
    theirs = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).flatten(0, 1), torch.from_numpy(targets).flatten()
    )
    assert reference.loss(params, GAINS, tokens, targets, **SHAPE) == pytest.approx(theirs.item(), abs=ROUNDING)


def test_differences_give_the_closed_gradient_of_s_z() -> None:
    params, tokens, targets = normalised_model(), token_batch(), token_batch(seed=2)
    out = reference.forward(params, GAINS, tokens, **SHAPE)
    z_hat = out["h"][-1] @ params["E_out.weight"].T
    exponentials = np.exp(out["logits"])
    surplus = exponentials / exponentials.sum(axis=-1, keepdims=True) - np.eye(VOCABULARY)[targets]
    closed = GAINS["s_z"] * (surplus * z_hat).mean(axis=(0, 1))
    found = [
        reference.gradient_by_differences(
            lambda p: reference.loss(p, GAINS, tokens, targets, **SHAPE), params, "s_z.stored", (i,), 1e-5
        )
        for i in range(VOCABULARY)
    ]
    # Rounding 1e-16/1e-5 and curvature (1e-5)² are both below 1e-10.
    assert np.array(found) == pytest.approx(closed, abs=1e-9)


def test_adam_is_torchs_where_nothing_is_retracted() -> None:
    rng = np.random.default_rng(0)
    start = {"s_z.stored": rng.standard_normal(6), "blocks.0.alpha_A.stored": rng.standard_normal(6)}
    lrs = {"s_z.stored": 0.1, "blocks.0.alpha_A.stored": 0.02}
    pulls = rng.standard_normal((8, 6))
    # A large epsilon, so that its place outside the bias-corrected root shows.
    betas, eps, steps = (0.9, 0.95), 0.3, 8

    def gradients(params: Params, step: int) -> Params:
        return {name: params[name] ** 3 + pulls[step] for name in params}

    trajectory = reference.adam_retract_trajectory(start, gradients, lrs, steps, betas, eps)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    adam = torch.optim.Adam([{"params": [tensors[name]], "lr": lrs[name]} for name in start], betas=betas, eps=eps)
    assert len(trajectory) == steps + 1
    for step in range(steps):
        for tensor in tensors.values():
            tensor.grad = tensor.detach() ** 3 + torch.from_numpy(pulls[step])
        adam.step()
        for name, tensor in tensors.items():
            assert trajectory[step + 1][name] == pytest.approx(tensor.detach().numpy(), abs=ROUNDING)


def test_a_trajectory_ends_each_step_on_the_sphere() -> None:
    start = {"E_in.weight": np.array([[0.6, 0.8], [1.0, 0.0]])}
    trajectory = reference.adam_retract_trajectory(
        start,
        lambda params, step: {"E_in.weight": np.array([[2.0, -3.0], [0.0, 0.0]])},
        {"E_in.weight": 0.1},
        2,
        (0.9, 0.95),
        1e-16,
    )
    # A constant gradient makes Adam's step its sign: (0.6, 0.8) − 0.1·(1, −1); the untouched row stays.
    first = np.array([0.5, 0.9]) / math.hypot(0.5, 0.9)
    second = np.array([first[0] - 0.1, first[1] + 0.1]) / math.hypot(first[0] - 0.1, first[1] + 0.1)
    assert trajectory[1]["E_in.weight"] == pytest.approx(np.array([first, [1.0, 0.0]]), abs=ROUNDING)
    assert trajectory[2]["E_in.weight"] == pytest.approx(np.array([second, [1.0, 0.0]]), abs=ROUNDING)


def test_baseline_one_token_by_hand() -> None:
    params = {
        "E_in.weight": np.array([[3.0, 4.0]]),
        "blocks.0.norm_A.weight": np.array([2.0, 1.0]),
        "blocks.0.attention.W_q.weight": np.eye(2),
        "blocks.0.attention.W_k.weight": np.eye(2),
        "blocks.0.attention.W_v.weight": np.eye(2),
        "blocks.0.attention.W_O.weight": np.array([[0.0, 1.0], [1.0, 0.0]]),
        "blocks.0.norm_M.weight": np.array([1.0, 3.0]),
        "blocks.0.mlp.W_u.weight": np.array([[1.0, 0.0]]),
        "blocks.0.mlp.W_nu.weight": np.array([[0.0, 1.0]]),
        "blocks.0.mlp.W_oMLP.weight": np.array([[1.0], [2.0]]),
        "norm_out.weight": np.array([1.0, 0.5]),
        "E_out.weight": np.array([[1.0, 1.0]]),
    }
    gains = {"residual": 0.5, "logit": 3.0}
    out = reference_baseline.forward(
        params, gains, np.array([[0]]), n_heads=1, n_kv_heads=1, head_dim=2, rope_theta=1e4
    )

    def rms(x: float, y: float) -> float:
        return math.sqrt((x * x + y * y) / 2.0 + 1e-6)

    # mean((9, 16)) = 12.5; the value is the normed token, W_O swaps it.
    x, y = 3.0 + 0.5 * 4.0 / rms(3.0, 4.0), 4.0 + 0.5 * 2.0 * 3.0 / rms(3.0, 4.0)
    assert out["h"][1][0, 0] == pytest.approx([x, y], abs=ROUNDING)
    u, nu = x / rms(x, y), 3.0 * y / rms(x, y)
    gated = u * nu / (1.0 + math.exp(-nu))
    x, y = x + 0.5 * gated, y + 0.5 * 2.0 * gated
    assert out["h"][2][0, 0] == pytest.approx([x, y], abs=ROUNDING)
    assert out["logits"][0, 0, 0] == pytest.approx(3.0 * (x + 0.5 * y) / rms(x, y), abs=10 * ROUNDING)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_baseline_is_torchs(qk_norm: bool) -> None:
    """The whole baseline a second time, out of torch's own layers in float64."""
    params, tokens = baseline_model(qk_norm=qk_norm), token_batch()
    p = {name: torch.from_numpy(value) for name, value in params.items()}
    functional = torch.nn.functional
    positions, pairs = torch.arange(5, dtype=torch.float64), torch.arange(3, dtype=torch.float64)
    turn = torch.exp(1j * positions[:, None] * 100.0 ** (-pairs / 3))

    def normed(y: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(y, y.shape[-1:], p[name], eps=1e-6)

    def rotated(y: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(y[..., :3], y[..., 3:]) * turn[:, None]
        return torch.cat([turned.real, turned.imag], dim=-1)

    h = p["E_in.weight"][torch.from_numpy(tokens)]
    for i in range(BLOCKS):
        at, x = f"blocks.{i}.attention.", normed(h, f"blocks.{i}.norm_A.weight")
        q, k, v = (functional.linear(x, p[f"{at}W_{name}.weight"]).reshape(2, 5, -1, 6) for name in "qkv")
        if qk_norm:
            q, k = normed(q, at + "q_norm.weight"), normed(k, at + "k_norm.weight")
        q, k, v = rotated(q).transpose(1, 2), rotated(k).transpose(1, 2), v.transpose(1, 2)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        h = h + 0.7 * functional.linear(heads.transpose(1, 2).flatten(-2), p[at + "W_O.weight"])
        x = normed(h, f"blocks.{i}.norm_M.weight")
        W_u, W_nu, W_oMLP = (p[f"blocks.{i}.mlp.{name}.weight"] for name in ("W_u", "W_nu", "W_oMLP"))
        h = h + 0.7 * (functional.silu(x @ W_nu.T) * (x @ W_u.T)) @ W_oMLP.T
    logits: Array = (1.9 * functional.linear(normed(h, "norm_out.weight"), p["E_out.weight"])).numpy()
    ours = reference_baseline.forward(params, BASELINE_GAINS, tokens, **SHAPE)["logits"]
    assert ours == pytest.approx(logits, abs=100 * ROUNDING)  # unnormalised weights: hidden states reach about 100
