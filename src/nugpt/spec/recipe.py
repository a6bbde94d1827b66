"""A recipe: a run that describes itself in a file, for an engine to read; and rules, for any other trainer."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.run import RunSpec

FORMAT = 1
RECIPE, RULES = "nugpt recipe", "nugpt rules"
NO_DATA = "unspecified"  # where no data set is known: null in a recipe
WORDS = {"lr": "learning rate", "init": "initial value", "weight_decay": "weight decay", "eps": "ε"}


def recipe_of(run: RunSpec, recommended: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Plain values: the run, every number that its table gives, and what was found out about its η, if anything."""
    values = run.to_dict()
    if run.data == NO_DATA:
        values["data"] = None
    return {
        "format": FORMAT,
        "kind": RECIPE,
        "run": values,
        "resolved": _stated(run),
        "recommended": None if recommended is None else dict(recommended),
    }


def load_recipe(path: str | Path, data: str | None = None) -> RunSpec:
    """The run of a recipe file, JSON or (by its ending) TOML, with another data set's hash if given."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"recipe {str(path)!r} is no file, but must be one that `nugpt recommend --emit` wrote")
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON or TOML, or nested without end
        form = "TOML" if path.suffix == ".toml" else "JSON"
        raise ValueError(f"recipe {str(path)!r} is not valid {form}: {error}") from None
    if not isinstance(values, Mapping):
        raise ValueError(f"recipe {str(path)!r} is {type(values).__name__}, but must be a table of values")
    return read_recipe(values, data)


def read_recipe(values: Mapping[str, Any], data: str | None = None) -> RunSpec:
    """The run of a recipe, with another data set's hash if given; refused when its numbers are not its table's."""
    if values.get("kind") != RECIPE or values.get("format") != FORMAT:
        raise ValueError(
            f"recipe is of kind {values.get('kind')!r} and format {values.get('format')!r}, "
            f"but must be {RECIPE!r} and {FORMAT}"
        )
    for part in ("run", "resolved"):
        if not isinstance(values.get(part), Mapping):
            raise ValueError(f"recipe has no {part}: it is {values.get(part)!r}, but must be a table of values")
    run: dict[str, Any] = {"start": None, "grad_clip": None, "data": None} | dict(values["run"])  # TOML has no null
    run["data"] = data or run["data"] or NO_DATA
    spec = RunSpec.from_dict(run)
    _check_stated(values["resolved"], spec)
    return spec


def _stated(run: RunSpec) -> Any:
    """Every number that the run's table gives, as a file holds them."""
    return json.loads(json.dumps(run.resolved().to_dict()))


def _check_stated(stated: Mapping[str, Any], spec: RunSpec) -> None:
    """A recipe says its numbers twice; where the two differ, somebody changed one of them."""
    for path, value in _leaves(_stated(spec)):
        given = _at(stated, path)
        if not _same(given, value):
            raise ValueError(f"recipe states {given!r} as {_in_words(path)}, but its table gives {value!r}")


def _in_words(path: tuple[str | int, ...]) -> str:
    """A place in what a table gives, as a user would say it."""
    match path:
        case ("rows", role, name):
            return f"the {WORDS.get(str(name), name)} of {role}"
        case ("gains", name):
            return f"the gain of {name}"
    return "its " + " ".join(str(part) for part in path)


def _leaves(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every plain value with its place."""
    inner = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else None
    if inner is None:
        yield path, values
        return
    for name, value in inner:
        yield from _leaves(value, (*path, name))


def _at(values: Any, path: tuple[str | int, ...]) -> Any:
    for name in path:
        if isinstance(values, Mapping):
            values = values.get(name)
        else:
            inside = isinstance(values, list) and isinstance(name, int) and name < len(values)
            values = values[name] if inside else None
    return values


def _same(given: Any, true: Any) -> bool:
    if isinstance(true, float) and not isinstance(given, bool):
        return isinstance(given, (int, float)) and math.isclose(given, true, rel_tol=1e-9)
    return bool(given == true)


def rules(run: RunSpec) -> dict[str, Any]:
    """What any other trainer needs, by name pattern: learning rate, initial value, forward multiplier, sphere axis."""
    resolved = run.resolved()
    found = []
    for rule in run.model.roles.rules:
        row = resolved[rule.role]
        rescaler, matrix = rule.role in RESCALER_ROLES, rule.role != "norm" and rule.role not in RESCALER_ROLES
        on_sphere = matrix and rule.axis is not None
        found.append(
            {
                "pattern": rule.pattern,
                "role": rule.role,
                "lr": row.lr,
                "initial_value": row.scale if rescaler else None if matrix else row.init,
                "initial_std": 1.0 if on_sphere else row.init if matrix else None,
                "forward_multiplier": resolved.gains[rule.role] if rescaler else 1.0,
                "sphere_axis": rule.axis,
                "weight_decay": row.weight_decay,
                "eps": row.eps,
            }
        )
    return {
        "format": FORMAT,
        "kind": RULES,
        "table": resolved.table,
        "lr": resolved.lr,
        "lr_base": resolved.lr_base,
        "betas": list(resolved.betas),
        "steps": run.steps,
        "batch": run.batch,
        "seq_len": run.model.seq_len,
        "grad_clip": run.grad_clip,
        "schedule": run.to_dict()["schedule"],
        "forward": {name: gain for name, gain in resolved.gains.items() if name not in RESCALER_ROLES},
        "rules": found,
    }
