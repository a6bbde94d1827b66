"""Rows of E_in for tokens, and their gradient summed in an order that never changes.

Shapes: R replicas, N tokens, V vocabulary, D d_model.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import row_tile


@triton.jit
def _embedding_gather(weight, tokens, out, low, N, V, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < N)[:, None] & (cols < D)[None, :]
    row = r.to(tl.int64) * N + rows
    token = tl.load(tokens + row, mask=rows < N, other=0).to(tl.int64)
    found = tl.load(weight + (r.to(tl.int64) * V + token)[:, None] * D + cols[None, :], mask=mask, other=0.0)
    at = row[:, None] * D + cols[None, :]
    tl.store(out + at, found, mask=mask)
    tl.store(low + at, found.to(low.dtype.element_ty), mask=mask)


@triton.jit
def _embedding_scatter(
    order,
    starts,
    grad,
    grad_low,
    out,
    N,
    V,
    D: tl.constexpr,
    LOW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, r = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    first = tl.load(starts + r.to(tl.int64) * (V + 1) + token)
    last = tl.load(starts + r.to(tl.int64) * (V + 1) + token + 1)
    summed = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < last)[:, None] & (cols < D)[None, :]
        place = tl.load(order + r.to(tl.int64) * N + rows, mask=rows < last, other=0)
        at = (r.to(tl.int64) * N + place)[:, None] * D + cols[None, :]
        summed += tl.load(grad + at, mask=mask, other=0.0)
        if LOW:
            summed += tl.load(grad_low + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + (r.to(tl.int64) * V + token) * D + cols, tl.sum(summed, 0), mask=cols < D)


def embed(weight_RVD: Tensor, tokens_RN: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows in float32, and their copy in `dtype`."""
    R, V, D = weight_RVD.shape
    N = tokens_RN.shape[1]
    rows, block, warps = row_tile(D)
    out, low = weight_RVD.new_empty(R, N, D), weight_RVD.new_empty(R, N, D, dtype=dtype)
    launch(
        _embedding_gather, (triton.cdiv(N, rows), R),
        weight_RVD, tokens_RN, out, low, N, V, D, rows, block, num_warps=warps,
    )  # fmt: skip
    return out, low


def embedding_order(tokens_RN: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Every row's places in the order of their tokens, and where in it each token's begin and the last one's end."""
    sorted_RN, order_RN = torch.sort(tokens_RN, dim=1, stable=True)
    edges = torch.arange(vocabulary + 1, device=tokens_RN.device, dtype=tokens_RN.dtype)
    return order_RN, torch.searchsorted(sorted_RN, edges.expand(tokens_RN.shape[0], -1).contiguous())


def embed_backward(grad_RND: Tensor, grad_low_RND: Tensor | None, order_RN: Tensor, starts_RV: Tensor) -> Tensor:
    """The gradient of E_in, (R, V, D): for each token the sum over its places, the two parts of a gradient added."""
    R, N, D = grad_RND.shape
    vocabulary = starts_RV.shape[1] - 1
    rows, block, _ = row_tile(D)
    out = grad_RND.new_empty(R, vocabulary, D)
    rows = max(4, min(8, rows))
    launch(
        _embedding_scatter, (vocabulary, R), order_RN, starts_RV, grad_RND, grad_low_RND, out, N, vocabulary, D,
        grad_low_RND is not None, rows, block,
        num_warps=max(1, min(8, rows * block // 1024)),
    )  # fmt: skip
    return out
