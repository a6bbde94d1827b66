"""The titan engine as a plan's worker takes it: each run on all of a task's devices, by a torchrun of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nugpt.engines.titan.bound import BINDS
from nugpt.engines.titan.options import TitanOptions
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.claims import Claim, LostClaim, newest_claim
from nugpt.store.run_directory import SPEC_FILE

LOOK_EVERY = 1.0  # seconds between looks at the claims and for signals
SAVE_WITHIN = 600.0  # seconds that a run asked to stop has for its checkpoint
END_WITHIN = 60.0  # seconds that torchrun has to end its ranks, to which it grants thirty
STOP_FILE = "stop"  # in a run's directory: somebody wants it to save and stop, as the signals do


class TitanEngine:
    """So many processes of this machine, one data set, and what carries the runs."""

    def __init__(self, data: Path, processes: int, options: TitanOptions, threads: int | None = None) -> None:
        if processes < 1:
            raise ValueError(f"titan is {processes}, but must be a whole number of processes of at least 1")
        self.data, self.processes, self.options = data, processes, options
        self.threads = threads  # of each process; None: torch's and torchrun's own choice

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
        """Train this run; what asks the worker to leave asks the run to save first, what takes the run ends it."""
        (spec,) = specs
        directory = store.run(spec)
        held = newest_claim(directory)
        guard()  # after that look: so the claim is the worker's own, and none that was made since
        process = subprocess.Popen(
            self.command(directory.path, store.root, held), env=self._environment(), start_new_session=True
        )
        try:
            while process.poll() is None:
                guard()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY)
        except LostClaim:
            raise  # what lies in the run's directory is another's now, the file that would ask its run to stop too
        except BaseException:
            _ask_to_stop(process, directory.path / STOP_FILE, held)
            raise
        finally:
            _end(process)
        record = directory.record()
        if record is None:
            raise RuntimeError(
                f"torchrun ended with status {process.returncode} and left no record: see this log above"
            )
        return [record]

    def command(self, run: Path, store: Path, held: Claim | None) -> list[str]:
        """What trains one run of the store for the worker that holds it, or takes the run itself where none does."""
        torchrun = ["-m", "nugpt.engines.titan.bound", str(os.getpid())]
        torchrun += ["--standalone", f"--nproc-per-node={self.processes}", "-m", "nugpt.engines.titan"]
        where = ["--recipe", str(run / SPEC_FILE), "--data", str(self.data), "--store", str(store)]
        claimed = [] if held is None else ["--held", held.name]
        return [sys.executable, *torchrun, *where, *claimed, *self.options.arguments()]

    def _environment(self) -> dict[str, str] | None:
        return None if self.threads is None else {**os.environ, "OMP_NUM_THREADS": str(self.threads)}


def _ask_to_stop(process: subprocess.Popen[bytes], file: Path, held: Claim | None) -> None:
    """Ask by the file that the run looks for, and wait while it saves and nobody else has taken the run."""
    give_up = time.monotonic() + SAVE_WITHIN
    while process.poll() is None and time.monotonic() < give_up and (held is None or held.is_held()):
        file.touch()  # again and again: a run that is just starting removes the one of the turn before
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End torchrun, if it still runs, and its ranks: they die with it where they are bound to it, else it ends them."""
    if process.poll() is None and not BINDS:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_WITHIN)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
