"""A kernel that says where another would look, so that it need not be there."""

from __future__ import annotations

import triton
import triton.language as tl

from nugpt.kernels.fused.heads import _places


@triton.jit
def places(out, first_row, T, by_batch, by_token, by_head, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """Where `HEADS` heads of `ROWS` rows begin, strides given as eighths, (ROWS, HEADS) in int64."""
    rows, head = tl.arange(0, ROWS), tl.arange(0, HEADS)
    at = _places(first_row.to(tl.int64) + rows, T, by_batch, by_token, by_head, head)
    to = rows[:, None, None] * HEADS + head[None, :, None]
    tl.store(out + to, at)
