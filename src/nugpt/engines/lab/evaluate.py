"""The validation loss on the fixed set, over all of it and per source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nugpt.data import TokenDataset
from nugpt.engines.lab.ensemble import Ensemble, State


@dataclass(frozen=True)
class ValidationSet:
    """Fixed windows: inputs and targets (n, T), the source of each target token, and the sources' names."""

    inputs: Tensor
    targets: Tensor
    sources: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, dataset: TokenDataset, seq_len: int, windows: int) -> ValidationSet:
        """The first `windows` windows of the data set's validation split, or all there are."""
        found = dataset.validation(seq_len, windows)
        inputs, targets, sources = (
            torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64))
            for x in (found.inputs, found.targets, found.sources)
        )
        return cls(inputs, targets, sources, tuple(found.source_names))


@dataclass(frozen=True)
class ValidationLoss:
    """Mean loss per replica, and per replica and source (not a number where a source has no token)."""

    mean: list[float]
    by_source: list[dict[str, float]]


@torch.no_grad()
def validate(ensemble: Ensemble, state: State, data: ValidationSet, micro: int) -> ValidationLoss:
    """The loss of every replica over the whole set, summed in float64 in an order that never changes."""
    R, device = len(ensemble.specs), ensemble.device
    n_sources = len(data.names)
    sums = torch.zeros(R, n_sources, dtype=torch.float64, device=device)
    for inputs, targets, sources in zip(
        *(torch.split(x, micro) for x in (data.inputs, data.targets, data.sources)), strict=True
    ):
        tokens, wanted = (x.to(device).expand(R, *x.shape) for x in (inputs, targets))
        losses = ensemble.token_losses(state.params, tokens, wanted).double()
        kinds = sources.flatten().to(device)
        for source in range(n_sources):  # a sum per source: index_add_ has no fixed order on a GPU
            sums[:, source] += torch.where(kinds == source, losses, 0.0).sum(-1)
    counts = torch.bincount(data.sources.flatten(), minlength=n_sources).double()
    totals = sums.cpu()
    mean = (totals.sum(1) / counts.sum()).tolist()
    rows = (totals / counts).tolist()
    present = [(i, name) for i, name in enumerate(data.names) if counts[i] > 0]
    return ValidationLoss(mean, [{name: row[i] for i, name in present} for row in rows])
