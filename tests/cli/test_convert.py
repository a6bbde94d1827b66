"""`nugpt convert`: a run's checkpoint to the distributed form and back, and text from what came back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.engines.small import make_dataset, make_spec, train

from nugpt.cli.main import main
from nugpt.engines.titan.sums import own_files, sums_of, write_sums
from nugpt.store import RunDirectory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of the lab engine whose only checkpoint is a distributed one."""
    root = tmp_path_factory.mktemp("convert")
    dataset = make_dataset(root)
    spec = make_spec(dataset, steps=3)
    train([spec], root / "runs", dataset)
    run = RunDirectory(root / "runs" / spec.hash)
    assert main(["convert", spec.hash[:6], "--store", str(root / "runs"), "--to", "dcp"]) == 0
    shutil.rmtree(run.checkpoints)
    return run


def convert(run: RunDirectory, *more: str) -> int:
    return main(["convert", run.path.name, "--store", str(run.path.parent), *more])


def test_what_is_converted_can_be_used(trained: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(trained, "--weights-only") == 0
    assert Path(capsys.readouterr().out.strip()) == trained.checkpoints / "step-000000003"
    words = ["--store", str(trained.path.parent), "--max-tokens", "3", "--device", "cpu"]
    assert main(["generate", trained.path.name, "--prompt", "the", *words]) == 0
    assert capsys.readouterr().out.startswith("the")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--to", "pickle"), "to is 'pickle', but must be one of safetensors, dcp"),
        (("--step", "7"), "step is 7, but run"),
        (("--to", "dcp", "--weights-only"), "--weights-only leaves nothing to go on from"),
    ],
)
def test_mistakes_are_one_line(
    more: tuple[str, ...], words: str, trained: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(trained, *more) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_checkpoint_of_another_run_is_refused(
    trained: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained.path, tmp_path / trained.path.name)
    state = tmp_path / trained.path.name / "dcp" / "step-3" / "nugpt.json"
    state.write_text(state.read_text().replace(trained.path.name, "0" * 16))
    write_sums(state.parent, [sums_of(own_files(state.parent, 0))])  # whole, but another's
    assert main(["convert", trained.path.name, "--store", str(tmp_path)]) == 2
    assert f"is of run '{'0' * 16}', but this run is {trained.path.name}" in capsys.readouterr().err
