"""Causal attention: the plain definition, torch's fused one, and a fused one that folds replicas into the batch.

Shapes: B batch, T queries, S keys, N query heads, K key-value heads (N a multiple of K), H head dimension.
All take q_BTNH, k_BSKH, v_BSKH, a softmax scale and either no mask (causal, T = S) or a boolean mask_TS
(True: may see), and return o_BTNH.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Attention = Callable[[Tensor, Tensor, Tensor, float, Tensor | None], Tensor]


def plain(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, scale: float, mask_TS: Tensor | None = None) -> Tensor:
    """o = softmax(scale·qᵀk) v over the visible keys; the softmax in at least float32."""
    k_BSNH, v_BSNH = _one_per_query_head(q_BTNH, k_BSKH), _one_per_query_head(q_BTNH, v_BSKH)
    if mask_TS is None:
        T = q_BTNH.shape[-3]
        mask_TS = torch.ones(T, T, dtype=torch.bool, device=q_BTNH.device).tril()
    scores_BNTS = torch.einsum("...tnh,...snh->...nts", q_BTNH, k_BSNH).to(_at_least_float32(q_BTNH.dtype)) * scale
    weights_BNTS = scores_BNTS.masked_fill(~mask_TS, -math.inf).softmax(-1).to(v_BSNH.dtype)
    return torch.einsum("...nts,...snh->...tnh", weights_BNTS, v_BSNH)


def sdpa(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, scale: float, mask_TS: Tensor | None = None) -> Tensor:
    """The same by torch's scaled_dot_product_attention, which picks a kernel for the device."""
    o_BNTH = functional.scaled_dot_product_attention(
        q_BTNH.transpose(-3, -2),
        k_BSKH.transpose(-3, -2),
        v_BSKH.transpose(-3, -2),
        attn_mask=mask_TS,
        is_causal=mask_TS is None,
        scale=scale,
        enable_gqa=q_BTNH.shape[-2] != k_BSKH.shape[-2],
    )
    return o_BNTH.transpose(-3, -2)


def folded(q_BTNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, scale: float, mask_TS: Tensor | None = None) -> Tensor:
    """The same by torch's flash kernels, with a vmap rule that folds the mapped axis into the batch."""
    if mask_TS is not None:
        return sdpa(q_BTNH, k_BSKH, v_BSKH, scale, mask_TS)
    k_BSNH, v_BSNH = _one_per_query_head(q_BTNH, k_BSKH), _one_per_query_head(q_BTNH, v_BSKH)
    heads_first = (x.transpose(-3, -2) for x in (q_BTNH, k_BSNH, v_BSNH))
    o_BNTH, _ = _flash(*heads_first, scale)
    return o_BNTH[..., : q_BTNH.shape[-1]].transpose(-3, -2)


ATTENTIONS: dict[str, Attention] = {"plain": plain, "sdpa": sdpa, "folded": folded}


def attention_named(name: str) -> Attention:
    """The attention implementation of this name."""
    if name not in ATTENTIONS:
        raise ValueError(f"attention is {name!r}, but must be one of {', '.join(ATTENTIONS)}")
    return ATTENTIONS[name]


def _one_per_query_head(q_BTNH: Tensor, x_BSKH: Tensor) -> Tensor:
    """Keys or values repeated so that query head n finds its group's at n."""
    group = q_BTNH.shape[-2] // x_BSKH.shape[-2]
    return x_BSKH if group == 1 else x_BSKH.repeat_interleave(group, dim=-2)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@torch.library.custom_op("nugpt::flash", mutates_args=())
def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention of (B, N, T, H) tensors and the log-sum-exp of its scores, by the device's fused kernel."""
    q, k, v = (_padded(x) for x in (q, k, v))
    if q.device.type == "cpu":
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    elif q.dtype in (torch.bfloat16, torch.float16):
        o, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)
    else:
        o, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True, scale=scale)
    return o.contiguous(), lse.contiguous()


@torch.library.custom_op("nugpt::flash_backward", mutates_args=())
def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `_flash` with respect to q, k and v; o as `_flash` padded it."""
    H = q.shape[-1]
    q, k, v, grad = (_padded(x) for x in (q, k, v, grad.contiguous()))
    if q.device.type == "cpu":
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, o, lse, 0.0, True, scale=scale
        )
    elif q.dtype in (torch.bfloat16, torch.float16):
        T, S = q.shape[-2], k.shape[-2]
        seed = torch.zeros((), dtype=torch.int64)  # no dropout: the generator's state is not read
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, o, lse, None, None, T, S, 0.0, True, seed, seed, scale=scale
        )
    else:
        seed = torch.zeros((), dtype=torch.int64)
        grads = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, None, o, lse, seed, seed, 0.0, [True, True, True, False], True, scale=scale
        )[:3]
    dq, dk, dv = (g[..., :H].contiguous() for g in grads)
    return dq, dk, dv


def _padded(x: Tensor) -> Tensor:
    """x with its head dimension padded by zeros to a multiple of 8, which the kernels want and no score feels."""
    missing = -x.shape[-1] % 8
    return functional.pad(x, (0, missing)) if missing else x


@_flash.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    B, N, T, H = q.shape
    rounded = T if q.device.type == "cpu" or q.dtype != torch.float32 else T + -T % 32  # as the kernel pads it
    return q.new_empty(B, N, T, H + -H % 8), q.new_empty(B, N, rounded, dtype=_at_least_float32(q.dtype))


@_flash_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)


def _differentiate(ctx: Any, grad_o: Tensor, grad_lse: Tensor | None) -> tuple[Tensor, Tensor, Tensor, None]:
    dq, dk, dv = _flash_backward(grad_o, *ctx.saved_tensors, ctx.scale)
    return dq, dk, dv, None


def _fold(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """The mapped axis becomes part of the batch axis, and comes out in front."""
    *tensors, scale = args
    folded_tensors = [
        (x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape)).flatten(0, 1)
        for x, dim in zip(tensors, in_dims, strict=False)
    ]
    o, lse = _flash(*folded_tensors, scale)
    return (o.unflatten(0, (info.batch_size, -1)), lse.unflatten(0, (info.batch_size, -1))), (0, 0)


_flash.register_autograd(_differentiate, setup_context=_keep)
_flash.register_vmap(_fold)
