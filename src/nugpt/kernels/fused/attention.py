"""Causal attention forward and backward by the fastest kernel that torch has for the shape, found by measuring.

Shapes: B batch (replicas included), T tokens, Q query heads, K key-value heads, W head dimension, a multiple of 8.
Tensors are (B, T, heads, W), strided as they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Saved = tuple[Any, ...]


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
    k, v = _repeated(q, k), _repeated(q, v)
    o, saved = KERNELS[kernel][0](*(x.transpose(1, 2) for x in (q, k, v)), scale)
    return o.transpose(1, 2), saved


def attend_backward(
    kernel: str, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, saved: Saved, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, each (B, T, heads, W)."""
    K = k.shape[2]
    operands = (x.transpose(1, 2) for x in (grad, q, _repeated(q, k), _repeated(q, v), o))
    dq, dk, dv = (g.transpose(1, 2) for g in KERNELS[kernel][1](*operands, saved, scale))
    if dk.shape[2] != K:
        dk, dv = (g.unflatten(2, (K, -1)).sum(3) for g in (dk, dv))
    return dq, dk, dv


def _repeated(q: Tensor, x: Tensor) -> Tensor:
    """Keys or values repeated so that query head n finds its group's at n."""
    group = q.shape[2] // x.shape[2]
    return x if group == 1 else x.repeat_interleave(group, dim=2)


def candidates(dtype: torch.dtype, device: torch.device, deterministic: bool) -> tuple[str, ...]:
    """The kernels that may be fastest, by name."""
    if device.type != "cuda":
        return ("host",)
    if dtype == torch.float32:
        return ("efficient",)
    # Torch makes flash attention's backward pass deterministic on request; cuDNN's is not.
    return ("flash",) if deterministic else ("flash", "cudnn")


@cache
def fastest(
    batch: int, tokens: int, heads: int, width: int, dtype: torch.dtype, device: torch.device, deterministic: bool
) -> str:
    """The name of the kernel that takes least time, forward and backward, on random operands of this shape."""
    names = candidates(dtype, device, deterministic)
    if names in (("host",), ("efficient",)):
        return names[0]
    times = {}
    for name in names:
        try:
            times[name] = _time(name, batch, tokens, heads, width, dtype, device)
        except torch.OutOfMemoryError:  # a RuntimeError too, but the caller's to handle
            raise
        except RuntimeError:  # a kernel that this build, chip or shape has not
            continue
    return min(times, key=lambda name: times[name], default="efficient")


def _time(
    name: str, batch: int, tokens: int, heads: int, width: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Median milliseconds of a forward and backward pass."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (batch, tokens, heads, width)
    q, k, v, g = (torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(4))
    taken = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        o, saved = attend(name, q, k, v, width**-0.5)
        attend_backward(name, g, q, k, v, o, saved, width**-0.5)
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken[2:])[2]
