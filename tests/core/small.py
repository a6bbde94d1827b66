"""Small models for the tests: shapes, resolved numbers, random values and token batches, each from a fixed seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nugpt.core import init
from nugpt.core.decoder import Decoder
from nugpt.spec import Base, Extent, ModelConfig, Resolved, load_table, resolve

TABLE_OF = {"normalized": "nugpt", "prenorm": "prenorm-completep", "prenorm-qknorm": "prenorm-completep"}
ARCHITECTURES = tuple(TABLE_OF)
VOCABULARY = 29


def config(architecture: str = "normalized", **changes: Any) -> ModelConfig:
    """Two layers, four query and two key-value heads of 6: no two axes of a matrix alike except where they must be."""
    fields = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "d_mlp": 34, "seq_len": 16}
    values: dict[str, Any] = {"vocab_size": VOCABULARY, "architecture": architecture} | fields | changes
    return ModelConfig(**values)


def resolved(shape: ModelConfig, lr: float = 0.01, table: str | None = None, **options: Any) -> Resolved:
    """The table's numbers for this shape, over a base of half its width and depth, so that no ratio is 1."""
    target = Extent(shape.d_model, shape.head_dim, 2 * shape.n_layers, 160, 64)
    base = Base.of(Extent(2 * shape.head_dim, shape.head_dim, shape.n_layers, 20, 64))
    return resolve(load_table(table or TABLE_OF[shape.architecture]), base, target, lr, **options)


def model(shape: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float64, **kernels: str) -> Decoder:
    """An initialised model whose rescalers and norms are then drawn at random, some negative, so that none is idle."""
    built = init.build(shape, **kernels).to(dtype)
    init.initialize_(built, seed, resolved(shape), shape.roles)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.ndim == 1 or name.endswith(".stored"):
                factor = 0.5 + torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                factor = torch.where(torch.rand(parameter.shape, generator=generator) < 0.2, -factor, factor)
                parameter.mul_(factor)
            elif shape.architecture != "normalized":
                parameter.mul_(15)  # from 0.02 to branches of order 1 and attention far from uniform
    return built


def gains(built: Decoder, dtype: torch.dtype = torch.float64, factor: float = 1.0) -> Any:
    """The model's forward multipliers in this precision, all times `factor`."""
    numbers = resolved(built.config).gains
    kind: Any = built.gains_type
    return kind(*(torch.tensor(factor * numbers[name], dtype=dtype) for name in kind._fields))


def tokens(seed: int = 0, batch: int = 2, time: int = 7, vocabulary: int = VOCABULARY) -> Tensor:
    """Token ids of shape (batch, time)."""
    return torch.randint(vocabulary, (batch, time), generator=torch.Generator().manual_seed(1000 + seed))
