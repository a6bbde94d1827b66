"""The titan engine as a plan's worker takes it: each run on all of a task's devices, by a torchrun of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import Store

LOOK_EVERY = 1.0  # seconds between looks at the claims and for signals
SAVE_WITHIN = 600.0  # seconds that a run asked to stop has for its checkpoint
STOP_FILE = "stop"  # in a run's directory: somebody wants it to save and stop, as the signals do
SPEC_FILE = "spec.json"  # of a run's directory: what a plan is made of can be trained here too


class TitanEngine:
    """So many processes of this machine, one data set, and what carries the runs."""

    def __init__(
        self, data: Path, processes: int, device: str, checkpoint_every: int | None = None, mesh: Sequence[str] = ()
    ) -> None:
        if processes < 1:
            raise ValueError(f"titan is {processes}, but must be a whole number of processes of at least 1")
        self.data, self.processes, self.device = data, processes, device.split(":")[0]
        self.more = [*mesh, *([] if checkpoint_every is None else ["--checkpoint-every", str(checkpoint_every)])]

    def capacity(self, spec: RunSpec, wanted: int) -> int:
        """One run at a time: it has all devices."""
        return 1

    def execute(
        self,
        specs: list[RunSpec],
        store: Store,
        guard: Callable[[], None],
        stop: Callable[[int, Sequence[float | None]], list[bool]] | None,
    ) -> list[RunRecord]:
        """Train this run; what asks the worker to leave, or takes the run from it, asks the run to save first."""
        (spec,) = specs
        directory = store.run(spec)
        process = subprocess.Popen(self.command(directory.path, store.root), start_new_session=True)
        try:
            while process.poll() is None:
                guard()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY)
        except BaseException:
            _stop(process, directory.path / STOP_FILE)
            raise
        record = directory.record()
        if record is None:
            raise RuntimeError(
                f"torchrun ended with status {process.returncode} and left no record: see this log above"
            )
        return [record]

    def command(self, run: Path, store: Path) -> list[str]:
        """What trains one run of the store; the worker that starts it holds the run."""
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        training = ["-m", "nugpt.engines.titan", "--held", "--recipe", str(run / SPEC_FILE), "--data", str(self.data)]
        return [sys.executable, *torchrun, *training, "--store", str(store), "--device", self.device, *self.more]


def _stop(process: subprocess.Popen[bytes], file: Path) -> None:
    """Ask by the file that the run looks for, wait while it saves, and end it if it does not."""
    give_up = time.monotonic() + SAVE_WITHIN
    while process.poll() is None and time.monotonic() < give_up:
        file.touch()  # again and again: a run that is just starting removes the one of the turn before
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY)
    if process.poll() is None:
        process.kill()
        process.wait()
