"""A parameter's name as its model has it: what torch wraps a model in puts words of its own into names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from torch import Tensor

from nugpt.spec.roles import Roles

FLATTENING = "_fsdp_wrapped_module"  # the first FSDP
# torch.compile, recomputed activations and the first FSDP, anywhere in a name.
INSIDE = ("_orig_mod", "_checkpoint_wrapped_module", FLATTENING)
FIRST = "module"  # DistributedDataParallel, before all other words


@lru_cache(maxsize=2**16)  # retraction asks for every name after every step
def own_name(name: str, roles: Roles) -> str:
    """The name by which the roles know this parameter, without the words of wrappers where it has a role so."""
    words = [word for word in name.split(".") if word not in INSIDE]
    outer = words[1:] if words[0] == FIRST else words  # last of all: a model may have a module of that name
    known = (one for one in (".".join(words), name, ".".join(outer)) if _has_role(one, roles))
    return next(known, name)  # a name without a role is refused as it was given


def check_whole(name: str, parameter: Tensor) -> None:
    """Refuse what the first FSDP has made of a parameter: this rank's part in one row, which has no axes."""
    if FLATTENING in name.split(".") and parameter.dim() < 2:
        raise ValueError(
            f"parameter {name!r} is sharded by FullyShardedDataParallel and has no rows and columns: "
            "call this within FullyShardedDataParallel.summon_full_params(model), or shard by fully_shard"
        )


def check_axes(named_parameters: Iterable[tuple[str, Tensor]], roles: Roles) -> None:
    """Refuse a sphere axis that its parameter lacks, or that is not d_model's where another axis of it is."""
    placed = []
    for name, parameter in named_parameters:
        axis = roles(own_name(name, roles)).axis
        if axis is None or (FLATTENING in name.split(".") and parameter.dim() < 2):
            continue
        shape = tuple(parameter.shape)
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis of parameter {name!r} is {axis}, but must be one of its shape {shape}")
        placed.append((name, shape, axis))
    sizes = Counter(shape[axis] for _, shape, axis in placed)
    d_model = max(sizes, key=sizes.__getitem__, default=0)  # what most of them have
    for name, shape, axis in placed:
        if shape[axis] != d_model and d_model in shape:
            raise ValueError(
                f"axis of parameter {name!r}, of shape {shape}, is {axis}, but must be {shape.index(d_model)}: "
                f"the one of size d_model, which is {d_model} if most axes are right"
            )


def _has_role(name: str, roles: Roles) -> bool:
    try:
        roles(name)
    except ValueError:
        return False
    return True
