"""Norm–LERP–Norm: Norm(h + α ⊙ (Norm(b) − h)) with α = |gain·stored|, equations (1), (2) and (3), (4) of the paper.

Shapes: R replicas, N tokens, D d_model, P programs. The hidden state h is float32 and comes with a copy in the dtype of
matrix products; b is what a matrix product gave. Lengths come from sums of squares and products of the two parts, not
from their sum: a state of length ℓ before the last Norm is good to about 1e-7/ℓ², far below bfloat16's rounding unless
α is near 1/2 and the branch points the other way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import add4, add6, inverse_length, row_tile, stages_with_room, total, walkers


@triton.jit
def _effective(stored, gain, r, cols, D: tl.constexpr):
    return tl.abs(tl.load(gain + r) * tl.load(stored + r * D + cols, mask=cols < D, other=0.0))


@triton.jit
def _state(hold, pull, b_inverse, hh, hb, yy):
    """The state after a LERP from its two parts (1 − α)h and αb, with 1/‖·‖, both lengths already known."""
    inverse = inverse_length(hh + 2.0 * b_inverse * hb + b_inverse * b_inverse * yy)
    return (hold + pull * b_inverse[:, None]) * inverse[:, None], inverse


@triton.jit
def _lerp_forward(
    h, b, stored, gain, out, low, N, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < N)[:, None] & (cols < D)[None, :]
    at = (r.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    # What takes longest is asked for first: to share α out among threads they meet, and wait for what came before.
    h_tile = tl.load(h + at, mask=mask, other=0.0)
    b_tile = tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
    a = _effective(stored, gain, r, cols, D)[None, :]
    hold, pull = (1.0 - a) * h_tile, a * b_tile
    # Every length follows from four sums, taken together: one meeting of a row's threads instead of two.
    bb, hh, hb, yy = tl.reduce((b_tile * b_tile, hold * hold, hold * pull, pull * pull), 1, add4)
    after, _ = _state(hold, pull, inverse_length(bb), hh, hb, yy)
    if WIDE:
        tl.store(out + at, after, mask=mask)
    tl.store(low + at, after.to(low.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["P"])
def _lerp_backward(
    h,
    b0,
    stored0,
    gain0,
    b,
    stored,
    gain,
    grad,
    grad_low,
    dh,
    db,
    low,
    partial,
    N,
    P,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TWICE: tl.constexpr,
    LOW: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    p, r = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    a = _effective(stored, gain, r, cols, D)[None, :]
    if TWICE:
        a0 = _effective(stored0, gain0, r, cols, D)[None, :]
    da = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(p, tl.cdiv(N, ROWS), P, num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        mask = (rows < N)[:, None] & (cols < D)[None, :]
        at = (r.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
        before = tl.load(h + at, mask=mask, other=0.0)
        b_tile = tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(grad_low + at, mask=mask, other=0.0).to(tl.float32)
        if WIDE:
            g += tl.load(grad + at, mask=mask, other=0.0)
        if TWICE:  # the state between the two LERPs of a block is made again rather than kept
            b0_tile = tl.load(b0 + at, mask=mask, other=0.0).to(tl.float32)
            hold, pull = (1.0 - a0) * before, a0 * b0_tile
            bb, hh, hb, yy = tl.reduce((b0_tile * b0_tile, hold * hold, hold * pull, pull * pull), 1, add4)
            before, _ = _state(hold, pull, inverse_length(bb), hh, hb, yy)
        if LOW:
            tl.store(low + at, before.to(low.dtype.element_ty), mask=mask)
        hold, pull = (1.0 - a) * before, a * b_tile
        bb, hh, hb, yy, hg, yg = tl.reduce(
            (b_tile * b_tile, hold * hold, hold * pull, pull * pull, hold * g, pull * g), 1, add6
        )
        b_inverse = inverse_length(bb)
        after, inverse = _state(hold, pull, b_inverse, hh, hb, yy)
        along = inverse * (hg + b_inverse * yg)  # of the gradient and the state
        dz = (g - after * along[:, None]) * inverse[:, None]
        y = b_tile * b_inverse[:, None]
        da += dz * (y - before)
        dy = a * dz
        tl.store(dh + at, dz - dy, mask=mask)
        back = b_inverse * inverse * (yg - along * inverse * (hb + b_inverse * yy))  # of dy and y
        tl.store(db + at, ((dy - y * back[:, None]) * b_inverse[:, None]).to(db.dtype.element_ty), mask=mask)
    tl.store(partial + (r.to(tl.int64) * P + p) * D + cols, tl.sum(da, 0), mask=cols < D)


def lerp(h_RND: Tensor, b_RND: Tensor, stored_RD: Tensor, gain_R: Tensor) -> tuple[Tensor, Tensor]:
    """The next hidden state in float32, and its copy in b's dtype."""
    out = torch.empty_like(h_RND)
    return out, _lerp(h_RND, b_RND, stored_RD, gain_R, out)


def lerp_low(h_RND: Tensor, b_RND: Tensor, stored_RD: Tensor, gain_R: Tensor) -> Tensor:
    """The next hidden state in b's dtype alone, as only a product needs the last one."""
    return _lerp(h_RND, b_RND, stored_RD, gain_R, None)


def _lerp(h_RND: Tensor, b_RND: Tensor, stored_RD: Tensor, gain_R: Tensor, out_RND: Tensor | None) -> Tensor:
    R, N, D = h_RND.shape
    rows, block, warps = row_tile(D, "lerp")
    low = torch.empty_like(b_RND)
    launch(
        _lerp_forward, (triton.cdiv(N, rows), R),
        h_RND, b_RND, stored_RD, gain_R, out_RND, low, N, D, out_RND is not None, rows, block, num_warps=warps,
    )  # fmt: skip
    return low


def lerp_backward(
    grad_RND: Tensor | None,
    grad_low_RND: Tensor,
    h_RND: Tensor,
    b_RND: Tensor,
    stored_RD: Tensor,
    gain_R: Tensor,
    before: tuple[Tensor, Tensor, Tensor] | None = None,
    again: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of `lerp` for h, b and stored; with `again` the low copy of the state it started from, if not kept.

    The gradient of the next state comes in two parts, of its float32 and of its low copy. With `before` (b, stored and
    gain of the LERP that came first) h is the state before that one.
    """
    R, N, D = h_RND.shape
    kernel = "lerp backward" if before is None else "lerp backward twice"
    rows, block, warps = row_tile(D, kernel)
    P = walkers(triton.cdiv(N, rows), R, h_RND.device, warps, kernel)
    dh, db = torch.empty_like(h_RND), torch.empty_like(b_RND)
    low = torch.empty_like(b_RND) if again else None
    partial = h_RND.new_empty(R, P, D)
    b0, stored0, gain0 = before if before is not None else (None, None, None)
    stages = stages_with_room(rows * block, (h_RND, b0, b_RND, grad_RND, grad_low_RND), kernel)
    launch(
        _lerp_backward, (P, R),
        h_RND, b0, stored0, gain0, b_RND, stored_RD, gain_R, grad_RND, grad_low_RND, dh, db, low, partial, N, P, D,
        rows, block, before is not None, again, grad_RND is not None, stages, num_warps=warps,
    )  # fmt: skip
    return dh, db, total(partial, stored_RD, gain_R, absolute=True), low
