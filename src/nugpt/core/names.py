"""A parameter's name as its model has it: what torch wraps a model in puts words of its own into names."""

from __future__ import annotations

from functools import lru_cache

from nugpt.spec.roles import Roles

# torch.compile, recomputed activations and the first FSDP, anywhere in a name.
INSIDE = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
FIRST = "module"  # DistributedDataParallel, before all other words


@lru_cache(maxsize=2**16)  # retraction asks for every name after every step
def own_name(name: str, roles: Roles) -> str:
    """The name by which the roles know this parameter: as it is, else without the words of wrappers."""
    if _has_role(name, roles):
        return name
    words = [word for word in name.split(".") if word not in INSIDE]
    unwrapped = ".".join(words[1:] if words[0] == FIRST else words)
    return unwrapped if _has_role(unwrapped, roles) else name  # a name without a role is refused as it was given


def _has_role(name: str, roles: Roles) -> bool:
    try:
        roles(name)
    except ValueError:
        return False
    return True
