"""A user's own table: read from TOML or plain values, every mistake named in one line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from nugpt.spec.checks import nonnegative, shown, two_betas, written_exponent
from nugpt.spec.parametrization import FAMILIES, TABLES, Parametrization, Power, Row, parametrization

_TABLE_KEYS = ("name", "family", "extends", "base", "batch", "rows", "forward", "weight_decay", "eps", "betas")
_EXPONENTS = tuple(f.name for f in fields(Power) if f.name != "coefficient")
_ROW_KEYS = tuple(f.name for f in fields(Row))


def load_table(name_or_path: str | Path) -> Parametrization:
    """A built-in table by name, or a user's own by the path of its TOML file."""
    name_or_path = str(name_or_path) if isinstance(name_or_path, Path) else name_or_path
    if not isinstance(name_or_path, str) or not name_or_path.endswith(".toml"):
        return parametrization(name_or_path)
    path = Path(name_or_path)
    if path.is_dir():
        raise ValueError(f"parametrization file {name_or_path!r} is a directory, but must be a TOML file")
    if not path.is_file():
        raise ValueError(f"parametrization file {name_or_path!r} does not exist")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no TOML, no UTF-8, or a number of more digits than Python reads
        raise ValueError(f"{name_or_path}: not valid TOML: {error}") from None
    table = table_from_dict(values, where=name_or_path)
    if table != TABLES.get(table.name, table):
        raise ValueError(f"{name_or_path}: name is {table.name!r}, but so is a built-in table's: give another")
    return table


def table_from_dict(values: Mapping[str, Any], where: str = "table") -> Parametrization:
    """The table that these plain values describe; `extends` starts from a built-in one and replaces whole cells."""
    _known(values, _TABLE_KEYS, where)
    start = TABLES.get(str(values["extends"])) if "extends" in values else None
    if "extends" in values and start is None:
        raise ValueError(f"{where}: extends is {values['extends']!r}, but must be one of {', '.join(TABLES)}")
    name = values.get("name", Path(where).stem)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: name is {name!r}, but must be a string")
    family = values.get("family", start.family if start else "normalized")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"{where}: family is {family!r}, but must be one of {', '.join(FAMILIES)}")
    if start and family != start.family:
        raise ValueError(f"{where}: family is {family!r}, but {start.name!r}, which it extends, is {start.family!r}")
    rows = dict(start.rows) if start else {}
    for role, cells in _mapping(values.get("rows", {}), f"{where}: rows").items():
        if role not in FAMILIES[family]:
            raise ValueError(f"{where}: unknown role {role!r}, known are {', '.join(FAMILIES[family])}")
        rows[role] = _row(cells, rows.get(role, Row()), f"{where}: rows.{role}")
    forward = dict(start.forward) if start else {}
    for key, cell in _mapping(values.get("forward", {}), f"{where}: forward").items():
        forward[key] = _power(cell, f"{where}: forward.{key}")
    readers: dict[str, Callable[[Any, str], Any]] = {
        "base": _power,
        "batch": written_exponent,
        "weight_decay": nonnegative,
        "eps": nonnegative,
        "betas": two_betas,
    }
    given = {key: read(values[key], f"{where}: {key}") for key, read in readers.items() if key in values}
    try:
        if start:
            return replace(start, name=name, rows=rows, forward=forward, **given)
        return Parametrization(name=name, family=family, rows=rows, forward=forward, **given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def table_to_dict(table: Parametrization) -> dict[str, Any]:
    """Plain values that `table_from_dict` turns back into an equal table."""
    values: dict[str, Any] = {
        "name": table.name,
        "family": table.family,
        "base": _power_to_dict(table.base),
        "rows": {role: _row_to_dict(row) for role, row in table.rows.items()},
        "forward": {name: _power_to_dict(power) for name, power in table.forward.items()},
        "weight_decay": table.weight_decay,
        "eps": table.eps,
        "betas": list(table.betas),
    }
    return values if table.batch is None else values | {"batch": str(table.batch)}


def table_to_toml(table: Parametrization) -> str:
    """The table as the text of a TOML file that `load_table` reads."""
    values = table_to_dict(table)
    # ensure_ascii would write characters beyond U+FFFF as two surrogates, which TOML does not have.
    name = json.dumps(table.name, ensure_ascii=False).replace("\x7f", "\\u007f")
    lines = [f"name = {name}", f'family = "{table.family}"', f"base = {_inline(values['base'])}"]
    if table.batch is not None:
        lines.append(f'batch = "{table.batch}"')
    lines += [f"weight_decay = {table.weight_decay!r}", f"eps = {table.eps!r}", f"betas = {list(table.betas)!r}"]
    for role, cells in values["rows"].items():
        lines += ["", f"[rows.{role}]"]
        lines += [f"{key} = {_inline(cell)}" for key, cell in cells.items()]
    if values["forward"]:
        lines += ["", "[forward]"] + [f"{name} = {_inline(cell)}" for name, cell in values["forward"].items()]
    return "\n".join(lines) + "\n"


def _row(cells: Any, start: Row, where: str) -> Row:
    cells = _mapping(cells, where)
    _known(cells, _ROW_KEYS, where)
    changes: dict[str, Any] = {}
    for key, cell in cells.items():
        read: Callable[[Any, str], Any] = written_exponent if key == "multiplier_log2" else _power
        changes[key] = read(cell, f"{where}.{key}")
    return replace(start, **changes)


def _power(cell: Any, where: str) -> Power:
    """A number (a constant), or a table with `coefficient` and exponents written as "-3/4", -0.75 or -1."""
    if not isinstance(cell, Mapping):
        return Power(nonnegative(cell, where))
    _known(cell, ("coefficient", *_EXPONENTS), where)
    coefficient = nonnegative(cell.get("coefficient", 1.0), f"{where}.coefficient")
    exponents = {key: written_exponent(value, f"{where}.{key}") for key, value in cell.items() if key != "coefficient"}
    return Power(coefficient, **exponents)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {shown(value)}, but must be a table of keys and values")
    return value


def _known(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}, known are {', '.join(known)}")


def _power_to_dict(power: Power) -> dict[str, Any]:
    exponents = {key: str(getattr(power, key)) for key in _EXPONENTS if getattr(power, key)}
    return {"coefficient": power.coefficient, **exponents}


def _row_to_dict(row: Row) -> dict[str, Any]:
    cells: dict[str, Any] = {"lr": _power_to_dict(row.lr)}
    for key in ("init", "scale", "weight_decay"):
        power = getattr(row, key)
        if power is not None:
            cells[key] = _power_to_dict(power)
    return cells | {"eps": _power_to_dict(row.eps), "multiplier_log2": str(row.multiplier_log2)}


def _inline(cell: Any) -> str:
    if isinstance(cell, str):
        return f'"{cell}"'
    return (
        "{ " + ", ".join(f"{k} = {v!r}" if not isinstance(v, str) else f'{k} = "{v}"' for k, v in cell.items()) + " }"
    )
