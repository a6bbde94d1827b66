"""What tests of fused kernels share: the device, the dtypes, random tensors."""

from __future__ import annotations

import os

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is defined

DTYPES = [torch.float32, torch.bfloat16]

BORDER = 4096  # numbers on either side: more than a row of any test
WHOLE: list[tuple[Tensor, float]] = []  # memory with its borders, and what is in these


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same numbers for the same shape and seed."""
    generator = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    return bordered(torch.randn(*shape, generator=generator).to(DEVICE, dtype))


def bordered(x: Tensor, around: float = float("nan")) -> Tensor:
    """The same numbers with others before and after them in memory; what is empty or of integers stays as it is."""
    if x.numel() == 0 or not x.is_floating_point() or x.is_meta:
        return x
    whole = torch.full((x.numel() + 2 * BORDER,), around, dtype=x.dtype, device=x.device)
    WHOLE.append((whole, around))
    return whole[BORDER:-BORDER].view(x.shape).copy_(x)


def is_untouched(whole: Tensor, around: float) -> bool:
    """Whether there is around a tensor what was."""
    borders = torch.stack((whole[:BORDER], whole[-BORDER:]))
    return bool(borders.isnan().all() if around != around else (borders == around).all())
