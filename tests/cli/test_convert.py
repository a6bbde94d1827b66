"""`nugpt convert`: a run's checkpoint to the distributed form and back, and text from what came back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.engines.small import checkpoint_names, contents, make_dataset, make_spec, train

from nugpt.cli.main import main
from nugpt.data import open_dataset
from nugpt.engines.titan.sums import own_files, sums_of, write_sums
from nugpt.store import RunDirectory
from nugpt.store.claims import holding


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


@pytest.fixture
def saved_twice(trained: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A run that was stopped with distributed checkpoints of the steps 3 and 2; nothing looks at their content."""
    run = RunDirectory(tmp_path / trained.path.name)
    shutil.copytree(trained.path, run.path)
    (run.path / "record.json").unlink()
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    earlier = run.distributed / "step-2"
    shutil.copytree(run.distributed / "step-3", earlier)
    change(earlier, step=2)
    write_sums(earlier, [sums_of(own_files(earlier, 0))])
    return run


def change(checkpoint: Path, **values: object) -> None:
    """Replace values of the small state; None takes one out."""
    path = checkpoint / "nugpt.json"
    state = json.loads(path.read_bytes()) | values
    path.write_text(json.dumps({name: value for name, value in state.items() if value is not None}))


def refused(run: RunDirectory, words: str, capsys: pytest.CaptureFixture[str], *more: str) -> None:
    before = but_claims(run)
    assert convert(run, *more) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert but_claims(run) == before


def but_claims(run: RunDirectory) -> dict[str, tuple[bytes, int]]:
    """The run's files; a claim that was given back says nothing."""
    return {name: file for name, file in contents(run.path).items() if not name.startswith("claim-")}


def test_an_earlier_step_leaves_later_ones(saved_twice: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(saved_twice) == 0
    later = contents(saved_twice.checkpoints)
    assert convert(saved_twice, "--step", "2") == 0
    assert checkpoint_names(saved_twice) == ["step-000000002", "step-000000003"]
    assert later.items() <= contents(saved_twice.checkpoints).items()


@pytest.mark.parametrize("more", [(), ("--weights-only",)])
def test_a_step_that_is_there_is_not_written_again(
    more: tuple[str, ...], saved_twice: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(saved_twice) == 0
    refused(saved_twice, "checkpoints/step-000000003 is there already", capsys, *more)
    refused(saved_twice, "dcp/step-3 is there already", capsys, "--to", "dcp")


def test_a_run_that_somebody_trains_is_left_alone(
    saved_twice: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(saved_twice, "--step", "2") == 0
    with holding([saved_twice]):
        for more in ((), ("--to", "dcp")):
            refused(saved_twice, "is being trained by another process", capsys, *more)
    assert convert(saved_twice) == 0


def test_a_step_that_is_not_there_lists_those_that_are(
    saved_twice: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--to", "dcp", "--step", "180")
    refused(saved_twice, "has no checkpoint in checkpoints/", capsys, *words)
    assert convert(saved_twice) == convert(saved_twice, "--step", "2") == 0
    assert convert(saved_twice, *words) == 2
    said = capsys.readouterr().err
    assert f"step is 180, but run {saved_twice.path} has checkpoints of 2, 3" in said
    assert said.count("\n") == 1


def without(name: str) -> dict[str, object]:
    course = {"died_at": -1, "high": 0, "loss_sum": 0.0, "grad_norm": 1.0, "logged": 0, "ema": 5.0, "wall_s": 1.0}
    course |= {"train_loss": 5.0, "val_loss": 5.0, "by_source": {}}
    return {key: value for key, value in course.items() if key != name}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"course": None}, "step-3/nugpt.json has no course"),
        ({"course": [1]}, "step-3/nugpt.json has no course"),
        ({"course": without("wall_s")}, "step-3/nugpt.json has no 'wall_s' in its course"),
        ({"course": without("") | {"mood": 1}}, "step-3/nugpt.json has 'mood' in its course"),
        ({"step": None}, "does not say which step it is of"),
        ({"spec": None}, "is of run None, but this run is"),
    ],
    ids=["no course", "a list", "no time", "something unknown", "no step", "no run"],
)
def test_a_state_that_does_not_say_all_is_named(
    values: dict[str, object], words: str, saved_twice: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    change(saved_twice.distributed / "step-3", **values)
    (saved_twice.distributed / "step-3" / "sums.json").unlink()
    refused(saved_twice, words, capsys)


def test_an_older_state_is_converted(saved_twice: RunDirectory) -> None:
    """One from before devices and measuring were timed."""
    change(saved_twice.distributed / "step-3", course=without(""))
    (saved_twice.distributed / "step-3" / "sums.json").unlink()
    assert convert(saved_twice) == 0


def test_the_lab_engine_does_not_begin_behind_a_distributed_checkpoint(saved_twice: RunDirectory) -> None:
    dataset = open_dataset(Path(json.loads((saved_twice.path / "data.json").read_bytes())["path"]))
    spec, metrics = saved_twice.spec(), saved_twice.metrics.read_bytes()
    assert metrics
    with pytest.raises(ValueError, match=r"dcp/step-3, ahead of its beginning.*`nugpt convert \S+` takes it over"):
        train([spec], saved_twice.path.parent, dataset)
    assert convert(saved_twice, "--step", "2") == 0
    with pytest.raises(ValueError, match=r"dcp/step-3, ahead of step 2"):
        train([spec], saved_twice.path.parent, dataset)
    assert saved_twice.metrics.read_bytes() == metrics
    assert checkpoint_names(saved_twice) == ["step-000000002"]
    assert convert(saved_twice) == 0
    (record,) = train([spec], saved_twice.path.parent, dataset)
    assert record.status == "done"
