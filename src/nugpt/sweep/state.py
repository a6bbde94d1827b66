"""Where a plan stands: every run's state, every curve's points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nugpt.fit.optimum import Optimum, optimum
from nugpt.fit.points import Point
from nugpt.spec.plan import Curve, Plan
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store.claims import file_system_time, holder_state
from nugpt.store.plans import Addition, PlanDirectory
from nugpt.store.run_directory import RunDirectory, Store

STATES = ("done", "diverged", "stopped", "running", "stale", "failed", "missing")


@dataclass(frozen=True)
class Place:
    """One run of a plan: where on its curve, and in which state."""

    log2_lr: float
    seed: int
    spec: RunSpec
    state: str
    record: RunRecord | None
    added: str | None  # why, when it was not in the first grid


@dataclass(frozen=True)
class CurveState:
    """A curve with the runs of its grid as it is now."""

    curve: Curve
    places: tuple[Place, ...]

    def finished(self, allow_stopped: bool) -> bool:
        """Whether nothing is left to run; a stopped run counts when the plan stops hopeless runs."""
        ended = ("done", "diverged", "stopped") if allow_stopped else ("done", "diverged")
        return all(place.state in ended for place in self.places)

    def points(self) -> list[Point]:
        """What the optimum is read from: every run that has ended."""
        return [
            Point(p.log2_lr, p.record.val_loss if p.state == "done" else None, p.seed, p.state)
            for p in self.places
            if p.record is not None
        ]

    def optimum(self) -> Optimum:
        """The curve's best learning rate so far, with its verdict."""
        return optimum(self.points())


def plan_state(plan: Plan, directory: PlanDirectory, stale_after: float) -> list[CurveState]:
    """Every curve of the plan as the store shows it now."""
    store = directory.store
    now = file_system_time(store.root)
    added: dict[str, list[Addition]] = {}
    for addition in directory.additions():
        added.setdefault(addition.curve, []).append(addition)
    return [_curve_state(curve, added.get(curve.key, []), store, stale_after, now) for curve in plan.curves]


def _curve_state(curve: Curve, added: list[Addition], store: Store, stale_after: float, now: float) -> CurveState:
    reasons = {a.log2_lr: a.reason for a in added}
    grid = sorted({*curve.log2_lrs, *reasons})
    places = []
    for (log2_lr, seed), spec in curve.runs(grid).items():
        run = RunDirectory(store.root / spec.hash)
        record = run.record()
        state = run_state(run, record, stale_after, now)
        reason = None if log2_lr in curve.log2_lrs else reasons[log2_lr]
        places.append(Place(log2_lr, seed, spec, state, record, reason))
    return CurveState(curve, tuple(places))


def run_state(run: RunDirectory, record: RunRecord | None, stale_after: float, now: float) -> str:
    """One of STATES."""
    if record is not None:
        return record.status
    holder = holder_state(run, stale_after, now)
    if holder == "running":
        return "running"
    if run.failures():
        return "failed"
    begun = holder == "stale" or _has_checkpoint(run.path)
    return "stale" if begun else "missing"


def _has_checkpoint(path: Path) -> bool:
    return any((path / "checkpoints").glob("step-*"))
