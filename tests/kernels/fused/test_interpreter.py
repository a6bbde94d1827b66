"""Reductions by slices give to the bit what Triton's interpreter gives number by number."""

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
