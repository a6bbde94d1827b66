"""Causal attention of short sequences, both ways: a head's keys and values stay in the cache while tiles need them.

Shapes: B batch (replicas included), T tokens, Q query heads, K key-value heads, W head width, a multiple of 8. Tensors
are (B, T, heads, W), strided as they lie. Scores are kept as powers of two: exp(x) is 2^(x·log2 e), and the factor goes
into the softmax scale. Nothing is added atomically, so every sum has a fixed order.

A head may be taken in two parts of columns: matrix units work on powers of two, and 32 + 16 is less than 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.heads import eighths, lying
from nugpt.kernels.fused.launch import launch

MOST_TOKENS, MOST_WIDTH = 1024, 128
LOG2_E = log2(e)
# Whatever these are, the kernel is the same: a sweep's widths, which differ in their number of heads, share it.
STRIDES = [f"{x}_{axis}" for x in "qkv" for axis in ("batch", "token", "head")]


@dataclass(frozen=True)
class Tiles:
    """How much of a head a program works on at a time, and with how many threads."""

    queries: int
    keys: int
    warps: int
    stages: int  # tiles whose loads are under way while one is worked on
    split: bool = False  # a head as two parts of columns where that pads less


# Data, so that a benchmark can try others; every choice gives the same result up to the order of sums.
TILES: dict[str, Tiles] = {
    "forward": Tiles(64, 64, warps=4, stages=3),
    "queries": Tiles(64, 64, warps=4, stages=3, split=True),
    "keys": Tiles(64, 64, warps=4, stages=2, split=True),
}


def takes(tokens: int, width: int) -> bool:
    """Whether heads of this width and sequences of this length are what these kernels are for."""
    return tokens <= MOST_TOKENS and width <= MOST_WIDTH and width % 8 == 0


@triton.jit
def loaded(source, rows, stride, first, T: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, HELD: tl.constexpr):
    """A head's columns from `first` on, of these tokens; zeros where there are none."""
    columns = tl.arange(0, WIDE)
    # Strides come as eighths: a thread may then load eight numbers at once whatever they are.
    at = source + rows[:, None] * (stride * 8) + (first + columns)[None, :]
    if T % ROWS == 0 and HELD == WIDE:
        x = tl.load(at)
    elif T % ROWS == 0:
        x = tl.load(at, mask=(columns < HELD)[None, :], other=0.0)
    else:
        x = tl.load(at, mask=(rows < T)[:, None] & (columns < HELD)[None, :], other=0.0)
    return x


@triton.jit
def store(to, x, rows, stride, first, T: tl.constexpr, WIDE: tl.constexpr, HELD: tl.constexpr):
    columns = tl.arange(0, WIDE)
    at = to + rows[:, None] * (stride * 8) + (first + columns)[None, :]
    tl.store(at, x.to(to.dtype.element_ty), mask=(rows < T)[:, None] & (columns < HELD)[None, :])


@triton.jit
def numbers_of(source, rows, T: tl.constexpr, ROWS: tl.constexpr):
    """One number of each of these tokens."""
    if T % ROWS == 0:
        x = tl.load(source + rows)
    else:
        x = tl.load(source + rows, mask=rows < T, other=0.0)
    return x


@triton.jit
def scores(a, a_more, b, b_more, MORE: tl.constexpr):
    """a bᵀ over both parts of the columns."""
    s = tl.dot(a, tl.trans(b), input_precision="ieee")
    if MORE > 0:
        s = tl.dot(a_more, tl.trans(b_more), s, input_precision="ieee")
    return s


@triton.jit
def head_of(source, batch, head, by_batch, by_head):
    """Where a sequence's head begins."""
    return source + batch.to(tl.int64) * (by_batch * 8) + head * (by_head * 8)


@triton.jit(do_not_specialize=STRIDES)
def _short_forward(
    q,
    k,
    v,
    o,
    lse,
    q_batch,
    q_token,
    q_head,
    k_batch,
    k_token,
    k_head,
    v_batch,
    v_token,
    v_head,
    scale,  # times log2 e
    T: tl.constexpr,
    GROUP: tl.constexpr,
    W: tl.constexpr,
    PART: tl.constexpr,
    HELD: tl.constexpr,
    MORE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    EIGHTH: tl.constexpr = W // 8
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # the longest begin first
    head, Q, batch = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    q = head_of(q, batch, head, q_batch, q_head)
    k = head_of(k, batch, head // GROUP, k_batch, k_head)
    v = head_of(v, batch, head // GROUP, v_batch, v_head)
    rows = first + tl.arange(0, QUERIES)
    SECOND: tl.constexpr = MORE if MORE > 0 else 16  # without a second part there is nothing in these
    query = loaded(q, rows, q_token, 0, T, QUERIES, PART, HELD)
    query_more = query
    if MORE > 0:
        query_more = loaded(q, rows, q_token, HELD, T, QUERIES, MORE, W - HELD)
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, PART), tl.float32)
    out_more = tl.zeros((QUERIES, SECOND), tl.float32)
    for start in tl.range(0, min(T, first + QUERIES), KEYS, num_stages=STAGES):
        columns = start + tl.arange(0, KEYS)
        key = loaded(k, columns, k_token, 0, T, KEYS, PART, HELD)
        key_more = key
        if MORE > 0:
            key_more = loaded(k, columns, k_token, HELD, T, KEYS, MORE, W - HELD)
        s = scores(query, query_more, key, key_more, MORE)
        if start + KEYS > first + 1:  # some of these keys come after some of the queries
            s = tl.where(rows[:, None] >= columns[None, :], s, float("-inf"))
        before = largest
        largest = tl.maximum(before, tl.max(s, 1))
        p = tl.exp2(s * scale - (largest * scale)[:, None])
        fade = tl.exp2((before - largest) * scale)
        total = total * fade + tl.sum(p, 1)
        p = p.to(v.dtype.element_ty)
        value = loaded(v, columns, v_token, 0, T, KEYS, PART, HELD)
        out = tl.dot(p, value, out * fade[:, None], input_precision="ieee")
        if MORE > 0:
            value_more = loaded(v, columns, v_token, HELD, T, KEYS, MORE, W - HELD)
            out_more = tl.dot(p, value_more, out_more * fade[:, None], input_precision="ieee")
    tl.store(lse + (batch.to(tl.int64) * Q + head) * T + rows, largest * scale + tl.log2(total), mask=rows < T)
    inverse = (1.0 / total)[:, None]
    to = o + batch.to(tl.int64) * (T * Q * W) + head * W
    store(to, out * inverse, rows, Q * EIGHTH, 0, T, PART, HELD)
    if MORE > 0:
        store(to, out_more * inverse, rows, Q * EIGHTH, HELD, T, MORE, W - HELD)


def parts(width: int, split: bool) -> tuple[int, int, int]:
    """A head's columns: the first part as padded and as it is, the second as padded, 0 where there is none."""
    whole = max(16, triton.next_power_of_2(width))
    half = whole // 2
    more = max(16, triton.next_power_of_2(max(1, width - half)))
    return (half, half, more) if split and half >= 16 and more < half else (whole, width, 0)


def tile_sizes(kernel: str, tokens: int) -> tuple[int, int]:
    """Queries and keys in a kernel's tile."""
    most = max(16, triton.next_power_of_2(tokens))
    return min(TILES[kernel].queries, most), min(TILES[kernel].keys, most)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale·qᵀk) v over earlier tokens, (B, T, Q, W), and log2 Σ 2^score of every query, (B, Q, T)."""
    B, T, Q, W = q.shape
    assert takes(T, W)
    assert scale > 0
    q, k, v = (lying(x) for x in (q, k, v))
    o, lse = q.new_empty(B, T, Q, W), q.new_empty(B, Q, T, dtype=torch.float32)
    tiles, (queries, keys) = TILES["forward"], tile_sizes("forward", T)
    launch(
        _short_forward, (triton.cdiv(T, queries), Q, B),
        q, k, v, o, lse, *eighths(q, k, v), scale * LOG2_E, T, Q // k.shape[2], W, *parts(W, tiles.split),
        queries, keys, tiles.stages, num_warps=tiles.warps,
    )  # fmt: skip
    return o, lse
