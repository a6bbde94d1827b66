"""`nugpt worker`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from nugpt.cli.show import counted

if TYPE_CHECKING:
    from nugpt.sweep.signals import Request


@dataclass(frozen=True)
class Worker:
    """Take runs of a plan until none is left: what `sweep` and `study` start, here or as tasks of a SLURM array."""

    plan: Annotated[Path, tyro.conf.Positional]
    """The plan's directory, STORE/plans/NAME."""
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

    def run(self) -> int:
        """Work on the plan."""
        from nugpt.sweep.signals import Asked, requests

        with requests() as request:  # first of all: what follows takes seconds to import
            try:
                return self._work(request)
            except Asked as asked:
                _say(str(asked))
                return 128 + asked.signal_number

    def _work(self, request: Request) -> int:
        from dataclasses import replace

        from nugpt.data import open_dataset
        from nugpt.engines.lab import Interrupted, Options
        from nugpt.engines.lab.engine import LabEngine
        from nugpt.engines.titan.engine import TitanEngine
        from nugpt.store.plans import PlanDirectory
        from nugpt.sweep.worker import WorkerOptions, work

        directory = PlanDirectory(self.plan)
        directory.plan()  # what is no plan is said to be none before anything is said of its launch
        launch = directory.launch()
        try:
            options = Options(**launch["options"])
        except TypeError as error:
            raise ValueError(f"{directory.path / 'launch.json'}: not options of this version: {error}") from None
        if self.device is not None:
            options = replace(options, device=self.device)
        keep = bool(launch.get("keep_checkpoints", True))
        settings = WorkerOptions(self.stale_after, self.replicas, self.peers, self.linger, keep_checkpoints=keep)
        engine: LabEngine | TitanEngine
        if launch.get("titan") is None:
            engine = LabEngine(open_dataset(launch["data"]), options)
        else:
            engine = TitanEngine(Path(launch["data"]), launch["titan"], options.device, options.checkpoint_every)
        try:
            outcome = work(directory, engine, settings, _say, request)
        except Interrupted as stopped:
            _say(str(stopped))
            return 128 + stopped.signal_number
        _say(f"{counted(outcome.done, 'run')} ended, {outcome.failed} failed")
        return 1 if outcome.failed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
