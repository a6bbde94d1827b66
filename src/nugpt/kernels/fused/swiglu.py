"""SiLU(c·s_ν ⊙ ν) ⊙ (s_u ⊙ u), with s = gain·stored, from the two halves of one product's rows.

Shapes: R replicas, N tokens, M d_MLP, P programs. Without `stored` the scales are 1 (the plain transformer).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import TILINGS, total, walkers, warps_for


@triton.jit
def _scales(stored_u, gain_u, stored_nu, gain_nu, constant, r, cols, M: tl.constexpr, SCALED: tl.constexpr):
    if SCALED:
        mask = cols < M
        u = tl.load(gain_u + r) * tl.load(stored_u + r * M + cols, mask=mask, other=0.0)
        nu = tl.load(gain_nu + r) * tl.load(stored_nu + r * M + cols, mask=mask, other=0.0) * constant
    else:
        u = tl.full(cols.shape, 1.0, tl.float32)
        nu = u
    return u[None, :], nu[None, :]


@triton.jit
def _swiglu_forward(
    x,
    stored_u,
    gain_u,
    stored_nu,
    gain_nu,
    constant,
    out,
    N,
    M: tl.constexpr,
    SCALED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    # One axis for both: a grid's others end at 65,535, and tokens need not.
    ACROSS: tl.constexpr = (M + TILE_COLUMNS - 1) // TILE_COLUMNS
    tile, r = tl.program_id(0), tl.program_id(1)
    rows = tile // ACROSS * TILE_ROWS + tl.arange(0, TILE_ROWS)
    cols = tile % ACROSS * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    mask = (rows < N)[:, None] & (cols < M)[None, :]
    row = r.to(tl.int64) * N + rows
    at = row[:, None] * (2 * M) + cols[None, :]
    # What takes longest is asked for first: to share the scales out among threads they meet, and wait for them.
    u = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    nu = tl.load(x + at + M, mask=mask, other=0.0).to(tl.float32)
    s_u, s_nu = _scales(stored_u, gain_u, stored_nu, gain_nu, constant, r, cols, M, SCALED)
    u *= s_u
    nu *= s_nu
    result = nu * tl.sigmoid(nu) * u
    tl.store(out + row[:, None] * M + cols[None, :], result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["P"])
def _swiglu_backward(
    x,
    stored_u,
    gain_u,
    stored_nu,
    gain_nu,
    constant,
    grad,
    dx,
    gated,
    partial_u,
    partial_nu,
    N,
    P,
    M: tl.constexpr,
    SCALED: tl.constexpr,
    AGAIN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    p, r = tl.program_id(1), tl.program_id(2)
    cols = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    s_u, s_nu = _scales(stored_u, gain_u, stored_nu, gain_nu, constant, r, cols, M, SCALED)
    sum_u = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    sum_nu = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    for tile in tl.range(p, tl.cdiv(N, TILE_ROWS), P, num_stages=STAGES):
        rows = tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
        mask = (rows < N)[:, None] & (cols < M)[None, :]
        row = r.to(tl.int64) * N + rows
        at = row[:, None] * (2 * M) + cols[None, :]
        raw_u = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        raw_nu = tl.load(x + at + M, mask=mask, other=0.0).to(tl.float32)
        narrow = row[:, None] * M + cols[None, :]
        g = tl.load(grad + narrow, mask=mask, other=0.0).to(tl.float32)
        u, nu = raw_u * s_u, raw_nu * s_nu
        gate = tl.sigmoid(nu)
        silu = nu * gate
        du = g * silu
        dnu = g * u * (gate + silu * (1.0 - gate))
        if SCALED:
            sum_u += du * raw_u
            sum_nu += dnu * raw_nu
        tl.store(dx + at, (du * s_u).to(dx.dtype.element_ty), mask=mask)
        tl.store(dx + at + M, (dnu * s_nu).to(dx.dtype.element_ty), mask=mask)
        if AGAIN:
            tl.store(gated + narrow, (silu * u).to(gated.dtype.element_ty), mask=mask)
    if SCALED:
        to = (r.to(tl.int64) * P + p) * M + cols
        tl.store(partial_u + to, tl.sum(sum_u, 0) * tl.load(gain_u + r), mask=cols < M)
        tl.store(partial_nu + to, tl.sum(sum_nu, 0) * (tl.load(gain_nu + r) * constant), mask=cols < M)


Scales = tuple[Tensor, Tensor, Tensor, Tensor]  # stored and gain of s_u, stored and gain of s_ν


def _tile(kernel: str) -> tuple[int, int, int]:
    """Rows, columns and warps of a tile."""
    tiling = TILINGS[kernel]
    return tiling.numbers // tiling.side, tiling.side, warps_for(tiling.numbers, tiling.per_thread)


def swiglu(x_RNM2: Tensor, scales: Scales | None, constant: float) -> Tensor:
    """The gated product, (R, N, M)."""
    R, N, M = x_RNM2.shape[0], x_RNM2.shape[1], x_RNM2.shape[2] // 2
    out = x_RNM2.new_empty(R, N, M)
    rows, columns, warps = _tile("swiglu")
    given = scales or (None, None, None, None)
    launch(
        _swiglu_forward, (triton.cdiv(M, columns) * triton.cdiv(N, rows), R),
        x_RNM2, *given, constant, out, N, M, scales is not None, rows, columns, num_warps=warps,
    )  # fmt: skip
    return out


def swiglu_backward(
    grad_RNM: Tensor, x_RNM2: Tensor, scales: Scales | None, constant: float, again: bool = False
) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor | None]:
    """Gradients for the product and the stored s_u and s_ν; with `again` the gated product, where it was not kept."""
    R, N, M = grad_RNM.shape
    rows, columns, warps = _tile("swiglu backward")
    across = triton.cdiv(M, columns)
    P = walkers(triton.cdiv(N, rows), R * across, grad_RNM.device, warps, "swiglu backward")
    dx, gated = torch.empty_like(x_RNM2), torch.empty_like(grad_RNM) if again else None
    partial = grad_RNM.new_empty(2, R, P, M, dtype=torch.float32) if scales else None
    given, sums = scales or (None, None, None, None), (None, None) if partial is None else partial.unbind()
    launch(
        _swiglu_backward, (across, P, R),
        x_RNM2, *given, constant, grad_RNM, dx, gated, *sums, N, P, M, scales is not None, again, rows, columns,
        TILINGS["swiglu backward"].stages, num_warps=warps,
    )  # fmt: skip
    if partial is None:
        return dx, None, gated
    d_u, d_nu = total(partial.view(2 * R, P, M), None, None).view(2, R, M).unbind()  # one launch for both
    return dx, (d_u, d_nu), gated
