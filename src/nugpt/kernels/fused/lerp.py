"""Norm–LERP–Norm: Norm(h + α ⊙ (Norm(b) − h)) with α = |gain·stored|, equations (1), (2) and (3), (4) of the paper.

Shapes: R replicas, N tokens, D d_model, P programs. The hidden state h is float32 and comes with a copy in the dtype of
matrix products; b is what a matrix product gave.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.tile import inverse_length, row_tile, total, walkers


@triton.jit
def _effective(stored, gain, r, cols, D: tl.constexpr):
    return tl.abs(tl.load(gain + r) * tl.load(stored + r * D + cols, mask=cols < D, other=0.0))


@triton.jit
def _step(h, b, a):
    """The state after one LERP, with what its gradient needs: Norm(b), 1/‖b‖ and the last 1/‖·‖."""
    b_inverse = inverse_length(tl.sum(b * b, 1))[:, None]
    y = b * b_inverse
    z = h + a[None, :] * (y - h)
    z_inverse = inverse_length(tl.sum(z * z, 1))[:, None]
    return z * z_inverse, y, b_inverse, z_inverse


@triton.jit
def _forward_kernel(h, b, stored, gain, out, low, N, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < N)[:, None] & (cols < D)[None, :]
    at = (r.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    a = _effective(stored, gain, r, cols, D)
    h_tile = tl.load(h + at, mask=mask, other=0.0)
    b_tile = tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
    after, _, _, _ = _step(h_tile, b_tile, a)
    tl.store(out + at, after, mask=mask)
    tl.store(low + at, after.to(low.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
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
    WIDE: tl.constexpr,
):
    p, r = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    a = _effective(stored, gain, r, cols, D)
    if TWICE:
        a0 = _effective(stored0, gain0, r, cols, D)
    da = tl.zeros((BLOCK,), tl.float32)
    for tile in range(p, tl.cdiv(N, ROWS), P):
        rows = tile * ROWS + tl.arange(0, ROWS)
        mask = (rows < N)[:, None] & (cols < D)[None, :]
        at = (r.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
        before = tl.load(h + at, mask=mask, other=0.0)
        if TWICE:  # the state between the two LERPs of a block is made again rather than kept
            before, _, _, _ = _step(before, tl.load(b0 + at, mask=mask, other=0.0).to(tl.float32), a0)
        after, y, b_inverse, z_inverse = _step(before, tl.load(b + at, mask=mask, other=0.0).to(tl.float32), a)
        g = tl.load(grad_low + at, mask=mask, other=0.0).to(tl.float32)
        if WIDE:
            g += tl.load(grad + at, mask=mask, other=0.0)
        dz = (g - after * tl.sum(after * g, 1)[:, None]) * z_inverse
        da += tl.sum(dz * (y - before), 0)
        dy = a[None, :] * dz
        tl.store(dh + at, dz - dy, mask=mask)
        db_tile = (dy - y * tl.sum(y * dy, 1)[:, None]) * b_inverse
        tl.store(db + at, db_tile.to(db.dtype.element_ty), mask=mask)
        tl.store(low + at, before.to(low.dtype.element_ty), mask=mask)
    tl.store(partial + (r.to(tl.int64) * P + p) * D + cols, da, mask=cols < D)


def lerp(h_RND: Tensor, b_RND: Tensor, stored_RD: Tensor, gain_R: Tensor) -> tuple[Tensor, Tensor]:
    """The next hidden state in float32, and its copy in b's dtype."""
    R, N, D = h_RND.shape
    rows, block, warps = row_tile(D)
    out, low = torch.empty_like(h_RND), torch.empty_like(b_RND)
    grid = (triton.cdiv(N, rows), R)
    _forward_kernel[grid](h_RND, b_RND, stored_RD, gain_R, out, low, N, D, rows, block, num_warps=warps)
    return out, low


def lerp_backward(
    grad_RND: Tensor | None,
    grad_low_RND: Tensor,
    h_RND: Tensor,
    b_RND: Tensor,
    stored_RD: Tensor,
    gain_R: Tensor,
    before: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `lerp` for h, b and stored, and the low copy of the state it started from.

    The gradient of the next state comes in two parts, of its float32 and of its low copy. With `before` (b, stored and
    gain of the LERP that came first) h is the state before that one.
    """
    R, N, D = h_RND.shape
    rows, block, warps = row_tile(D)
    P = walkers(triton.cdiv(N, rows), R, h_RND.device)
    dh, db, low = torch.empty_like(h_RND), torch.empty_like(b_RND), torch.empty_like(b_RND)
    partial = h_RND.new_empty(R, P, D)
    b0, stored0, gain0 = before if before is not None else (None, None, None)
    _backward_kernel[(P, R)](
        h_RND, b0, stored0, gain0, b_RND, stored_RD, gain_R, grad_RND, grad_low_RND, dh, db, low, partial, N, P, D,
        rows, block, before is not None, grad_RND is not None, num_warps=warps,
    )  # fmt: skip
    return dh, db, total(partial, stored_RD, gain_R, absolute=True), low
