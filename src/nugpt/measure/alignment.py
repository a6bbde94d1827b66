"""Alignment exponents of one matrix (paper, Definition 1): pure functions of plain tensors, gathered by whoever calls.

Shapes: n tokens, I d_in, O d_out. Δ is "now less step 0". With α, for instance, ‖ΔW h‖ is d_in^(α−1) of the most that
‖ΔW‖_F and ‖h‖ allow: 1 where every token lies along the one direction in which W moved, 1/2 where nothing is aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Products are made in pieces of at most so many numbers (256 MiB in float32), so that those of E_out never stand whole.
CHUNK = 2**26


class Exponents(NamedTuple):
    """α of ΔW h, ω of W Δh, ν of ΔW Δh; not a number where a norm is zero, as all are at step 0."""

    alpha: Tensor
    omega: Tensor
    nu: Tensor


class Alignment(NamedTuple):
    """The exponents with norms over all tokens jointly, and the mean over tokens of each token's own."""

    joint: Exponents
    per_token: Exponents


class Squares(NamedTuple):
    """What the exponents are made of: squared norms of every token's products and inputs, and of the matrices."""

    products: Tensor  # (3, n): of ΔW h, W Δh, ΔW Δh
    inputs: Tensor  # (3, n): of h, Δh, Δh
    matrices: Tensor  # (3,): of ΔW, W, ΔW
    d_in: int


def alignment_exponents(weight_OI: Tensor, weight_0: Tensor, inputs_nI: Tensor, inputs_0: Tensor) -> Alignment:
    """Exponents of W (d_out, d_in) and its inputs (…, d_in), both now and at step 0; nothing here waits."""
    # CHOICE: norms over all tokens jointly; the mean of each token's own exponent stands beside it.
    joint, per_token = exponents_of([squares_of(weight_OI, weight_0, inputs_nI, inputs_0)])
    return Alignment(Exponents(*joint[0]), Exponents(*per_token[0]))


@torch.no_grad()
def squares_of(weight_OI: Tensor, weight_0: Tensor, inputs_nI: Tensor, inputs_0: Tensor) -> Squares:
    """The products of one matrix; all that follows can be done for many matrices at once."""
    d_in = weight_OI.shape[-1]
    if weight_OI.shape != weight_0.shape or weight_OI.dim() != 2:
        raise ValueError(f"weights are {tuple(weight_OI.shape)} and {tuple(weight_0.shape)}, but must be one (out, in)")
    if inputs_nI.shape != inputs_0.shape or inputs_nI.shape[-1] != d_in:
        shapes = f"{tuple(inputs_nI.shape)} and {tuple(inputs_0.shape)}"
        raise ValueError(f"inputs are {shapes}, but must be of one shape that ends in {d_in}, the matrix's d_in")
    if d_in < 2:
        raise ValueError(f"d_in is {d_in}, but must be at least 2: a power of 1 says nothing")
    wide = torch.promote_types(weight_OI.dtype, torch.float32)
    W_0, h_0 = weight_0.to(wide), inputs_0.to(wide).reshape(-1, d_in)
    delta_W, delta_h = weight_OI.to(wide) - W_0, inputs_nI.to(wide).reshape(-1, d_in) - h_0
    n = h_0.shape[0]
    both = torch.cat([h_0, delta_h])
    moved = _lengths(both, delta_W)  # ‖ΔW h‖ and ‖ΔW Δh‖, token by token
    stayed = _lengths(delta_h, W_0)  # ‖W Δh‖
    lengths = torch.linalg.vector_norm(both, dim=-1)
    moves, stays = _frobenius(delta_W), _frobenius(W_0)
    return Squares(
        torch.cat([moved[:n], stayed, moved[n:]]).view(3, n).double().square(),
        torch.cat([lengths, lengths[n:]]).view(3, n).double().square(),
        torch.stack([moves, stays, moves]).double().square(),
        d_in,
    )


@torch.no_grad()
def exponents_of(squares: Sequence[Squares]) -> tuple[Tensor, Tensor]:
    """α, ω, ν of each matrix, (matrices, 3): over all tokens jointly, and as a mean over tokens of their own."""
    products, inputs = torch.stack([one.products for one in squares]), torch.stack([one.inputs for one in squares])
    matrices = torch.stack([one.matrices for one in squares])
    logs = [2 * math.log(one.d_in) for one in squares]
    log_d = torch.tensor(logs, dtype=torch.float64).to(products.device, non_blocking=True).unsqueeze(-1)

    def exponent(product_sq: Tensor, matrix_sq: Tensor, inputs_sq: Tensor, log_d: Tensor) -> Tensor:
        """1 + log(‖product‖ / (‖matrix‖_F ‖inputs‖)) / log d_in; not a number where a norm is zero."""
        found = 1 + (product_sq / (matrix_sq * inputs_sq)).log() / log_d
        return torch.where(found.isfinite(), found, torch.nan)

    joint = exponent(products.sum(-1), matrices, inputs.sum(-1), log_d)
    per_token = exponent(products, matrices.unsqueeze(-1), inputs, log_d.unsqueeze(-1)).nanmean(-1)
    return joint, per_token


def _lengths(x_nI: Tensor, weight_OI: Tensor) -> Tensor:
    """‖W x‖ of every token."""
    rows = max(1, CHUNK // weight_OI.shape[0])
    pieces = [torch.linalg.vector_norm(piece @ weight_OI.T, dim=-1) for piece in torch.split(x_nI, rows)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _frobenius(matrix: Tensor) -> Tensor:
    """‖W‖_F by way of its rows, so that no sum in float32 runs over a whole large matrix."""
    return torch.linalg.vector_norm(torch.linalg.vector_norm(matrix, dim=-1))
