"""Rows of E_in for tokens, and their gradient summed in an order that never changes.

Shapes: R replicas, N tokens, V vocabulary, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import row_tile

WINDOW = 64  # places, in the order of their tokens, that one program may sum


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
def _summed(
    order, grad, grad_low, of, first, last, cols, D: tl.constexpr, LOW: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient's rows at the places first … last − 1 of the order, added up; `of` is the replica's first row."""
    summed = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < last)[:, None] & (cols < D)[None, :]
        place = tl.load(order + of + rows, mask=rows < last, other=0)
        at = (of + place)[:, None] * D + cols[None, :]
        summed += tl.load(grad + at, mask=mask, other=0.0)
        if LOW:
            summed += tl.load(grad_low + at, mask=mask, other=0.0).to(tl.float32)
    return tl.sum(summed, 0)


@triton.jit
def _embedding_scatter(
    order,
    ordered,
    starts,
    grad,
    grad_low,
    out,
    further,
    N,
    V,
    W,
    D: tl.constexpr,
    LOW: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    p, r = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    of, edges = r * N, starts + r * (V + 1)
    cols = tl.arange(0, BLOCK)
    if p < W:  # the places in a window of a token that had some before it: these take longest and so begin first
        token = tl.load(ordered + of + p * WINDOW).to(tl.int64)
        if tl.load(edges + token) < p * WINDOW:
            last = tl.minimum(tl.load(edges + token + 1), (p + 1) * WINDOW)
            summed = _summed(order, grad, grad_low, of, p * WINDOW, last, cols, D, LOW, ROWS, BLOCK)
            tl.store(further + (r * W + p) * D + cols, summed, mask=cols < D)
    else:  # a token's places in the window of its first
        token = p - W
        first = tl.load(edges + token)
        last = tl.minimum(tl.load(edges + token + 1), (first // WINDOW + 1) * WINDOW)
        summed = _summed(order, grad, grad_low, of, first, last, cols, D, LOW, ROWS, BLOCK)
        tl.store(out + (r * V + token) * D + cols, summed, mask=cols < D)


@triton.jit
def _embedding_collect(
    ordered, starts, further, out, N, V, W, D: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    p, r = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    token = tl.load(ordered + r * N + tl.minimum((p + 1) * WINDOW, N) - 1).to(tl.int64)
    edges = starts + r * (V + 1)
    last = tl.load(edges + token + 1)
    if (tl.load(edges + token) >= p * WINDOW) & (last > (p + 1) * WINDOW):  # it begins here and goes on
        end = tl.cdiv(last, WINDOW)
        summed = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(p + 1, end, ROWS):
            rows = start + tl.arange(0, ROWS)
            mask = (rows < end)[:, None] & (cols < D)[None, :]
            at = (r * W + rows)[:, None] * D + cols[None, :]
            summed += tl.load(further + at, mask=mask, other=0.0)
        at = out + (r * V + token) * D + cols
        tl.store(at, tl.load(at, mask=cols < D, other=0.0) + tl.sum(summed, 0), mask=cols < D)


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


@dataclass(frozen=True)
class Order:
    """A batch's places in the order of their tokens, those of one token in the order of the batch."""

    places_RN: Tensor
    tokens_RN: Tensor  # of these places
    starts_RV: Tensor  # where each token's begin, and where the last one's end: V + 1 numbers


def embedding_order(tokens_RN: Tensor, vocabulary: int) -> Order:
    """What the gradient of E_in is summed by."""
    ordered_RN, places_RN = torch.sort(tokens_RN, dim=1, stable=True)
    edges = torch.arange(vocabulary + 1, device=tokens_RN.device, dtype=tokens_RN.dtype)
    starts_RV = torch.searchsorted(ordered_RN, edges.expand(tokens_RN.shape[0], -1).contiguous())
    return Order(places_RN, ordered_RN, starts_RV)


def embed_backward(grad_RND: Tensor, grad_low_RND: Tensor | None, order: Order) -> Tensor:
    """The gradient of E_in, (R, V, D): for each token the sum over its places, the two parts of a gradient added.

    By Zipf's law one token has a tenth of all places: no program sums more of them than a window holds, and what lies
    in a token's further windows is added to its first afterwards.
    """
    R, N, D = grad_RND.shape
    vocabulary = order.starts_RV.shape[1] - 1
    rows, block, _ = row_tile(D)
    rows = max(4, min(8, rows))
    warps = max(1, min(8, rows * block // 1024))
    windows = triton.cdiv(N, WINDOW)
    out, further = grad_RND.new_empty(R, vocabulary, D), grad_RND.new_empty(R, windows, D)
    launch(
        _embedding_scatter, (windows + vocabulary, R), order.places_RN, order.tokens_RN, order.starts_RV,
        grad_RND, grad_low_RND, out, further, N, vocabulary, windows, D, grad_low_RND is not None, WINDOW, rows, block,
        num_warps=warps,
    )  # fmt: skip
    launch(
        _embedding_collect, (windows, R), order.tokens_RN, order.starts_RV, further, out, N, vocabulary, windows, D,
        WINDOW, rows, block, num_warps=warps,
    )  # fmt: skip
    return out
