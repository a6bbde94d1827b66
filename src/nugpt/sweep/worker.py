"""A worker: take runs of a plan until none is left, packed as ensembles, and let the plan grow from what they show."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nugpt.spec.checks import one_line
from nugpt.spec.plan import Plan, StopRule
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec, Shape, shape_of
from nugpt.store.checkpoint import steps_in
from nugpt.store.claims import Claim, Heartbeat, LostClaim, claim
from nugpt.store.meeting import meetings
from nugpt.store.plans import PlanDirectory
from nugpt.store.run_directory import RunDirectory, Store
from nugpt.sweep.cost import told
from nugpt.sweep.grow import additions
from nugpt.sweep.pace import TimeLimit
from nugpt.sweep.signals import Request
from nugpt.sweep.state import CurveState, Place, ended_states, plan_state, reached
from nugpt.sweep.stop import hopeless

LONGEST_ERROR = 300  # characters of a failure that are shown and kept beside its traceback

# (step, validation losses of the ensemble's runs or None for one that has ended) → which to stop
StopAsked = Callable[[int, Sequence[float | None]], list[bool]]


class Engine(Protocol):
    """What trains an ensemble of runs and leaves their records in the store."""

    def capacity(self, spec: RunSpec, wanted: int) -> int:
        """How many replicas of this run, at most `wanted`, fit on the device, by measurement."""

    def execute(
        self, specs: list[RunSpec], store: Store, guard: Callable[[], None], stop: StopAsked | None
    ) -> list[RunRecord]:
        """Train these runs; call `guard` before writing anything, and `stop`, where given, at every validation."""


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker shares a plan."""

    stale_after: float = 300.0  # seconds without a heartbeat after which a claim is taken over
    replicas: int | None = None  # the most per ensemble; None: as many as the device holds
    peers: int = 1  # workers on the same plan: each takes no more than its share of what can be packed
    linger: float = 0.0  # seconds to wait for runs of other workers before leaving
    poll: float = 1.0
    keep_checkpoints: bool = True  # of runs that are done: a plan wants their losses, and a thousand fill a disk

    def __post_init__(self) -> None:
        if not self.stale_after > 0:
            raise ValueError(f"stale_after is {self.stale_after!r}, but must be a number of seconds above 0")
        for name in ("replicas", "peers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of at least 1")


@dataclass
class Outcome:
    """What a worker did."""

    done: int = 0
    failed: int = 0
    postponed: int = 0  # runs that the time left is too short for


def work(
    directory: PlanDirectory,
    engine: Engine,
    options: WorkerOptions,
    say: Callable[[str], None] = lambda text: None,
    request: Request | None = None,
    limit: TimeLimit | None = None,
) -> Outcome:
    """Work on the plan until no run of it can be had, none can end in time, or a signal `request`s to leave."""
    return _Worker(directory, engine, options, say, request or Request(), limit).work()


def grown(plan: Plan, directory: PlanDirectory, stale_after: float) -> list[CurveState]:
    """The plan's state after adding every point that its finished curves call for."""
    curves = plan_state(plan, directory, stale_after)
    if directory.settled():
        return curves
    called_for = additions(curves, plan.policy)
    if not any(called_for):
        if not any(curve.left(plan.policy) for curve in curves):
            directory.settle(sum(len(curve.log2_lrs) for curve in curves))
        return curves
    there = {(addition.curve, addition.log2_lr) for addition in directory.additions()}
    for curve, points in zip(curves, called_for, strict=True):
        seen = {(curve.curve.key, place.log2_lr) for place in curve.places}
        # Another worker may have grown it since, from other noise, as more runs of other curves had ended.
        if not any(key == curve.curve.key for key, _ in there - seen):
            directory.add(points)
    return plan_state(plan, directory, stale_after)


@dataclass(frozen=True)
class _Failure:
    """Why an ensemble could not be trained, without anything that would keep its memory."""

    error: str
    trace: str
    out_of_memory: bool


class _Worker:
    """One worker on one plan, and what it has learned about its device and its runs."""

    def __init__(
        self,
        directory: PlanDirectory,
        engine: Engine,
        options: WorkerOptions,
        say: Callable[[str], None],
        request: Request,
        limit: TimeLimit | None,
    ) -> None:
        self.directory, self.plan, self.store = directory, directory.plan(), directory.store
        self.engine, self.options, self.say, self.request, self.limit = engine, options, say, request, limit
        self.curves: list[CurveState] = []  # as last seen
        self.most: dict[Shape, int] = {}  # replicas of a shape, after more of them did not fit
        self.given_up: set[str] = set()  # runs that failed here: another start may try them again
        self.outcome = Outcome()

    def work(self) -> Outcome:
        """Until no run can be had, none can end in time, or a signal asks to leave."""
        deadline: float | None = None
        with Heartbeat(self.options.stale_after) as heart:
            while True:
                self.request.check()
                self.curves = grown(self.plan, self.directory, self.options.stale_after)
                begun = time.monotonic()
                pack, lost = self._claim_pack()
                if pack:
                    deadline = None
                    heart.hold(pack)
                    new = not any(steps_in(held.run.checkpoints) for held in pack)
                    self._execute(pack)
                    heart.hold(())
                    self._learn(pack, time.monotonic() - begun, new)
                    continue
                if self.limit is not None and not lost and (short := self._waiting_for_time()):
                    self.outcome.postponed = short
                    self.say(f"{short} of its runs cannot end in the {told(self.limit.left())} that are left")
                    return self.outcome
                waiting = lost or any(place.state == "running" for curve in self.curves for place in curve.places)
                if deadline is None:
                    deadline = time.monotonic() + self.options.linger
                if not waiting or time.monotonic() >= deadline:
                    return self.outcome
                time.sleep(self.options.poll)

    def _claim_pack(self) -> tuple[list[Claim], bool]:
        """Hold as many runs as go into one ensemble and can end in time, of the first shape that has any left.

        And whether runs were wanted that others took first: where none is held, time was then not what was missing.
        """
        options, limit, policy = self.options, self.limit, self.plan.policy
        ended, lost = ended_states(policy), False
        for group in _groups(self._open_places(), self.store):
            wanted = -(-len(group) // options.peers)
            if limit is not None:
                wanted = min(wanted, limit.room((p.spec, 1.0 - reached(p, self.store, policy)) for p in group))
                if wanted == 0:
                    continue
            if options.replicas is not None:
                wanted = min(wanted, options.replicas)
            wanted = min(wanted, self.most.get(shape_of(group[0].spec), wanted))
            room = self.engine.capacity(group[0].spec, wanted)
            claims: list[Claim] = []
            try:
                for place in group:
                    self.request.check()
                    held = claim(self.store.run(place.spec), options.stale_after, ended)
                    if held is not None:
                        claims.append(held)
                    if len(claims) == room:
                        break
            except BaseException:
                _release(claims)
                raise
            if claims:
                return claims, lost
            lost = True
        return [], lost

    def _open_places(self) -> list[Place]:
        """The runs that nobody works on and that this worker may try."""
        taken = (*ended_states(self.plan.policy), "running")
        places = [p for curve in self.curves for p in curve.places if p.state not in taken]
        return [p for p in places if p.spec.hash not in self.given_up]

    def _waiting_for_time(self) -> int:
        """How many runs were there to be had, when none was taken."""
        return len({place.spec.hash for place in self._open_places()})

    def _learn(self, pack: list[Claim], took: float, new: bool) -> None:
        """Take note of how long an ensemble took, where that decides about the next."""
        records = [record for held in pack if (record := held.run.record()) is not None]
        if self.limit is None or len(records) < len(pack):
            return
        for held, record in zip(pack, records, strict=True):
            self.limit.pace.saw(held.run.spec(), record)
        if new:
            self.limit.pace.started(took, records)

    def _execute(self, claims: list[Claim]) -> None:
        """Run one ensemble; when it does not fit or fails, try its parts, down to the run that is at fault."""
        by_hash = {place.spec.hash: place for curve in self.curves for place in curve.places}
        left = [claims]
        try:
            while left:
                self.request.check()
                pack = left.pop(0)
                places = [by_hash[held.run.path.name] for held in pack]
                shape = shape_of(places[0].spec)
                most = self.most.get(shape, len(pack))
                if len(pack) > most:
                    left[:0] = [pack[i : i + most] for i in range(0, len(pack), most)]
                    continue
                stop = _stop_asked(self.plan.policy.stop, places, self.curves, self.store)
                failure = self._attempt(pack, [place.spec for place in places], stop)
                if failure is None:
                    _drop_checkpoints([] if self.options.keep_checkpoints else pack)
                    continue
                gc.collect()  # out of the handler, whose traceback would keep the ensemble's memory
                middle = len(pack) // 2
                if len(pack) == 1:
                    self._give_up(pack[0], failure)
                elif failure.out_of_memory:
                    self.most[shape] = middle
                    self.say(
                        f"an ensemble of {len(pack)} does not fit ({failure.error}): at most {middle} of this shape now"
                    )
                    left.insert(0, pack)
                else:
                    self.say(f"an ensemble of {len(pack)} failed ({failure.error}): trying its halves")
                    left[:0] = [pack[:middle], pack[middle:]]
        except BaseException:
            _release(claims)
            raise

    def _attempt(self, claims: list[Claim], specs: list[RunSpec], stop: StopAsked | None) -> _Failure | None:
        """Train these runs as one ensemble and let go of them, or say why it did not work."""

        def guard() -> None:
            self.request.check()  # one that came before the engine had handlers of its own
            for held in claims:
                held.check()

        try:
            self.engine.execute(specs, self.store, guard, stop)
        except LostClaim as error:
            self.say(f"{error}: leaving it to that worker")
            _release(claims)
            return None
        except ValueError:
            _release(claims)
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {one_line(error)[:LONGEST_ERROR]}"
            return _Failure(told, traceback.format_exc(), _is_out_of_memory(error))
        except BaseException:  # a signal: the engine has saved, and whoever starts next goes on from there
            _release(claims, self.say)
            raise
        for held in claims:
            record = held.run.record()
            self.say(f"run {held.run.path.name} {record.status if record else 'left nothing'}")
            held.finish()
        self.outcome.done += len(claims)
        return None

    def _give_up(self, held: Claim, failure: _Failure) -> None:
        """Note a run's failure and leave it to another start."""
        held.run.add_failure(failure.error, failure.trace)
        self.given_up.add(held.run.path.name)
        self.outcome.failed += 1
        self.say(f"run {held.run.path.name} failed: {failure.error}")
        held.release()


def _groups(places: list[Place], store: Store) -> list[list[Place]]:
    """Places whose runs can share an ensemble: of one shape, and able to meet at one step."""
    by_shape: dict[Shape, list[Place]] = {}
    for place in places:
        by_shape.setdefault(shape_of(place.spec), []).append(place)
    groups = []
    for alike in by_shape.values():
        saved = [steps_in(RunDirectory(store.root / place.spec.hash).checkpoints) for place in alike]
        met = meetings([place.spec for place in alike], saved)
        groups += [[alike[i] for i in meeting.members] for meeting in met]
    return groups


def _drop_checkpoints(claims: list[Claim]) -> None:
    """Of runs that are done or diverged; one that was stopped may be taken up again."""
    for held in claims:
        if held.run.has_ended(("done", "diverged")):
            held.run.drop_checkpoints()


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the device or the machine had no room; torch's own class is known by its name, as torch is not ours."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _release(claims: list[Claim], say: Callable[[str], None] = lambda text: None) -> None:
    """Give back what has not ended; a run that ended before its ensemble was interrupted is done all the same."""
    for held in claims:
        record = held.run.record()
        if record is not None and held.is_held():
            say(f"run {held.run.path.name} {record.status}")
        held.let_go()


def _stop_asked(rule: StopRule | None, places: list[Place], curves: list[CurveState], store: Store) -> StopAsked | None:
    """The engine's question at every validation, answered by the plan's rule; none when the plan stops nothing."""
    if rule is None:
        return None
    curve_of = {place.spec.hash: i for i, curve in enumerate(curves) for place in curve.places}
    families: dict[tuple[int, int], list[int]] = {}
    for r, place in enumerate(places):
        families.setdefault((curve_of[place.spec.hash], place.seed), []).append(r)
    seen: list[dict[int, float]] = [_validation_losses(store, place.spec) for place in places]
    # What is done stays as it is: read once, not at every validation.
    ended = {
        (i, seed): _done_losses(curves[i], seed, {places[r].spec.hash for r in m}, store)
        for (i, seed), m in families.items()
    }

    def asked(step: int, losses: Sequence[float | None]) -> list[bool]:
        verdicts = [False] * len(places)
        for r, loss in enumerate(losses):
            if loss is not None:
                seen[r][step] = loss
        for family, members in families.items():
            # What an earlier start saw beyond the checkpoint that this one goes on from is not known yet.
            known = [{at: loss for at, loss in seen[r].items() if at <= step} for r in members]
            found = hopeless(rule, places[0].spec.steps, known, ended[family])
            for r, verdict in zip(members, found, strict=True):
                verdicts[r] = verdict and losses[r] is not None
        return verdicts

    return asked


def _done_losses(curve: CurveState, seed: int, but: set[str], store: Store) -> list[dict[int, float]]:
    """The validation losses of the curve's done runs of a seed."""
    return [
        _validation_losses(store, p.spec)
        for p in curve.places
        if p.seed == seed and p.state == "done" and p.spec.hash not in but
    ]


def _validation_losses(store: Store, spec: RunSpec) -> dict[int, float]:
    rows = RunDirectory(store.root / spec.hash).read_metrics()
    return {row["step"]: row["val_loss"] for row in rows if row.get("kind") == "validation"}
