"""Causal attention forward and backward by the fastest kernel for the shape, ours or torch's, found by measuring.

Shapes: B batch (replicas included), T tokens, Q query heads, K key-value heads, W head dimension, a multiple of 8.
Tensors are (B, T, heads, W), strided as they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.errors import TritonError

from nugpt.kernels.fused import short, short_backward
from nugpt.kernels.fused.heads import Heads, rotate_scale_backward

Saved = tuple[Any, ...]

# About a millisecond, in which Python launches all that is timed: a step is replayed as a graph, without such gaps.
SLEEP_CYCLES = 2_000_000


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Saved]:
    o, lse, _, _, _, _, seed, unused, _ = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, True, False, scale=scale
    )
    return o, (lse, seed, unused)


def _flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, saved: Saved, scale: float) -> Any:
    lse, seed, unused = saved
    T = q.shape[-2]
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, o, lse, None, None, T, T, 0.0, True, seed, unused, scale=scale
    )


def _cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Saved]:
    o, lse, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, True, False, scale=scale
    )
    return o, (lse, seed, offset)


def _cudnn_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, saved: Saved, scale: float) -> Any:
    lse, seed, offset = saved
    T = q.shape[-2]
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, o, lse, seed, offset, None, None, None, T, T, 0.0, True, scale=scale
    )


def _efficient(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Saved]:
    o, lse, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, 0.0, True, scale=scale
    )
    return o, (lse, seed, offset)


def _efficient_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, saved: Saved, scale: float) -> Any:
    lse, seed, offset = saved
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, None, o, lse, seed, offset, 0.0, [True, True, True, False], True, scale=scale
    )[:3]


def _host(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Saved]:
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    return o, (lse,)


def _host_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, saved: Saved, scale: float) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, o, saved[0], 0.0, True, scale=scale
    )


KERNELS: dict[str, tuple[Callable[..., tuple[Tensor, Saved]], Callable[..., Any]]] = {
    "flash": (_flash, _flash_backward),
    "cudnn": (_cudnn, _cudnn_backward),
    "efficient": (_efficient, _efficient_backward),
    "host": (_host, _host_backward),
}


def attend(kernel: str, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Saved]:
    """softmax(scale·qᵀk) v over earlier tokens, (B, T, Q, W), and what the gradient needs beside the operands."""
    if kernel == "short":
        o, lse = short.attend(q, k, v, scale)
        return o, (lse,)
    k, v = _repeated(q, k), _repeated(q, v)
    o, saved = KERNELS[kernel][0](*(x.transpose(1, 2) for x in (q, k, v)), scale)
    return o.transpose(1, 2), saved


def attend_backward(
    kernel: str, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, saved: Saved, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, each (B, T, heads, W)."""
    if kernel == "short":
        return short_backward.attend_backward(grad, q, k, v, o, saved[0], scale)
    K = k.shape[2]
    operands = (x.transpose(1, 2) for x in (grad, q, _repeated(q, k), _repeated(q, v), o))
    dq, dk, dv = (g.transpose(1, 2) for g in KERNELS[kernel][1](*operands, saved, scale))
    if dk.shape[2] != K:
        dk, dv = (g.unflatten(2, (K, -1)).sum(3) for g in (dk, dv))
    return dq, dk, dv


def attend_turned_backward(
    kernel: str,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    x_RNC: Tensor,
    o: Tensor,
    saved: Saved,
    scale: float,
    heads: Heads,
    stored_RKH: Tensor | None,
    gain_R: Tensor | None,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the product that `rotate_scale` made q and k from, and that holds v, and of `stored`."""
    around = (heads, stored_RKH, gain_R, cos, sin)
    if kernel == "short":  # which turns them back before it stores them
        return short_backward.attend_turned_backward(grad, q, k, x_RNC, o, saved[0], scale, *around)
    grads = attend_backward(kernel, grad, q, k, heads.split(x_RNC)[2], o, saved, scale)
    return rotate_scale_backward(grads, x_RNC, *around)


def _repeated(q: Tensor, x: Tensor) -> Tensor:
    """Keys or values repeated so that query head n finds its group's at n."""
    group = q.shape[2] // x.shape[2]
    return x if group == 1 else x.repeat_interleave(group, dim=2)


def candidates(heads: Heads, dtype: torch.dtype, device: torch.device, deterministic: bool) -> tuple[str, ...]:
    """The kernels that may be fastest, by name; deterministic ones in the order in which they are preferred."""
    if device.type != "cuda":
        return ("host",)
    if dtype == torch.float32:
        return ("efficient",)
    # Torch makes flash attention's backward pass deterministic on request, ours is; cuDNN's is not.
    libraries, ours = ("flash",) if deterministic else ("flash", "cudnn"), ("short",)
    return (*ours, *libraries) if short.takes(heads.tokens, heads.width) else libraries


def _is_our_mistake(error: Exception) -> bool:
    """Whether torch refused a call for its arguments, as where a version has others: no kernel was even tried."""
    return any(words in str(error) for words in ("Declaration: aten::", "Unknown keyword argument"))


@cache
def fastest(
    batch: int, heads: Heads, scaled: bool, dtype: torch.dtype, device: torch.device, deterministic: bool
) -> str:
    """The name of the kernel that takes least time, forward and through the heads back, on random operands.

    Where runs are to be the same to the bit no timing may choose: it is the first that works.
    """
    names = candidates(heads, dtype, device, deterministic)
    if names in (("host",), ("efficient",)):
        return names[0]
    times = {}
    for name in names:
        try:
            times[name] = _time(name, batch, heads, scaled, dtype, device)
        except torch.OutOfMemoryError:  # a RuntimeError too, but the caller's to handle
            raise
        except (RuntimeError, TritonError) as error:  # a kernel that this build, chip or shape has not
            if _is_our_mistake(error):
                raise
            continue
        if deterministic:
            break
    return min(times, key=lambda name: times[name], default="efficient")


def _time(name: str, batch: int, heads: Heads, scaled: bool, dtype: torch.dtype, device: torch.device) -> float:
    """Median milliseconds of a forward and backward pass."""
    generator = torch.Generator(device).manual_seed(0)
    N, T, W = batch * heads.tokens, heads.tokens, heads.width
    x, g = (
        torch.randn(1, N, columns, generator=generator, device=device, dtype=dtype)
        for columns in (heads.columns, heads.queries * W)
    )
    q, k, v = heads.split(x)
    ones = torch.ones(1, heads.keys, heads.dim, device=device)
    turns = (torch.ones(T, W // 2, device=device), torch.zeros(T, W // 2, device=device))
    around = (heads, *((ones, ones[:, 0, 0]) if scaled else (None, None)), *turns)
    taken = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        o, saved = attend(name, q, k, v, W**-0.5)
        attend_turned_backward(name, g.view(q.shape), q, k, x, o, saved, W**-0.5, *around)
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken[2:])[2]
