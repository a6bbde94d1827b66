"""Rotation, Norm and s_qk of queries and keys in one pass over what the q-k-v product gave, equations (6) and (7).

Shapes: R replicas, N = B·T tokens, Q query heads, K key-value heads, H head dimension, W its width in memory (a
multiple of 8, the rest zeros), P programs. The product's columns are the Q query heads, the K key heads, the K value
heads. In queries and keys each half of a head is padded, so that both halves of the pairs that a rotation turns lie
aligned; in values the whole head is. Without `stored` the heads are only rotated (the plain transformer).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import TILINGS, inverse_length, total, walkers, warps_for

NARROW = 64  # of heads up to this width a tile has many rows, and loads of the next tiles gain nothing


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
def turned(first, second, cos, sin):
    """Both halves of heads after a rotation; with −sin, which is its transpose, before it."""
    return first * cos - second * sin, first * sin + second * cos


@triton.jit
def turned_back(first, second, x_first, x_second, cos, sin, s_first, s_second, AXIS: tl.constexpr):
    """From the gradient of s ⊙ Norm(Rot(x)) that of x, and what each head adds to that of s; numbers lie along AXIS."""
    y_first, y_second = turned(x_first, x_second, cos, sin)
    squares = tl.sum(y_first * y_first, AXIS) + tl.sum(y_second * y_second, AXIS)
    inverse = tl.expand_dims(inverse_length(squares), AXIS)
    y_first *= inverse
    y_second *= inverse
    d_first, d_second = first * y_first, second * y_second
    first *= s_first
    second *= s_second
    along = tl.expand_dims(tl.sum(first * y_first, AXIS) + tl.sum(second * y_second, AXIS), AXIS)
    first, second = turned((first - y_first * along) * inverse, (second - y_second * along) * inverse, cos, -sin)
    return first, second, d_first, d_second


@triton.jit
def _pair(source, at, mask, inside, APART: tl.constexpr, PADDED: tl.constexpr):
    """Both halves of heads. What pads them is loaded too, so that a thread's loads are wide, and left out here."""
    first = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + at + APART, mask=mask, other=0.0).to(tl.float32)
    if PADDED:
        first, second = tl.where(inside, first, 0.0), tl.where(inside, second, 0.0)
    return first, second


@triton.jit
def _scales(stored, gain, r, head, half, mask, Q: tl.constexpr, K: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr):
    """s_qk of these heads for both halves, for every row: a query head's is its group's."""
    group = tl.where(head < Q, head // (Q // K), head - Q)
    at = ((r * K + group) * H)[None, :, None] + half[None, None, :] + tl.zeros((ROWS, 1, 1), tl.int32)
    g = tl.load(gain + r)
    first = tl.load(stored + at, mask=mask, other=0.0)
    return g * first, g * tl.load(stored + at + H // 2, mask=mask, other=0.0)


@triton.jit
def _turns(cos, sin, token, half, mask, APART: tl.constexpr, HEADS: tl.constexpr):
    """Cosine and sine of these rows' angles, for every head."""
    # One address for each number of the heads' tile: threads load what they need and need not meet to share it out.
    at = token[:, None, None] * APART + half[None, None, :] + tl.zeros((1, HEADS, 1), tl.int32)
    return tl.load(cos + at, mask=mask, other=0.0), tl.load(sin + at, mask=mask, other=0.0)


@triton.jit
def _places(row, T, by_batch, by_token, by_head, head):
    """Where these heads of these rows begin in an operand of (batch, token, head) with these strides."""
    # Strides come as eighths: a thread may then load eight numbers at once whatever they are. Each is multiplied by a
    # number of 64 bits first: a long sequence alone can have more numbers than 32 bits count.
    rows = (row // T) * by_batch * 8 + (row % T) * by_token * 8
    return rows[:, None, None] + (head.to(tl.int64) * by_head * 8)[None, :, None]


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
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(2)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, BLOCK)
    APART: tl.constexpr = W // 2
    inside = (half < H // 2)[None, None, :]
    wide = (rows < N)[:, None, None] & (half < APART)[None, None, :]
    row = (r.to(tl.int64) * N + rows)[:, None, None]
    at = row * ((Q + 2 * K) * W) + (head * W)[None, :, None] + half[None, None, :]
    first, second = _pair(x, at, wide, inside, APART, H < W)
    c, s = _turns(cos, sin, rows % T, half, wide, APART, HEADS)
    first, second = turned(first, second, c, s)
    if SCALED:
        s_first, s_second = _scales(stored, gain, r, head, half, inside, Q, K, H, ROWS)
        inverse = inverse_length(tl.sum(first * first, 2) + tl.sum(second * second, 2))[:, :, None]
        first *= inverse * s_first
        second *= inverse * s_second
    to = row * ((Q + K) * W) + (head * W)[None, :, None] + half[None, None, :]
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
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    p, r = tl.program_id(0), tl.program_id(2)
    begin = tl.program_id(1) * HEADS  # all heads of a program are queries, or keys, or values
    head = begin + tl.arange(0, HEADS)
    half = tl.arange(0, BLOCK)
    HALF: tl.constexpr = H // 2
    APART: tl.constexpr = W // 2
    PADDED: tl.constexpr = H < W
    inside = (half < HALF)[None, None, :]
    # A loop for values and one for the others, neither with a branch inside: loads of the next tiles can be under way.
    if begin >= Q + K:
        for tile in tl.range(p, tl.cdiv(N, ROWS), P, num_stages=STAGES):
            rows = tile * ROWS + tl.arange(0, ROWS)
            wide = (rows < N)[:, None, None] & (half < APART)[None, None, :]
            row = r.to(tl.int64) * N + rows
            came = _places(row, T, v_batch, v_token, v_head, head - Q - K) + half[None, None, :]
            at = row[:, None, None] * ((Q + 2 * K) * W) + (head * W)[None, :, None] + half[None, None, :]
            tl.store(dx + at, tl.load(dv + came, mask=wide), mask=wide)
            tl.store(dx + at + APART, tl.load(dv + came + APART, mask=wide), mask=wide)
    else:
        source, by_batch, by_token, by_head, before = dq, q_batch, q_token, q_head, 0
        if begin >= Q:
            source, by_batch, by_token, by_head, before = dk, k_batch, k_token, k_head, Q
        if SCALED:
            s_first, s_second = _scales(stored, gain, r, head, half, inside, Q, K, H, ROWS)
            d_first = tl.zeros((ROWS, HEADS, BLOCK), tl.float32)
            d_second = tl.zeros((ROWS, HEADS, BLOCK), tl.float32)
        for tile in tl.range(p, tl.cdiv(N, ROWS), P, num_stages=STAGES):
            rows = tile * ROWS + tl.arange(0, ROWS)
            wide = (rows < N)[:, None, None] & (half < APART)[None, None, :]
            row = r.to(tl.int64) * N + rows
            came = _places(row, T, by_batch, by_token, by_head, head - before) + half[None, None, :]
            first, second = _pair(source, came, wide, inside, APART, PADDED)
            at = row[:, None, None] * ((Q + 2 * K) * W) + (head * W)[None, :, None] + half[None, None, :]
            c, s = _turns(cos, sin, rows % T, half, wide, APART, HEADS)
            if SCALED:
                x_first, x_second = _pair(x, at, wide, inside, APART, PADDED)
                first, second, more_first, more_second = turned_back(
                    first, second, x_first, x_second, c, s, s_first, s_second, 2
                )
                d_first += more_first
                d_second += more_second
            else:
                first, second = turned(first, second, c, -s)
            tl.store(dx + at, first.to(dx.dtype.element_ty), mask=wide)
            tl.store(dx + at + APART, second.to(dx.dtype.element_ty), mask=wide)
        if SCALED:
            to = ((r.to(tl.int64) * P + p) * (Q + K) + head)[:, None] * H + half[None, :]
            tl.store(partial + to, tl.sum(d_first, 0), mask=(half < HALF)[None, :])
            tl.store(partial + to + HALF, tl.sum(d_second, 0), mask=(half < HALF)[None, :])


def lying(x: Tensor) -> Tensor:
    """The operand as the kernels read it: a head's numbers side by side, each head at a multiple of 16 bytes."""
    fits = x.stride(3) == 1 and all(n % 8 == 0 for n in x.stride()[:3]) and x.data_ptr() % 16 == 0
    return x if fits else x.contiguous()


def eighths(*tensors: Tensor) -> list[int]:
    """Strides of batch, token and head."""
    return [stride // 8 for x in tensors for stride in x.stride()[:3]]


def _tile(heads: Heads, together: int, kernel: str) -> tuple[int, int, int, int]:
    """Rows, heads and numbers of half a head in a tile, and its warps; whole tiles cover `together` heads."""
    tiling = TILINGS[kernel]
    block, across = triton.next_power_of_2(heads.width // 2), gcd(together, tiling.side)
    rows = max(1, tiling.numbers // (across * block))
    aligned = gcd(heads.width // 2, tiling.per_thread)  # as many as lie aligned in every head
    return rows, across, block, warps_for(rows * across * block, aligned)


def rotate_scale(
    x_RNC: Tensor, heads: Heads, stored_RKH: Tensor | None, gain_R: Tensor | None, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """gain·stored ⊙ Norm(Rot(q)) and the same of k, as (R·B, T, heads, W)."""
    R, N, _ = x_RNC.shape
    Q, K, W = heads.queries, heads.keys, heads.width
    rows, across, block, warps = _tile(heads, Q + K, "heads")
    out = x_RNC.new_empty(R, N, (Q + K) * W)
    launch(
        _heads_forward, (triton.cdiv(N, rows), (Q + K) // across, R),
        x_RNC, stored_RKH, gain_R, cos, sin, out, N, heads.tokens, Q, K, heads.dim, W,
        stored_RKH is not None, rows, across, block, num_warps=warps,
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
    kernel = "wide heads backward" if W > NARROW else "heads backward"
    rows, across, block, warps = _tile(heads, gcd(Q, K), kernel)
    groups = (Q + 2 * K) // across
    P = walkers(triton.cdiv(N, rows), R * groups, x_RNC.device, warps, kernel)
    dx = torch.empty_like(x_RNC)
    scaled = stored_RKH is not None
    partial = x_RNC.new_empty(R, P, Q + K, H, dtype=torch.float32) if scaled else None
    dq, dk, dv = (lying(g) for g in grads)
    launch(
        _heads_backward, (P, groups, R),
        x_RNC, stored_RKH, gain_R, cos, sin, dq, dk, dv, *eighths(dq, dk, dv), dx, partial, N, heads.tokens, P,
        Q, K, H, W, scaled, rows, across, block, TILINGS[kernel].stages, num_warps=warps,
    )  # fmt: skip
    if partial is None or gain_R is None:
        return dx, None
    if Q == K:  # a query head and the key head beside it: two rows of as many numbers
        return dx, total(partial.view(R, 2 * P, K * H), None, gain_R).view(R, K, H)
    by_head = partial.sum(1)
    summed = by_head[:, :Q].unflatten(1, (K, Q // K)).sum(2) + by_head[:, Q:]
    return dx, summed * gain_R.view(-1, 1, 1)
