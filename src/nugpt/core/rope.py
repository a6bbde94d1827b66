"""Rotary position embedding: a true rotation of pairs of components."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_angles(positions_T: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    """The angle position·θ^(−2i/head_dim) of each pair i, (T, head_dim/2)."""
    i = torch.arange(0, head_dim, 2, dtype=dtype, device=positions_T.device)
    return positions_T.to(dtype).unsqueeze(-1) * theta ** (-i / head_dim)


def rotate(x_BTNH: Tensor, angles_TI: Tensor) -> Tensor:
    """QRot_n, KRot_n: components (i, i + H/2) of position n turned by angle i of row n, in the angles' dtype."""
    # CHOICE: a rotation in the strict sense, so that norms are kept and scores depend on offsets only.
    cos, sin = angles_TI.cos().unsqueeze(-2), angles_TI.sin().unsqueeze(-2)
    first, second = x_BTNH.to(angles_TI.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
