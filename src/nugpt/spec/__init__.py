"""Facts as values: model shapes and their counts, roles, the tables, scales. Standard library only."""

from nugpt.spec.model import (
    ModelConfig,
    flops_per_token,
    non_embedding_parameters,
    parameter_shapes,
    steps_at,
    tokens_at,
    total_parameters,
)
from nugpt.spec.parametrization import TABLES, Parametrization, Power, Row, parametrization
from nugpt.spec.resolve import Base, Extent, Ratios, Resolved, ResolvedRow, resolve
from nugpt.spec.roles import Assignment, RoleRule, Roles
from nugpt.spec.scales import SCALES, Scale, preset, preset_names
from nugpt.spec.schedule import Schedule
from nugpt.spec.table_file import load_table, table_from_dict, table_to_dict, table_to_toml

__all__ = [
    "SCALES",
    "TABLES",
    "Assignment",
    "Base",
    "Extent",
    "ModelConfig",
    "Parametrization",
    "Power",
    "Ratios",
    "Resolved",
    "ResolvedRow",
    "RoleRule",
    "Roles",
    "Row",
    "Scale",
    "Schedule",
    "flops_per_token",
    "load_table",
    "non_embedding_parameters",
    "parameter_shapes",
    "parametrization",
    "preset",
    "preset_names",
    "resolve",
    "steps_at",
    "table_from_dict",
    "table_to_dict",
    "table_to_toml",
    "tokens_at",
    "total_parameters",
]
