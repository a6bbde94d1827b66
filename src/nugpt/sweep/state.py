"""Where a plan stands: every run's state, every curve's points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nugpt.spec.loss import loss_name, loss_of
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.record import RunRecord, device_seconds
from nugpt.spec.run import RunSpec
from nugpt.store.claims import file_system_time, holder_state
from nugpt.store.plans import Addition, PlanDirectory
from nugpt.store.run_directory import ENDED, RunDirectory, Store

if TYPE_CHECKING:  # fits take a second to import, and a list of runs does without them
    from nugpt.fit.noise import NoiseModel
    from nugpt.fit.optimum import Optimum
    from nugpt.fit.points import Point

KNOWN = 0.25  # octaves between the ends of an interval: an optimum known to ±1/8 octave
STATES = ("done", "diverged", "stopped", "running", "interrupted", "stale", "failed", "missing", "unreadable")
UNDER_WAY = ("running", "interrupted", "stale")  # begun: their newest checkpoint says how far they are


@dataclass(frozen=True)
class Place:
    """One run of a plan: where on its curve, and in which of STATES."""

    log2_lr: float
    seed: int
    spec: RunSpec
    state: str
    record: RunRecord | None
    added: str | None  # why, when it was not in the first grid
    saved: int | None = None  # the step that it would go on from, while it is under way


@dataclass(frozen=True)
class Best:
    """The lowest mean loss that a curve shows so far: what was seen, and no estimate of its optimum."""

    log2_lr: float
    loss: float  # mean over the seeds that are done
    side: str | None  # left, right or both: where nothing beyond it has ended, so that the best may lie there


@dataclass(frozen=True)
class CurveState:
    """A curve with the runs of its grid as it is now."""

    curve: Curve
    places: tuple[Place, ...]
    loss: str  # that it is read from, as all curves of its plan

    @property
    def log2_lrs(self) -> list[float]:
        """The learning rates of its grid."""
        return sorted({place.log2_lr for place in self.places})

    @property
    def varies(self) -> bool:
        """Whether it has several learning rates: at one there is no optimum to look for."""
        return len(self.log2_lrs) > 1

    def left(self, policy: Policy) -> list[Place]:
        """The runs that the plan still wants ended."""
        return [place for place in self.places if place.state not in ended_states(policy)]

    def points(self) -> list[Point]:
        """What the optimum is read from: every run that has ended."""
        from nugpt.fit.points import Point

        return [
            Point(p.log2_lr, loss_of(p.record, self.loss), p.seed, p.state)
            for p in self.places
            if p.record is not None and p.state == p.record.status
        ]

    def optimum(self, noise: NoiseModel, fine: bool = False) -> Optimum | None:
        """The curve's best learning rate so far by its plan's noise, with its verdict; none while no run has ended.

        The quick fit is enough to say where the grid should grow; with few points it is too sure of itself to be told.
        """
        from nugpt.fit.curve import FINE, QUICK
        from nugpt.fit.optimum import optimum

        points = self.points()
        return optimum(points, pooled=noise, effort=FINE if fine else QUICK) if points else None

    def best(self) -> Best | None:
        """The best learning rate seen, of those at which most seeds trained; none while no run is done."""
        ended: dict[float, list[float | None]] = {}
        for p in self.places:
            if p.record is not None and p.state == p.record.status:
                ended.setdefault(p.log2_lr, []).append(loss_of(p.record, self.loss))
        losses = {x: [loss for loss in found if loss is not None] for x, found in ended.items()}
        trained = {x: found for x, found in losses.items() if 2 * len(found) > len(ended[x])}
        if not trained:
            return None
        loss, log2_lr = min((sum(found) / len(found), x) for x, found in trained.items())
        sides = [side for side, end in (("left", min(ended)), ("right", max(ended))) if log2_lr == end]
        return Best(log2_lr, loss, sides[0] if len(sides) == 1 else "both" if sides else None)


def plan_noise(curves: Iterable[CurveState]) -> NoiseModel:
    """How much losses vary from run to run, pooled over a plan's curves as its answers pool it, of what has ended."""
    from nugpt.fit.noise import study_noise

    return study_noise([points for curve in curves if (points := curve.points())])


def reached(place: Place, store: Store, policy: Policy) -> float:
    """The share of a run that is behind it: all once the plan asks for no more, else what its newest checkpoint holds.

    One that was stopped under another plan's rule goes on from its checkpoint where this plan has no such rule.
    """
    if place.state in ended_states(policy):
        return 1.0
    if place.state not in (*UNDER_WAY, "stopped"):
        return 0.0
    return max(0, RunDirectory(store.root / place.spec.hash).newest_step()) / place.spec.steps


@dataclass(frozen=True)
class Spent:
    """What a plan's ended runs have cost, and what they have shown."""

    seconds: float  # of devices
    known: int  # optima whose interval reaches no further than an eighth of an octave to either side
    curves: int  # of several learning rates


def spent(curves: Sequence[CurveState]) -> Spent:
    """Summed over the curves; it asks each for its optimum."""
    seconds, known, count, noise = 0.0, 0, 0, plan_noise(curves)
    for curve in curves:
        records = [place.record for place in curve.places if place.record is not None]
        seconds += sum(map(device_seconds, records))
        found = curve.optimum(noise, fine=True) if curve.varies else None
        known += found is not None and found.verdict == "enclosed" and found.interval.width <= KNOWN
        count += curve.varies
    return Spent(seconds, known, count)


def ended_states(policy: Policy) -> tuple[str, ...]:
    """The states after which a plan asks for nothing more; a stopped run is taken up where no rule stops runs."""
    return ("done", "diverged") if policy.stop is None else ENDED


def plan_state(
    plan: Plan, directory: PlanDirectory, stale_after: float, problems: list[str] | None = None
) -> list[CurveState]:
    """Every curve of the plan as the store shows it now.

    A record that cannot be read raises; given a list of `problems`, it is named there and its run is `unreadable`.
    """
    store = directory.store
    now = file_system_time(store.root)
    added: dict[str, list[Addition]] = {}
    for addition in directory.additions():
        added.setdefault(addition.curve, []).append(addition)
    loss = loss_name(plan.curves)
    return [
        CurveState(curve, _places(curve, added.get(curve.key, []), store, stale_after, now, problems), loss)
        for curve in plan.curves
    ]


def _places(
    curve: Curve,
    added: list[Addition],
    store: Store,
    stale_after: float,
    now: float,
    problems: list[str] | None,
) -> tuple[Place, ...]:
    reasons = {a.log2_lr: a.reason for a in added}
    grid = sorted({*curve.log2_lrs, *reasons})
    places = []
    for (log2_lr, seed), spec in curve.runs(grid).items():
        run = RunDirectory(store.root / spec.hash)
        record, state, saved = None, "unreadable", None
        try:
            record = run.record()
            state = run_state(run, record, stale_after, now)
            saved = saved_step(run, state)
        except ValueError as error:
            if problems is None:
                raise
            problems.append(str(error))
        reason = None if log2_lr in curve.log2_lrs else reasons[log2_lr]
        places.append(Place(log2_lr, seed, spec, state, record, reason, saved))
    return tuple(places)


def saved_step(run: RunDirectory, state: str) -> int | None:
    """The step that a run which is under way would go on from; none before its first checkpoint."""
    step = run.newest_step() if state in UNDER_WAY else -1
    return None if step < 0 else step


def run_state(run: RunDirectory, record: RunRecord | None, stale_after: float, now: float) -> str:
    """One of STATES."""
    if record is not None and record.status != "stopped":
        return record.status
    holder = holder_state(run, stale_after, now)
    if record is not None:  # stopped by one plan, it may be taken up again by another
        return "running" if holder == "running" else record.status
    if holder == "running":
        return "running"
    if run.failures():
        return "failed"
    if holder == "stale":
        return "stale"
    return "interrupted" if run.newest_step() >= 0 else "missing"  # saved and given back, or not begun
