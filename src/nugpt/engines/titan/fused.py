"""The Normalized Transformer by fused kernels, where every rank has whole matrices in its forward pass.

FSDP2 gathers a block's matrices before its forward, so there they are plain tensors, as the kernels want them; tensor
parallelism would leave parts. Shapes: B batch, T tokens, N = B·T, D d_model, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nugpt.core.rope import rope_angles
from nugpt.core.transformer import Block, Gains
from nugpt.kernels.fused import ops
from nugpt.kernels.fused.heads import Heads
from nugpt.spec.model import ModelConfig

Turns = tuple[Heads, Tensor, Tensor]  # the layout of heads, and cosine and sine of each position's angles


class FusedBlock(Block):
    """A block from the hidden state and its copy for matrix products to the next of both."""

    def forward(  # type: ignore[override]
        self, h_ND: Tensor, low_ND: Tensor, gains: Gains, turns: Turns
    ) -> tuple[Tensor, Tensor]:
        """Equations (1) to (4), (6) to (9)."""
        attention, mlp, (heads, cos, sin) = self.attention, self.mlp, turns
        qkv = ops.stacked_heads(attention.W_q.weight, attention.W_k.weight, attention.W_v.weight, heads)
        o = ops.attention(
            functional.linear(low_ND, qkv), heads, attention.s_qk.stored, gains.s_qk, cos, sin, heads.dim**0.5
        )
        branch_A = functional.linear(o, ops.spread_columns(attention.W_O.weight, heads))
        h_ND, low_ND = ops.lerp(h_ND, branch_A, self.alpha_A.stored, gains.alpha_A)
        x = functional.linear(low_ND, torch.cat([mlp.W_u.weight, mlp.W_nu.weight]))
        branch_M = ops.gated(
            x, mlp.s_u.stored, gains.s_u, mlp.s_nu.stored, gains.s_nu, h_ND.shape[-1] ** 0.5, mlp.W_oMLP.weight
        )
        return ops.lerp(h_ND, branch_M, self.alpha_M.stored, gains.alpha_M)


def heads_of(config: ModelConfig, tokens: int) -> Heads:
    """The layout of heads in a row of the q-k-v product."""
    return Heads(config.n_heads, config.n_kv_heads, config.head_dim, tokens)


def attention_kernel(config: ModelConfig, batch: int, dtype: torch.dtype, device: torch.device) -> str:
    """The name of the attention kernel that is fastest for so many sequences."""
    return ops.attention_kernel(heads_of(config, config.seq_len), batch, dtype, device)


def turns_of(config: ModelConfig, tokens: int, device: torch.device) -> Turns:
    """How queries and keys of sequences of so many tokens are turned."""
    heads = heads_of(config, tokens)
    angles = rope_angles(torch.arange(tokens, device=device), config.head_dim, config.rope_theta, torch.float32)
    return heads, *heads.turns(angles)


def hidden_states(model: Any, tokens_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """What the unembedding is applied to, (N, D) in the dtype of matrix products."""
    h_ND = model.E_in(tokens_BT).flatten(0, 1)
    low_ND, turns = h_ND.to(dtype), turns_of(model.config, tokens_BT.shape[1], h_ND.device)
    for block in model.blocks:
        h_ND, low_ND = block(h_ND, low_ND, model.gains, turns)
    return low_ND


def loss(low_ND: Tensor, weight_VD: Tensor, stored_V: Tensor, gain: Tensor, targets_N: Tensor) -> Tensor:
    """Where gradients are wanted the sum of all tokens' losses, (1,), else the loss of every token, (N,)."""
    if torch.is_grad_enabled():
        return ops.summed_loss(low_ND, weight_VD, stored_V, gain, targets_N)
    return ops.token_losses(low_ND, weight_VD, stored_V, gain, targets_N)
