"""The lemmas of the paper's appendix as numbers: sizes at the start in closed form, and what depth does to updates.

At the start every matrix is independent of what it multiplies, so each lemma's Θ has a constant that can be worked out.
Embeddings here have their rows made independent by a vocabulary much larger than the width.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nugpt.core.decoder import Decoder
from nugpt.core.init import build, gains, initialize_
from nugpt.core.sphere import norm
from nugpt.core.transformer import Block, Gains
from nugpt.spec import Base, Extent, ModelConfig, Resolved, parametrization, resolve

HEAD_DIM, VOCAB, TOKENS, LAYERS = 12, 2048, 64, 2
HEADS = (4, 8, 32)
BASE = Base.of(Extent(d_model=48, head_dim=HEAD_DIM, n_layers=LAYERS, steps=10, batch_tokens=TOKENS))
# A mean square of k independent normal numbers is off by √(2/k). Here k is at least 2048 (the rows of E_out, or d_model
# numbers of 64 tokens that share their matrices), so 3 % of the square; three of these, as a root.
SAMPLED = 0.05
# Quadrature of E[SiLU(g)²] for a standard normal g.
_g = np.linspace(-12, 12, 200_001)
SILU_SQUARED = float(np.trapezoid((_g / (1 + np.exp(-_g))) ** 2 * np.exp(-(_g**2) / 2), _g) / math.sqrt(2 * math.pi))


def at_start(table: str, heads: int, head_dim: int = HEAD_DIM) -> tuple[Decoder, Gains, Resolved]:
    config = ModelConfig(LAYERS, heads, head_dim, VOCAB, TOKENS)
    base = Base.of(Extent(4 * head_dim, head_dim, LAYERS, 10, TOKENS))
    resolved = resolve(parametrization(table), base, Extent.of(config, 10, 1), 0.01)
    model = build(config)
    initialize_(model, 0, resolved, config.roles)
    return model, gains(model, resolved), resolved


def text() -> Tensor:
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:TOKENS].unsqueeze(0)


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def seen(model: Decoder, factors: Gains, module: nn.Module) -> Tensor:
    """What a module of the model makes of the text."""
    found: list[Tensor] = []
    handle = module.register_forward_hook(lambda _module, _given, made: found.append(made))
    with torch.no_grad():
        model(text(), factors)
    handle.remove()
    return found[0]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("table", ["ngpt", "depth-mup", "completep", "nugpt", "nugpt-full-align"])
def test_logits_at_the_start(table: str, heads: int) -> None:
    """Both lemmas on logits: d_model^(−1/2) in μP and nGPT (15), the base's own size at every width in νGPT (13)."""
    model, factors, _ = at_start(table, heads)
    with torch.no_grad():
        size = rms(model.logits(model(text(), factors), factors))
    width = BASE.extent.d_model if table.startswith("nugpt") else heads * HEAD_DIM
    assert size == pytest.approx(width**-0.5, rel=SAMPLED)


@pytest.mark.parametrize("heads", HEADS)
def test_the_input_is_a_unit_vector(heads: int) -> None:
    model, _, _ = at_start("nugpt", heads)
    with torch.no_grad():
        torch.testing.assert_close(model.E_in(text()).norm(dim=-1), torch.ones(1, TOKENS))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("table", ["ngpt", "nugpt"])
def test_the_mlp_at_the_start(table: str, heads: int) -> None:
    """Lemma on the MLP: components are Θ(d_model^(−1/2)).

    ν is standard normal and u normal of size d_model^(−1/2); W_oMLP's numbers have that size as well, and there are 8/3
    d_model of them in a row. So the constant is √(8/3·E[SiLU²]).
    """
    model, factors, _ = at_start(table, heads)
    block = model.blocks[0]
    assert isinstance(block, Block)
    size = rms(seen(model, factors, block.mlp)) * (heads * HEAD_DIM) ** 0.5
    assert size == pytest.approx((8 / 3 * SILU_SQUARED) ** 0.5, rel=0.1 if heads == 4 else SAMPLED)  # 48 numbers wide


@pytest.mark.parametrize("heads", HEADS)
def test_attention_at_the_start(heads: int) -> None:
    """Lemma on attention: components are Θ(d_model^(−1/2)); of a first token, which sees itself alone, just that."""
    model, factors, _ = at_start("nugpt", heads)
    block = model.blocks[0]
    assert isinstance(block, Block)
    outputs = []
    for start in range(TOKENS):  # each token as the first of its text
        with torch.no_grad():
            h = model.E_in(text()[:, start : start + 1])
            outputs.append(block.attention.W_O(block.attention.W_v(h)))
    first = seen(model, factors, block.attention)[:, :1]
    torch.testing.assert_close(first, outputs[0], rtol=1e-5, atol=1e-6)  # softmax over one token leaves its value
    assert rms(torch.cat(outputs)) == pytest.approx((heads * HEAD_DIM) ** -0.5, rel=SAMPLED)


@pytest.mark.parametrize("head_dim", [12, 48])
@pytest.mark.parametrize("table", ["ngpt", "nugpt"])
def test_scores_at_the_start(table: str, head_dim: int) -> None:
    """√d_key q'ᵀk' is 1 on average whatever d_key is, and never beyond √d_key: q' and k' have length s_qk,init = 1."""
    model, factors, _ = at_start(table, 8, head_dim)
    block = model.blocks[0]
    assert isinstance(block, Block)
    given: list[tuple[Tensor, Tensor, float]] = []
    inner = block.attention.attention

    def spy(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
        given.append((q, k, scale))
        return inner(q, k, v, scale, mask)

    block.attention.attention = spy
    with torch.no_grad():
        model(text(), factors)
    q_BTNH, k_BTNH, scale = given[0]
    scores = scale * torch.einsum("btnh,bsnh->bnts", q_BTNH, k_BTNH)
    assert rms(scores) == pytest.approx(1.0, rel=0.1)  # 8 heads of 64 queries and keys: 512 vectors of either
    assert float(scores.abs().max()) <= head_dim**0.5 * (1 + 1e-5)
    assert rms(q_BTNH) == pytest.approx(head_dim**-0.5, rel=1e-5)
    assert rms(k_BTNH) == pytest.approx(head_dim**-0.5, rel=1e-5)


@pytest.mark.parametrize("table", ["ngpt", "depth-mup", "completep", "nugpt"])
def test_what_a_branch_adds_at_the_start(table: str) -> None:
    """Lemma on LERP: α̂_A ⊙ h_A has components of size α_A,init·d_model^(−1/2), so the length α_A,init."""
    model, factors, resolved = at_start(table, 8)
    block = model.blocks[0]
    assert isinstance(block, Block)
    branch = norm(seen(model, factors, block.attention))
    with torch.no_grad():
        added = block.alpha_A(factors.alpha_A) * branch
    init = resolved["alpha_A"].init
    assert init is not None
    torch.testing.assert_close(added.norm(dim=-1), torch.full((1, TOKENS), init), rtol=1e-5, atol=0)


def test_the_derivative_of_norm() -> None:
    """(19): along b it has the length ‖(I − aaᵀ/‖a‖²)b‖/‖a‖, at most ‖b‖/‖a‖."""
    a, b = torch.randn(2, 40, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, moved = torch.func.jvp(norm, (a,), (b,))
    lengths = a.norm(dim=-1)
    across = b - a * ((a * b).sum(-1) / lengths**2).unsqueeze(-1)
    torch.testing.assert_close(moved.norm(dim=-1), across.norm(dim=-1) / lengths)
    assert (moved.norm(dim=-1) <= b.norm(dim=-1) / lengths).all()


# ── The simple normalised network of the appendix on depth ───────────────────────────────────────────────────────────


def simple_network(h_N: Tensor, weights: list[Tensor], step: float) -> Tensor:
    """h ← Norm((1 − L^(−α))·h + L^(−α)·Norm(W h)), with L^(−α) given as `step`."""
    for W in weights:
        h_N = norm((1 - step) * h_N + step * norm(W @ h_N))
    return h_N


SEEDS = 16


def drawn(width: int, layers: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(layers, width, width, generator=generator, dtype=torch.float64)
    h = norm(torch.randn(width, generator=generator, dtype=torch.float64))
    return h, [norm(W) for W in numbers[1:]]  # L states have L − 1 matrices between them


@pytest.mark.parametrize("depth_alpha", [0.5, 1.0])
def test_the_jacobian_stays_of_size_root_n(depth_alpha: float) -> None:
    """E‖∂h^L/∂h^1‖_F is √N at any depth, up to what the proof allows."""
    width = 64
    for layers in (4, 16, 64):
        sizes = []
        for seed in range(SEEDS):
            h, weights = drawn(width, layers, seed)

            def last(h: Tensor, weights: list[Tensor] = weights, step: float = layers**-depth_alpha) -> Tensor:
                return simple_network(h, weights, step)

            sizes.append(float(torch.func.jacrev(last)(h).norm()) / width**0.5)
        # The proof's factor for each of L layers is about 1 + 4·L^(−2α)/N: of all of them exp(4/N) at α = 1/2. And
        # three standard errors.
        slack = math.expm1(4 / width) + 3 * float(np.std(sizes)) / SEEDS**0.5
        assert np.mean(sizes) == pytest.approx(1.0, abs=slack)


@pytest.mark.parametrize("depth_alpha", [0.5, 0.75, 1.0])
def test_the_hidden_learning_rate_over_depth(depth_alpha: float) -> None:
    """(11): what all layers' signGD steps of size η do to the last state together goes as η·L^(1 − α)·N.

    So η_hidden ∝ L^(α − 1)·N^(−1) leaves it where it is. It is taken along the direction that the steps are made for,
    where no two layers cancel: there the change to first order is η times the sum of the gradient's absolute values.
    """

    def change(width: int, layers: int) -> float:
        sums = []
        for seed in range(SEEDS):
            h, weights = drawn(width, layers, seed)
            leaves = [W.requires_grad_() for W in weights]
            along = torch.randn(width, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)
            value = norm(along) @ simple_network(h, leaves, layers**-depth_alpha)
            sums.append(sum(float(g.abs().sum()) for g in torch.autograd.grad(value, leaves)))
        return float(np.mean(sums))

    depths, widths = (16, 32, 64, 128), (16, 32, 64, 128)
    over_depth = np.polyfit(np.log2([n - 1 for n in depths]), np.log2([change(32, n) for n in depths]), 1)[0]
    over_width = np.polyfit(np.log2(widths), np.log2([change(n, 32) for n in widths]), 1)[0]
    # Networks of a size differ by up to 0.3 of their mean, so a mean is known to 0.1 octaves, and a slope over four
    # sizes an octave apart to 0.05.
    assert over_depth == pytest.approx(1 - depth_alpha, abs=0.1)
    assert over_width == pytest.approx(1.0, abs=0.1)
