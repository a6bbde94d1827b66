"""Adam, retraction and the copy for matrix products in one pass over a parameter.

Shapes: R replicas, O rows, I columns of a matrix as torch stores it. Per replica: whether it lives, how its gradient is
clipped, its learning rate, ε and weight decay. A dead replica's numbers are not written at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from nugpt.kernels.fused.launch import launch
from nugpt.kernels.fused.tile import multiprocessors, row_tile


@dataclass(frozen=True)
class ColumnTile:
    """Rows and columns worked on at a time, by how many warps, and of how many tiles loads are under way."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 1


# Of tiles whose columns are followed all the way down. Memory comes in whole lines of 32 numbers; narrower where the
# matrices are so small that wide ones would not occupy the whole chip.
COLUMN_TILES = (ColumnTile(64, 32, stages=3), ColumnTile(128, 16, stages=3), ColumnTile(128, 8))


SHORT = 16384  # numbers of a rescaler's gradient: all such have one launch for their length, after a copy side by side


@dataclass(frozen=True)
class Place:
    """Where a matrix lies inside a stacked copy: from its first row on, `dim` rows or columns every `width`."""

    first_row: int = 0
    dim: int = 1
    width: int = 1
    columns: bool = False  # whether heads, or the sphere, go by columns


@triton.jit
def _moved(index, DIM: tl.constexpr, WIDTH: tl.constexpr):
    return index if DIM == WIDTH else (index // DIM) * WIDTH + index % DIM


@triton.jit
def _adam(p, g, m, v, r, clip, course, lr, eps, decay, beta1, beta2):
    """The new parameter before retraction, and both moments."""
    g *= tl.load(clip + r)
    m += (g - m) * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    rate = tl.load(course) * tl.load(lr + r)
    denominator = tl.sqrt(v / tl.load(course + 2)) + tl.load(eps + r)
    p *= 1.0 - rate * tl.load(decay + r)
    return p - rate / tl.load(course + 1) * m / denominator, m, v


@triton.jit(do_not_specialize=["O", "first_row"])
def _adam_rows(
    param,
    grad,
    first,
    second,
    copy,
    alive,
    clip,
    course,
    lr,
    eps,
    decay,
    beta1,
    beta2,
    O,  # noqa: E741
    grad_R,
    copy_R,
    first_row,
    I: tl.constexpr,  # noqa: E741
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    GRAD_MOVED: tl.constexpr,
    COPY: tl.constexpr,
    SPHERE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < O)[:, None] & (cols < I)[None, :]
    at = (r.to(tl.int64) * O + rows)[:, None] * I + cols[None, :]
    moved = (first_row + _moved(rows, DIM, WIDTH)).to(tl.int64)[:, None] * I + cols[None, :]
    if GRAD_MOVED:
        g = tl.load(grad + r.to(tl.int64) * grad_R + moved, mask=mask, other=0.0).to(tl.float32)
    else:
        g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    p = tl.load(param + at, mask=mask, other=0.0)
    m = tl.load(first + at, mask=mask, other=0.0)
    v = tl.load(second + at, mask=mask, other=0.0)
    p, m, v = _adam(p, g, m, v, r, clip, course, lr, eps, decay, beta1, beta2)
    if SPHERE:
        length = tl.sqrt(tl.sum(tl.where(mask, p * p, 0.0), 1))
        p = p / tl.where(length > 0, length, 1.0)[:, None]
    # Of the dead no row is written. Asked only here: the loads above need not wait for the answer.
    mask = (rows < O * tl.load(alive + r))[:, None] & (cols < I)[None, :]
    tl.store(param + at, p, mask=mask)
    tl.store(first + at, m, mask=mask)
    tl.store(second + at, v, mask=mask)
    if COPY:
        tl.store(copy + r.to(tl.int64) * copy_R + moved, p.to(copy.dtype.element_ty), mask=mask)


@triton.jit
def _adam_columns(
    param,
    grad,
    first,
    second,
    copy,
    alive,
    clip,
    course,
    lr,
    eps,
    decay,
    beta1,
    beta2,
    O: tl.constexpr,  # noqa: E741
    I: tl.constexpr,  # noqa: E741
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPHERE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    r = tl.program_id(1)
    if tl.load(alive + r):
        cols = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        WIDE: tl.constexpr = I // DIM * WIDTH
        squares = tl.zeros((TILE_COLUMNS,), tl.float32)
        for start in tl.range(0, O, TILE_ROWS, num_stages=STAGES):
            rows = start + tl.arange(0, TILE_ROWS)
            mask = (rows < O)[:, None] & (cols < I)[None, :]
            at = (r.to(tl.int64) * O + rows)[:, None] * I + cols[None, :]
            moved = (r.to(tl.int64) * O + rows)[:, None] * WIDE + _moved(cols, DIM, WIDTH)[None, :]
            p = tl.load(param + at, mask=mask, other=0.0)
            g = tl.load(grad + moved, mask=mask, other=0.0).to(tl.float32)
            m = tl.load(first + at, mask=mask, other=0.0)
            v = tl.load(second + at, mask=mask, other=0.0)
            p, m, v = _adam(p, g, m, v, r, clip, course, lr, eps, decay, beta1, beta2)
            squares += tl.sum(tl.where(mask, p * p, 0.0), 0)
            tl.store(param + at, p, mask=mask)
            tl.store(first + at, m, mask=mask)
            tl.store(second + at, v, mask=mask)
        length = tl.sqrt(squares)
        length = tl.where(length > 0, length, 1.0)[None, :]
        tl.debug_barrier()  # what other threads of this program wrote above is read below
        for start in tl.range(0, O, TILE_ROWS, num_stages=STAGES):
            rows = start + tl.arange(0, TILE_ROWS)
            mask = (rows < O)[:, None] & (cols < I)[None, :]
            at = (r.to(tl.int64) * O + rows)[:, None] * I + cols[None, :]
            moved = (r.to(tl.int64) * O + rows)[:, None] * WIDE + _moved(cols, DIM, WIDTH)[None, :]
            p = tl.load(param + at, mask=mask, other=0.0)
            if SPHERE:
                p = p / length
                tl.store(param + at, p, mask=mask)
            tl.store(copy + moved, p.to(copy.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["column", "P", "TOTAL"])
def _squares(grad, partial, size, column, P, TOTAL, BLOCK: tl.constexpr):
    p, r = tl.program_id(0), tl.program_id(1)
    summed = tl.zeros((BLOCK,), tl.float32)
    for start in range(p * BLOCK, size, P * BLOCK):
        at = start + tl.arange(0, BLOCK)
        g = tl.load(grad + r.to(tl.int64) * size + at, mask=at < size, other=0.0).to(tl.float32)
        summed += g * g
    tl.store(partial + r.to(tl.int64) * TOTAL + column + p, tl.sum(summed, 0))


@dataclass(frozen=True)
class Course:
    """What a step's updates share: per replica whether it lives, its clip; and (multiplier, 1 − β₁ᵗ, 1 − β₂ᵗ)."""

    alive_R: Tensor
    clip_R: Tensor
    scalars: Tensor
    betas: tuple[float, float]


Settings = tuple[Tensor, Tensor, Tensor]  # peak learning rate, ε, weight decay, each (R,)


def update_(
    parameter: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    course: Course,
    settings: Settings,
    axis: int | None,
    copy: Tensor | None = None,
    place: Place | None = None,
    grad_moved: bool = False,
) -> None:
    """One Adam step in place, then retraction along `axis` of the matrix; `copy` receives the result at its place.

    With `grad_moved` the gradient is stacked as the copy is; of a place by columns it always is.
    """
    place = place or Place()
    common = (course.alive_R, course.clip_R, course.scalars, *settings, *course.betas)
    if place.columns:
        assert copy is not None
        assert axis in (0, None)
        R, rows, columns = parameter.shape
        tile = _column_tile(columns, R, parameter.device)
        launch(
            _adam_columns,
            (triton.cdiv(columns, tile.columns), R),
            parameter,
            grad,
            first,
            second,
            copy,
            *common,
            rows,
            columns,
            place.dim,
            place.width,
            axis == 0,
            tile.rows,
            tile.columns,
            tile.stages,
            num_warps=tile.warps,
        )
        return
    assert axis in (1, None)
    if axis is None and copy is None:  # any order will do
        width = _divisor(parameter[0].numel())
        shape = (parameter.shape[0], parameter[0].numel() // width, width)
    else:
        shape = (parameter.shape[0], parameter.shape[1], parameter.shape[2])
    rows, block, warps = row_tile(shape[2])
    launch(
        _adam_rows, (triton.cdiv(shape[1], rows), shape[0]),
        parameter, grad, first, second, copy, *common, shape[1], grad.stride(0),
        copy.stride(0) if copy is not None else 0, place.first_row, shape[2], place.dim, place.width, grad_moved,
        copy is not None, axis is not None, rows, block, num_warps=warps,
    )  # fmt: skip


def _column_tile(columns: int, replicas: int, device: torch.device) -> ColumnTile:
    """The widest tile of which there is one for every other multiprocessor, else the narrowest."""
    enough = multiprocessors(device) // 2
    found = (tile for tile in COLUMN_TILES if triton.cdiv(columns, tile.columns) * replicas >= enough)
    return next(found, COLUMN_TILES[-1])


@cache
def _divisor(size: int) -> int:
    """The largest number up to 1024 that divides it."""
    return max(d for d in range(1, 1025) if size % d == 0)


def lengths(grads: list[Tensor]) -> Tensor:
    """‖g‖₂ per replica over all of these, each (R, …) and dense: a fixed order of sums."""
    R, device = grads[0].shape[0], grads[0].device
    short = [g.flatten(1) for g in grads if _is_short(g)]
    if short:
        grads = [*(g for g in grads if not _is_short(g)), torch.cat(short, 1)]
    block = 2048
    most = 8 * multiprocessors(device) // R
    counts = [max(1, min(most, triton.cdiv(g[0].numel(), 2 * block))) for g in grads]
    partial = torch.empty(R, sum(counts), device=device)
    column = 0
    for g, count in zip(grads, counts, strict=True):
        assert g.is_contiguous()
        launch(_squares, (count, R), g, partial, g[0].numel(), column, count, partial.shape[1], block)
        column += count
    return partial.sum(1).sqrt()


def _is_short(grad: Tensor) -> bool:
    return grad.dtype == torch.float32 and grad[0].numel() <= SHORT
