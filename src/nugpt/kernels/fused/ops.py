"""The fused kernels as differentiable functions of one model, for an engine that leaves gradients to autograd.

Shapes: N = B·T tokens, D d_model, M d_MLP, V vocabulary; Q, K, H, W and the layout of heads as in heads.py. Gains are
tensors of one number. What a backward pass can make again cheaply is not kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nugpt.kernels.fused import lerp as lerps
from nugpt.kernels.fused import loss as losses
from nugpt.kernels.fused import swiglu as gates
from nugpt.kernels.fused.attention import attend, attend_turned_backward, fastest
from nugpt.kernels.fused.heads import Heads, rotate_scale


def lerp(h_ND: Tensor, b_ND: Tensor, stored_D: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Norm(h + α ⊙ (Norm(b) − h)) with α = |gain·stored| in float32, and its copy in b's dtype. # (1), (2); (3), (4)"""
    out, low = _Lerp.apply(h_ND, b_ND, stored_D, gain)
    return out, low


def attention(
    x_NC: Tensor, heads: Heads, stored_KH: Tensor, gain: Tensor, cos: Tensor, sin: Tensor, scale: float
) -> Tensor:
    """Causal attention, (N, Q·W), of the heads in a q-k-v product's rows, queries and keys as (6) and (7) have them."""
    out: Tensor = _Attention.apply(x_NC, stored_KH, gain, cos, sin, heads, scale)
    return out


def attention_kernel(heads: Heads, batch: int, dtype: torch.dtype, device: torch.device) -> str:
    """The name of the attention kernel for so many sequences, measured where it has not been."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    return fastest(batch, heads, True, dtype, device, deterministic)


def gated(
    x_NM2: Tensor,
    stored_u_M: Tensor,
    gain_u: Tensor,
    stored_nu_M: Tensor,
    gain_nu: Tensor,
    constant: float,
    down_DM: Tensor,
) -> Tensor:
    """W (SiLU(c·s_ν ⊙ ν) ⊙ (s_u ⊙ u)), (N, D), from a product's rows that hold u and then ν."""
    out: Tensor = _Gated.apply(x_NM2, stored_u_M, gain_u, stored_nu_M, gain_nu, constant, down_DM)
    return out


def summed_loss(h_ND: Tensor, weight_VD: Tensor, stored_V: Tensor, gain: Tensor, targets_N: Tensor) -> Tensor:
    """Σ over tokens of −log softmax(s ⊙ (W h)) at the target, with s = gain·stored: a single number, (1,).

    Not the loss of every token: the gradients are made along with the losses, when only that of the sum is known.
    """
    out: Tensor = _SummedLoss.apply(h_ND, weight_VD, stored_V, gain, targets_N)
    return out


@torch.no_grad()
def token_losses(h_ND: Tensor, weight_VD: Tensor, stored_V: Tensor, gain: Tensor, targets_N: Tensor) -> Tensor:
    """The loss of every token, which has no gradient here."""
    scaled = losses.scaled(_one(weight_VD), _one(stored_V), gain.view(1), h_ND.dtype)
    return losses.token_losses(_one(h_ND), scaled, _one(targets_N))[0]


def stacked_heads(W_q: Tensor, W_k: Tensor, W_v: Tensor, heads: Heads) -> Tensor:
    """One matrix whose product has a row's heads as the kernels take them: ((Q + 2K)·W, D)."""
    halves, whole = -(heads.dim // 2) % (heads.width // 2), heads.width - heads.dim
    turned = (_padded_rows(matrix, heads.dim // 2, halves) for matrix in (W_q, W_k))
    return torch.cat([*turned, _padded_rows(W_v, heads.dim, whole)])


def spread_columns(W_O: Tensor, heads: Heads) -> Tensor:
    """W_O for rows whose heads are padded: (D, Q·W)."""
    missing = heads.width - heads.dim
    return functional.pad(W_O.unflatten(1, (-1, heads.dim)), (0, missing)).flatten(1) if missing else W_O


def _padded_rows(matrix: Tensor, dim: int, missing: int) -> Tensor:
    """The matrix with so many rows of zeros after every `dim` of its own."""
    return functional.pad(matrix.unflatten(0, (-1, dim)), (0, 0, 0, missing)).flatten(0, 1) if missing else matrix


def _one(x: Tensor) -> Tensor:
    """The only replica of the kernels, dense as they read it."""
    return x.contiguous().unsqueeze(0)


class _Lerp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, b: Tensor, stored: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, b, stored, gain)
        out, low = lerps.lerp(_one(h), _one(b), _one(stored), gain.view(1))
        return out.squeeze_(0), low.squeeze_(0)  # in place: FSDP2 wants no views from what it wraps

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_low: Tensor | None) -> tuple[Tensor | None, ...]:
        h, b, stored, gain = ctx.saved_tensors
        if grad_low is None:  # the low copy was not used: the kernel takes what there is in its place
            grad, grad_low = None, grad
        if grad_low is None:
            return None, None, None, None
        dh, db, ds, _ = lerps.lerp_backward(
            None if grad is None else _one(grad), _one(grad_low), _one(h), _one(b), _one(stored), gain.view(1)
        )
        return dh[0], db[0], ds[0], None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, stored: Tensor, gain: Tensor, cos: Tensor, sin: Tensor, heads: Heads, scale: float
    ) -> Tensor:
        ctx.heads, ctx.scale = heads, scale
        ctx.kernel = attention_kernel(heads, x.shape[0] // heads.tokens, x.dtype, x.device)
        rows = _one(x)
        q, k = rotate_scale(rows, heads, _one(stored), gain.view(1), cos, sin)
        o, saved = attend(ctx.kernel, q, k, heads.split(rows)[2], scale)
        ctx.save_for_backward(x, stored, gain, cos, sin, o, *saved)
        return o.reshape(x.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, stored, gain, cos, sin, o, *saved = ctx.saved_tensors
        heads, rows, scaled = ctx.heads, _one(x), (_one(stored), gain.view(1), cos, sin)
        q, k = rotate_scale(rows, heads, *scaled)
        dx, ds = attend_turned_backward(
            ctx.kernel, grad.reshape(o.shape), q, k, rows, o, tuple(saved), ctx.scale, heads, *scaled
        )
        assert ds is not None
        return dx[0], ds[0], None, None, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, u: Tensor, gain_u: Tensor, nu: Tensor, gain_nu: Tensor, constant: float, down: Tensor
    ) -> Tensor:
        ctx.constant = constant
        ctx.save_for_backward(x, u, gain_u, nu, gain_nu, down)
        return gates.swiglu(_one(x), _scales(u, gain_u, nu, gain_nu), constant)[0] @ down.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, u, gain_u, nu, gain_nu, down = ctx.saved_tensors
        scales = _scales(u, gain_u, nu, gain_nu)
        dx, ds, again = gates.swiglu_backward(_one(grad @ down), _one(x), scales, ctx.constant, again=True)
        assert ds is not None
        assert again is not None
        return dx[0], ds[0][0], None, ds[1][0], None, None, grad.mT @ again[0]


def _scales(u: Tensor, gain_u: Tensor, nu: Tensor, gain_nu: Tensor) -> gates.Scales:
    return _one(u), gain_u.view(1), _one(nu), gain_nu.view(1)


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, stored: Tensor, gain: Tensor, targets: Tensor) -> Tensor:
        scale = _one(stored), gain.view(1)
        scaled = losses.scaled(_one(weight), *scale, h.dtype)
        found, dh, dscaled = losses.token_losses_and_gradients(_one(h), scaled, _one(targets).int(), 1.0)
        del scaled
        dweight, dstored = losses.unscale_(dscaled, _one(weight), *scale)
        ctx.save_for_backward(dh[0], dweight[0].to(weight.dtype), dstored[0])
        return found.sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dh, dweight, dstored = ctx.saved_tensors
        grad = grad.view(())  # which changes no other's dtype
        return dh * grad, dweight * grad, dstored * grad, None, None
