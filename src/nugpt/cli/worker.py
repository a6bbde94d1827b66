"""`nugpt worker`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.hints import required
from nugpt.cli.show import counted

if TYPE_CHECKING:
    from nugpt.engines.lab import Options
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.pace import Pace
    from nugpt.sweep.signals import Request
    from nugpt.sweep.worker import Engine, Outcome


@dataclass(frozen=True)
class Worker:
    """Take runs of a plan until none is left: what `sweep` and `study` start, here or as tasks of a SLURM array."""

    plans: Annotated[tuple[Path, ...], tyro.conf.Positional, required("PLAN …")]
    """The plan's directory, STORE/plans/NAME; several are worked on one after the other."""
    device: str | None = None
    """auto, cpu, cuda or cuda:N; as the plan was launched by default."""
    replicas: int | None = None
    """Runs per ensemble at the most; as many as the device holds by default."""
    peers: int = 1
    """Workers on this plan: each takes its share of what can be packed together."""
    linger: float = 0.0
    """Seconds to wait for runs that other workers hold before leaving."""
    stale_after: float = 300.0
    """Seconds without a sign of life after which another worker's run is taken over."""
    until: float | None = None
    """Take only runs that can end before this time, in seconds since the epoch."""

    def run(self) -> int:
        """Work on the plan."""
        from nugpt.sweep.signals import heeding

        return heeding(self._work)  # first of all: what follows takes seconds to import

    def _work(self, request: Request) -> int:
        from nugpt.engines.lab import Interrupted
        from nugpt.store.plans import PlanDirectory

        if not self.plans:
            raise ValueError("no plan to work on: give STORE/plans/NAME")
        directories = [PlanDirectory(path) for path in self.plans]
        for directory in directories:
            directory.plan()  # what is no plan is said to be none before anything is said of its launch
        # Nobody waits for another's runs, be it another launch's, while a later plan has runs to be had: once through,
        # then again.
        hands = _Hands(self)
        lingers = (self.linger,) if len(directories) == 1 else (0.0, self.linger)
        done = failed = 0
        try:
            for linger in lingers:
                failed = 0  # what failed in the first turn is tried again in the second
                for directory in directories:
                    if len(directories) > 1:
                        _say(f"plan {directory.path.name}")
                    outcome = hands.work_on(directory, linger, request)
                    done, failed = done + outcome.done, failed + outcome.failed
        except Interrupted as stopped:
            _say(str(stopped))
            return 128 + stopped.signal_number
        _say(f"{counted(done, 'run')} ended, {failed} failed")
        return 1 if failed else 0


class _Hands:
    """What a worker keeps from plan to plan: engines, and what it knows of its device's speed."""

    def __init__(self, asked: Worker) -> None:
        self.asked = asked
        self.engines: dict[str, Engine] = {}  # by how they were launched
        self.paces: dict[str, Pace] = {}  # by kind of device

    def work_on(self, directory: PlanDirectory, linger: float, request: Request) -> Outcome:
        """Work on one plan."""
        from nugpt.engines.lab import Options
        from nugpt.sweep.pace import Pace, TimeLimit
        from nugpt.sweep.worker import WorkerOptions, work

        launch, asked = directory.launch(), self.asked
        try:
            options = Options(**launch["options"])
        except TypeError as error:
            raise ValueError(f"{directory.path / 'launch.json'}: not options of this version: {error}") from None
        if asked.device is not None:
            options = replace(options, device=asked.device)
        keep = bool(launch.get("keep_checkpoints", True))
        options = replace(options, last_checkpoint=keep)  # what is dropped at once need not be written
        settings = WorkerOptions(asked.stale_after, asked.replicas, asked.peers, linger, keep_checkpoints=keep)
        key = repr((launch["data"], launch.get("titan"), launch.get("titan_mesh"), options))
        if key not in self.engines:
            self.engines[key] = _engine(launch, options)
        limit = None
        if asked.until is not None:
            kind = options.torch_device().type
            if kind not in self.paces:
                self.paces[kind] = Pace.of(directory.store, kind)
            limit = TimeLimit(asked.until, self.paces[kind])
        return work(directory, self.engines[key], settings, _say, request, limit)


def _engine(launch: Mapping[str, Any], options: Options) -> Engine:
    from nugpt.data import open_dataset
    from nugpt.engines.lab.engine import LabEngine
    from nugpt.engines.titan.engine import TitanEngine
    from nugpt.engines.titan.options import options_of_plan

    if launch.get("titan") is None:
        return LabEngine(open_dataset(launch["data"]), options)
    theirs = options_of_plan(options, launch.get("titan_mesh", {}))
    return TitanEngine(Path(launch["data"]), launch["titan"], theirs, options.threads)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
