"""Killed at any moment, on a full disk or by a signal: the run goes on as if nothing had happened, to the bit."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.engines.process import kill_when, run, start
from tests.engines.small import checkpoint_names, contents, make_dataset, result_of

import nugpt
from nugpt.store import RunDirectory, Store, load_checkpoint

SAVE_EVERY = 5
STEPS = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data")).path


def arguments(data: Path, store: Path, *more: str, steps: int = STEPS) -> list[str]:
    """A model of one layer and one head, trained on a batch of 128 tokens."""
    shape = ["--preset", "tiny-l1h1", "--seq-len", "16", "--batch", "8", "--base-batch", "1", "--steps", str(steps)]
    often = ["--validations", "4", "--val-windows", "8", "--log-every", "1", "--checkpoint-every", str(SAVE_EVERY)]
    where = ["--data", str(data), "--store", str(store), "--device", "cpu", "--threads", "1"]
    return ["train", *shape, *often, *where, *more]


def results(store: Path) -> dict[str, object]:
    return {directory.path.name: result_of(directory) for directory in Store(store).runs()}


def only_run(store: Path) -> RunDirectory:
    (directory,) = Store(store).runs()
    return directory


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What one run leaves when nothing happens to it."""
    store = tmp_path_factory.mktemp("undisturbed") / "runs"
    assert run(arguments(data, store), store.parent / "log") == 0
    return results(store)


@pytest.fixture(scope="module")
def undisturbed_pair(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The same for an ensemble of two."""
    store = tmp_path_factory.mktemp("undisturbed-pair") / "runs"
    assert run(arguments(data, store, "--seed", "0", "1"), store.parent / "log") == 0
    return results(store)


@pytest.mark.parametrize("seeds", [("0",), ("0", "1")], ids=["one", "two"])
def test_killed_at_random_moments(data: Path, tmp_path: Path, seeds: tuple[str, ...]) -> None:
    def command(store: Path) -> list[str]:
        return arguments(data, store, "--seed", *seeds, steps=40)

    assert run(command(tmp_path / "whole"), tmp_path / "log") == 0
    rng = random.Random(5)
    kills = rows = 0
    metrics = [tmp_path / "killed" / name / "metrics.jsonl" for name in results(tmp_path / "whole")]

    def written() -> int:
        return max((path.read_bytes().count(b"\n") for path in metrics if path.is_file()), default=0)

    for _ in range(6):
        rows = min(written(), 40) + rng.randint(1, 8)
        process = start(command(tmp_path / "killed"), tmp_path / "log")
        kills += kill_when(process, lambda: written() >= rows, rng.uniform(0, 0.03))  # noqa: B023
    assert kills >= 4
    assert run(command(tmp_path / "killed"), tmp_path / "log") == 0
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert "going on from the checkpoint" in (tmp_path / "log").read_text()


def killed_at(moment: int, command: list[str], store: Path, expected: dict[str, object]) -> None:
    """Die at this touch of the store, and run again."""
    log = store.parent / f"log-{moment}"
    assert run(command, log, moment) == -signal.SIGKILL, log.read_text()
    goes_on(command, log, store, expected)


def goes_on(command: list[str], log: Path, store: Path, expected: dict[str, object]) -> None:
    """Run on what a killed process left: nothing of it is to be seen."""
    for checkpoint in store.glob("*/checkpoints/step-*"):
        load_checkpoint(checkpoint)  # what has the name of a checkpoint is a whole one
    assert run(command, log) == 0, log.read_text()
    assert results(store) == expected, f"going on from {store}"
    for directory in Store(store).runs():
        assert checkpoint_names(directory) == ["step-000000015", "step-000000020"]  # and no half of another


def held(store: Path) -> frozenset[tuple[str, bytes | None]]:
    """Every file and folder of a store."""
    return frozenset((str(p.relative_to(store)), p.read_bytes() if p.is_file() else None) for p in store.rglob("*"))


# Touches of the store in the first, second and last save: tensors half written, the name given, the old ones dropped.
@pytest.mark.parametrize("moment", [3, 5, 8, 11, 12, 17, 21, 26, 33, 40, 44, 47])
def test_killed_while_saving(data: Path, tmp_path: Path, undisturbed: dict[str, object], moment: int) -> None:
    killed_at(moment, arguments(data, tmp_path / "runs"), tmp_path / "runs", undisturbed)


@pytest.mark.parametrize("moment", [18, 26, 31, 70])
def test_killed_between_the_saves_of_two_replicas(
    data: Path, tmp_path: Path, undisturbed_pair: dict[str, object], moment: int
) -> None:
    command = arguments(data, tmp_path / "runs", "--seed", "0", "1")
    killed_at(moment, command, tmp_path / "runs", undisturbed_pair)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [("0",), ("0", "1")], ids=["one", "two"])
def test_killed_at_every_moment_of_every_save(
    data: Path,
    tmp_path: Path,
    undisturbed: dict[str, object],
    undisturbed_pair: dict[str, object],
    seeds: tuple[str, ...],
) -> None:
    """By what one run's store held at each moment, which is what a kill leaves; the tests above do kill."""
    expected = undisturbed if len(seeds) == 1 else undisturbed_pair
    whole, copies, log = tmp_path / "runs", tmp_path / "copies", tmp_path / "log"
    assert run(arguments(data, whole, "--seed", *seeds), log, copies=(whole, copies)) == 0
    assert results(whole) == expected
    moments = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(moments) > 40 * len(seeds)
    distinct = {held(store): store for store in moments}
    assert len(distinct) > 15 * len(seeds)
    for store in distinct.values():
        goes_on(arguments(data, store, "--seed", *seeds), log, store, expected)


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    data: Path, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    # A limit on file size is what a full disk looks like to a process: writing fails in the middle of a file.
    store, log = tmp_path / "runs", tmp_path / "log"
    assert run(arguments(data, store), log, moment=20) == -signal.SIGKILL
    checkpoints = only_run(store).checkpoints
    for left in checkpoints.glob(".*"):
        shutil.rmtree(left)
    assert checkpoint_names(only_run(store)) == ["step-000000005"]
    before = contents(checkpoints)
    half = len(before["step-000000005/model.safetensors"][0]) // 2
    program = [sys.executable, "-m", "nugpt", *arguments(data, store)]
    environment = os.environ | {"PYTHONPATH": str(Path(nugpt.__file__).parents[1])}

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))

    failed = subprocess.run(program, env=environment, preexec_fn=limited, capture_output=True, text=True)
    assert failed.returncode == 1, failed.stderr
    (complaint,) = [line for line in failed.stderr.splitlines() if line.startswith("nugpt: error")]
    assert "step-000000010" in complaint
    assert "Traceback" not in failed.stderr
    assert contents(checkpoints) == before
    assert checkpoint_names(only_run(store)) == ["step-000000005"]
    assert run(arguments(data, store), log) == 0
    assert results(store) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = arguments(data, tmp_path / "runs", "--checkpoint-every", "1000", steps=60)
    assert run([*command, "--store", str(tmp_path / "whole")], tmp_path / "log") == 0
    process = start(command, tmp_path / "stopped")
    while process.is_alive() and not list(tmp_path.glob("runs/*/metrics.jsonl")):
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 128 + number
    said = (tmp_path / "stopped").read_text()
    assert "the state is saved" in said
    assert "Traceback" not in said
    (saved,) = checkpoint_names(only_run(tmp_path / "runs"))
    assert 0 < int(saved.removeprefix("step-")) < 60
    assert run(command, tmp_path / "log") == 0
    assert results(tmp_path / "runs") == results(tmp_path / "whole")
