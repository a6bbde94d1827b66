"""Batches for timing: each seen once, with tokens as frequent as they are in text."""

from __future__ import annotations

import torch
from torch import Tensor

SEED = 0


def frequencies(vocab_size: int) -> Tensor:
    """Zipf's law: of V tokens the k-th most frequent has p(k) = (1/k) / (1/1 + … + 1/V), in float64."""
    inverse = 1 / torch.arange(1, vocab_size + 1, dtype=torch.float64)
    return inverse / inverse.sum()


class Stream:
    """Batches of R × B sequences of T tokens, and as targets the tokens that follow them.

    Every token is drawn by itself, so that there is nothing to learn beyond how frequent each is, and no model comes to
    know the batches by heart. A token's number is its rank, as it nearly is among the merges of a tokenizer. Drawn on
    the CPU, they are the same for every model and device.
    """

    def __init__(self, vocab_size: int, shape: tuple[int, int, int], device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.generator = torch.Generator().manual_seed(SEED)
        self.below = frequencies(vocab_size).cumsum(0)[:-1]  # of each token but the last: the share up to it

    def draw(self, steps: int) -> list[tuple[Tensor, Tensor]]:
        """The next tokens and targets, each (R, B, T), on the device."""
        R, B, T = self.shape
        pairs = []
        for _ in range(steps):
            places = torch.rand(R, B, T + 1, dtype=torch.float64, generator=self.generator)
            tokens = torch.searchsorted(self.below, places, right=True).to(self.device)
            pairs.append((tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()))
        return pairs
