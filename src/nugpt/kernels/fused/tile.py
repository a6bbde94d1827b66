"""How a kernel's programs cover rows and columns, and the last step of sums over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from nugpt.kernels.fused.launch import launch

MOST_SCRATCH = 4  # bytes of shared memory per number of a tile that a kernel takes beside what it loads ahead


@dataclass(frozen=True)
class Tiling:
    """How much of its operands a kernel's program works on at a time, and with how many threads."""

    numbers: int = 2048  # of each operand in a tile
    per_thread: int = 16  # of them
    side: int = 1  # columns of a tile that does not hold whole rows; heads at most
    stages: int = 1  # tiles whose loads are under way while one is worked on, where the chip has room for them
    resident: int = 64  # warps of a multiprocessor that share all tiles, where programs walk over them


# Data, so that a benchmark can try others; every choice gives the same result up to the order of sums.
TILINGS: dict[str, Tiling] = {
    "rows": Tiling(),
    "lerp": Tiling(1024),
    "lerp backward": Tiling(stages=3, resident=32),
    "lerp backward twice": Tiling(stages=4, resident=16),
    "add_norm": Tiling(),
    "add_norm backward": Tiling(stages=3, resident=32),
    "heads": Tiling(1024, per_thread=8, side=8),
    "heads backward": Tiling(1024, per_thread=8),
    "wide heads backward": Tiling(512, per_thread=8, stages=4),
    "swiglu": Tiling(side=128),
    "swiglu backward": Tiling(side=128, stages=3),
    "softmax": Tiling(per_thread=32),
    "long softmax": Tiling(8192, per_thread=8),
}


def row_tile(width: int, kernel: str = "rows") -> tuple[int, int, int]:
    """Rows and columns of a tile that holds whole rows of this width, and the warps that work on it."""
    tiling = TILINGS[kernel]
    block = triton.next_power_of_2(width)
    rows = max(1, tiling.numbers // block)
    return rows, block, warps_for(rows * block, tiling.per_thread)


def warps_for(numbers: int, per_thread: int) -> int:
    """The warps that work on a tile of so many numbers, a power of two."""
    return max(1, min(32, numbers // (32 * per_thread)))


def walkers(tiles: int, replicas: int, device: torch.device, warps: int, kernel: str) -> int:
    """How many programs per replica share the tiles, so that all replicas together fill the chip."""
    programs = max(1, TILINGS[kernel].resident // warps) * multiprocessors(device)
    return max(1, min(tiles, -(-programs // replicas)))


def stages_with_room(numbers: int, loaded: Sequence[Tensor | None], kernel: str) -> int:
    """How many tiles are under way at a time: as many as the kernel's tiling says and shared memory holds.

    All but the one that is worked on lie there, with the numbers of each operand loaded; beside them the sums' own.
    """
    operands = [x for x in loaded if x is not None]
    each = sum(x.element_size() for x in operands)
    room = shared_memory(operands[0].device) // numbers - MOST_SCRATCH
    return max(1, min(TILINGS[kernel].stages, 1 + room // each))


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use."""
    if device.type != "cuda":  # where kernels are interpreted there is no such limit; this is a Hopper chip's
        return 232_448
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


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
def _total_kernel(
    partial,
    stored,
    gain,
    out,
    P,
    W,
    ABSOLUTE: tl.constexpr,
    GAIN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, P, ROWS):
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
    rows = 512 if P > 128 else 128  # few rounds: each waits for memory
    launch(
        _total_kernel, (triton.cdiv(W, 16), R),
        partial_RPW, stored, gain_R, out, P, W, absolute, gain_R is not None, rows, 16, num_warps=rows // 32,
    )  # fmt: skip
    return out
