"""The built wheel, installed elsewhere, works and is typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """The output of a command that must end with this status, run as if there were no checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that the checkout stays as it is."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run(*pip, "--wheel-dir", out, ".", cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has the wheel, and everything else from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
    ]
    run(*pip, wheel, cwd=folder)
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # A path file names the other packages; path files among those, such as an editable install's, are not read.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(own) / "others.pth").write_text("\n".join(sorted(others)) + "\n", encoding="utf-8")
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "src" / "nugpt"
    ours = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "nugpt/py.typed" in ours
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert {name for name in names if ".dist-info/" not in name} == ours
    assert "Requires-Python: >=3.11" in text
    assert "License-Expression: MIT" in text
    assert "Requires-Dist: torch>=2.11" in text


def test_the_command_works_outside_the_checkout(elsewhere: Path) -> None:
    command = elsewhere / "venv" / "bin" / "nugpt"
    assert "m_width^(-3/4)" in run(command, "table", cwd=elsewhere)
    assert "9,750" in run(command, "count", "--preset", "paper-l10h10", cwd=elsewhere)
    run(command, "explain", "--lr", "-1", cwd=elsewhere, status=2)


def test_it_is_the_wheel_that_is_imported_and_it_computes(elsewhere: Path) -> None:
    code = """
import nugpt, torch
scale, config = nugpt.preset("tiny-l1h1")
resolved = nugpt.resolve(nugpt.parametrization("nugpt"), scale.base, nugpt.Extent.of(config, 10, scale.batch), 0.01)
model = nugpt.build(config)
nugpt.initialize_(model, 0, resolved, config.roles)
nugpt.adamw(model, resolved, config.roles)
nugpt.retract_(model.named_parameters(), config.roles)
print(nugpt.__file__)
"""
    imported = run(elsewhere / "venv" / "bin" / "python", "-c", code, cwd=elsewhere).strip()
    assert Path(imported).is_relative_to(elsewhere / "venv")


PROGRAM = """
from fractions import Fraction
import nugpt

config = nugpt.ModelConfig(n_layers={layers}, n_heads=2, head_dim=6, vocab_size=16, seq_len=8)
base = nugpt.Base.of(nugpt.Extent.of(config, 10, 4))
resolved: nugpt.Resolved = nugpt.resolve(nugpt.parametrization("nugpt"), base, base.extent, lr=0.01)
rate: float = resolved["hidden"].lr
power = nugpt.Power(width=Fraction(-3, 4))
"""


@pytest.mark.timeout(600)  # mypy reads torch's annotations, a minute or two without a cache
def test_a_type_checker_sees_the_types(elsewhere: Path) -> None:
    python = elsewhere / "venv" / "bin" / "python"
    check: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        elsewhere / "cache",
    ]
    for layers, status in (("2", 0), ('"two"', 1)):
        (elsewhere / "program.py").write_text(PROGRAM.format(layers=layers), encoding="utf-8")
        output = run(*check, "program.py", cwd=elsewhere, status=status)
        assert ("incompatible type" in output) == bool(status), output
    assert '"str"; expected "int"' in output
