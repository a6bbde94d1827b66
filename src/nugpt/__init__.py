"""nugpt: Normalized Transformers whose learning rate is tuned once, on a small model, and holds for the large one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nugpt.core.baseline import Baseline
    from nugpt.core.init import build, initialize_
    from nugpt.core.optim import adamw, param_groups, retract_
    from nugpt.core.transformer import Transformer
    from nugpt.measure.probe import AlignmentProbe
    from nugpt.spec import (
        Base,
        Extent,
        ModelConfig,
        Parametrization,
        Power,
        Resolved,
        RoleRule,
        Roles,
        Row,
        Schedule,
        load_table,
        parametrization,
        preset,
        resolve,
    )

# Where each public name lives. Imported on first use, so that `import nugpt` and the command line stay quick.
_HOMES = {
    "nugpt.spec": (
        "Base Extent ModelConfig Parametrization Power Resolved RoleRule Roles Row Schedule "
        "load_table parametrization preset resolve"
    ),
    "nugpt.core.transformer": "Transformer",
    "nugpt.core.baseline": "Baseline",
    "nugpt.core.init": "build initialize_",
    "nugpt.core.optim": "adamw param_groups retract_",
    "nugpt.measure.probe": "AlignmentProbe",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AlignmentProbe",
    "Base",
    "Baseline",
    "Extent",
    "ModelConfig",
    "Parametrization",
    "Power",
    "Resolved",
    "RoleRule",
    "Roles",
    "Row",
    "Schedule",
    "Transformer",
    "__version__",
    "adamw",
    "build",
    "initialize_",
    "load_table",
    "param_groups",
    "parametrization",
    "preset",
    "resolve",
    "retract_",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nugpt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
