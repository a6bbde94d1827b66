"""Workers as processes of this machine, one per device or several on one."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nugpt.store.plans import PlanDirectory

NUGPT = (sys.executable, "-m", "nugpt")  # how a worker's command begins
EARLY = (sys.executable, "-m", "nugpt.cli.early")
RESTARTS = 3  # of a worker that was killed; what it held is taken up again


MOST_COMPLAINTS = 5  # lines shown of one worker's log


@dataclass(frozen=True)
class LocalOutcome:
    """How the workers ended."""

    statuses: tuple[int, ...]  # their exit statuses, −N when killed by signal N
    interrupted: bool  # by Ctrl-C or SIGTERM: the workers were asked to save and leave
    out_of_time: bool  # the time limit came first, and the workers were asked likewise
    complaints: tuple[str, ...]  # what workers that did not end well had to say


@dataclass
class _Worker:
    command: Sequence[str]
    log: Path
    log_start: int  # bytes of the log that are of earlier starts
    process: subprocess.Popen[bytes]
    restarts: int = 0


class EarlyWorker:
    """A process begun before it is known which worker it will be, which loads meanwhile what all of them load."""

    def __init__(self) -> None:
        nothing = subprocess.DEVNULL
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            EARLY, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
        )

    def become(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes] | None:
        """The worker of this command, once; none where it has become another, or has ended."""
        process = self._process
        if process is None or process.stdin is None or tuple(command[: len(NUGPT)]) != NUGPT:
            return None
        self._process = None
        told = json.dumps({"words": command[len(NUGPT) :], "log": str(log)})
        try:
            with process.stdin as stdin:
                stdin.write(f"{told}\n".encode())
        except BrokenPipeError:  # somebody ended it
            process.wait()
            return None
        return process

    def end(self) -> None:
        """Nobody will need it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def run_local(
    directory: PlanDirectory,
    commands: Sequence[Sequence[str]],
    watch: Callable[[], None],
    poll: float = 1.0,
    until: float | None = None,
    early: EarlyWorker | None = None,
) -> LocalOutcome:
    """Run these worker commands to their end, calling `watch` meanwhile.

    A worker that was killed is started again. Ctrl-C and SIGTERM are passed on: the workers save and leave. So they do
    at the time `until`, in seconds since the epoch, should one of them still be training then. A worker that was begun
    `early` becomes the first of them.
    """
    logs = directory.path / "logs"
    logs.mkdir(exist_ok=True)
    workers: list[_Worker] = []
    asked: list[int] = []  # the signals that came
    late = False

    def ask(number: int, frame: object = None) -> None:
        asked.append(number)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)

    # Before there is a worker: in a session of its own, one that is not told would go on without us.
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for i, command in enumerate(commands):
            if not asked:
                workers.append(_worker(command, logs / f"worker-{i}.log", early))
        if asked:
            ask(signal.SIGTERM)  # one that came while a worker was begun did not reach it
        while True:
            for worker in workers:
                status = worker.process.poll()
                if status is not None and status < 0 and not asked and worker.restarts < RESTARTS:
                    worker.process = _start(worker.command, worker.log)
                    worker.restarts += 1
                    if asked:
                        ask(signal.SIGTERM)
            watch()
            going = [worker.process for worker in workers if worker.process.returncode is None]
            if not going:
                break
            if until is not None and time.time() >= until and not asked:
                late = True
                ask(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                going[0].wait(poll)
    except BaseException:
        ask(signal.SIGTERM)  # nobody would watch them any more
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    statuses = tuple(worker.process.returncode for worker in workers)
    unwell = [worker for worker in workers if not _left_well(worker.process.returncode, late)]
    complaints = [line for worker in unwell for line in _complaints(worker)]
    return LocalOutcome(statuses, bool(asked) and not late, late, tuple(dict.fromkeys(complaints)))


def _left_well(status: int, asked: bool) -> bool:
    """Whether a worker did what it was to do: its work or, when asked, to leave, wherever the signal met it."""
    return status == 0 or (asked and (status > 128 or status == -signal.SIGTERM))


def _worker(command: Sequence[str], log: Path, early: EarlyWorker | None) -> _Worker:
    known = log.stat().st_size if log.is_file() else 0
    begun = early.become(command, log) if early is not None else None
    return _Worker(command, log, known, begun or _start(command, log))


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """The worker in a session of its own, so that the terminal's Ctrl-C reaches it through us alone."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )


def _complaints(worker: _Worker) -> list[str]:
    """The lines of this start that say what went wrong, or its last line when none does."""
    lines = worker.log.read_bytes()[worker.log_start :].decode(errors="replace").splitlines()
    telling = [line for line in lines if line.startswith("nugpt: error") or " failed: " in line]
    return telling[-MOST_COMPLAINTS:] or lines[-1:]
