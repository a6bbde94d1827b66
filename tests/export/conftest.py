"""Trained runs and their exported folders, made once for the tests of a file."""

import shutil
from pathlib import Path

import pytest
from tests.export.small import Run, bpe_run, bytes_run

from nugpt.export.write import write_folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {make.__name__: make(tmp_path_factory.mktemp(make.__name__)) for make in (bytes_run, bpe_run)}


@pytest.fixture(scope="module")
def folders(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("folders")
    for name, run in runs.items():
        write_folder(root / name, run.directory, run.checkpoint)
    return {name: root / name for name in runs}


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(folders["bytes_run"], tmp_path / "folder"))
