"""Alignment exponents of one matrix (paper, Definition 1): pure functions of plain tensors, gathered by whoever calls.

Shapes: n tokens, I d_in, O d_out. Δ is "now less step 0". With α, for instance, ‖ΔW h‖ is d_in^(α−1) of the most that
‖ΔW‖_F and ‖h‖ allow: 1 where every token lies along the one direction in which W moved, 1/2 where nothing is aligned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
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


class Norms(NamedTuple):
    """What the exponents of one matrix are made of."""

    moved: Tensor  # (2n,): of every token's ΔW h, then of every token's ΔW Δh
    stayed: Tensor  # (n,): of W Δh
    inputs: Tensor  # (2n,): of h, then of Δh
    change: Tensor  # of ΔW
    matrix: Tensor  # of W
    d_in: int


def alignment_exponents(weight_OI: Tensor, weight_0: Tensor, inputs_nI: Tensor, inputs_0: Tensor) -> Alignment:
    """Exponents of W (d_out, d_in) and its inputs (…, d_in), both now and at step 0; nothing here waits."""
    # CHOICE: norms over all tokens jointly; the mean of each token's own exponent stands beside it.
    joint, per_token = exponents_of(norms_of([weight_OI], [weight_0], inputs_nI, inputs_0))
    return Alignment(Exponents(*joint[0]), Exponents(*per_token[0]))


@torch.no_grad()
def norms_of(
    weights: Sequence[Tensor], weights_0: Sequence[Tensor], inputs_nI: Tensor, inputs_0: Tensor
) -> list[Norms]:
    """The norms of matrices that are given the same inputs, in few operations; the rest is done for all at once."""
    d_in = weights[0].shape[-1]
    for weight_OI, weight_0 in zip(weights, weights_0, strict=True):
        if weight_OI.shape != weight_0.shape or weight_OI.dim() != 2:
            shapes = f"{tuple(weight_OI.shape)} and {tuple(weight_0.shape)}"
            raise ValueError(f"weights are {shapes}, but must be one (out, in)")
    if inputs_nI.shape != inputs_0.shape or inputs_nI.shape[-1] != d_in:
        shapes = f"{tuple(inputs_nI.shape)} and {tuple(inputs_0.shape)}"
        raise ValueError(f"inputs are {shapes}, but must be of one shape that ends in {d_in}, the matrix's d_in")
    if d_in < 2:
        raise ValueError(f"d_in is {d_in}, but must be at least 2: a power of 1 says nothing")
    wide = torch.promote_types(weights[0].dtype, torch.float32)
    W, W_0 = (x[0].to(wide) if len(x) == 1 else torch.cat([*x]).to(wide) for x in (weights, weights_0))
    h_0 = inputs_0.to(wide).reshape(-1, d_in)
    delta_W, delta_h = W - W_0, inputs_nI.to(wide).reshape(-1, d_in) - h_0
    both = torch.cat([h_0, delta_h])
    rows = [weight.shape[0] for weight in weights]
    lengths = torch.linalg.vector_norm(both, dim=-1)
    columns = zip(
        _lengths(both, delta_W, rows),
        _lengths(delta_h, W_0, rows),
        _frobenius(delta_W, rows),
        _frobenius(W_0, rows),
        strict=True,
    )
    return [Norms(moved, stayed, lengths, change, matrix, d_in) for moved, stayed, change, matrix in columns]


@torch.no_grad()
def exponents_of(norms: Sequence[Norms]) -> tuple[Tensor, Tensor]:
    """α, ω, ν of each matrix, (matrices, 3): over all tokens jointly, and as a mean over tokens of their own.

    As in `norms_of`, nothing is brought from the host: a CUDA graph can hold every operation.
    """
    n = norms[0].stayed.shape[0]
    h, delta_h = torch.split(torch.stack([one.inputs for one in norms]).double().square(), n, dim=1)
    of_h, of_delta_h = torch.split(torch.stack([one.moved for one in norms]).double().square(), n, dim=1)
    stayed = torch.stack([one.stayed for one in norms]).double().square()
    products, inputs = torch.stack([of_h, stayed, of_delta_h], dim=1), torch.stack([h, delta_h, delta_h], dim=1)
    change, matrix = (torch.stack([getattr(one, of) for one in norms]).double().square() for of in ("change", "matrix"))
    matrices = torch.stack([change, matrix, change], dim=1)
    logs = [(2 * math.log(d_in), len([*alike])) for d_in, alike in groupby(one.d_in for one in norms)]
    log_d = torch.cat([products.new_full((count, 1), log) for log, count in logs])

    def exponent(product_sq: Tensor, matrix_sq: Tensor, inputs_sq: Tensor, log_d: Tensor) -> Tensor:
        """1 + log(‖product‖ / (‖matrix‖_F ‖inputs‖)) / log d_in; not a number where a norm is zero."""
        found = 1 + (product_sq / (matrix_sq * inputs_sq)).log() / log_d
        return torch.where(found.isfinite(), found, torch.nan)

    joint = exponent(products.sum(-1), matrices, inputs.sum(-1), log_d)
    per_token = exponent(products, matrices.unsqueeze(-1), inputs, log_d.unsqueeze(-1)).nanmean(-1)
    return joint, per_token


def _lengths(x_nI: Tensor, weight_OI: Tensor, rows: list[int]) -> list[Tensor]:
    """‖W x‖ of every token, for each of the matrices that lie one below the other."""
    pieces = []
    for piece in torch.split(x_nI, max(1, CHUNK // weight_OI.shape[0])):
        pieces.append(_norms(piece @ weight_OI.T, rows))
    return pieces[0] if len(pieces) == 1 else [torch.cat([*of]) for of in zip(*pieces, strict=True)]


def _frobenius(matrix: Tensor, rows: list[int]) -> list[Tensor]:
    """‖W‖_F by way of its rows, so that no sum in float32 runs over a whole large matrix."""
    return _norms(torch.linalg.vector_norm(matrix, dim=-1), rows)


def _norms(x: Tensor, rows: list[int]) -> list[Tensor]:
    """Norms along the last axis, part by part; of equal parts at once."""
    if len({*rows}) == 1:
        return [*torch.linalg.vector_norm(x.reshape(*x.shape[:-1], len(rows), rows[0]), dim=-1).unbind(-1)]
    return [torch.linalg.vector_norm(part, dim=-1) for part in torch.split(x, rows, dim=-1)]
