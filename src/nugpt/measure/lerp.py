"""LERP statistics: mean and spread of the effective α_A, α_M over components and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ROLES = ("alpha_A", "alpha_M")


@torch.no_grad()
def lerp_statistics(params: Mapping[str, Tensor], gains: Mapping[str, float], n_layers: int) -> dict[str, Any]:
    """Of one model's parameters by name: over all blocks and components, and block by block.

    The spread is the standard deviation of the components that are there, not an estimate for more of them.
    """
    found = {}
    for role in ROLES:
        stored = torch.stack([params[f"blocks.{i}.{role}.stored"].detach() for i in range(n_layers)])
        effective = (gains[role] * stored).abs().double()
        numbers = torch.stack([effective.mean(), effective.std(unbiased=False)]).tolist()
        by_block = torch.stack([effective.mean(1), effective.std(1, unbiased=False)]).tolist()
        found[role] = {
            "mean": numbers[0],
            "std": numbers[1],
            "mean_by_block": by_block[0],
            "std_by_block": by_block[1],
        }
    return found
