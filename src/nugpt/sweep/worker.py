"""A worker: take runs of a plan until none is left, packed as ensembles, and let the plan grow from what they show."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nugpt.spec.plan import Plan, StopRule
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec, packable
from nugpt.store.claims import Claim, Heartbeat, LostClaim, claim
from nugpt.store.plans import PlanDirectory
from nugpt.store.run_directory import RunDirectory, Store
from nugpt.sweep.grow import next_points
from nugpt.sweep.state import CurveState, Place, ended_states, plan_state
from nugpt.sweep.stop import hopeless

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


def work(
    directory: PlanDirectory,
    engine: Engine,
    options: WorkerOptions,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Work on the plan until no run of it can be had."""
    plan, store = directory.plan(), directory.store
    outcome = Outcome()
    given_up: set[str] = set()  # runs that failed under this worker: another start may try them again
    deadline: float | None = None
    with Heartbeat(options.stale_after) as heart:
        while True:
            curves = grown(plan, directory, options.stale_after)
            pack = _claim_pack(plan, curves, store, engine, options, given_up)
            if pack:
                deadline = None
                heart.hold(pack)
                _execute(pack, plan, curves, store, engine, outcome, given_up, say)
                heart.hold(())
                continue
            waiting = any(place.state == "running" for curve in curves for place in curve.places)
            if deadline is None:
                deadline = time.monotonic() + options.linger
            if not waiting or time.monotonic() >= deadline:
                return outcome
            time.sleep(options.poll)


def grown(plan: Plan, directory: PlanDirectory, stale_after: float) -> list[CurveState]:
    """The plan's state after adding every point that its finished curves call for."""
    curves = plan_state(plan, directory, stale_after)
    additions = [next_points(curve, plan.policy) for curve in curves]
    for of_curve in additions:
        directory.add(of_curve)
    return plan_state(plan, directory, stale_after) if any(additions) else curves


def _claim_pack(
    plan: Plan,
    curves: list[CurveState],
    store: Store,
    engine: Engine,
    options: WorkerOptions,
    given_up: set[str],
) -> list[Claim]:
    """Hold as many runs as go into one ensemble, of the first shape that has any left."""
    ended = ended_states(plan.policy)
    todo = [p for c in curves for p in c.places if p.state not in (*ended, "running") and p.spec.hash not in given_up]
    for group in _groups(todo, store):
        wanted = -(-len(group) // options.peers)
        if options.replicas is not None:
            wanted = min(wanted, options.replicas)
        room = engine.capacity(group[0].spec, wanted)
        claims: list[Claim] = []
        try:
            for place in group:
                held = claim(store.run(place.spec), options.stale_after, ended)
                if held is not None:
                    claims.append(held)
                if len(claims) == room:
                    break
        except BaseException:
            _release(claims)
            raise
        if claims:
            return claims
    return []


def _groups(places: list[Place], store: Store) -> list[list[Place]]:
    """Places whose runs can share an ensemble: of one shape, and at the same step."""
    groups: list[list[Place]] = []
    for place in places:
        step = RunDirectory(store.root / place.spec.hash).newest_step()
        for group in groups:
            first = group[0]
            same_step = RunDirectory(store.root / first.spec.hash).newest_step() == step
            if same_step and packable([first.spec, place.spec]):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def _execute(
    claims: list[Claim],
    plan: Plan,
    curves: list[CurveState],
    store: Store,
    engine: Engine,
    outcome: Outcome,
    given_up: set[str],
    say: Callable[[str], None],
) -> None:
    """Run one ensemble; when it cannot be held or fails, try its halves, down to the run that is at fault."""
    by_hash = {place.spec.hash: place for curve in curves for place in curve.places}
    places = [by_hash[held.run.path.name] for held in claims]
    specs = [place.spec for place in places]

    def guard() -> None:
        for held in claims:
            held.check()

    failure: str | None = None
    try:
        engine.execute(specs, store, guard, _stop_asked(plan.policy.stop, places, curves, store))
    except LostClaim as error:
        say(f"{error}: leaving it to that worker")
        _release(claims)
        return
    except ValueError:
        _release(claims)
        raise
    except Exception as error:
        failure, trace = f"{type(error).__name__}: {_one_line(error)}", traceback.format_exc()
    except BaseException:  # a signal: the engine has saved, and whoever starts next goes on from there
        _release(claims, say)
        raise
    if failure is None:
        for held in claims:
            record = held.run.record()
            say(f"run {held.run.path.name} {record.status if record else 'left nothing'}")
            held.finish()
        outcome.done += len(claims)
    elif len(claims) > 1:
        # Outside the handler, whose traceback would keep the ensemble's memory.
        say(f"an ensemble of {len(claims)} failed ({failure}): trying its halves")
        middle = len(claims) // 2
        try:
            for half in (claims[:middle], claims[middle:]):
                _execute(half, plan, curves, store, engine, outcome, given_up, say)
        except BaseException:
            _release(claims)
            raise
    else:
        (held,) = claims
        held.run.add_failure(failure, trace)
        given_up.add(held.run.path.name)
        outcome.failed += 1
        say(f"run {held.run.path.name} failed: {failure}")
        held.release()


def _release(claims: list[Claim], say: Callable[[str], None] = lambda text: None) -> None:
    """Give back what has not ended; a run that ended before its ensemble was interrupted is done all the same."""
    for held in claims:
        record = held.run.record()
        if record is not None and held.is_held():
            say(f"run {held.run.path.name} {record.status}")
        held.let_go()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _stop_asked(rule: StopRule | None, places: list[Place], curves: list[CurveState], store: Store) -> StopAsked | None:
    """The engine's question at every validation, answered by the plan's rule; none when the plan stops nothing."""
    if rule is None:
        return None
    curve_of = {place.spec.hash: i for i, curve in enumerate(curves) for place in curve.places}
    families: dict[tuple[int, int], list[int]] = {}
    for r, place in enumerate(places):
        families.setdefault((curve_of[place.spec.hash], place.seed), []).append(r)
    seen: list[dict[int, float]] = [_validation_losses(store, place.spec) for place in places]

    def asked(step: int, losses: Sequence[float | None]) -> list[bool]:
        verdicts = [False] * len(places)
        for r, loss in enumerate(losses):
            if loss is not None:
                seen[r][step] = loss
        for (i, seed), members in families.items():
            mine = {places[r].spec.hash for r in members}
            others = [
                _validation_losses(store, p.spec)
                for p in curves[i].places
                if p.seed == seed and p.state == "done" and p.spec.hash not in mine
            ]
            found = hopeless(rule, places[0].spec.steps, [seen[r] for r in members], others)
            for r, verdict in zip(members, found, strict=True):
                verdicts[r] = verdict and losses[r] is not None
        return verdicts

    return asked


def _validation_losses(store: Store, spec: RunSpec) -> dict[int, float]:
    rows = RunDirectory(store.root / spec.hash).read_metrics()
    return {row["step"]: row["val_loss"] for row in rows if row.get("kind") == "validation"}
