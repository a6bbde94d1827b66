"""The validation loss on the fixed set, each data-parallel rank taking its share of the windows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from nugpt.engines.lab.evaluate import ValidationSet


@torch.no_grad()
def validate(
    model: Any, data: ValidationSet, micro: int, rank: int, ranks: int, copies: int, device: torch.device
) -> tuple[float, dict[str, float]]:
    """The mean loss and each source's; `copies`: ranks that see the same windows, and so count them more than once."""
    n, n_sources = len(data.inputs), len(data.names)
    sums = torch.zeros(n_sources, dtype=torch.float64, device=device)
    # Every rank takes the same number of turns with the same shapes: FSDP2 gathers the weights in each.
    for first in range(0, n, micro * ranks):
        rows = torch.arange(micro) + first + rank * micro
        known = rows < n
        rows = rows.clamp(max=n - 1)
        kinds = torch.where(known.unsqueeze(-1), data.sources[rows], -1).flatten().to(device)
        losses = model(data.inputs[rows].to(device), data.targets[rows].to(device)).double()
        for source in range(n_sources):  # a sum per source: index_add_ has no fixed order on a GPU
            sums[source] += torch.where(kinds == source, losses, 0.0).sum()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # no backward pass will drop what was gathered, and the next step changes it
    dist.all_reduce(sums)
    totals = sums.cpu() / copies
    counts = torch.bincount(data.sources.flatten(), minlength=n_sources).double()
    by_source = {name: float(totals[i] / counts[i]) for i, name in enumerate(data.names) if counts[i] > 0}
    return float(totals.sum() / counts.sum()), by_source
