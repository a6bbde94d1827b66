"""Plain values as TOML, which the standard library reads but does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values as TOML; what is none is left out, since TOML has no null."""
    return "\n".join(_toml_table(values, ())).lstrip("\n") + "\n"


def _toml_table(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in values.items() if v is not None and not isinstance(v, Mapping)}
    lines = ["", f"[{'.'.join(map(_key, path))}]"] if path and (plain or not values) else []
    lines += [f"{_key(k)} = {_toml_value(v)}" for k, v in plain.items()]
    for key, inner in values.items():
        if isinstance(inner, Mapping):
            lines += _toml_table(inner, (*path, key))
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(v) for v in value if v is not None) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, str):
        # ensure_ascii would write characters beyond U+FFFF as two surrogates, which TOML does not have.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_value(name)
