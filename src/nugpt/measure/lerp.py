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
    numbers = []
    for role in ROLES:
        stored = torch.stack([params[f"blocks.{i}.{role}.stored"].detach() for i in range(n_layers)])
        effective = (gains[role] * stored).abs().double()
        whole = torch.stack([effective.mean(), effective.std(unbiased=False)])
        numbers += [whole, effective.mean(1), effective.std(1, unbiased=False)]
    flat = torch.cat(numbers).tolist()  # one transfer for all
    found = {}
    for place, role in enumerate(ROLES):
        mean, std, *by_block = flat[place * 2 * (1 + n_layers) :][: 2 * (1 + n_layers)]
        found[role] = {
            "mean": mean,
            "std": std,
            "mean_by_block": by_block[:n_layers],
            "std_by_block": by_block[n_layers:],
        }
    return found
