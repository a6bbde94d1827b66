"""Memory that shows what a kernel reads or writes outside of a tensor, and what it leaves unwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _bordered_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What kernels take for their results holds NaN at first; around it is a number, which must be there at the end."""
    import torch
    from tests.kernels.fused.tensors import WHOLE, bordered, is_untouched

    def spoiled(empty: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*given: Any, **options: Any) -> torch.Tensor:
            x = empty(*given, **options)
            return bordered(x.fill_(float("nan")) if x.is_floating_point() else x, around=7.0)

        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", spoiled(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", spoiled(torch.empty_like))
    WHOLE.clear()
    yield
    touched = [whole for whole, around in WHOLE if not is_untouched(whole, around)]
    WHOLE.clear()
    assert not touched, "a kernel wrote outside of a tensor"
