"""A vocabulary that is spread over the ranks of a group: looking tokens up, and the loss of an unembedding.

Shapes: M tokens, D d_model, W the rank's share of the vocabulary. The definition is kernels/cross_entropy.py's `plain`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from nugpt.kernels.cross_entropy import CHUNK_LOGITS


class _ToAll(torch.autograd.Function):
    """What every rank has; each rank's gradient is a part of the whole, so they are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """The sum over ranks, which every rank has from then on: its gradient is every rank's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def spread_lookup(tokens_BT: Tensor, weight_WD: Tensor, group: Any) -> Tensor:
    """The embedding of every token, of which this rank has the rows of its share of the vocabulary."""
    at_BT = tokens_BT - dist.get_rank(group) * weight_WD.shape[0]
    ours_BT = (at_BT >= 0) & (at_BT < weight_WD.shape[0])
    h_BTD = functional.embedding(at_BT.clamp(0, weight_WD.shape[0] - 1), weight_WD)
    return _Sum.apply(torch.where(ours_BT.unsqueeze(-1), h_BTD, 0.0), group)


def spread_loss(h_MD: Tensor, weight_WD: Tensor, scale_W: Tensor, targets_M: Tensor, group: Any) -> Tensor:
    """−log softmax(s ⊙ (W h)) at the target for every token, from this rank's rows of W and s."""
    h_MD = _ToAll.apply(h_MD, group)
    M, W = h_MD.shape[0], weight_WD.shape[0]
    first = dist.get_rank(group) * W
    n_chunks = max(1, -(-M * W // CHUNK_LOGITS))
    pieces = []
    for h, targets in zip(h_MD.chunk(n_chunks), targets_M.chunk(n_chunks), strict=True):
        # A chunk's logits are made again in the backward pass; what crosses ranks stays outside of it.
        if n_chunks > 1:
            part = checkpoint(_own_share, h, weight_WD, scale_W, targets - first, use_reentrant=False)
        else:
            part = _own_share(h, weight_WD, scale_W, targets - first)
        pieces.append(part)
    lse_M, at_target_M = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    top_M = lse_M.detach().clone()
    dist.all_reduce(top_M, op=dist.ReduceOp.MAX, group=group)
    sums = _Sum.apply(torch.stack(((lse_M - top_M).exp(), at_target_M)), group)
    return top_M + sums[0].log() - sums[1]


def _own_share(h_MD: Tensor, weight_WD: Tensor, scale_W: Tensor, at_M: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ exp of this rank's logits, and the target's logit where it is one of them, else 0."""
    logits_MW = (h_MD.to(weight_WD.dtype) @ weight_WD.mT) * scale_W
    logits_MW = logits_MW.to(torch.promote_types(logits_MW.dtype, torch.float32))
    ours_M = (at_M >= 0) & (at_M < logits_MW.shape[-1])
    picked_M = logits_MW.gather(-1, at_M.clamp(0, logits_MW.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    return logits_MW.logsumexp(-1), torch.where(ours_M, picked_M, 0.0)
