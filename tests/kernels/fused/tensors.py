"""What tests of fused kernels share: the device, the dtypes, random tensors."""

from __future__ import annotations

import os

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is defined

DTYPES = [torch.float32, torch.bfloat16]


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same numbers for the same shape and seed."""
    generator = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)
