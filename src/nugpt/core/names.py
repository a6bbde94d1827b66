"""A parameter's name as its model has it: what torch wraps a model in puts words of its own into names."""

from __future__ import annotations

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


def _has_role(name: str, roles: Roles) -> bool:
    try:
        roles(name)
    except ValueError:
        return False
    return True
