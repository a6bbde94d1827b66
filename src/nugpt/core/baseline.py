"""A plain pre-norm transformer of the same shapes: the honest comparison for speed and loss.

Shapes: as in transformer.py. RMSNorm, SwiGLU, RoPE, and QK-norm when the architecture asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nugpt.core.cache import LayerCache
from nugpt.core.decoder import Decoder, Matrix
from nugpt.core.rope import rotate
from nugpt.kernels.attention import Attention, attention_named
from nugpt.spec.model import ModelConfig

RMS_EPS = 1e-6


class BaselineGains(NamedTuple):
    """The constant multipliers of the forward pass."""

    residual: Tensor
    logit: Tensor


class RMSNorm(nn.Module):
    """w ⊙ y / √(mean y² + ε), computed in at least float32, returned in y's dtype."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, y: Tensor) -> Tensor:
        wide = y.to(torch.promote_types(y.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + RMS_EPS) * self.weight).to(y.dtype)


class PlainAttention(nn.Module):
    """Causal attention with softmax scale 1/√d_key."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.W_q = Matrix(config.d_model, config.d_model)
        self.W_k = Matrix(config.d_model, config.d_kv)
        self.W_v = Matrix(config.d_model, config.d_kv)
        self.W_O = Matrix(config.d_model, config.d_model)
        qk_norm = config.architecture == "prenorm-qknorm"
        self.q_norm: nn.Module = RMSNorm(config.head_dim) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(config.head_dim) if qk_norm else nn.Identity()
        self.attention = attention

    def forward(
        self, x_BTD: Tensor, angles: Tensor, mask: Tensor | None, cache: LayerCache | None, start: int
    ) -> Tensor:
        H = self.head_dim
        q_BTNH = rotate(self.q_norm(self.W_q(x_BTD).unflatten(-1, (-1, H))), angles)
        k_BTKH = rotate(self.k_norm(self.W_k(x_BTD).unflatten(-1, (-1, H))), angles)
        v_BTKH = self.W_v(x_BTD).unflatten(-1, (-1, H))
        q_BTNH, k_BTKH = q_BTNH.to(v_BTKH.dtype), k_BTKH.to(v_BTKH.dtype)
        if cache is not None:
            k_BTKH, v_BTKH = cache.extend(k_BTKH, v_BTKH, start)
        o_BTNH = self.attention(q_BTNH, k_BTKH, v_BTKH, H**-0.5, mask)
        return self.W_O(o_BTNH.flatten(-2))


class PlainMLP(nn.Module):
    """SwiGLU: W_oMLP (SiLU(W_ν x) ⊙ W_u x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_u = Matrix(config.d_model, config.d_mlp)
        self.W_nu = Matrix(config.d_model, config.d_mlp)
        self.W_oMLP = Matrix(config.d_mlp, config.d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.W_oMLP(functional.silu(self.W_nu(x_BTD)) * self.W_u(x_BTD))


class PlainBlock(nn.Module):
    """h ← h + r·Attention(RMSNorm(h)), then h ← h + r·MLP(RMSNorm(h))."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.attention = PlainAttention(config, attention)
        self.mlp = PlainMLP(config)
        self.norm_A = RMSNorm(config.d_model)
        self.norm_M = RMSNorm(config.d_model)

    def forward(
        self,
        h_BTD: Tensor,
        gains: BaselineGains,
        angles: Tensor,
        mask: Tensor | None,
        cache: LayerCache | None,
        start: int,
    ) -> Tensor:
        branch = self.attention(self.norm_A(h_BTD), angles, mask, cache, start)
        h_BTD = h_BTD + gains.residual.to(h_BTD.dtype) * branch
        return h_BTD + gains.residual.to(h_BTD.dtype) * self.mlp(self.norm_M(h_BTD))


class Baseline(Decoder):
    """The pre-norm transformer; its signature is Transformer's."""

    gains_type = BaselineGains

    def __init__(self, config: ModelConfig, attention: str = "sdpa", loss: str = "chunked") -> None:
        super().__init__(config, loss)
        if not config.architecture.startswith("prenorm"):
            raise ValueError(
                f"architecture is {config.architecture!r}, but this model is 'prenorm' or 'prenorm-qknorm'"
            )
        self.blocks = nn.ModuleList(PlainBlock(config, attention_named(attention)) for _ in range(config.n_layers))
        self.norm_out = RMSNorm(config.d_model)
        self.E_out = Matrix(config.d_model, config.vocab_size)

    def finish(self, h_BTD: Tensor) -> Tensor:
        """The final RMSNorm."""
        return self.norm_out(h_BTD)

    def head(self, gains: BaselineGains) -> tuple[Tensor, Tensor]:
        """E_out and the logits' multiplier, one per vocabulary entry."""
        return self.E_out.weight, gains.logit.expand(self.E_out.weight.shape[0])
