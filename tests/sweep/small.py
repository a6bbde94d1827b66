"""Plans of runs that need no training: an engine that makes losses up, so that workers can be watched closely."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nugpt.fit.curve import Effort
from nugpt.fit.interval import Interval
from nugpt.fit.noise import NoiseModel
from nugpt.fit.points import Point
from nugpt.spec import Base, Extent, ModelConfig, load_table
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.sweep.state import CurveState, plan_noise, plan_state
from nugpt.sweep.worker import Outcome, StopAsked, WorkerOptions, work

MODEL = ModelConfig(n_layers=1, n_heads=1, head_dim=24, vocab_size=384, seq_len=16)
BASE = Base.of(Extent.of(MODEL, 10, 4))
STEPS = 100
STALE_AFTER = 60.0
NO_GROWTH = Policy(extend=0)


def make_spec(**changes: Any) -> RunSpec:
    fields: dict[str, Any] = {"model": MODEL, "table": load_table("nugpt"), "base": BASE, "lr": 2.0**-6}
    fields |= {"steps": STEPS, "batch": 4, "data": "0" * 16, "validations": 10, "val_windows": 8}
    return RunSpec(**(fields | changes))


def make_plan(
    log2_lrs: Sequence[float] = (-8, -7, -6, -5, -4),
    seeds: Sequence[int] = (0,),
    policy: Policy = NO_GROWTH,
    name: str = "plan",
    **changes: Any,
) -> Plan:
    """A plan of one curve."""
    return Plan(name, (Curve({"of": name}, make_spec(**changes), tuple(log2_lrs), tuple(seeds)),), policy)


def make_directory(path: Path, plan: Plan | None = None) -> PlanDirectory:
    """The plan laid down in a store of its own."""
    return PlanDirectory.of(Store(path / "runs"), make_plan() if plan is None else plan)


def record_of(spec: RunSpec, loss: float | None = 3.0, status: str = "done", **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {"steps": spec.steps, "tokens": 64 * spec.steps, "flops": 1e9, "wall_s": 1.0}
    fields |= {"val_loss_ema": loss, "train_loss": loss, "diverged_at": None if loss is not None else 3}
    return RunRecord(**({"hash": spec.hash, "status": status, "val_loss": loss} | fields | changes))


def parabola(best: float) -> Callable[[RunSpec], float]:
    """A loss whose minimum nobody can doubt: 3 nats at `best`, and 0.2 more per squared octave."""
    return lambda spec: 3.0 + 0.2 * (math.log2(spec.lr) - best) ** 2


def plain_optimum(points: Sequence[Point], pooled: NoiseModel, effort: Effort) -> Any:
    """A verdict by the lowest mean alone: at an edge or not. How a plan grows must not hang on how well a fit does."""
    trained: dict[float, list[float]] = {}
    for point in points:
        if point.trained:
            trained.setdefault(point.log2_lr, []).append(float(point.loss or 0.0))
    failed = [point.log2_lr for point in points if not point.trained]
    best = min(trained, key=lambda x: sum(trained[x]) / len(trained[x]), default=math.inf)
    left = not any(x < best for x in (*trained, *failed))
    right = not any(x > best for x in (*trained, *failed)) and bool(trained)
    side = None if left and right else "left" if left or not trained else "right" if right else None
    if left or right or not trained:
        verdict = SimpleNamespace(verdict="edge-censored", side=side, log2_lr=None)
    else:
        verdict = SimpleNamespace(verdict="enclosed", side=None, log2_lr=best)
    verdict.interval = Interval(-math.inf, math.inf)
    return verdict


def judge_plainly() -> None:
    """Let this process judge curves by `plain_optimum`."""
    sys.modules["nugpt.fit.optimum"].optimum = plain_optimum  # type: ignore[attr-defined]


@dataclass
class FakeEngine:
    """Writes a record for every run it is given, and a line for every time that it did."""

    loss: Callable[[RunSpec], float | None] = parabola(-6)
    log: Path | None = None  # one line per execution of a run: its hash and this process
    room: int = 100
    before: Callable[[list[RunSpec]], None] = lambda specs: None  # called with each ensemble; may raise
    ensembles: list[list[str]] = field(default_factory=list)

    def capacity(self, spec: RunSpec, wanted: int) -> int:
        return min(wanted, self.room)

    def execute(
        self, specs: list[RunSpec], store: Store, guard: Callable[[], None], stop: StopAsked | None
    ) -> list[RunRecord]:
        self.ensembles.append([spec.hash for spec in specs])
        self.before(specs)
        records = []
        stopped = self._validate(specs, store, guard, stop)
        for spec in specs:
            guard()
            loss = self.loss(spec)
            status = "stopped" if spec.hash in stopped else "done" if loss is not None else "diverged"
            records.append(record_of(spec, loss, status))
            store.run(spec).write_record(records[-1])
            if self.log is not None:
                _append(self.log, f"{spec.hash} {os.getpid()}\n")
        return records

    def _validate(
        self, specs: list[RunSpec], store: Store, guard: Callable[[], None], stop: StopAsked | None
    ) -> set[str]:
        """Losses that stay what they are over ten validations; what is stopped on the way takes no more of them."""
        stopped: set[str] = set()
        for step in range(STEPS // 10, STEPS + 1, STEPS // 10):
            losses = [None if spec.hash in stopped else self.loss(spec) for spec in specs]
            for spec, loss in zip(specs, losses, strict=True):
                if loss is not None:
                    guard()
                    store.run(spec).append_metrics([{"step": step, "kind": "validation", "val_loss": loss}])
            if stop is not None and step < STEPS:
                asked = stop(step, losses)
                stopped |= {spec.hash for spec, yes in zip(specs, asked, strict=True) if yes}
        return stopped


def _append(path: Path, line: str) -> None:
    """One write with O_APPEND: lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def executions(log: Path) -> Counter[str]:
    """How often each run was executed."""
    return Counter(line.split()[0] for line in log.read_text().splitlines())


def finish(directory: PlanDirectory, engine: FakeEngine, **options: Any) -> Outcome:
    """Work on the plan in this process until nothing is left."""
    return work(directory, engine, WorkerOptions(**({"stale_after": STALE_AFTER, "poll": 0.01} | options)))


def states(directory: PlanDirectory) -> list[CurveState]:
    return plan_state(directory.plan(), directory, STALE_AFTER)


def optima(directory: PlanDirectory) -> list[Any]:
    """Of the plan's curves, as a sweep judges them."""
    curves = states(directory)
    noise = plan_noise(curves)
    return [curve.optimum(noise) for curve in curves]


def grid(directory: PlanDirectory) -> list[float]:
    """The learning rates of the plan's only curve as it is now."""
    (curve,) = states(directory)
    return sorted({place.log2_lr for place in curve.places})


_SERVER = multiprocessing.get_context("forkserver")


def race(directory: PlanDirectory, log: Path, workers: int, **options: Any) -> list[str]:
    """Let so many processes, each holding runs when all begin, work on the plan, and return what they said."""
    barrier = _SERVER.Barrier(workers)
    said = [log.with_name(f"worker-{i}.log") for i in range(workers)]
    processes = [_SERVER.Process(target=_race, args=(directory.path, log, barrier, path, options)) for path in said]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return [path.read_text() if path.is_file() else "" for path in said]


def _race(plan: Path, log: Path, barrier: Barrier, said: Path, options: dict[str, Any]) -> None:
    judge_plainly()
    met = False

    def meet(specs: list[RunSpec]) -> None:
        nonlocal met
        if not met:
            met = True
            barrier.wait(timeout=100)  # only so that a broken claim cannot hang the test
        time.sleep(0.002)

    engine = FakeEngine(log=log, before=meet)
    settings = WorkerOptions(**({"stale_after": STALE_AFTER, "poll": 0.01, "linger": 100.0} | options))
    work(PlanDirectory(plan), engine, settings, say=lambda text: _append(said, text + "\n"))
