"""Norm, LERP, and putting weights back on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor


def norm(y: Tensor, dim: int = -1) -> Tensor:
    """Norm(y) = y / ‖y‖₂ along `dim`, computed in at least float32, returned in y's dtype."""
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    return (wide / guarded_length(wide, dim)).to(y.dtype)


def lerp(h: Tensor, branch: Tensor, alpha: Tensor) -> Tensor:
    """Norm(h + α ⊙ (branch − h)), computed in at least float32, returned in h's dtype. # (2), (4)"""
    wide = torch.promote_types(h.dtype, torch.float32)
    h_wide = h.to(wide)
    return norm(h_wide + alpha * (branch.to(wide) - h_wide)).to(h.dtype)


@torch.no_grad()
def retract_tensor_(weight: Tensor, axis: int) -> Tensor:
    """Divide each vector of `weight` along `axis` by its length, in place and in at least float32."""
    if weight.dtype in (torch.float32, torch.float64):
        return weight.div_(guarded_length(weight, axis))
    return weight.copy_(norm(weight, axis))


def guarded_length(y: Tensor, dim: int) -> Tensor:
    """‖y‖₂ along `dim`; 1 where it is 0."""
    # CHOICE: the paper's Norm has no ε. A zero vector stays zero with a finite gradient; no other is guarded.
    length = torch.linalg.vector_norm(y, dim=dim, keepdim=True)
    return torch.where(length > 0, length, torch.ones_like(length))
