"""Each fused operation against its plain twin: time, the bytes it must move, and its share of the copy's rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nugpt.bench.timing import timed, timed_in_graph
from nugpt.core import sphere
from nugpt.core.optim import adam_
from nugpt.core.rope import rope_angles, rotate
from nugpt.kernels.cross_entropy import chunked


@dataclass(frozen=True)
class Case:
    """One operation at one shape: the fused call, its plain twin, and the fewest bytes it can move."""

    name: str
    fused: Callable[[], object]
    plain: Callable[[], object]
    bytes: int


def cases(device: torch.device, replicas: int, tokens: int, heads: int, head_dim: int, seq_len: int) -> list[Case]:
    """The operations of a block, of the loss and of the optimizer."""
    from nugpt.kernels.fused import adam, lerp, loss, swiglu
    from nugpt.kernels.fused import heads as fused_heads

    R, N, D, H = replicas, tokens, heads * head_dim, head_dim
    M, V = 8 * D // 3 + -(8 * D // 3) % 128, 8192
    generator = torch.Generator(device).manual_seed(0)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    low = torch.bfloat16
    h, g = sphere.norm(made(R, N, D)), made(R, N, D)
    b, g_low = made(R, N, D, dtype=low), made(R, N, D, dtype=low)
    stored, gain = made(R, D).abs(), torch.rand(R, device=device)

    def plain_lerp(h: Tensor, b: Tensor, s: Tensor) -> Tensor:
        return sphere.lerp(h, sphere.norm(b.float()), (gain.view(-1, 1, 1) * s.unsqueeze(1)).abs())

    layout = fused_heads.Heads(heads, heads, H, seq_len)
    qkv = made(R, N, layout.columns, dtype=low)
    s_qk = made(R, heads, H)
    angles = rope_angles(torch.arange(seq_len, device=device), H, 1e4, torch.float32)
    turns = layout.turns(angles)
    d_q, d_k, d_v = (made(R * N // seq_len, seq_len, heads, layout.width, dtype=low) for _ in range(3))

    def plain_heads(x: Tensor, s: Tensor) -> Tensor:
        split = x.view(R, N // seq_len, seq_len, -1, layout.width)[..., :H]
        scales = (gain.view(-1, 1, 1) * s).view(R, 1, 1, heads, H)
        turned = (rotate(split[..., i * heads : (i + 1) * heads, :], angles) for i in range(2))
        return torch.cat([(sphere.norm(y) * scales).to(low) for y in turned], dim=-2)

    x, g_M = made(R, N, 2 * M, dtype=low), made(R, N, M, dtype=low)
    s_u, s_nu = made(R, M), made(R, M)
    scales = (s_u, gain, s_nu, gain)

    def plain_swiglu(x: Tensor, u: Tensor, nu: Tensor) -> Tensor:
        by = gain.view(-1, 1, 1)
        left, right = x.split(M, dim=-1)
        return (functional.silu(right * (by * nu.unsqueeze(1)) * D**0.5) * (left * (by * u.unsqueeze(1)))).to(low)

    E_out, s_z = sphere.norm(made(R, V, D)), made(R, V)
    targets = torch.randint(V, (R, N), generator=generator, device=device)

    def fused_loss() -> object:
        weight = loss.scaled(E_out, s_z, gain, low)
        losses, dh, dw = loss.token_losses_and_gradients(g_low, weight, targets, 1.0 / N)
        return losses, dh, loss.unscale_(dw, E_out, s_z, gain)

    def plain_loss(h: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return chunked(h, w.to(low), gain.view(-1, 1) * s, targets)

    p, first, second, dp = sphere.norm(made(R, M, D)), made(R, M, D), made(R, M, D).square(), made(R, M, D, dtype=low)
    ones = torch.ones(R, device=device)
    course = adam.Course(ones.int(), ones, torch.tensor([1.0, 0.5, 0.5], device=device), (0.9, 0.95))
    copy = torch.empty(R, M, D, device=device, dtype=low)
    settings = (1e-6 * ones, 1e-8 * ones, 0 * ones)

    def plain_adam() -> None:
        adam_(p, dp.float(), first, second, 5, 1e-6, (0.9, 0.95), 1e-8)
        sphere.retract_tensor_(p, 2)
        copy.copy_(p)

    e, w = R * N * D, R * N * M
    q = R * N * heads * layout.width
    return [
        Case("lerp", lambda: lerp.lerp(h, b, stored, gain), lambda: plain_lerp(h, b, stored), 12 * e),
        Case(
            "lerp backward",
            lambda: lerp.lerp_backward(g, g_low, h, b, stored, gain),
            _backward(plain_lerp, (h, b, stored), g),
            18 * e,
        ),
        Case(
            "rotate, norm, s_qk",
            lambda: fused_heads.rotate_scale(qkv, layout, s_qk, gain, *turns),
            lambda: plain_heads(qkv, s_qk),
            8 * q,
        ),
        Case(
            "rotate, norm, s_qk backward",
            lambda: fused_heads.rotate_scale_backward((d_q, d_k, d_v), qkv, layout, s_qk, gain, *turns),
            _backward(plain_heads, (qkv, s_qk), None),
            16 * q,
        ),
        Case("swiglu", lambda: swiglu.swiglu(x, scales, D**0.5), lambda: plain_swiglu(x, s_u, s_nu), 6 * w),
        Case(
            "swiglu backward",
            lambda: swiglu.swiglu_backward(g_M, x, scales, D**0.5),
            _backward(plain_swiglu, (x, s_u, s_nu), g_M),
            10 * w,
        ),
        Case(
            "linear cross-entropy, both ways",
            fused_loss,
            _both_ways(plain_loss, (g_low, E_out, s_z)),
            R * (8 * N * V + 4 * N * D + 18 * V * D),  # logits written, read, rewritten, read; then h, dh and weights
        ),
        Case(
            "adam, retraction, copy",
            lambda: adam.update_(p, dp, first, second, course, settings, 1, copy, adam.Place(), grad_moved=True),
            plain_adam,
            28 * R * M * D,
        ),
    ]


def _backward(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor | None) -> Callable[[], object]:
    """The backward pass alone, over a graph made once."""
    leaves = tuple(x.detach().requires_grad_() for x in inputs)
    with torch.enable_grad():
        out = function(*leaves)
    given = torch.ones_like(out) if grad is None else grad
    return lambda: torch.autograd.grad(out, leaves, given.to(out.dtype), retain_graph=True)


def _both_ways(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    leaves = tuple(x.detach().requires_grad_() for x in inputs)
    return lambda: torch.autograd.grad(function(*leaves).mean(), leaves)


def bench_kernels(device: torch.device, copy_tbps: float, runs: int) -> list[dict[str, Any]]:
    """Every operation at a large shape and at a sweep's, beside its plain twin."""
    rows = []
    for label, shape in (("1 × 32768 × 1280", (1, 32768, 10, 128, 4096)), ("8 × 16384 × 192", (8, 16384, 4, 48, 512))):
        for case in cases(device, *shape):
            fused = timed_in_graph(case.fused, device, runs)
            plain = timed(case.plain, device, runs)  # as it runs: autograd launches from Python
            rate = case.bytes / fused.median / 1e9
            rows.append(
                {
                    "kernel": case.name,
                    "shape": label,
                    "ms": fused.figures(),
                    "plain_ms": plain.figures(),
                    "times_faster": plain.median / fused.median,
                    "bytes": case.bytes,
                    "tbps": rate,
                    "share_of_copy": rate / copy_tbps,
                }
            )
        torch.cuda.empty_cache()
    return rows
