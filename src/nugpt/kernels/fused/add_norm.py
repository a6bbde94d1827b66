"""The plain transformer's residual step: h + r·b, and w ⊙ RMSNorm of it for the next product.

Shapes: R replicas, N tokens, D d_model, P programs. h is float32, b and the normalised output have the products' dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import row_tile, stages_with_room, total, walkers


@triton.jit
def _add_norm_forward(
    h,
    b,
    residual,
    weight,
    out,
    low,
    N,
    eps,
    D: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < N)[:, None] & (cols < D)[None, :]
    at = (r.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    x = tl.load(h + at, mask=mask, other=0.0)
    if ADD:
        b_tile = tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight + r * D + cols, mask=cols < D, other=0.0)  # after what takes longest, before what waits for it
    if ADD:
        x += tl.load(residual + r) * b_tile
        tl.store(out + at, x, mask=mask)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps))[:, None] * w[None, :]
    tl.store(low + at, y.to(low.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["P"])
def _add_norm_backward(
    h,
    residual,
    weight,
    grad,
    grad_low,
    dh,
    db,
    partial,
    N,
    P,
    eps,
    D: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    p, r = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    w = tl.load(weight + r * D + cols, mask=cols < D, other=0.0)[None, :]
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(p, tl.cdiv(N, ROWS), P, num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        mask = (rows < N)[:, None] & (cols < D)[None, :]
        at = (r.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
        x = tl.load(h + at, mask=mask, other=0.0)
        g = tl.load(grad_low + at, mask=mask, other=0.0).to(tl.float32)
        inverse = (1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps))[:, None]
        y = x * inverse
        dw += g * y
        dy = g * w
        dx = (dy - y * (tl.sum(y * dy, 1) / D)[:, None]) * inverse
        if WIDE:
            dx += tl.load(grad + at, mask=mask, other=0.0)
        tl.store(dh + at, dx, mask=mask)
        if ADD:
            tl.store(db + at, (dx * tl.load(residual + r)).to(db.dtype.element_ty), mask=mask)
    tl.store(partial + (r.to(tl.int64) * P + p) * D + cols, tl.sum(dw, 0), mask=cols < D)


def add_norm(
    h_RND: Tensor, b_RND: Tensor | None, residual_R: Tensor, weight_RD: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """h + r·b (h itself without b), and its weighted RMSNorm in `dtype`."""
    R, N, D = h_RND.shape
    rows, block, warps = row_tile(D, "add_norm")
    out = torch.empty_like(h_RND) if b_RND is not None else h_RND
    low = h_RND.new_empty(R, N, D, dtype=dtype)
    grid = (triton.cdiv(N, rows), R)
    launch(
        _add_norm_forward, grid,
        h_RND, b_RND, residual_R, weight_RD, out, low, N, eps, D, b_RND is not None, rows, block, num_warps=warps,
    )  # fmt: skip
    return out, low


def add_norm_backward(
    grad_RND: Tensor | None,
    grad_low_RND: Tensor,
    out_RND: Tensor,
    residual_R: Tensor,
    weight_RD: Tensor,
    eps: float,
    added: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients for h (which is out's), b and the weight."""
    R, N, D = out_RND.shape
    rows, block, warps = row_tile(D, "add_norm backward")
    P = walkers(triton.cdiv(N, rows), R, out_RND.device, warps, "add_norm backward")
    dh = torch.empty_like(out_RND)
    db = torch.empty_like(grad_low_RND) if added else None
    partial = out_RND.new_empty(R, P, D)
    stages = stages_with_room(rows * block, (out_RND, grad_RND, grad_low_RND), "add_norm backward")
    launch(
        _add_norm_backward, (P, R),
        out_RND, residual_R, weight_RD, grad_RND, grad_low_RND, dh, db, partial, N, P, eps, D,
        added, grad_RND is not None, rows, block, stages, num_warps=warps,
    )  # fmt: skip
    return dh, db, total(partial, None, None)
