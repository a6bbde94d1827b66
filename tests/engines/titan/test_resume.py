"""What was interrupted goes on with the same losses, on the same mesh or another, and between the engines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from tests.engines.small import contents, last_tensors, train
from tests.engines.titan.ranks import STEPS, Place, make_run, rows, run, said, start
from tests.engines.titan.test_parity import SAME, assert_same

from nugpt.data import TokenDataset
from nugpt.engines.titan.convert import to_distributed, to_safetensors
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory

pytestmark = pytest.mark.titan


@pytest.fixture(scope="module")
def spec(dataset: TokenDataset) -> RunSpec:
    return make_run(dataset)


@pytest.fixture(scope="module")
def whole(spec: RunSpec, dataset: TokenDataset, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run without interruption, by the lab engine."""
    store = tmp_path_factory.mktemp("whole")
    train([spec], store, dataset)
    return RunDirectory(store / spec.hash)


@pytest.fixture(scope="module")
def two_ranks(spec: RunSpec, dataset: TokenDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run as two ranks have done it, to be copied."""
    made = Place(tmp_path_factory.mktemp("two-ranks"), dataset.path)
    assert run(made.arguments(spec, "runs"), 2, made.root / "log") == [0, 0]
    return made.root / "runs"


def wait_for(reached: Callable[[], bool], processes: list[BaseProcess]) -> None:
    while not reached():
        assert all(process.is_alive() for process in processes), "a rank ended before the test could interrupt it"
        time.sleep(0.005)


def logged(directory: RunDirectory) -> int:
    """Steps whose row is written."""
    return sum(row["kind"] == "train" for row in directory.read_metrics())


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, ()), (1, ())), ((1, ()), (2, ("--tp", "2"))), ((4, ("--tp", "2")), (2, ()))],
    ids=["fsdp 2 to 1 rank", "1 rank to tp 2", "fsdp × tp to fsdp 2"],
)
def test_killed_and_resumed_on_another_mesh(
    before: tuple[int, tuple[str, ...]],
    after: tuple[int, tuple[str, ...]],
    spec: RunSpec,
    whole: RunDirectory,
    place: Place,
) -> None:
    directory = place.directory(spec, "runs")
    processes = start(place.arguments(spec, "runs", *before[1]), before[0], place.root / "log")
    wait_for(lambda: logged(directory) >= 10, processes)  # beyond the checkpoint after step 8
    for process in processes:
        process.kill()
        process.join()
    assert directory.record() is None
    assert run(place.arguments(spec, "runs", *after[1]), after[0], place.root / "log2") == [0] * after[0]
    assert "step 8/" not in said(place.root / "log2", 1)[0]  # it went on from the checkpoint after step 8
    assert_same(directory, whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(
    number: signal.Signals, spec: RunSpec, whole: RunDirectory, place: Place
) -> None:
    directory = place.directory(spec, "runs")
    processes = start(place.arguments(spec, "runs", "--checkpoint-every", "1000"), 2, place.root / "log")
    wait_for(lambda: logged(directory) >= 3, processes)
    assert processes[1].pid is not None
    os.kill(processes[1].pid, number)  # not rank 0: what one rank is told all must learn
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [128 + number] * 2
    assert "the state is saved" in said(place.root / "log", 2)[0]
    (checkpoint,) = (directory.path / "dcp").iterdir()
    assert int(checkpoint.name.removeprefix("step-")) == max(rows(directory, "train")) < STEPS
    assert run(place.arguments(spec, "runs"), 2, place.root / "log") == [0, 0]
    assert_same(directory, whole)


def test_a_stop_file_stops_the_run(dataset: TokenDataset, place: Place) -> None:
    spec = replace(make_run(dataset), steps=2000)  # it would take a minute and a half: the file is seen within seconds
    directory = place.directory(spec, "runs")
    processes = start(place.arguments(spec, "runs", "--checkpoint-every", "5000"), 2, place.root / "log")
    wait_for(lambda: logged(directory) >= 1, processes)
    (directory.path / "stop").touch()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [128 + signal.SIGUSR1] * 2
    (checkpoint,) = (directory.path / "dcp").iterdir()
    assert checkpoint.name == f"step-{max(rows(directory, 'train'))}"


def test_a_finished_run_is_not_run_again(spec: RunSpec, place: Place, two_ranks: Path) -> None:
    shutil.copytree(two_ranks, place.root / "runs")
    metrics = place.directory(spec, "runs").metrics
    before = metrics.stat().st_mtime_ns
    assert run(place.arguments(spec, "runs"), 2, place.root / "again") == [0, 0]
    assert metrics.stat().st_mtime_ns == before
    assert said(place.root / "again", 2)[0].startswith("validation loss")


def cut(path: Path) -> None:
    os.truncate(path, 40)


def flip(path: Path) -> None:
    """Change one bit in the middle: of a tensor's, where the file has tensors."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without_course(path: Path) -> None:
    """Take the run's course out of the state; without sums nothing else tells."""
    state = json.loads(path.read_bytes())
    del state["course"]
    path.write_text(json.dumps(state))
    (path.parent / "sums.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "file"),
    [
        (cut, "__1_0.distcp"),
        (flip, "__1_0.distcp"),
        (cut, ".metadata"),
        (Path.unlink, ".metadata"),
        (cut, "nugpt.json"),
        (without_course, "nugpt.json"),
    ],
    ids=["tensors cut", "a bit flipped", "metadata cut", "metadata lost", "state cut", "no course and no sums"],
)
def test_a_spoiled_checkpoint_is_passed_over(
    spoil: Callable[[Path], None], file: str, spec: RunSpec, whole: RunDirectory, place: Place, two_ranks: Path
) -> None:
    directory = place.directory(spec, "runs")
    shutil.copytree(two_ranks, place.root / "runs")
    half_done(directory)
    newest = directory.path / "dcp" / f"step-{STEPS}"
    spoil(newest / file)
    assert run(place.arguments(spec, "runs"), 2, place.root / "again") == [0, 0]
    first, second = said(place.root / "again", 2)
    (line,) = (line for line in first.splitlines() if line.startswith("nugpt:"))
    assert line.startswith("nugpt: warning: ")
    assert newest.name in line
    assert line.endswith("going back to the checkpoint before it")
    assert "step 17/" in first
    assert "step 16/" not in first
    assert second == ""
    assert_same(directory, whole)
    assert (newest.parent / f"spoiled-1-{newest.name}").is_dir()  # for whoever can still use something of it


@pytest.mark.parametrize(
    ("spoil", "file"), [(cut, "__0_0.distcp"), (Path.unlink, ".metadata")], ids=["tensors cut", "metadata lost"]
)
def test_where_all_checkpoints_are_spoiled_the_run_is_refused(
    spoil: Callable[[Path], None], file: str, spec: RunSpec, place: Place, two_ranks: Path
) -> None:
    directory = place.directory(spec, "runs")
    shutil.copytree(two_ranks, place.root / "runs")
    half_done(directory)
    saved = sorted((directory.path / "dcp").iterdir())
    for checkpoint in saved:
        spoil(checkpoint / file)
    metrics = directory.metrics.read_bytes()
    assert run(place.arguments(spec, "runs"), 2, place.root / "again") == [2, 2]
    first, second = said(place.root / "again", 2)
    lines = first.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["warning", "error"]
    assert lines[1].endswith(f"no other is left: remove {directory.path / 'dcp'} to begin anew")
    assert second == ""
    assert sorted((directory.path / "dcp").iterdir()) == saved
    assert directory.metrics.read_bytes() == metrics


@pytest.mark.parametrize("file", ["sums.json", ".metadata", "__0_0.distcp"])
def test_one_that_is_being_dropped_is_never_spoiled(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed when it has removed this file."""
    from nugpt.engines.titan.checkpoints import _drop
    from nugpt.engines.titan.dcp import by_step
    from nugpt.engines.titan.sums import check_sums, own_files, sums_of, write_sums

    checkpoint = tmp_path / "dcp" / "step-8"
    checkpoint.mkdir(parents=True)
    for name in ("nugpt.json", "__0_0.distcp", ".metadata"):
        (checkpoint / name).touch()
    write_sums(checkpoint, [sums_of(own_files(checkpoint, 0))])
    unlink = os.unlink

    class Killed(BaseException):
        pass

    def dying(path: str | Path, **more: int) -> None:
        unlink(path, **more)
        if Path(path).name == file:
            raise Killed

    monkeypatch.setattr(os, "unlink", dying)
    with pytest.raises(Killed):
        _drop(checkpoint)
    for left in by_step(checkpoint.parent):
        check_sums(left)


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_killed_between_its_last_checkpoint_and_its_record_is_finished(
    ranks: int, spec: RunSpec, place: Place
) -> None:
    directory = place.directory(spec, "runs")
    assert run(place.arguments(spec, "runs"), ranks, place.root / "log") == [0] * ranks
    record, metrics, saved = directory.record(), directory.metrics.read_bytes(), contents(directory.path / "dcp")
    half_done(directory)
    assert run(place.arguments(spec, "runs"), ranks, place.root / "again") == [0] * ranks
    again = directory.record()
    assert record is not None
    assert again is not None
    assert replace(again, carried_by={}) == replace(record, carried_by={})  # its time too: no step was trained
    assert again.carried_by["device_s"] == record.carried_by["device_s"]
    assert directory.metrics.read_bytes() == metrics
    assert contents(directory.path / "dcp") == saved  # not written again: a second kill would find none


def half_done(directory: RunDirectory) -> None:
    """Make a finished run of one that stands at its last checkpoint."""
    (directory.path / "record.json").unlink()


def test_a_distributed_checkpoint_goes_on_in_the_lab_engine(
    spec: RunSpec, whole: RunDirectory, place: Place, dataset: TokenDataset
) -> None:
    directory = place.directory(spec, "runs")
    assert run(place.arguments(spec, "runs", "--tp", "2"), 4, place.root / "log") == [0] * 4
    at = to_safetensors(directory, step=16)
    assert at.name == "step-000000016"
    half_done(directory)
    metrics = directory.metrics.read_bytes()
    with pytest.raises(ValueError, match=rf"checkpoint dcp/step-{STEPS}, ahead of step 16.*`nugpt convert \S+` takes"):
        train([spec], place.root / "runs", dataset)
    assert directory.metrics.read_bytes() == metrics
    shutil.rmtree(directory.path / "dcp" / f"step-{STEPS}")
    train([spec], place.root / "runs", dataset)
    assert_same(directory, whole)
    for name, tensor in last_tensors(whole).items():
        torch.testing.assert_close(last_tensors(directory)[name], tensor, atol=SAME, rtol=0)


def test_a_lab_checkpoint_goes_on_in_this_engine(
    spec: RunSpec, whole: RunDirectory, place: Place, dataset: TokenDataset
) -> None:
    train([spec], place.root / "runs", dataset, keep=9)
    directory = place.directory(spec, "runs")
    half_done(directory)
    for path in directory.checkpoints.iterdir():
        if path.name > "step-000000008":
            shutil.rmtree(path)
    metrics = directory.metrics.read_bytes()
    assert run(place.arguments(spec, "runs"), 2, place.root / "refused") == [2, 2]
    first, second = said(place.root / "refused", 2)
    assert "checkpoint checkpoints/step-000000008, ahead of its beginning" in first
    assert f"`nugpt convert {directory.path} --to dcp` takes it over" in first
    assert (first.count("\n"), second) == (1, "")
    assert directory.metrics.read_bytes() == metrics  # of steps up to 20
    to_distributed(directory)
    assert run(place.arguments(spec, "runs"), 2, place.root / "log") == [0, 0]
    assert "step 9/" in said(place.root / "log", 2)[0]
    assert "step 8/" not in said(place.root / "log", 2)[0]
    assert_same(directory, whole)
    record = directory.record()
    assert record is not None
    assert record.wall_s < record.carried_by["device_s"] < 2 * record.wall_s  # on one device, and then on two


def test_there_and_back_is_the_same_to_the_bit(
    spec: RunSpec, place: Place, dataset: TokenDataset, tmp_path: Path
) -> None:
    train([spec], place.root / "runs", dataset)
    directory = place.directory(spec, "runs")
    before, state = (
        last_tensors(directory),
        json.loads((max(directory.checkpoints.iterdir()) / "state.json").read_bytes()),
    )
    to_distributed(directory)
    for path in directory.checkpoints.iterdir():
        path.rename(tmp_path / path.name)
    to_safetensors(directory)
    after = last_tensors(directory)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((max(directory.checkpoints.iterdir()) / "state.json").read_bytes()) == state
