"""Workers as processes of this machine, one per device or several on one."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nugpt.store.plans import PlanDirectory

RESTARTS = 3  # of a worker that was killed; what it held is taken up again


@dataclass
class _Worker:
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes]
    restarts: int = 0


def run_local(
    directory: PlanDirectory, commands: Sequence[Sequence[str]], watch: Callable[[], None], poll: float = 1.0
) -> int:
    """Run these worker commands to their end, calling `watch` meanwhile; 0 when all ended well.

    A worker that was killed is started again. Ctrl-C and SIGTERM are passed on: the workers save and leave.
    """
    logs = directory.path / "logs"
    logs.mkdir(exist_ok=True)
    workers = [_start(command, logs / f"worker-{i}.log") for i, command in enumerate(commands)]
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while any(worker.process.poll() is None for worker in workers):
            watch()
            time.sleep(poll)
            for worker in workers:
                status = worker.process.poll()
                if status is not None and status < 0 and not asked and worker.restarts < RESTARTS:
                    worker.process = _start(worker.command, worker.log).process
                    worker.restarts += 1
        watch()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        return 130
    return max(abs(worker.process.returncode) for worker in workers)


def _start(command: Sequence[str], log: Path) -> _Worker:
    """The worker in a session of its own, so that the terminal's Ctrl-C reaches it through us alone."""
    with open(log, "ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    return _Worker(command, log, process)
