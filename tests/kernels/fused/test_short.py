"""Attention of short sequences against its definition in float64: values, gradients, odd lengths, groups, any tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.fused.tensors import DEVICE, made
from torch import Tensor

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("mended_interpreter")]

# The interpreter has no products of bfloat16; float16 goes the same way, rounding probabilities before each product.
# On a GPU float32 is left to another kernel: its exact products would be slow.
DTYPES = [torch.bfloat16] if DEVICE == "cuda" else [torch.float32, torch.float16]
# float32: sums of a few hundred products; the others round probabilities and their gradients once, the result again.
BOUNDS = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}

Operands = tuple[Tensor, Tensor, Tensor, Tensor]


def operands(B: int, T: int, Q: int, K: int, W: int, dtype: torch.dtype) -> Operands:
    """Queries and keys side by side, values within a row of a q-k-v product, and the output's gradient."""
    turned, product = made(B, T, Q + K, W, dtype=dtype), made(B, T, Q + 2 * K, W, dtype=dtype, seed=1)
    return turned[:, :, :Q], turned[:, :, Q:], product[:, :, Q + K :], made(B, T, Q, W, dtype=dtype, seed=2)


def assert_attention(given: Operands, scale: float) -> None:
    """Output and gradients are those of the definition."""
    from nugpt.kernels.attention import plain
    from nugpt.kernels.fused.attention import attend, attend_backward

    q, k, v, g = given
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = plain(*exact, scale)
    true_grads = torch.autograd.grad(truth, exact, g.double())
    o, saved = attend("short", q, k, v, scale)
    assert o.is_contiguous()
    found = (o, *attend_backward("short", g, q, k, v, o, saved, scale))
    for name, x, t in zip("oqkv", found, (truth, *true_grads), strict=True):
        assert x.shape == t.shape
        assert x.dtype == q.dtype
        # One token has nothing to choose from: the gradients of its query and key are zero but for rounding.
        size = float(t.detach().norm()) if q.shape[1] > 1 or name in "ov" else float(g.double().norm())
        assert float((x.double() - t.detach()).norm()) < BOUNDS[q.dtype] * size, name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "queries", "keys", "width"),
    [(1, 2, 2, 8), (37, 2, 1, 24), (64, 2, 2, 48), (150, 1, 1, 48), (70, 4, 2, 64), (33, 1, 1, 104), (130, 1, 1, 128)],
)
def test_attention_and_its_gradient(tokens: int, queries: int, keys: int, width: int, dtype: torch.dtype) -> None:
    assert_attention(operands(2, tokens, queries, keys, width, dtype), 0.3)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (32, 16), (16, 32), (64, 16)])
def test_any_tiles_do(queries: int, keys: int, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import short

    for name, given in list(short.TILES.items()):
        monkeypatch.setitem(short.TILES, name, replace(given, queries=queries, keys=keys, split=split))
    for tokens in (64, 77):  # whole tiles, and a rest
        assert_attention(operands(1, tokens, 2, 1, 48, DTYPES[0]), 0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("tokens", "queries", "keys", "dim"), [(37, 4, 2, 6), (70, 2, 2, 48)])
def test_the_gradient_of_the_product_that_heads_came_from(
    tokens: int, queries: int, keys: int, dim: int, scaled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.core import sphere
    from nugpt.core.rope import rope_angles, rotate
    from nugpt.kernels.attention import plain
    from nugpt.kernels.fused import short
    from nugpt.kernels.fused.attention import attend, attend_turned_backward
    from nugpt.kernels.fused.heads import Heads, rotate_scale

    for name, given in list(short.TILES.items()):  # several tiles of each kind, turned back in several pieces
        monkeypatch.setitem(short.TILES, name, replace(given, queries=32, keys=64 if name == "keys" else 16, warps=2))
    R, B = 2, 2
    heads = Heads(queries, keys, dim, tokens)
    half, apart = dim // 2, heads.width // 2
    angles = rope_angles(torch.arange(tokens, device=DEVICE), dim, 100.0, torch.float32)
    turned, value = slice(0, queries + keys), slice(queries + keys, None)
    raw = made(R * B, tokens, queries + 2 * keys, dim, dtype=dtype)
    raw[[0, 1], [3, 5], [0, queries]] = 0  # a query and a key without a direction, which have no gradient
    x = torch.zeros(R * B, tokens, queries + 2 * keys, heads.width, device=DEVICE, dtype=dtype)
    x[:, :, turned, :half], x[:, :, turned, apart : apart + half] = raw[:, :, turned].split(half, -1)
    x[:, :, value, :dim] = raw[:, :, value]
    stored, gain = made(R, keys, dim, seed=1), torch.rand(R, device=DEVICE) + 0.5
    g = torch.zeros(R * B, tokens, queries, heads.width, device=DEVICE, dtype=dtype)
    g[..., :dim] = made(R * B, tokens, queries, dim, dtype=dtype, seed=2)

    raw64, stored64 = (y.double().requires_grad_() for y in (raw, stored))
    q64, k64, v64 = raw64.split((queries, keys, keys), 2)
    q64, k64 = rotate(q64, angles.double()), rotate(k64, angles.double())
    if scaled:
        s64 = (gain.double().view(-1, 1, 1) * stored64).repeat_interleave(B, 0).unsqueeze(1)
        q64 = sphere.norm(q64) * s64.repeat_interleave(queries // keys, 2)
        k64 = sphere.norm(k64) * s64
    truth = plain(q64, k64, v64, 0.7)
    leaves = (raw64, stored64) if scaled else (raw64,)
    true_grads = torch.autograd.grad(truth, leaves, g[..., :dim].double())

    x_RNC = x.view(R, B * tokens, heads.columns)
    around = (heads, stored if scaled else None, gain if scaled else None, *heads.turns(angles))
    q, k = rotate_scale(x_RNC, *around)
    o, saved = attend("short", q, k, heads.split(x_RNC)[2], 0.7)
    dx, d_stored = attend_turned_backward("short", g, q, k, x_RNC, o, saved, 0.7, *around)
    found = dx.view(x.shape)
    lying = torch.cat((found[:, :, turned, :half], found[:, :, turned, apart : apart + half]), -1)
    lying = torch.cat((lying, found[:, :, value, :dim]), 2)
    bound = 2 * BOUNDS[dtype]  # queries and keys are rounded once more
    assert float((lying.double() - true_grads[0]).norm()) < bound * float(true_grads[0].norm())
    assert float(found.double().norm()) == pytest.approx(float(lying.double().norm()))  # zeros in what pads heads
    assert (d_stored is not None) is scaled
    if d_stored is not None:
        assert d_stored.shape == stored.shape
        assert float((d_stored.double() - true_grads[1]).norm()) < bound * float(true_grads[1].norm())


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("width", range(8, 136, 8))
def test_parts_hold_every_column_once(width: int, split: bool) -> None:
    from nugpt.kernels.fused.short import parts

    padded, held, more = parts(width, split)
    assert held <= padded
    assert width - held <= more
    assert (more > 0) == (held < width)
    assert all(n in (0, 16, 32, 64, 128) for n in (padded, more))
    assert padded + more <= parts(width, False)[0]
    if split and width in (48, 40, 72, 80, 88, 96):
        assert padded + more < parts(width, False)[0]


def test_gradients_lie_as_the_heads_kernel_reads_them() -> None:
    from nugpt.kernels.fused.attention import attend, attend_backward

    q, k, v, g = operands(2, 20, 4, 2, 24, DTYPES[0])
    o, saved = attend("short", q, k, v, 0.3)
    grads = attend_backward("short", g, q, k, v, o, saved, 0.3)
    assert len({x.untyped_storage().data_ptr() for x in grads}) == 1
    for x in grads:
        assert x.stride() == (20 * 8 * 24, 8 * 24, 24, 1)


def test_operands_may_lie_anywhere() -> None:
    B, T, Q, W = 2, 21, 2, 16
    q, k, v, g = operands(B, T, Q, Q, W, DTYPES[0])
    by_head = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    odd = torch.nn.functional.pad(v, (1, 2))[..., 1:-2]  # neither strides nor beginning at a multiple of 16 bytes
    assert_attention((by_head[0], by_head[1], odd, g.transpose(0, 1).contiguous().transpose(0, 1)), 0.3)


def test_large_scores_do_not_overflow() -> None:
    from nugpt.kernels.fused.attention import attend, attend_backward

    q, k, v, g = operands(1, 40, 1, 1, 16, DTYPES[0])
    q.fill_(8.0)
    k.copy_(8.0 + torch.arange(40, device=DEVICE).view(1, -1, 1, 1))  # the last key's score is thousands above others
    o, saved = attend("short", q, k, v, 1.0)
    assert torch.equal(o, v)
    dq, dk, dv = attend_backward("short", g, q, k, v, o, saved, 1.0)
    assert torch.equal(dv, g)
    for x in (dq, dk):  # nothing to gain by another choice, up to how exact the output's inner products are
        assert float(x.norm()) < 1e-4 * float(k.norm() * g.norm() * v.norm())


def test_a_nan_stays_in_its_sequence() -> None:
    from nugpt.kernels.fused.attention import attend, attend_backward

    q, k, v, g = operands(3, 20, 2, 2, 16, DTYPES[0])

    def found() -> list[Tensor]:
        o, saved = attend("short", q, k, v, 0.3)
        return [o, *saved, *attend_backward("short", g, q, k, v, o, saved, 0.3)]

    clean = found()
    for x in (q, k, v, g):
        x[1, 3] = float("nan")
    for a, b in zip(clean, found(), strict=True):
        assert torch.equal(a[[0, 2]], b[[0, 2]])
        assert bool(b[1].isnan().any())


def test_the_same_operands_give_the_same_bits() -> None:
    from nugpt.kernels.fused.attention import attend, attend_backward

    q, k, v, g = operands(4, 100, 4, 2, 48, DTYPES[0])

    def found() -> list[Tensor]:
        o, saved = attend("short", q, k, v, 0.3)
        return [o, *attend_backward("short", g, q, k, v, o, saved, 0.3)]

    assert all(torch.equal(a, b) for a, b in zip(found(), found(), strict=True))


def test_only_short_sequences_of_narrow_heads_are_taken() -> None:
    from nugpt.kernels.fused.attention import candidates
    from nugpt.kernels.fused.heads import Heads

    cuda = torch.device("cuda")
    assert candidates(Heads(4, 2, 48, 512), torch.bfloat16, cuda, False) == ("short", "flash", "cudnn")
    assert candidates(Heads(4, 2, 128, 1024), torch.bfloat16, cuda, True) == ("short", "flash")  # no sum of it varies
    assert candidates(Heads(4, 2, 48, 4096), torch.bfloat16, cuda, False) == ("flash", "cudnn")
    assert candidates(Heads(4, 2, 136, 512), torch.bfloat16, cuda, False) == ("flash", "cudnn")
    assert candidates(Heads(4, 2, 48, 512), torch.float32, cuda, False) == ("efficient",)
    assert candidates(Heads(4, 2, 48, 512), torch.bfloat16, torch.device("cpu"), False) == ("host",)
