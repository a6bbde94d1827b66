"""The Normalized Transformer (nGPT, νGPT) for `transformers`, for inference and fine-tuning.

Shapes: B batch, T tokens, S keys, D hidden_size, N query heads, K key-value heads, H head_dim, V vocabulary. Equation
numbers are those of "Learning Rate Transfer in Normalized Transformers". Parameters keep the names and values they were
trained with; a rescaler's stored vector is multiplied by its gain (init/scale of its parametrization), which the
configuration holds. Loaded in bfloat16 the matrices of products are bfloat16, all else is float32, as in training.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple

from nugpt.core.rope import rope_angles, rotate
from nugpt.core.sphere import lerp, norm

GAINS = ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z")


class NuGPTConfig(PretrainedConfig):
    """The shape of a model and the gains of its rescalers; `nugpt` says which run it came from."""

    model_type = "nugpt"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        vocab_size: int = 257,
        hidden_size: int = 24,
        intermediate_size: int = 64,
        num_hidden_layers: int = 1,
        num_attention_heads: int = 2,
        num_key_value_heads: int = 2,
        head_dim: int = 12,
        max_position_embeddings: int = 1024,
        rope_theta: float = 10_000.0,
        gains: dict[str, float] | None = None,
        nugpt: dict[str, Any] | None = None,
        use_cache: bool = True,
        **others: Any,
    ) -> None:
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads, self.head_dim = num_key_value_heads, head_dim
        self.rope_theta, self.use_cache = rope_theta, use_cache
        self.gains = dict.fromkeys(GAINS, 1.0) if gains is None else gains
        self.nugpt = nugpt or {}
        if hidden_size != num_attention_heads * head_dim:
            made = f"num_attention_heads times head_dim, {num_attention_heads} times {head_dim}"
            raise ValueError(f"hidden_size is {hidden_size}, but must be {made}")
        if num_attention_heads % num_key_value_heads:
            allowed = f"divide num_attention_heads, which is {num_attention_heads}"
            raise ValueError(f"num_key_value_heads is {num_key_value_heads}, but must {allowed}")
        numbers = [value for value in self.gains.values() if isinstance(value, (int, float)) and math.isfinite(value)]
        if set(self.gains) != set(GAINS) or len(numbers) != len(GAINS):
            raise ValueError(f"gains is {gains!r}, but must be a finite number for each of {', '.join(GAINS)}")
        others["tie_word_embeddings"] = False  # E_in and E_out are two matrices
        super().__init__(**others)


def at_least_float32(x: Tensor) -> Tensor:
    """The same in float32, or in float64 where it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def positions(h_BTD: Tensor, attention_mask: Tensor | None, seen: int) -> Tensor:
    """Each token's place in its own text: scores depend on it, not on distances alone, as s_qk acts after RoPE."""
    T = h_BTD.shape[1]
    if attention_mask is not None and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -T:]  # padding takes no place
    return torch.arange(seen, seen + T, device=h_BTD.device).unsqueeze(0)


class Matrix(nn.Linear):
    """A bias-free linear map, computed in its weight's dtype."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Rescaler(nn.Module):
    """A trained vector whose effective value is gain·stored."""

    def __init__(self, gain: float, *shape: int) -> None:
        super().__init__()
        self.gain = gain
        self.stored = nn.Parameter(torch.ones(shape))

    def forward(self) -> Tensor:
        return self.gain * at_least_float32(self.stored)


def eager_attention(
    module: nn.Module, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """softmax(scaling·qᵀk + mask) v and its weights, computed in at least float32 as the fused kernels do."""
    group = q_BNTH.shape[1] // k_BKSH.shape[1]
    k_BNSH, v_BNSH = (at_least_float32(x).repeat_interleave(group, dim=1) for x in (k_BKSH, v_BKSH))
    scores_BNTS = at_least_float32(q_BNTH) @ k_BNSH.mT * scaling
    weights_BNTS = (scores_BNTS if mask is None else scores_BNTS + mask).softmax(-1)
    return (weights_BNTS @ v_BNSH).to(v_BKSH.dtype).transpose(1, 2), weights_BNTS


class NuGPTAttention(nn.Module):
    """Causal attention with normalised queries and keys."""

    is_causal = True

    def __init__(self, config: NuGPTConfig, layer_idx: int) -> None:
        super().__init__()
        D, d_kv = config.hidden_size, config.num_key_value_heads * config.head_dim
        self.config, self.layer_idx, self.head_dim = config, layer_idx, config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.W_q = Matrix(D, D)
        self.W_k = Matrix(D, d_kv)
        self.W_v = Matrix(D, d_kv)
        self.W_O = Matrix(D, D)
        self.s_qk = Rescaler(config.gains["s_qk"], config.num_key_value_heads, config.head_dim)

    def forward(
        self, h_BTD: Tensor, angles: Tensor, mask: Tensor | None, past_key_values: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        H, s_KH = self.head_dim, self.s_qk()
        s_NH = s_KH.repeat_interleave(self.num_key_value_groups, dim=0)
        q_BTNH = rotate(self.W_q(h_BTD).unflatten(-1, (-1, H)), angles)  # (6) left
        k_BTKH = rotate(self.W_k(h_BTD).unflatten(-1, (-1, H)), angles)  # (7) left
        v_BKTH = self.W_v(h_BTD).unflatten(-1, (-1, H)).transpose(1, 2)  # (8)
        q_BNTH = (norm(q_BTNH) * s_NH).to(v_BKTH.dtype).transpose(1, 2)  # (6) right
        k_BKSH = (norm(k_BTKH) * s_KH).to(v_BKTH.dtype).transpose(1, 2)  # (7) right
        v_BKSH = v_BKTH
        if past_key_values is not None:
            k_BKSH, v_BKSH = past_key_values.update(k_BKSH, v_BKSH, self.layer_idx)
        chosen = self.config._attn_implementation
        attend = eager_attention if chosen == "eager" else ALL_ATTENTION_FUNCTIONS[chosen]
        # The softmax scale is +√H, not its inverse.
        o_BTNH, weights = attend(self, q_BNTH, k_BKSH, v_BKSH, mask, dropout=0.0, scaling=H**0.5)
        return self.W_O(o_BTNH.flatten(-2)), weights  # (9)


class NuGPTMLP(nn.Module):
    """W_oMLP (SiLU(ν) ⊙ u)."""

    def __init__(self, config: NuGPTConfig) -> None:
        super().__init__()
        D, d_mlp = config.hidden_size, config.intermediate_size
        self.W_u = Matrix(D, d_mlp)
        self.W_nu = Matrix(D, d_mlp)
        self.W_oMLP = Matrix(d_mlp, D)
        self.s_u = Rescaler(config.gains["s_u"], d_mlp)
        self.s_nu = Rescaler(config.gains["s_nu"], d_mlp)

    def forward(self, h_BTD: Tensor) -> Tensor:
        u = self.W_u(h_BTD) * self.s_u()
        nu = self.W_nu(h_BTD) * self.s_nu() * h_BTD.shape[-1] ** 0.5
        return self.W_oMLP(functional.silu(nu) * u)


class NuGPTBlock(GradientCheckpointingLayer):
    """Attention, LERP, MLP, LERP."""

    def __init__(self, config: NuGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention = NuGPTAttention(config, layer_idx)
        self.mlp = NuGPTMLP(config)
        self.alpha_A = Rescaler(config.gains["alpha_A"], config.hidden_size)
        self.alpha_M = Rescaler(config.gains["alpha_M"], config.hidden_size)

    def forward(
        self, h_BTD: Tensor, angles: Tensor, mask: Tensor | None, past_key_values: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        branch, weights = self.attention(h_BTD, angles, mask, past_key_values=past_key_values)
        h_A = norm(branch.to(h_BTD.dtype))  # (1)
        h_BTD = lerp(h_BTD, h_A, self.alpha_A().abs())  # (2)
        h_M = norm(self.mlp(h_BTD).to(h_BTD.dtype))  # (3)
        return lerp(h_BTD, h_M, self.alpha_M().abs()), weights  # (4)


class NuGPTForCausalLM(PreTrainedModel, GenerationMixin):
    """Tokens to logits: every hidden state is a point on the unit sphere, and float32 whatever the products are."""

    config_class = NuGPTConfig
    _no_split_modules = ["NuGPTBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    supports_gradient_checkpointing = True
    _keep_in_fp32_modules_strict = ["E_in", *GAINS]

    def __init__(self, config: NuGPTConfig) -> None:
        super().__init__(config)
        self.E_in = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(NuGPTBlock(config, i) for i in range(config.num_hidden_layers))
        self.E_out = Matrix(config.hidden_size, config.vocab_size)
        self.s_z = Rescaler(config.gains["s_z"], config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.E_in

    def get_output_embeddings(self) -> Matrix:
        return self.E_out

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Embedding:
        raise ValueError("the vocabulary of this model cannot be resized: s_z holds a trained number for each id")

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        if output_attentions and self.config._attn_implementation != "eager":
            chosen = self.config._attn_implementation
            raise ValueError(f"attn_implementation is {chosen!r}, but output_attentions needs 'eager'")
        h_BTD = at_least_float32(self.E_in(input_ids) if inputs_embeds is None else inputs_embeds)
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = positions(h_BTD, attention_mask, seen)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=h_BTD,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        angles = rope_angles(position_ids, self.config.head_dim, self.config.rope_theta, h_BTD.dtype)
        states, attentions = [], []
        for block in self.blocks:
            states += [h_BTD] if output_hidden_states else []
            h_BTD, weights = block(h_BTD, angles, mask, past_key_values=past_key_values)
            attentions += [weights] if output_attentions else []
        wanted = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.E_out(h_BTD[:, wanted]) * self.s_z()  # (5)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **others)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=(*states, h_BTD) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )
