"""What every decoder shares: embedding, positions, the run through the blocks, unembedding and loss.

Shapes: B batch, T tokens, S keys, D d_model, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nugpt.core.cache import Cache
from nugpt.core.rope import rope_angles
from nugpt.kernels.cross_entropy import Loss, loss_named
from nugpt.spec.model import ModelConfig


class Matrix(nn.Linear):
    """A bias-free linear map, computed in the dtype its weight is given in."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, bias=False)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:  # without numbers: to go through the motions, torch loads its compiler for seconds
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.weight.dtype), self.weight)


class Embedding(nn.Embedding):
    """A row for every token id."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:  # as in a matrix
            super().reset_parameters()


class Decoder(nn.Module):
    """Tokens to the hidden states after the last block, or to the loss of their targets."""

    gains_type: type[Any]
    blocks: nn.ModuleList
    E_out: Matrix

    def __init__(self, config: ModelConfig, loss: str) -> None:
        super().__init__()
        self.config = config
        self.loss: Loss = loss_named(loss)
        self.E_in = Embedding(config.vocab_size, config.d_model)

    def forward(
        self,
        tokens_BT: Tensor,
        gains: Any,
        targets_BT: Tensor | None = None,
        positions_T: Tensor | None = None,
        mask_TS: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Hidden states for the unembedding, or, given targets, the mean cross-entropy over all tokens."""
        T = tokens_BT.shape[-1]
        start = cache.length if cache is not None else 0
        if cache is not None and start + T > cache.capacity:
            raise ValueError(f"the cache has room for {cache.capacity} tokens, but these would make it {start + T}")
        index_T = torch.arange(start, start + T, device=tokens_BT.device)
        if positions_T is None:
            positions_T = index_T
        if mask_TS is None and start:  # causality goes by index: positions only turn queries and keys
            mask_TS = torch.arange(start + T, device=tokens_BT.device) <= index_T.unsqueeze(-1)
        wide = torch.promote_types(self.E_in.weight.dtype, torch.float32)
        # CHOICE: the hidden state is float32 whatever the products are: at depth its steps fall below bfloat16's.
        h_BTD = self.E_in(tokens_BT).to(wide)  # h¹ = E_input x: a row of the stored matrix
        angles = rope_angles(positions_T, self.config.head_dim, self.config.rope_theta, wide)
        for i, block in enumerate(self.blocks):
            h_BTD = block(h_BTD, gains, angles, mask_TS, cache.layers[i] if cache is not None else None, start)
        h_BTD = self.finish(h_BTD)
        if cache is not None:
            cache.length = start + T
        if targets_BT is None:
            return h_BTD
        weight_VD, scale_V = self.head(gains)
        return self.loss(h_BTD.flatten(0, 1), weight_VD, scale_V, targets_BT.flatten()).mean()

    def finish(self, h_BTD: Tensor) -> Tensor:
        """What happens between the last block and the unembedding."""
        return h_BTD

    def head(self, gains: Any) -> tuple[Tensor, Tensor]:
        """The unembedding's weight (V, D) and the scale of each logit (V): all that a fused loss needs beside h."""
        raise NotImplementedError

    def logits(self, h_BTD: Tensor, gains: Any) -> Tensor:
        """z = scale ⊙ (E_out h). # (5)"""
        weight_VD, scale_V = self.head(gains)
        return functional.linear(h_BTD.to(weight_VD.dtype), weight_VD) * scale_V


class Tail(nn.Module):
    """What follows a decoder's blocks, as a module, so that `functional_call` can be given its parameters."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, h_BTD: Tensor, gains: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states for the unembedding, its weight, and the scale of each logit."""
        return (self.model.finish(h_BTD), *self.model.head(gains))
