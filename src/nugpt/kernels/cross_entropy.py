"""Cross-entropy of a linear unembedding with a scale per vocabulary entry: the definition, and one in chunks of tokens.

Shapes: M tokens, D d_model, V vocabulary; a replica axis may stand before each of h, weight, scale and targets.
Each returns the loss of every token in at least float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# A chunk's float32 logits stay near this many numbers (1 GiB), so that those of a batch are never held at once.
CHUNK_LOGITS = 2**28


def plain(h_MD: Tensor, weight_VD: Tensor, scale_V: Tensor, targets_M: Tensor) -> Tensor:
    """−log softmax(s ⊙ (W h)) at the target."""
    logits_MV = (h_MD.to(weight_VD.dtype) @ weight_VD.mT) * scale_V.unsqueeze(-2)
    logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
    targets = targets_M.expand(logits_MV.shape[:-1]).unsqueeze(-1)
    return logits_MV.logsumexp(-1) - logits_MV.gather(-1, targets).squeeze(-1)


def chunked(h_MD: Tensor, weight_VD: Tensor, scale_V: Tensor, targets_M: Tensor) -> Tensor:
    """The same in chunks of tokens whose logits are made again in the backward pass."""
    M, V = h_MD.shape[-2], weight_VD.shape[-2]
    replicas = h_MD.shape[:-2].numel()
    n_chunks = -(-M * V * replicas // CHUNK_LOGITS)
    if n_chunks <= 1:
        return plain(h_MD, weight_VD, scale_V, targets_M)
    size = -(-M // n_chunks)
    pieces = zip(torch.split(h_MD, size, dim=-2), torch.split(targets_M, size, dim=-1), strict=True)
    losses: list[Tensor] = []
    for h_piece, targets_piece in pieces:
        loss = checkpoint(plain, h_piece, weight_VD, scale_V, targets_piece, use_reentrant=False)
        assert isinstance(loss, Tensor)
        losses.append(loss)
    return torch.cat(losses, dim=-1)


LOSSES: dict[str, Loss] = {"plain": plain, "chunked": chunked}


def loss_named(name: str) -> Loss:
    """The loss implementation of this name."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}, but must be one of {', '.join(LOSSES)}")
    return LOSSES[name]
