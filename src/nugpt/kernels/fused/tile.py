"""How a kernel's programs cover rows and columns, and the last step of sums over rows."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch

TILE = 2048  # numbers a program holds of each operand at a time
WARPS = 64  # that a multiprocessor holds at most; fewer where each keeps several tiles under way


def row_tile(width: int) -> tuple[int, int, int]:
    """Rows and columns of a tile that holds whole rows of this width, and the warps that work on it."""
    block = triton.next_power_of_2(width)
    rows = max(1, TILE // block)
    return rows, block, max(4, min(16, rows * block // 512))


def walkers(tiles: int, replicas: int, device: torch.device, warps: int = 4, resident: int = WARPS) -> int:
    """How many programs per replica share the tiles, so that all replicas together fill the chip."""
    return max(1, min(tiles, -(-(resident // warps) * multiprocessors(device) // replicas)))


@cache
def multiprocessors(device: torch.device) -> int:
    """The GPU's multiprocessors."""
    # Without a GPU the kernels are interpreted: two programs show what many would.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@triton.jit
def inverse_length(squares):
    """1/√squares; 1 where it is 0, as in `core.sphere.guarded_length`."""
    return tl.where(squares > 0, 1.0 / tl.sqrt(squares), 1.0)


@triton.jit
def add4(a0, a1, a2, a3, b0, b1, b2, b3):
    """Four sums at once, for `tl.reduce`."""
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def add6(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    """Six sums at once, for `tl.reduce`."""
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5


@triton.jit(do_not_specialize=["P"])
def _total_kernel(partial, stored, gain, out, P, W, ABSOLUTE: tl.constexpr, GAIN: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, 128)
    total = tl.zeros((128, BLOCK), tl.float32)
    for start in range(0, P, 128):
        at = (r.to(tl.int64) * P + start + rows)[:, None] * W + cols[None, :]
        total += tl.load(partial + at, mask=(start + rows < P)[:, None] & (cols < W)[None, :], other=0.0)
    result = tl.sum(total, 0)
    at = r.to(tl.int64) * W + cols
    if GAIN:
        g = tl.load(gain + r)
        if ABSOLUTE:
            x = g * tl.load(stored + at, mask=cols < W, other=0.0)
            g *= tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))
        result *= g
    tl.store(out + at, result, mask=cols < W)


def total(partial_RPW: Tensor, stored: Tensor | None, gain_R: Tensor | None, absolute: bool = False) -> Tensor:
    """Σ over programs, and what it means for the stored vector behind x = gain·stored or x = |gain·stored|."""
    R, P, W = partial_RPW.shape
    out = partial_RPW.new_empty(R, W)
    grid = (triton.cdiv(W, 16), R)
    launch(_total_kernel, grid, partial_RPW, stored, gain_R, out, P, W, absolute, gain_R is not None, 16)
    return out
