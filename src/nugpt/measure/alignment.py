"""Alignment exponents of one matrix (paper, Definition 1): pure functions of plain tensors, gathered by whoever calls.

Shapes: n tokens, I d_in, O d_out. Δ is "now less step 0". With α, for instance, ‖ΔW h‖ is d_in^(α−1) of the most that
‖ΔW‖_F and ‖h‖ allow: 1 where every token lies along the one direction in which W moved, 1/2 where nothing is aligned.
"""

from __future__ import annotations

import math
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


@torch.no_grad()
def alignment_exponents(weight_OI: Tensor, weight_0: Tensor, inputs_nI: Tensor, inputs_0: Tensor) -> Alignment:
    """Exponents of W (d_out, d_in) and its inputs (…, d_in), both now at step 0; no step here waits for the device."""
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
    moved = _squares(torch.cat([h_0, delta_h]), delta_W)  # ΔW h and ΔW Δh, token by token
    stayed = _squares(delta_h, W_0)  # W Δh
    h_sq, delta_h_sq = _row_squares(h_0), _row_squares(delta_h)
    W_sq, delta_W_sq = _row_squares(W_0).sum(), _row_squares(delta_W).sum()
    parts = ((moved[:n], delta_W_sq, h_sq), (stayed, W_sq, delta_h_sq), (moved[n:], delta_W_sq, delta_h_sq))
    joint = [_exponent(product.sum(), matrix, inputs.sum(), d_in) for product, matrix, inputs in parts]
    per_token = [_exponent(product, matrix, inputs, d_in).nanmean() for product, matrix, inputs in parts]
    return Alignment(Exponents(*joint), Exponents(*per_token))


def _exponent(product_sq: Tensor, matrix_sq: Tensor, inputs_sq: Tensor, d_in: int) -> Tensor:
    """1 + log(‖product‖ / (‖matrix‖_F ‖inputs‖)) / log d_in, from squares; not a number where one of them is zero."""
    ratio = product_sq / (matrix_sq * inputs_sq)
    exponent = 1 + ratio.log() / (2 * math.log(d_in))
    return torch.where(exponent.isfinite(), exponent, torch.nan)


def _squares(x_nI: Tensor, weight_OI: Tensor) -> Tensor:
    """‖W x‖² of every token, in float64."""
    rows = max(1, CHUNK // weight_OI.shape[0])
    return torch.cat([_row_squares(piece @ weight_OI.T) for piece in torch.split(x_nI, rows)])


def _row_squares(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).double().square()
