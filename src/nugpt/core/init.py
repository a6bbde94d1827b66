"""Building a model and giving it its initial values: a function of (seed, parameter name) and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nugpt.core.baseline import Baseline
from nugpt.core.decoder import Decoder
from nugpt.core.names import check_axes, check_whole, own_name
from nugpt.core.sphere import retract_tensor_
from nugpt.core.transformer import Transformer
from nugpt.spec.model import ModelConfig
from nugpt.spec.resolve import Resolved
from nugpt.spec.roles import RESCALER_ROLES, Roles

CONSTANT = (*RESCALER_ROLES, "norm")  # roles whose numbers all begin alike

MODELS: dict[str, type[Transformer] | type[Baseline]] = {
    "normalized": Transformer,
    "prenorm": Baseline,
    "prenorm-qknorm": Baseline,
}


def build(config: ModelConfig, attention: str = "sdpa", loss: str = "chunked", device: str = "cpu") -> Decoder:
    """The model of this configuration with its memory on `device` and no particular values yet; see `initialize_`."""
    with torch.device("meta"):
        model = MODELS[config.architecture](config, attention, loss)
    return model.to_empty(device=device)


def gains(model: Decoder | type[Decoder], resolved: Resolved, device: str | torch.device = "cpu") -> Any:
    """The model's forward multipliers as tensors, from the resolved table."""
    kind = model.gains_type
    return kind(*(torch.tensor(resolved.gains[name], dtype=torch.float32, device=device) for name in kind._fields))


@torch.no_grad()
def initialize_(model: nn.Module, seed: int, resolved: Resolved, roles: Roles) -> None:
    """Give every parameter its initial value, in place."""
    check_axes(model.named_parameters(), roles)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(f"parameter {name!r} has no memory for its value: call model.to_empty(device=...) before")
        own = own_name(name, roles)
        if roles(own).role not in CONSTANT:  # a part of these is begun like the whole
            check_whole(name, parameter)
        value = initial_value(own, tuple(parameter.shape), seed, resolved, roles)
        parameter.copy_(_laid_out(value, parameter))


def _laid_out(value: Tensor, like: Tensor) -> Tensor:
    """The value as `like` is spread over ranks, where it is: each rank cuts its part out of the whole."""
    if not hasattr(like, "placements"):  # no DTensor, whose module takes a while to load
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def initial_value(name: str, shape: tuple[int, ...], seed: int, resolved: Resolved, roles: Roles) -> Tensor:
    """The initial value of one parameter in float32 on the CPU: whole, whatever its later sharding or replica."""
    assignment = roles(name)
    row = resolved[assignment.role]
    if assignment.role in RESCALER_ROLES:
        assert row.scale is not None
        return torch.full(shape, row.scale)  # a stored rescaler starts at its scale
    if assignment.role == "norm":
        assert row.init is not None
        return torch.full(shape, row.init)
    value = torch.randn(shape, generator=_generator(seed, name))
    if assignment.axis is None:
        if row.init is None:
            raise ValueError(
                f"parameter {name!r} has the role {assignment.role!r} and no axis, but table {resolved.table!r} "
                "keeps such matrices on the sphere: give its rule the axis of size d_model"
            )
        return value * row.init
    return retract_tensor_(value, assignment.axis)  # normalised before the first step, so any variance will do


def initial_values(
    shapes: Iterable[tuple[str, tuple[int, ...]]], seed: int, resolved: Resolved, roles: Roles
) -> dict[str, Tensor]:
    """The initial values of many parameters by name."""
    return {name: initial_value(name, shape, seed, resolved, roles) for name, shape in shapes}


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator whose state is a hash of seed and name."""
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
