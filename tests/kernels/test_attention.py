"""Three attentions with one meaning: values and gradients against a definition in a loop, odd shapes, each dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.paper import reference
from torch import Tensor

from nugpt.kernels.attention import ATTENTIONS, attention_named

# (B, T, N, K, H): head dimensions that are no multiple of 8, among them the paper's 102; groups; single tokens
SHAPES = [(2, 5, 2, 2, 8), (1, 7, 3, 3, 6), (2, 4, 4, 2, 102), (3, 1, 6, 1, 10), (1, 33, 6, 3, 2), (2, 70, 2, 1, 48)]
# Against a float64 truth: values of order 1 after two products of sums over up to 70 keys.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 2e-2}
each_kernel = pytest.mark.parametrize("name", ATTENTIONS)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def draw(shape: tuple[int, ...], seed: int) -> list[Tensor]:
    """q, k, v and a gradient for the output, in float64."""
    B, T, N, K, H = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = [(B, T, N, H), (B, T, K, H), (B, T, K, H), (B, T, N, H)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def values_and_gradients(name: str, tensors: list[Tensor], scale: float, mask: Tensor | None = None) -> list[Tensor]:
    q, k, v = (x.detach().clone().requires_grad_() for x in tensors[:3])
    o = attention_named(name)(q, k, v, scale, mask)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), tensors[3])]


@each_kernel
@each_shape
@pytest.mark.parametrize("scale", [0.1, 2.5])
def test_values_are_the_definitions(name: str, shape: tuple[int, ...], scale: float) -> None:
    q, k, v, _ = draw(shape, 0)
    truth = reference.causal_heads(q.numpy(), k.numpy(), v.numpy(), scale)
    ours = attention_named(name)(q, k, v, scale, None)
    np.testing.assert_allclose(ours.numpy(), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sdpa", "folded"])
@each_shape
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_and_gradients_are_the_plain_ones(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = draw(shape, 1)
    truth = values_and_gradients("plain", tensors, 0.8)
    ours = values_and_gradients(name, [x.to(dtype) for x in tensors], 0.8)
    for mine, theirs in zip(ours, truth, strict=True):
        assert mine.dtype == dtype
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=10 * TOLERANCE[dtype])


@each_kernel
def test_bfloat16(name: str) -> None:
    tensors = [x.bfloat16() for x in draw((2, 9, 4, 2, 102), 2)]
    truth = values_and_gradients("plain", [x.double() for x in tensors], 0.3)
    ours = values_and_gradients(name, tensors, 0.3)
    for mine, theirs in zip(ours, truth, strict=True):
        assert mine.dtype == torch.bfloat16
        # weights and outputs are rounded to 2^-8 on the way; gradients of k and v sum over groups and queries
        assert ((mine.double() - theirs).norm() / theirs.norm()).item() < TOLERANCE[torch.bfloat16]


def test_the_softmax_of_bfloat16_scores_is_taken_in_float32() -> None:
    # Whole scores below 256 are exact in bfloat16; times 0.3 they are not, and e^score makes 2^-8 of 75 a third.
    T = 8
    q = torch.ones(1, T, 1, 1, dtype=torch.bfloat16)
    k = torch.arange(250 - T, 250, dtype=torch.bfloat16).view(1, T, 1, 1)
    v = torch.eye(T, dtype=torch.bfloat16).view(1, T, 1, T)  # the output is the weights
    ours = ATTENTIONS["plain"](q, k, v, 0.3, None)[0, :, 0]
    scores = 0.3 * k.double().view(1, T).expand(T, T)
    exact = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8 * 1.01, atol=0)  # one rounding of each weight


def test_plain_gradients_by_finite_differences() -> None:
    q, k, v, _ = draw((1, 4, 2, 1, 3), 3)
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    assert torch.autograd.gradcheck(lambda q, k, v: ATTENTIONS["plain"](q, k, v, 1.3, None), inputs)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's SDPA on a CPU has no vmap rule: it loops
def test_under_vmap_equals_the_loop(name: str, dtype: torch.dtype) -> None:
    replicas = [[x.to(dtype) for x in draw((2, 6, 4, 2, 6), seed)] for seed in range(3)]
    stacked = [torch.stack(x) for x in zip(*replicas, strict=True)]
    q, k, v = (x.requires_grad_() for x in stacked[:3])
    attention = attention_named(name)
    together = torch.vmap(lambda q, k, v: attention(q, k, v, 1.7, None))(q, k, v)
    grads = torch.autograd.grad(together, (q, k, v), stacked[3])
    for r, tensors in enumerate(replicas):
        alone = values_and_gradients(name, tensors, 1.7)
        for mine, theirs in zip((together[r], *(g[r] for g in grads)), alone, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=10 * TOLERANCE[dtype])


@each_kernel
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_under_vmap_over_other_axes_and_shared_keys(name: str) -> None:
    q, k, v, _ = draw((3, 5, 4, 2, 6), 4)
    attention = attention_named(name)
    several = torch.stack([q, 2 * q, -q], dim=2)
    together = torch.vmap(lambda q: attention(q, k, v, 0.9, None), in_dims=2, out_dims=1)(several)
    for r, factor in enumerate((1, 2, -1)):
        torch.testing.assert_close(together[:, r], attention(factor * q, k, v, 0.9, None), rtol=0, atol=1e-12)


@each_kernel
def test_a_mask_names_what_may_be_seen(name: str) -> None:
    q, k, v, gradient = draw((2, 6, 4, 2, 10), 5)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    for mine, theirs in zip(
        values_and_gradients(name, [q, k, v, gradient], 0.7, causal),
        values_and_gradients("plain", [q, k, v, gradient], 0.7),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    # only itself: the output is the value, each group's
    alone = attention_named(name)(q, k, v, 0.7, torch.eye(6, dtype=torch.bool))
    torch.testing.assert_close(alone, v.repeat_interleave(2, dim=2), rtol=0, atol=1e-13)
    # fewer queries than keys, as with a cache
    last = attention_named(name)(q[:, 4:], k, v, 0.7, causal[4:])
    torch.testing.assert_close(last, attention_named(name)(q, k, v, 0.7, None)[:, 4:], rtol=0, atol=1e-12)


@each_kernel
def test_scores_far_beyond_the_exponentials_range(name: str) -> None:
    q, k, v, _ = draw((1, 5, 1, 1, 8), 6)
    sharp = attention_named(name)(q, k, v, 1e4, None)
    scores = (q[0, :, 0] @ k[0, :, 0].T).masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(sharp[0, :, 0], v[0, scores.argmax(-1), 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 5, 4, 2, 6), (1, 3, 2, 2, 8)], ids=str)
def test_the_custom_operator_keeps_torchs_rules(shape: tuple[int, ...]) -> None:
    q, k, v, _ = draw((shape[0], shape[1], shape[2], shape[2], shape[4]), 7)
    heads_first = tuple(x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v))
    torch.library.opcheck(torch.ops.nugpt.flash.default, (*heads_first, 0.8))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="attention is 'flash', but must be one of plain, sdpa, folded"):
        attention_named("flash")
