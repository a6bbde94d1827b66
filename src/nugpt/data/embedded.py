"""The corpus every Python brings along: the standard library's source, and the topics of its documentation."""

import ast
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "testing"}
TOPICS = "pydoc_data/topics.py"


def embedded_files(stdlib: Path | None = None) -> list[tuple[Path, str]]:
    """Return the standard library's files in a fixed order, each with the name of its source: code or documentation."""
    root = Path(sysconfig.get_paths()["stdlib"]) if stdlib is None else stdlib
    names = sorted(path.relative_to(root).as_posix() for path in _modules(root))
    if not names:
        raise ValueError(f"the source `embedded` needs the standard library's .py files, and {root} holds none")
    return [(root / name, "documentation" if name == TOPICS else "code") for name in names]


def _modules(root: Path) -> Iterator[Path]:
    for directory, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        # _sysconfigdata describes the machine Python was built on, not Python.
        yield from (Path(directory, name) for name in names if name.endswith(".py") and "_sysconfigdata" not in name)


def documentation_topics(module: str) -> list[str]:
    """Return the documentation's topics from the text of pydoc's module, without running it."""
    for statement in ast.parse(module).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(one) for one in statement.targets] == ["topics"]:
            topics = ast.literal_eval(statement.value)
            return [str(topics[name]) for name in sorted(topics)]
    return [module]
