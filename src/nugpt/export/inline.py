"""The modelling code that goes beside the weights: our module, with what it takes from the package written out."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from nugpt import __version__

MODELING_FILE = "modeling_nugpt.py"


def modeling_code() -> str:
    """The text of modeling_nugpt.py with each import from nugpt replaced by the functions it names."""
    text = (Path(__file__).parent / MODELING_FILE).read_text(encoding="utf-8")
    lines = text.splitlines()
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    for node in reversed(imports):  # from the end, so that line numbers before it still hold
        if node.module is not None and node.module.split(".")[0] == "nugpt":
            lines[node.lineno - 1 : node.end_lineno] = _written_out(node.module, [alias.name for alias in node.names])
    return "\n".join([f"# Written by nugpt {__version__}. MIT license, copyright the nugpt authors.", *lines]) + "\n"


def _written_out(module: str, names: list[str]) -> list[str]:
    """The source of these functions and of those of their module that they call, in the module's order."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    defined = {item.name: item for item in ast.parse(text).body if isinstance(item, ast.FunctionDef)}
    wanted: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        assert name in defined, f"{module}.{name} is no function that could be written out"
        wanted.add(name)
        used = {item.id for item in ast.walk(defined[name]) if isinstance(item, ast.Name)}
        todo += used & set(defined) - wanted
    lines = text.splitlines()
    written: list[str] = []
    for name, item in defined.items():
        if name in wanted:
            assert not item.decorator_list, f"{module}.{name} has a decorator, which would be left out"
            written += ["", *lines[item.lineno - 1 : item.end_lineno], ""]
    return written
