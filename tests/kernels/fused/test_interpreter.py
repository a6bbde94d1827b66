"""Triton's interpreter, mended: the same reductions to the bit, and no look outside of what a kernel was given."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.fused.tensors import DEVICE, made

pytestmark = [pytest.mark.triton]


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are not interpreted on a GPU")
@pytest.mark.parametrize("axis", [0, 1])
def test_a_slice_at_a_time_is_as_one_number_after_another(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.kernels.fused.interpreter import ONE_BY_ONE, reduced_by_slices
    from tests.kernels.fused.ordered import reduced_in_order
    from triton.runtime.interpreter import ReduceOps

    given, found = made(2, 8, 16), []
    for way in (ONE_BY_ONE, reduced_by_slices):
        monkeypatch.setattr(ReduceOps, "generic_reduce", way)
        out = torch.zeros(2, 8 if axis else 16)
        reduced_in_order[(1,)](given, out, 8, 16, axis)
        assert out.all()
        found.append(out)
    assert torch.equal(*found)


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are not interpreted on a GPU")
@pytest.mark.usefixtures("mended_interpreter")
@pytest.mark.parametrize("short", ["given", "out"])
def test_a_look_one_number_outside_is_refused(short: str) -> None:
    from tests.kernels.fused.ordered import reduced_in_order
    from triton.runtime.errors import InterpreterError

    whole = {"given": torch.ones(2 * 8 * 16), "out": torch.ones(2 * 8)}
    reduced_in_order[(1,)](whole["given"], whole["out"], 8, 16, 1)
    operands = whole | {short: whole[short][:-1]}  # the last number lies in memory, but is no operand's
    with pytest.raises(InterpreterError, match="outside of its operands"):
        reduced_in_order[(1,)](operands["given"], operands["out"], 8, 16, 1)
