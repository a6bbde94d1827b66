"""Coordinate checks in a store: one JSON file each, under `coords/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nugpt.store.atomic import read_json, write_json
from nugpt.store.run_directory import Store

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def write_coords(store: Store, name: str, values: dict[str, Any]) -> Path:
    """Keep a check under a name; an older one of that name is replaced. An archive takes none but by packing."""
    store.check_runs_here()
    check_name(name)
    path = coords_path(store, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": FORMAT, "name": name, **values})
    return path


def check_name(name: str) -> None:
    """Refuse what is no name of a check, which files are called by."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}, but must be letters, digits, '.', '_' and '-', at most 100")


def read_coords(store: Store) -> list[dict[str, Any]]:
    """Every check of the store by name; one of another form is refused."""
    found = []
    for path in sorted((store.root / "coords").glob("*.json")):
        found.append(coords_of(path, read_json(path)))
    return found


def coords_path(store: Store, name: str) -> Path:
    """Where the check of this name is kept."""
    return store.root / "coords" / f"{name}.json"


def coords_of(where: Path | str, values: Any) -> dict[str, Any]:
    """These values if they are a check, else a line that says where they stand."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"{where}: not a coordinate check of a form that this version reads")
    return values
