"""The modelling code beside the weights: ours to the letter, and in need of torch and transformers alone."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

from nugpt.core import rope, sphere
from nugpt.export.inline import modeling_code

ROOT = Path(__file__).resolve().parents[2]


def test_it_imports_torch_and_transformers_and_nothing_of_ours() -> None:
    modules = set()
    for node in ast.walk(ast.parse(modeling_code())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            modules.add(node.module.split(".")[0])
    assert modules == {"__future__", "math", "typing", "torch", "transformers"}


def test_what_it_took_from_the_package_is_written_out_to_the_letter() -> None:
    code = modeling_code()
    for function in (rope.rope_angles, rope.rotate, sphere.norm, sphere.lerp, sphere.guarded_length):
        assert code.count("\n" + inspect.getsource(function)) == 1
    assert "retract_tensor_" not in code  # which no forward pass needs


def test_every_name_is_defined_and_it_reads_as_our_own_code_does(tmp_path: Path) -> None:
    path = tmp_path / "modeling_nugpt.py"
    path.write_text(modeling_code(), encoding="utf-8")
    for command in (["check"], ["format", "--check"]):
        words = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
            str(path),
        ]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_small() -> None:
    assert len(modeling_code().splitlines()) < 320
