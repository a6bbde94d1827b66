"""A worker that is begun before its plan is known."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nugpt.cli.main import main
from nugpt.sweep.executors import local
from nugpt.sweep.executors.local import NUGPT, EarlyWorker
from nugpt.sweep.signals import NUMBERS, Request, heeding

HELP = [*NUGPT, "worker", "--help"]


@pytest.fixture
def early() -> Iterator[EarlyWorker]:
    worker = EarlyWorker()
    yield worker
    worker.end()


def process_of(early: EarlyWorker) -> subprocess.Popen[bytes]:
    assert early._process is not None
    return early._process


def test_it_becomes_the_worker_that_it_is_told_to_be_and_writes_to_its_log(early: EarlyWorker, tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text("an earlier start\n", encoding="utf-8")
    process = early.become(HELP, log)
    assert process is not None
    assert process.wait(120) == 0
    said = log.read_text(encoding="utf-8")
    assert said.startswith("an earlier start\n")
    assert "Take runs of a plan until none is left" in said
    assert early.become(HELP, log) is None  # once


def test_a_mistake_is_told_in_its_log(early: EarlyWorker, tmp_path: Path) -> None:
    process = early.become([*NUGPT, "worker", str(tmp_path / "nowhere")], tmp_path / "log")
    assert process is not None
    assert process.wait(120) == 2
    assert (tmp_path / "log").read_text(encoding="utf-8").startswith("nugpt: error: ")


def test_told_nothing_it_ends(early: EarlyWorker) -> None:
    process = process_of(early)
    assert process.stdin is not None
    process.stdin.close()  # as when the launcher is killed
    assert process.wait(120) == 0


def test_where_it_has_ended_the_worker_is_to_be_started_anew(early: EarlyWorker, tmp_path: Path) -> None:
    process_of(early).kill()
    process_of(early).wait()
    assert early.become(HELP, tmp_path / "log") is None


def test_it_becomes_no_worker_of_another_program(early: EarlyWorker, tmp_path: Path) -> None:
    assert early.become(["true"], tmp_path / "log") is None
    assert early.become(HELP, tmp_path / "log") is not None


def test_a_signal_while_it_loads_is_heeded_as_a_worker_heeds_it(early: EarlyWorker, tmp_path: Path) -> None:
    process = process_of(early)
    while not _handles(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert early.become(HELP, tmp_path / "log") is process
    assert process.wait(120) == 128 + signal.SIGTERM
    assert (tmp_path / "log").read_text(encoding="utf-8").startswith("left on SIGTERM: no run was being trained")


def _handles(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)


class Watched(EarlyWorker):
    """One that says what became of it."""

    begun: subprocess.Popen[bytes] | None = None
    became: list[bool]

    def __init__(self) -> None:
        super().__init__()
        Watched.begun, Watched.became = self._process, []

    def become(self, command: list[str], log: Path) -> subprocess.Popen[bytes] | None:  # type: ignore[override]
        process = super().become(command, log)
        Watched.became.append(process is not None)
        return process


def test_a_sweep_has_it_as_its_first_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "EarlyWorker", Watched)
    words = ["--name", "one", "--preset", "tiny-l2h1", "--steps", "2", "--extend", "0", "--devices", "cpu"]
    assert main(["sweep", *words, "--log2-lr", "-8", "--workers", "2", "--store", str(tmp_path), "--run"]) == 0
    assert Watched.became == [True, False]


def test_a_command_that_is_refused_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "EarlyWorker", Watched)
    for words in (["sweep", "--name", "x", "--seed", "0", "0"], ["study", "no-such"]):
        Watched.begun = None
        assert main([*words, "--store", str(tmp_path), "--run"]) == 2
        assert Watched.begun is not None
        assert Watched.begun.returncode == -signal.SIGKILL


def test_a_plan_that_is_only_shown_begins_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "EarlyWorker", Watched)
    Watched.begun = None
    assert main(["sweep", "--name", "x", "--preset", "tiny-l2h1", "--store", str(tmp_path)]) == 0
    assert Watched.begun is None


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_between_loading_and_working_is_not_lost(number: signal.Signals) -> None:
    def work(request: Request) -> int:
        request.check()
        return 0

    def become(request: Request) -> int:
        request.check()
        os.kill(os.getpid(), number)
        return heeding(work)  # which asks for itself

    before = signal.getsignal(number)
    assert heeding(become) == 128 + number
    assert signal.getsignal(number) == before
    assert heeding(work) == 0  # nothing of it is left
