"""Triton's interpreter, mended: reductions by slices, loops up to a number that is a tile of one, and bounds.

It hands a combining function one number of a tile after another, which takes minutes. Triton up to 3.6 makes a Python
number of a tile of one as numpy before 2.4 allowed. It looks wherever a kernel says, also where a GPU would fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, ReduceOps

ONE_BY_ONE = ReduceOps.generic_reduce
AS_TRITON_PATCHES = interpreter._patch_lang_tensor
AS_TRITON_STARTS = GridExecutor._init_args_hst
AS_TRITON_LOADS, AS_TRITON_STORES = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

OPERANDS: list[tuple[int, int]] = []  # of the kernel that runs: where in memory each begins and ends


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


def started(self: GridExecutor, given: Any, named: Any) -> Any:
    """As Triton begins a launch, its operands noted."""
    tensors = [x for x in (*given, *named.values()) if hasattr(x, "data_ptr") and x.numel()]
    spans = [1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) for x in tensors]
    OPERANDS[:] = [(x.data_ptr(), x.data_ptr() + span * x.itemsize) for x, span in zip(tensors, spans, strict=True)]
    return AS_TRITON_STARTS(self, given, named)


def checked(pointers: Any, mask: Any) -> None:
    """Raise unless one operand has all that is looked at together."""
    at = pointers.data[mask.data.astype(bool)]
    if at.size and not any(begin <= at.min() and at.max() < end for begin, end in OPERANDS):
        raise IndexError("a kernel looks outside of its operands")


def loaded(self: InterpreterBuilder, pointers: Any, mask: Any, *others: Any) -> Any:
    """As Triton loads, within bounds."""
    checked(pointers, mask)
    return AS_TRITON_LOADS(self, pointers, mask, *others)


def stored(self: InterpreterBuilder, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
    """As Triton stores, within bounds."""
    checked(pointers, mask)
    return AS_TRITON_STORES(self, pointers, value, mask, *others)


def keep_within_operands() -> None:
    """From here on, in this process: also what is read and then left unused lies in what the kernel was given."""
    GridExecutor._init_args_hst = started
    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = loaded, stored
