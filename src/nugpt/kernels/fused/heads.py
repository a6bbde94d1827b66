"""Rotation, Norm and s_qk of queries and keys in one pass over what the q-k-v product gave, equations (6) and (7).

Shapes: R replicas, N = B·T tokens, Q query heads, K key-value heads, H head dimension, W its width in memory (a
multiple of 8, the rest zeros), P programs. The product's columns are the Q query heads, the K key heads, the K value
heads. In queries and keys each half of a head is padded, so that both halves of the pairs that a rotation turns lie
aligned; in values the whole head is. Without `stored` the heads are only rotated (the plain transformer).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import inverse_length, walkers

STAGES = 1  # tiles whose loads are under way while one is worked on


@dataclass(frozen=True)
class Heads:
    """The layout of heads in a row of the q-k-v product."""

    queries: int
    keys: int
    dim: int
    tokens: int  # T: a row's position is its number modulo T

    @property
    def width(self) -> int:
        """Numbers between the beginnings of two heads: the dimension rounded up to what attention kernels want."""
        return self.dim + -self.dim % 8

    @property
    def columns(self) -> int:
        """Numbers in a row of the product."""
        return (self.queries + 2 * self.keys) * self.width

    def turns(self, angles_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's angles, in rows as long as half a head is wide."""
        padded = functional.pad(angles_TI, (0, self.width // 2 - angles_TI.shape[1]))
        return padded.cos(), padded.sin()

    def split(self, x_RNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as (R·B, T, heads, W) views of a product's rows."""
        R, N, _ = x_RNC.shape
        by_head = x_RNC.view(R * N // self.tokens, self.tokens, -1, self.width)
        return by_head.split((self.queries, self.keys, self.keys), dim=2)


@triton.jit
def _turned(first, second, cos, sin):
    return first * cos - second * sin, first * sin + second * cos


@triton.jit
def _pair(source, rows, half, mask, APART: tl.constexpr):
    at = rows[:, None] + half[None, :]
    first = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    return first, tl.load(source + at + APART, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _heads_forward(
    x,
    stored,
    gain,
    cos,
    sin,
    out,
    N,
    T,
    Q: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head, r = tl.program_id(1), tl.program_id(2)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    half = tl.arange(0, BLOCK)
    HALF: tl.constexpr = H // 2
    APART: tl.constexpr = W // 2
    inside = half < HALF
    mask = (rows < N)[:, None] & inside[None, :]
    angle = (rows % T)[:, None] * APART + half[None, :]
    c, s = tl.load(cos + angle, mask=mask, other=0.0), tl.load(sin + angle, mask=mask, other=0.0)
    row = r.to(tl.int64) * N + rows
    at = (row * ((Q + 2 * K) * W) + head * W)[:, None] + half[None, :]
    first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + at + APART, mask=mask, other=0.0).to(tl.float32)
    first, second = _turned(first, second, c, s)
    if SCALED:
        group = tl.where(head < Q, head // (Q // K), head - Q)
        vector = (r * K + group) * H + half
        g = tl.load(gain + r)
        inverse = inverse_length(tl.sum(first * first, 1) + tl.sum(second * second, 1))[:, None]
        first *= inverse * (g * tl.load(stored + vector, mask=inside, other=0.0))[None, :]
        second *= inverse * (g * tl.load(stored + vector + HALF, mask=inside, other=0.0))[None, :]
    to = (row * ((Q + K) * W) + head * W)[:, None] + half[None, :]
    wide = (rows < N)[:, None] & (half < APART)[None, :]  # what pads a half is zero by now
    tl.store(out + to, first.to(out.dtype.element_ty), mask=wide)
    tl.store(out + to + APART, second.to(out.dtype.element_ty), mask=wide)


@triton.jit(do_not_specialize=["P"])
def _heads_backward(
    x,
    stored,
    gain,
    cos,
    sin,
    dq,
    dk,
    dv,
    q_batch,
    q_token,
    q_head,
    k_batch,
    k_token,
    k_head,
    v_batch,
    v_token,
    v_head,
    dx,
    partial,
    N,
    T,
    P,
    Q: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    p, head, r = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    half = tl.arange(0, BLOCK)
    HALF: tl.constexpr = H // 2
    APART: tl.constexpr = W // 2
    inside = half < HALF
    d_first, d_second = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(p, tl.cdiv(N, ROWS), P, num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        mask = (rows < N)[:, None] & inside[None, :]
        wide = (rows < N)[:, None] & (half < APART)[None, :]
        row = r.to(tl.int64) * N + rows
        if head < Q:
            came = (row // T) * q_batch + (row % T) * q_token + head * q_head
            first, second = _pair(dq, came, half, mask, APART)
        elif head < Q + K:
            came = (row // T) * k_batch + (row % T) * k_token + (head - Q) * k_head
            first, second = _pair(dk, came, half, mask, APART)
        else:
            came = (row // T) * v_batch + (row % T) * v_token + (head - Q - K) * v_head
            first, second = _pair(dv, came, half, wide, APART)
        at = (row * ((Q + 2 * K) * W) + head * W)[:, None] + half[None, :]
        if head < Q + K:
            angle = (rows % T)[:, None] * APART + half[None, :]
            c, s = tl.load(cos + angle, mask=mask, other=0.0), tl.load(sin + angle, mask=mask, other=0.0)
            if SCALED:
                group = tl.where(head < Q, head // (Q // K), head - Q)
                vector = (r * K + group) * H + half
                g = tl.load(gain + r)
                x_first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
                x_second = tl.load(x + at + APART, mask=mask, other=0.0).to(tl.float32)
                y_first, y_second = _turned(x_first, x_second, c, s)
                inverse = inverse_length(tl.sum(y_first * y_first, 1) + tl.sum(y_second * y_second, 1))[:, None]
                y_first *= inverse
                y_second *= inverse
                d_first += first * y_first
                d_second += second * y_second
                first *= (g * tl.load(stored + vector, mask=inside, other=0.0))[None, :]
                second *= (g * tl.load(stored + vector + HALF, mask=inside, other=0.0))[None, :]
                along = (tl.sum(first * y_first, 1) + tl.sum(second * y_second, 1))[:, None]
                first = (first - y_first * along) * inverse
                second = (second - y_second * along) * inverse
            first, second = _turned(first, second, c, -s)  # a rotation's transpose turns back
        tl.store(dx + at, first.to(dx.dtype.element_ty), mask=wide)
        tl.store(dx + at + APART, second.to(dx.dtype.element_ty), mask=wide)
    if SCALED:  # noqa: SIM102 - known when compiled, the other is not
        if head < Q + K:
            to = ((r.to(tl.int64) * P + p) * (Q + K) + head) * H + half
            tl.store(partial + to, tl.sum(d_first, 0), mask=inside)
            tl.store(partial + to + HALF, tl.sum(d_second, 0), mask=inside)


def _tile(heads: Heads) -> tuple[int, int]:
    block = triton.next_power_of_2(heads.width // 2)
    return max(1, 1024 // block), block


def rotate_scale(
    x_RNC: Tensor, heads: Heads, stored_RKH: Tensor | None, gain_R: Tensor | None, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """gain·stored ⊙ Norm(Rot(q)) and the same of k, as (R·B, T, heads, W)."""
    R, N, _ = x_RNC.shape
    Q, K, W = heads.queries, heads.keys, heads.width
    rows, block = _tile(heads)
    out = x_RNC.new_empty(R, N, (Q + K) * W)
    grid = (triton.cdiv(N, rows), Q + K, R)
    launch(
        _heads_forward, grid, x_RNC, stored_RKH, gain_R, cos, sin, out, N, heads.tokens, Q, K, heads.dim, W,
        stored_RKH is not None, rows, block,
    )  # fmt: skip
    by_head = out.view(R * N // heads.tokens, heads.tokens, Q + K, W)
    return by_head[:, :, :Q], by_head[:, :, Q:]


def rotate_scale_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    x_RNC: Tensor,
    heads: Heads,
    stored_RKH: Tensor | None,
    gain_R: Tensor | None,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """From the gradients of q, k and v, (R·B, T, heads, W), those of the product and of `stored`."""
    R, N, _ = x_RNC.shape
    Q, K, H, W = heads.queries, heads.keys, heads.dim, heads.width
    rows, block = _tile(heads)
    P = walkers(triton.cdiv(N, rows), R * (Q + 2 * K), x_RNC.device)
    dx = torch.empty_like(x_RNC)
    scaled = stored_RKH is not None
    partial = x_RNC.new_empty(R, P, Q + K, H, dtype=torch.float32) if scaled else None
    assert all(g.stride(-1) == 1 for g in grads)
    strides = [stride for g in grads for stride in g.stride()[:3]]
    launch(
        _heads_backward, (P, Q + 2 * K, R),
        x_RNC, stored_RKH, gain_R, cos, sin, *grads, *strides, dx, partial, N, heads.tokens, P, Q, K, H, W,
        scaled, rows, block, STAGES,
    )  # fmt: skip
    if partial is None or gain_R is None:
        return dx, None
    by_head = partial.sum(1)
    summed = by_head[:, :Q].unflatten(1, (K, Q // K)).sum(2) + by_head[:, Q:]
    return dx, summed * gain_R.view(-1, 1, 1)
