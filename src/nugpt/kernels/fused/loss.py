"""Cross-entropy of a scaled linear unembedding with its gradients, never holding more logits than one chunk's.

z = s ⊙ (W h) is one product with the weight s ⊙ W, rounded once; so a chunk's logits become its loss and, in place,
their own gradient, and two more products give those of h and of s ⊙ W, from which those of W and s follow exactly.
Shapes: R replicas, N tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.product import product, product_into
from nugpt.kernels.fused.tile import TILINGS, row_tile, walkers, warps_for

# Numbers held at a time, 0.8 GiB in bfloat16. Every piece of a replica reads and writes the whole gradient of its
# unembedding, so twice as many would save about 0.4 % of a step at the paper's shape, and take it above 20 GiB.
CHUNK_LOGITS = 13 * 2**25
WHOLE_ROW = 16384  # logits of a token that a program can hold


@triton.jit
def _softmax_in_place(logits, targets, losses, weight, n, N, V, start, GRADIENT: tl.constexpr, BLOCK: tl.constexpr):
    row, r = tl.program_id(0), tl.program_id(1)
    base = logits + (r.to(tl.int64) * n + row) * V
    place = r.to(tl.int64) * N + start + row
    cols = tl.arange(0, BLOCK)
    # Asked for before the target, whose logit waits for it.
    z = tl.load(base + cols, mask=cols < V, other=float("-inf")).to(tl.float32)
    target = tl.load(targets + place)
    at_target = tl.load(base + target).to(tl.float32)
    highest = tl.max(z, 0)
    lse = highest + tl.log(tl.sum(tl.exp(z - highest), 0))
    tl.store(losses + place, lse - at_target)
    if GRADIENT:
        d = (tl.exp(z - lse) - tl.where(cols == target, 1.0, 0.0)) * weight
        tl.store(base + cols, d.to(logits.dtype.element_ty), mask=cols < V)


@triton.jit(do_not_specialize=["P"])
def _long_softmax_in_place(
    logits,
    targets,
    losses,
    weight,
    n,
    N,
    V,
    start,
    P,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
    EACH: tl.constexpr,
):
    """Rows too long to be held. Few at a time are under way: the second pass finds them in the cache."""
    r = tl.program_id(1)
    cols = tl.arange(0, BLOCK // EACH)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    for row in range(tl.program_id(0), n, P):
        base = logits + (r.to(tl.int64) * n + row) * V
        place = r.to(tl.int64) * N + start + row
        target = tl.load(targets + place)
        at_target = tl.load(base + target).to(tl.float32)
        # Each thread has a maximum and a sum of its own, so that threads meet once a row.
        highest = tl.full((BLOCK // EACH,), -1e30, tl.float32)
        summed = tl.zeros((BLOCK // EACH,), tl.float32)
        for first in tl.range(0, V, BLOCK, num_stages=1):
            at = first + cols
            z = tl.load(base + at, mask=at < V, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)
            higher = tl.maximum(highest, tl.max(z, 1))
            summed = summed * tl.exp(highest - higher) + tl.sum(tl.exp(z - higher[:, None]), 1)
            highest = higher
        top = tl.max(highest, 0)
        lse = top + tl.log(tl.sum(summed * tl.exp(highest - top), 0))
        tl.store(losses + place, lse - at_target)
        if GRADIENT:
            for first in tl.range(0, V, BLOCK, num_stages=1):
                at = first + cols
                z = tl.load(base + at, mask=at < V, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
                d = (tl.exp(z - lse) - tl.where(at == target, 1.0, 0.0)) * weight
                tl.store(base + at, d.to(logits.dtype.element_ty), mask=at < V, eviction_policy="evict_first")


@triton.jit
def _scale_rows(weight, stored, gain, out, V, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < V)[:, None] & (cols < D)[None, :]
    row = r.to(tl.int64) * V + rows
    at = row[:, None] * D + cols[None, :]
    s = tl.load(gain + r) * tl.load(stored + row, mask=rows < V, other=0.0)
    tl.store(out + at, (tl.load(weight + at, mask=mask, other=0.0) * s[:, None]).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _unscale_rows(weight, stored, gain, grad, d_stored, V, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < V)[:, None] & (cols < D)[None, :]
    row = r.to(tl.int64) * V + rows
    at = row[:, None] * D + cols[None, :]
    d = tl.load(grad + at, mask=mask, other=0.0)
    w = tl.load(weight + at, mask=mask, other=0.0)
    g = tl.load(gain + r)
    s = g * tl.load(stored + row, mask=rows < V, other=0.0)
    tl.store(d_stored + row, tl.sum(d * w, 1) * g, mask=rows < V)
    tl.store(grad + at, d * s[:, None], mask=mask)


def scaled(weight_RVD: Tensor, stored_RV: Tensor, gain_R: Tensor, dtype: torch.dtype) -> Tensor:
    """(gain·stored) ⊙ W, rounded once to `dtype`."""
    R, V, D = weight_RVD.shape
    rows, block, warps = row_tile(D)
    out = weight_RVD.new_empty(R, V, D, dtype=dtype)
    launch(
        _scale_rows, (triton.cdiv(V, rows), R), weight_RVD, stored_RV, gain_R, out, V, D, rows, block, num_warps=warps
    )
    return out


def unscale_(grad_RVD: Tensor, weight_RVD: Tensor, stored_RV: Tensor, gain_R: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradient G of s ⊙ W (float32, overwritten): s ⊙ G for W, and gain·(W·G) per entry for the stored s."""
    R, V, D = weight_RVD.shape
    rows, block, warps = row_tile(D)
    d_stored = grad_RVD.new_empty(R, V)
    launch(
        _unscale_rows, (triton.cdiv(V, rows), R),
        weight_RVD, stored_RV, gain_R, grad_RVD, d_stored, V, D, rows, block, num_warps=warps,
    )  # fmt: skip
    return grad_RVD, d_stored


def softmax_(logits_RnV: Tensor, targets_RN: Tensor, losses_RN: Tensor, start: int, weight: float | None) -> None:
    """The chunk's losses; with a weight, the logits become weight times the gradient of their loss."""
    R, n, V = logits_RnV.shape
    N, gradient = targets_RN.shape[1], weight is not None
    operands = (logits_RnV, targets_RN, losses_RN, weight or 0.0, n, N, V, start)
    if V <= WHOLE_ROW:
        block = triton.next_power_of_2(V)
        warps = max(4, warps_for(block, TILINGS["softmax"].per_thread))
        launch(_softmax_in_place, (n, R), *operands, gradient, block, num_warps=warps)
    else:
        tiling = TILINGS["long softmax"]
        block, warps = tiling.numbers, warps_for(tiling.numbers, tiling.per_thread)
        P = walkers(n, R, logits_RnV.device, warps, "long softmax")
        launch(_long_softmax_in_place, (P, R), *operands, P, gradient, block, 8, num_warps=warps)


def pieces(R: int, N: int, V: int) -> list[tuple[slice, slice]]:
    """The replicas and tokens whose logits are held together.

    Whole replicas as far as they fit, for then nothing has to be added up; else equal parts of one replica's tokens, a
    whole number of matrix tiles where there are many.
    """
    replicas = -(-R // -(-R // max(1, CHUNK_LOGITS // (N * V))))
    tokens = -(-N // -(-N * V // CHUNK_LOGITS))
    tokens = min(N, tokens + -tokens % 128)
    return [
        (slice(r, min(R, r + replicas)), slice(n, min(N, n + tokens)))
        for r in range(0, R, replicas)
        for n in range(0, N, tokens)
    ]


def token_losses(h_RND: Tensor, weight_RVD: Tensor, targets_RN: Tensor) -> Tensor:
    """The loss of every token, (R, N) in float32; the weight is already scaled."""
    R, N, _ = h_RND.shape
    losses = h_RND.new_empty(R, N, dtype=torch.float32)
    for r, n in pieces(R, N, weight_RVD.shape[1]):
        softmax_(product(h_RND[r, n], weight_RVD[r].mT), targets_RN[r], losses[r], n.start, None)
    return losses


def token_losses_and_gradients(
    h_RND: Tensor, weight_RVD: Tensor, targets_RN: Tensor, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses, and of weight·Σ losses the gradients for h (its dtype) and for the scaled weight (float32)."""
    R, N, D = h_RND.shape
    V = weight_RVD.shape[1]
    losses = h_RND.new_empty(R, N, dtype=torch.float32)
    dh, dweight = torch.empty_like(h_RND), h_RND.new_empty(R, V, D, dtype=torch.float32)
    for r, n in pieces(R, N, V):
        logits = product(h_RND[r, n], weight_RVD[r].mT)
        softmax_(logits, targets_RN[r], losses[r], n.start, weight)
        product(logits, weight_RVD[r], out=dh[r, n])
        product_into(dweight[r], logits.mT, h_RND[r, n], add=n.start > 0)
        del logits  # before the next piece's are made
    return losses, dh, dweight
