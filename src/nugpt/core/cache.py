"""Keys and values of the tokens already seen, so that generation reads each token once."""

from __future__ import annotations

import torch
from torch import Tensor

from nugpt.spec.model import ModelConfig


class LayerCache:
    """One layer's keys and values, (B, capacity, K, H), as attention uses them."""

    def __init__(self, k_BSKH: Tensor, v_BSKH: Tensor) -> None:
        self.k_BSKH, self.v_BSKH = k_BSKH, v_BSKH

    def extend(self, k_BTKH: Tensor, v_BTKH: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write these at `start` and return all keys and values up to their end."""
        end = start + k_BTKH.shape[1]
        self.k_BSKH[:, start:end] = k_BTKH
        self.v_BSKH[:, start:end] = v_BTKH
        return self.k_BSKH[:, :end], self.v_BSKH[:, :end]


class Cache:
    """The layers' caches and how many tokens they hold."""

    def __init__(
        self, config: ModelConfig, batch: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (batch, capacity, config.n_kv_heads, config.head_dim)
        self.capacity, self.length = capacity, 0
        self.layers = [
            LayerCache(torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))
            for _ in range(config.n_layers)
        ]
