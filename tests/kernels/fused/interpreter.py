"""Triton's interpreter, mended: reductions by slices, and loops up to a number that is a tile of one.

It hands a combining function one number of a tile after another, which takes minutes. Triton up to 3.6 makes a Python
number of a tile of one as numpy before 2.4 allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter
from triton.runtime.interpreter import ReduceOps

ONE_BY_ONE = ReduceOps.generic_reduce
AS_TRITON_PATCHES = interpreter._patch_lang_tensor


def reduced_by_slices(self: ReduceOps, given: tuple[Any, ...]) -> list[Any]:
    """As `ReduceOps.generic_reduce` has it: the same function joins the same numbers in the same order."""
    if self.axis is None or self.keep_dims or given[0].handle.data.ndim == 1:
        return ONE_BY_ONE(self, given)
    slices = [np.moveaxis(x.handle.data, self.axis, 0) for x in given]

    def at(place: int) -> tuple[Any, ...]:
        return tuple(self.to_tensor(data[place], x.dtype) for data, x in zip(slices, given, strict=True))

    joined = at(0)
    for place in range(1, len(slices[0])):
        found = self.combine_fn.fn(*joined, *at(place))
        joined = found if isinstance(found, tuple) else (found,)
    return list(joined)


def reduce_by_slices() -> None:
    """From here on, in this process: minutes become seconds where a kernel takes several sums at once."""
    ReduceOps.generic_reduce = reduced_by_slices


def patched_to_count(tensor: Any, scope: Any) -> None:
    """As Triton patches its tensors while it interprets a kernel, with `range` over a tile of one as from 3.7 on."""
    AS_TRITON_PATCHES(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda tile: int(tile.handle.data.squeeze()))


def count_with_any_tile_of_one() -> None:
    """From here on, in this process, with any numpy."""
    interpreter._patch_lang_tensor = patched_to_count
