"""The Normalized Transformer, equations (1) to (9) of the paper, for one model.

Shapes: B batch, T tokens, D d_model, N query heads, K key-value heads, H head dimension (d_key), M d_MLP, V vocabulary.
Parametrizations differ in the numbers they are given (gains, learning rates, initial values), never in this code. Gains
are tensors, so that one compiled program serves every value and a replica axis can be mapped over them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nugpt.core.cache import LayerCache
from nugpt.core.decoder import Decoder, Matrix
from nugpt.core.rope import rotate
from nugpt.core.sphere import lerp, norm
from nugpt.kernels.attention import Attention, attention_named
from nugpt.spec.model import ModelConfig


class Gains(NamedTuple):
    """init/scale of each rescaler: what its stored vector is multiplied by."""

    alpha_A: Tensor
    alpha_M: Tensor
    s_qk: Tensor
    s_u: Tensor
    s_nu: Tensor
    s_z: Tensor


class Rescaler(nn.Module):
    """A trainable vector whose effective value is (init/scale)·stored."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.stored = nn.Parameter(torch.ones(shape))

    def forward(self, gain: Tensor) -> Tensor:
        return gain * self.stored


class NormalizedAttention(nn.Module):
    """Causal attention with normalised queries and keys."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.W_q = Matrix(config.d_model, config.d_model)
        self.W_k = Matrix(config.d_model, config.d_kv)
        self.W_v = Matrix(config.d_model, config.d_kv)
        self.W_O = Matrix(config.d_model, config.d_model)
        self.s_qk = Rescaler(config.n_kv_heads, config.head_dim)
        self.attention = attention

    def forward(
        self, h_BTD: Tensor, gains: Gains, angles: Tensor, mask: Tensor | None, cache: LayerCache | None, start: int
    ) -> Tensor:
        H = self.head_dim
        # CHOICE: s_qk acts after the rotation and after Norm; one vector per key-value head, shared by its group.
        s_KH = self.s_qk(gains.s_qk)
        s_NH = s_KH.repeat_interleave(self.W_q.weight.shape[0] // self.W_k.weight.shape[0], dim=0)
        q_BTNH = rotate(self.W_q(h_BTD).unflatten(-1, (-1, H)), angles)  # (6) left
        k_BTKH = rotate(self.W_k(h_BTD).unflatten(-1, (-1, H)), angles)  # (7) left
        v_BTKH = self.W_v(h_BTD).unflatten(-1, (-1, H))  # (8)
        q_BTNH = (norm(q_BTNH) * s_NH).to(v_BTKH.dtype)  # (6) right
        k_BTKH = (norm(k_BTKH) * s_KH).to(v_BTKH.dtype)  # (7) right
        if cache is not None:
            k_BTKH, v_BTKH = cache.extend(k_BTKH, v_BTKH, start)
        o_BTNH = self.attention(q_BTNH, k_BTKH, v_BTKH, H**0.5, mask)  # softmax scale +√d_key, not its inverse
        return self.W_O(o_BTNH.flatten(-2))  # (9)


class NormalizedMLP(nn.Module):
    """W_oMLP (SiLU(ν) ⊙ u)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_u = Matrix(config.d_model, config.d_mlp)
        self.W_nu = Matrix(config.d_model, config.d_mlp)
        self.W_oMLP = Matrix(config.d_mlp, config.d_model)
        self.s_u = Rescaler(config.d_mlp)
        self.s_nu = Rescaler(config.d_mlp)

    def forward(self, h_BTD: Tensor, gains: Gains) -> Tensor:
        u_BTM = self.W_u(h_BTD) * self.s_u(gains.s_u)
        nu_BTM = self.W_nu(h_BTD) * self.s_nu(gains.s_nu) * h_BTD.shape[-1] ** 0.5
        return self.W_oMLP(functional.silu(nu_BTM) * u_BTM)


class Block(nn.Module):
    """Attention, LERP, MLP, LERP."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.attention = NormalizedAttention(config, attention)
        self.mlp = NormalizedMLP(config)
        self.alpha_A = Rescaler(config.d_model)
        self.alpha_M = Rescaler(config.d_model)

    def forward(
        self, h_BTD: Tensor, gains: Gains, angles: Tensor, mask: Tensor | None, cache: LayerCache | None, start: int
    ) -> Tensor:
        # CHOICE: "nonnegative" is the absolute value of the scaled vector.
        h_A = norm(self.attention(h_BTD, gains, angles, mask, cache, start).to(h_BTD.dtype))  # (1)
        h_BTD = lerp(h_BTD, h_A, self.alpha_A(gains.alpha_A).abs())  # (2)
        h_M = norm(self.mlp(h_BTD, gains).to(h_BTD.dtype))  # (3)
        return lerp(h_BTD, h_M, self.alpha_M(gains.alpha_M).abs())  # (4)


class Transformer(Decoder):
    """nGPT: every hidden state a point on the unit sphere."""

    gains_type = Gains

    def __init__(self, config: ModelConfig, attention: str = "sdpa", loss: str = "chunked") -> None:
        super().__init__(config, loss)
        if config.architecture != "normalized":
            raise ValueError(f"architecture is {config.architecture!r}, but this model is 'normalized'")
        self.blocks = nn.ModuleList(Block(config, attention_named(attention)) for _ in range(config.n_layers))
        self.E_out = Matrix(config.d_model, config.vocab_size)
        self.s_z = Rescaler(config.vocab_size)

    def head(self, gains: Gains) -> tuple[Tensor, Tensor]:
        """E_out, and (s_z,init/s_z,scale)·s_z: the two factors of (5)."""
        return self.E_out.weight, self.s_z(gains.s_z)
