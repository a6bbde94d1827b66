"""Which role a parameter plays and along which axis it lives on the sphere: a total function of its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

MATRIX_ROLES = ("input", "hidden", "output")
RESCALER_ROLES = ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z")


@dataclass(frozen=True)
class Assignment:
    """A parameter's role, and the axis along which its vectors have unit norm (None: not on a sphere)."""

    role: str
    axis: int | None


@dataclass(frozen=True)
class RoleRule:
    """Parameters whose whole name matches `pattern` have this role and sphere axis."""

    pattern: str
    role: str
    axis: int | None = None

    def __post_init__(self) -> None:
        for name in ("pattern", "role"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} of a rule is {getattr(self, name)!r}, but must be a string")
        if self.axis is not None and (not isinstance(self.axis, int) or isinstance(self.axis, bool)):
            raise ValueError(f"axis of role {self.role!r} is {self.axis!r}, but must be a whole number, or none")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"role {self.role!r} has the pattern {self.pattern!r}, no regular expression: {error}"
            ) from None


class Roles:
    """An ordered set of rules; each name must match exactly one of them."""

    def __init__(self, rules: Iterable[RoleRule]) -> None:
        self.rules = tuple(rules)
        self._assign = lru_cache(maxsize=None)(self._match)

    def __call__(self, name: str) -> Assignment:
        """The role and axis of this parameter; an unknown or doubly matched name raises."""
        return self._assign(name)

    def _match(self, name: str) -> Assignment:
        matches = [rule for rule in self.rules if re.fullmatch(rule.pattern, name)]
        if not matches:
            raise ValueError(f"parameter {name!r} has no role: no rule matches its name")
        if len(matches) > 1:
            patterns = " and ".join(repr(rule.pattern) for rule in matches)
            raise ValueError(f"parameter {name!r} has more than one role: it matches {patterns}")
        return Assignment(matches[0].role, matches[0].axis)

    @property
    def names(self) -> tuple[str, ...]:
        """The roles that these rules can give, each once, in order."""
        return tuple(dict.fromkeys(rule.role for rule in self.rules))


# Sphere axes in PyTorch's storage (out, in): the axis of size d_model (paper, section 2).
NORMALIZED = Roles(
    (
        RoleRule(r"E_in\.weight", "input", axis=1),
        RoleRule(r"blocks\.\d+\.attention\.W_[qkv]\.weight", "hidden", axis=1),
        RoleRule(r"blocks\.\d+\.attention\.W_O\.weight", "hidden", axis=0),
        RoleRule(r"blocks\.\d+\.mlp\.W_(u|nu)\.weight", "hidden", axis=1),
        RoleRule(r"blocks\.\d+\.mlp\.W_oMLP\.weight", "hidden", axis=0),
        RoleRule(r"E_out\.weight", "output", axis=1),
        RoleRule(r"blocks\.\d+\.alpha_A\.stored", "alpha_A"),
        RoleRule(r"blocks\.\d+\.alpha_M\.stored", "alpha_M"),
        RoleRule(r"blocks\.\d+\.attention\.s_qk\.stored", "s_qk"),
        RoleRule(r"blocks\.\d+\.mlp\.s_u\.stored", "s_u"),
        RoleRule(r"blocks\.\d+\.mlp\.s_nu\.stored", "s_nu"),
        RoleRule(r"s_z\.stored", "s_z"),
    )
)

PRENORM = Roles(
    (
        RoleRule(r"E_in\.weight", "input"),
        RoleRule(r"blocks\.\d+\.attention\.W_[qkvO]\.weight", "hidden"),
        RoleRule(r"blocks\.\d+\.mlp\.W_(u|nu|oMLP)\.weight", "hidden"),
        RoleRule(r"E_out\.weight", "output"),
        RoleRule(r"(blocks\.\d+\.(norm_[AM]|attention\.[qk]_norm)|norm_out)\.weight", "norm"),
    )
)
