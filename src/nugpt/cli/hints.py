"""What the help says after an option: its default, where that is a value and not the option's absence."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo


def required(metavar: str) -> object:
    """For a list of words that must not be empty, which the command itself refuses: tyro would say (default: )."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(required)")


def registry() -> ConstructorRegistry:
    """tyro's own rules, but for the defaults that the help leaves out: None, nothing, a switch that is not given."""
    ours = ConstructorRegistry()
    asking: list[StructTypeInfo] = []  # the types that tyro's rules are being asked about: not to be answered by ours

    @ours.struct_rule
    def without_none(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info in asking:
            return None
        asking.append(info)
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            asking.pop()
        if not isinstance(spec, StructConstructorSpec):
            return None
        return replace(spec, fields=tuple(_told(field) for field in spec.fields))

    return ours


def _told(field: StructFieldSpec) -> StructFieldSpec:
    """The field without tyro's hint where its default is no value; a hint of the field's own comes later and stays."""
    kind, *marks = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    absent = field.default is None or field.default is False or field.default in ((), {}, "")
    repeated = tyro.conf.UseAppendAction in marks  # tyro says so there, instead of a default
    if repeated or not absent:
        return field
    told: Any = Annotated[(kind, tyro.conf.arg(help_behavior_hint=""), *marks)]
    return replace(field, type=told)
