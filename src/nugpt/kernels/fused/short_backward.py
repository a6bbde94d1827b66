"""The gradient of short.py's attention: of queries, keys and values, or of the q-k-v product that they came from.

Shapes: as in short.py; R replicas, N = B·T/R tokens, C columns of the product, H head dimension (W before padding), P
programs. Probabilities are made again, once for the gradient of queries and once, transposed, for those of keys and
values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.heads import Heads, eighths, lying, turned, turned_back
from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.short import (
    LOG2_E,
    STRIDES,
    TILES,
    head_of,
    loaded,
    numbers_of,
    parts,
    scores,
    store,
    tile_sizes,
)
from nugpt.kernels.fused.tile import total

PLACES = ["replica", "rows_before", "P"]


@triton.jit
def _turn_back(
    x,
    dx,
    stored,
    gain,
    cos,
    sin,
    partial,
    begin,
    stride,
    r,
    kind,
    K,
    T: tl.constexpr,
    W: tl.constexpr,
    H: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    PIECE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Turn a tile's gradient, as stored, into that before rotation, Norm and s_qk; store the tile's part of s_qk's."""
    half = tl.arange(0, HALF)
    if SCALED:
        real = half < H // 2
        number = (r * K + kind) * H + half
        g = tl.load(gain + r)
        s_first = (g * tl.load(stored + number, mask=real, other=0.0))[None, :]
        s_second = (g * tl.load(stored + number + H // 2, mask=real, other=0.0))[None, :]
        d_first = tl.zeros((PIECE, HALF), tl.float32)
        d_second = tl.zeros((PIECE, HALF), tl.float32)
    # Read again a gradient lies as loads do, and threads need not meet for every operand; but it must have been stored.
    tl.debug_barrier()
    for start in tl.range(0, ROWS, PIECE, num_stages=1):  # few rows at a time: tiles fill the registers
        rows = begin + start + tl.arange(0, PIECE)
        inside = (rows < T)[:, None] & (half < W // 2)[None, :]
        angle = rows[:, None] * (W // 2) + half[None, :]
        c, s = tl.load(cos + angle, mask=inside, other=0.0), tl.load(sin + angle, mask=inside, other=0.0)
        at = rows[:, None] * (stride * 8) + half[None, :]
        first = tl.load(dx + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(dx + at + W // 2, mask=inside, other=0.0).to(tl.float32)
        if SCALED:
            x_first = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            x_second = tl.load(x + at + W // 2, mask=inside, other=0.0).to(tl.float32)
            first, second, more_first, more_second = turned_back(
                first, second, x_first, x_second, c, s, s_first, s_second, 1
            )
            d_first += more_first
            d_second += more_second
        else:
            first, second = turned(first, second, c, -s)
        tl.debug_barrier()  # all of these rows have been read
        tl.store(dx + at, first.to(dx.dtype.element_ty), mask=inside)
        tl.store(dx + at + W // 2, second.to(dx.dtype.element_ty), mask=inside)
    if SCALED:
        tl.store(partial + kind * H + half, tl.sum(d_first, 0), mask=real)
        tl.store(partial + kind * H + half + H // 2, tl.sum(d_second, 0), mask=real)


@triton.jit(do_not_specialize=STRIDES + PLACES)
def _short_queries(
    q,
    k,
    v,
    o,
    grad,
    lse,
    along,
    dx,
    x,
    stored,
    gain,
    cos,
    sin,
    partial,
    replica,
    rows_before,
    P,
    q_batch,
    q_token,
    q_head,
    k_batch,
    k_token,
    k_head,
    v_batch,
    v_token,
    v_head,
    scale,
    base2,  # scale·log2 e
    T: tl.constexpr,
    GROUP: tl.constexpr,
    W: tl.constexpr,
    H: tl.constexpr,
    HALF: tl.constexpr,  # of a head, as padded; 0: gradients are left as they are
    TOGETHER: tl.constexpr,  # rows of a gradient that are turned back at a time
    SCALED: tl.constexpr,
    PART: tl.constexpr,
    HELD: tl.constexpr,
    MORE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of queries, and for the other kernel each query's inner product of output and gradient."""
    EIGHTH: tl.constexpr = W // 8
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # the longest begin first
    head, Q, batch = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    q = head_of(q, batch, head, q_batch, q_head)
    k = head_of(k, batch, head // GROUP, k_batch, k_head)
    v = head_of(v, batch, head // GROUP, v_batch, v_head)
    o = head_of(o, batch, head, T * Q * EIGHTH, EIGHTH)
    grad = head_of(grad, batch, head, T * Q * EIGHTH, EIGHTH)
    numbers = (batch.to(tl.int64) * Q + head) * T
    rows = first + tl.arange(0, QUERIES)
    SECOND: tl.constexpr = MORE if MORE > 0 else 16
    query = loaded(q, rows, q_token, 0, T, QUERIES, PART, HELD)
    g = loaded(grad, rows, Q * EIGHTH, 0, T, QUERIES, PART, HELD)
    out = loaded(o, rows, Q * EIGHTH, 0, T, QUERIES, PART, HELD)
    d = tl.sum(out.to(tl.float32) * g.to(tl.float32), 1)
    query_more, g_more = query, g
    if MORE > 0:
        query_more = loaded(q, rows, q_token, HELD, T, QUERIES, MORE, W - HELD)
        g_more = loaded(grad, rows, Q * EIGHTH, HELD, T, QUERIES, MORE, W - HELD)
        out_more = loaded(o, rows, Q * EIGHTH, HELD, T, QUERIES, MORE, W - HELD)
        d += tl.sum(out_more.to(tl.float32) * g_more.to(tl.float32), 1)
    tl.store(along + numbers + rows, d, mask=rows < T)
    level = numbers_of(lse + numbers, rows, T, QUERIES)
    dq = tl.zeros((QUERIES, PART), tl.float32)
    dq_more = tl.zeros((QUERIES, SECOND), tl.float32)
    for start in tl.range(0, min(T, first + QUERIES), KEYS, num_stages=STAGES):
        columns = start + tl.arange(0, KEYS)
        key = loaded(k, columns, k_token, 0, T, KEYS, PART, HELD)
        value = loaded(v, columns, v_token, 0, T, KEYS, PART, HELD)
        key_more, value_more = key, value
        if MORE > 0:
            key_more = loaded(k, columns, k_token, HELD, T, KEYS, MORE, W - HELD)
            value_more = loaded(v, columns, v_token, HELD, T, KEYS, MORE, W - HELD)
        s = scores(query, query_more, key, key_more, MORE)
        p = tl.exp2(s * base2 - level[:, None])
        if start + KEYS > first + 1:
            p = tl.where(rows[:, None] >= columns[None, :], p, 0.0)
        dp = scores(g, g_more, value, value_more, MORE)
        ds = (p * (dp - d[:, None])).to(k.dtype.element_ty)
        dq = tl.dot(ds, key, dq, input_precision="ieee")
        if MORE > 0:
            dq_more = tl.dot(ds, key_more, dq_more, input_precision="ieee")
    heads = Q + 2 * (Q // GROUP)
    to = batch.to(tl.int64) * (T * heads * W) + head * W
    store(dx + to, dq * scale, rows, heads * EIGHTH, 0, T, PART, HELD)
    if MORE > 0:
        store(dx + to, dq_more * scale, rows, heads * EIGHTH, HELD, T, MORE, W - HELD)
    if HALF > 0:
        r, K = batch // replica, Q // GROUP
        row = ((batch % replica) * tl.num_programs(0) + tl.program_id(0)) * GROUP + head % GROUP
        sums = partial
        if SCALED:
            sums += (r.to(tl.int64) * P + row) * (K * H)
        _turn_back(
            x + to, dx + to, stored, gain, cos, sin, sums, first, heads * EIGHTH,
            r, head // GROUP, K, T, W, H, HALF, QUERIES, TOGETHER, SCALED,
        )  # fmt: skip


@triton.jit(do_not_specialize=STRIDES + PLACES)
def _short_keys(
    q,
    k,
    v,
    grad,
    lse,
    along,
    dx,
    x,
    stored,
    gain,
    cos,
    sin,
    partial,
    replica,
    rows_before,
    P,
    q_batch,
    q_token,
    q_head,
    k_batch,
    k_token,
    k_head,
    v_batch,
    v_token,
    v_head,
    scale,
    base2,  # scale·log2 e
    T: tl.constexpr,
    GROUP: tl.constexpr,
    W: tl.constexpr,
    H: tl.constexpr,
    HALF: tl.constexpr,  # of a head, as padded; 0: gradients are left as they are
    TOGETHER: tl.constexpr,  # rows of a gradient that are turned back at a time
    SCALED: tl.constexpr,
    PART: tl.constexpr,
    HELD: tl.constexpr,
    MORE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradients of keys and values: scores are made transposed, a row for each key."""
    EIGHTH: tl.constexpr = W // 8
    first = tl.program_id(0) * KEYS  # the longest begin first
    kind, K, batch = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    Q = K * GROUP
    q = head_of(q, batch, kind * GROUP, q_batch, q_head)
    k = head_of(k, batch, kind, k_batch, k_head)
    v = head_of(v, batch, kind, v_batch, v_head)
    grad = head_of(grad, batch, kind * GROUP, T * Q * EIGHTH, EIGHTH)
    numbers = (batch.to(tl.int64) * Q + kind * GROUP) * T
    rows = first + tl.arange(0, KEYS)
    SECOND: tl.constexpr = MORE if MORE > 0 else 16
    key = loaded(k, rows, k_token, 0, T, KEYS, PART, HELD)
    value = loaded(v, rows, v_token, 0, T, KEYS, PART, HELD)
    key_more, value_more = key, value
    if MORE > 0:
        key_more = loaded(k, rows, k_token, HELD, T, KEYS, MORE, W - HELD)
        value_more = loaded(v, rows, v_token, HELD, T, KEYS, MORE, W - HELD)
    dk = tl.zeros((KEYS, PART), tl.float32)
    dv = tl.zeros((KEYS, PART), tl.float32)
    dk_more = tl.zeros((KEYS, SECOND), tl.float32)
    dv_more = tl.zeros((KEYS, SECOND), tl.float32)
    begin = first // QUERIES  # of the tiles of queries, the first that sees these keys
    each = tl.cdiv(T, QUERIES) - begin
    for step in tl.range(0, each * GROUP, num_stages=STAGES):  # one head of the group after the other
        head = 0 if GROUP == 1 else step // each
        start = (begin + step - head * each) * QUERIES
        columns = start + tl.arange(0, QUERIES)
        query_head, grad_head = q + head * (q_head * 8), grad + head * W
        query = loaded(query_head, columns, q_token, 0, T, QUERIES, PART, HELD)
        g = loaded(grad_head, columns, Q * EIGHTH, 0, T, QUERIES, PART, HELD)
        query_more, g_more = query, g
        if MORE > 0:
            query_more = loaded(query_head, columns, q_token, HELD, T, QUERIES, MORE, W - HELD)
            g_more = loaded(grad_head, columns, Q * EIGHTH, HELD, T, QUERIES, MORE, W - HELD)
        s = scores(key, key_more, query, query_more, MORE)
        level = numbers_of(lse + numbers + head * T, columns, T, QUERIES)
        p = tl.exp2(s * base2 - level[None, :])
        if start < first + KEYS - 1:
            p = tl.where(rows[:, None] <= columns[None, :], p, 0.0)
        dv = tl.dot(p.to(q.dtype.element_ty), g, dv, input_precision="ieee")
        dp = scores(value, value_more, g, g_more, MORE)
        d = numbers_of(along + numbers + head * T, columns, T, QUERIES)
        ds = (p * (dp - d[None, :])).to(q.dtype.element_ty)
        dk = tl.dot(ds, query, dk, input_precision="ieee")
        if MORE > 0:
            dv_more = tl.dot(p.to(q.dtype.element_ty), g_more, dv_more, input_precision="ieee")
            dk_more = tl.dot(ds, query_more, dk_more, input_precision="ieee")
    heads = Q + 2 * K
    to = batch.to(tl.int64) * (T * heads * W) + (Q + kind) * W
    store(dx + to, dk * scale, rows, heads * EIGHTH, 0, T, PART, HELD)
    store(dx + to + K * W, dv, rows, heads * EIGHTH, 0, T, PART, HELD)
    if MORE > 0:
        store(dx + to, dk_more * scale, rows, heads * EIGHTH, HELD, T, MORE, W - HELD)
        store(dx + to + K * W, dv_more, rows, heads * EIGHTH, HELD, T, MORE, W - HELD)
    if HALF > 0:
        r, row = batch // replica, rows_before + (batch % replica) * tl.num_programs(0) + tl.program_id(0)
        sums = partial
        if SCALED:
            sums += (r.to(tl.int64) * P + row) * (K * H)
        _turn_back(
            x + to, dx + to, stored, gain, cos, sin, sums, first, heads * EIGHTH,
            r, kind, K, T, W, H, HALF, KEYS, TOGETHER, SCALED,
        )  # fmt: skip


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v: views of one tensor (B, T, Q + 2K, W), as a q-k-v product's rows lie."""
    (B, T, Q, W), K = q.shape, k.shape[2]
    dx = q.new_empty(B, T, Q + 2 * K, W)
    _backward(grad, q, k, v, o, lse, scale, dx, None, 1, (None,) * 5)
    dq, dk, dv = dx.split((Q, K, K), dim=2)
    return dq, dk, dv


def attend_turned_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    x_RNC: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    heads: Heads,
    stored_RKH: Tensor | None,
    gain_R: Tensor | None,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the product that q, k and v came from and of `stored`, as `heads.rotate_scale_backward`'s."""
    dx, R = torch.empty_like(x_RNC), x_RNC.shape[0]
    around = (x_RNC, stored_RKH, gain_R, cos, sin)
    partial = _backward(grad, q, k, heads.split(x_RNC)[2], o, lse, scale, dx, heads, R, around)
    if partial is None or stored_RKH is None:
        return dx, None
    return dx, total(partial.flatten(2), None, gain_R).view(stored_RKH.shape)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    dx: Tensor,
    heads: Heads | None,  # of a product whose gradient is asked for
    replicas: int,
    around: tuple[Tensor | None, ...],  # the product, stored, gain, cos, sin
) -> Tensor | None:
    """Fill in dx; what every tile adds to the gradient of `stored`, (R, P, K, H)."""
    (B, T, Q, W), K, dim = q.shape, k.shape[2], heads.dim if heads else q.shape[3]
    q, k, v, grad, o = (*(lying(x) for x in (q, k, v)), grad.contiguous(), o.contiguous())
    each, half = B // replicas, triton.next_power_of_2(W // 2) if heads else 0
    sizes = {name: tile_sizes(name, T) for name in ("queries", "keys")}
    along_queries, along_keys = triton.cdiv(T, sizes["queries"][0]), triton.cdiv(T, sizes["keys"][1])
    before = each * along_queries * (Q // K)  # of a group's heads one after the other, then of keys
    P, scaled = before + each * along_keys, around[1] is not None
    partial = q.new_empty(replicas, P, K, dim, dtype=torch.float32) if scaled else None
    numbers = torch.empty_like(lse)
    strides, scales = eighths(q, k, v), (scale, scale * LOG2_E)
    rest = (numbers, dx, *around, partial, each, before, P, *strides, *scales, T, Q // K, W)
    for name, kernel, grid, given in (
        ("queries", _short_queries, (along_queries, Q, B), (q, k, v, o, grad, lse)),
        ("keys", _short_keys, (along_keys, K, B), (q, k, v, grad, lse)),
    ):
        tiles, together = TILES[name], min(*sizes[name], 8 * TILES[name].warps)
        compiled_for = (dim, half, together, scaled, *parts(W, tiles.split), *sizes[name], tiles.stages)
        launch(kernel, grid, *given, *rest, *compiled_for, num_warps=tiles.warps)
    return partial
