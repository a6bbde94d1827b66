"""Several plans by one set of workers, one after the other: `nugpt study all`, or a list of studies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.cli.execution import Execution
from nugpt.cli.launch import laid_down, run_workers
from nugpt.cli.run_arguments import Carrier
from nugpt.cli.show import counted, print_table
from nugpt.spec.plan import Plan
from nugpt.spec.record import device_seconds

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.executors.local import EarlyWorker

CHEAP = ("lerp",)  # read off the parameters: no forward pass, and a small row
LOOK_EVERY_S = 10.0  # at the store, meanwhile: every look reads the records of all plans


@dataclass(frozen=True)
class Wanted:
    """A plan, and how its runs are carried."""

    plan: Plan
    carrier: Carrier


@dataclass(frozen=True)
class Count:
    """Where a plan stands."""

    ended: int
    left: int
    seconds: float  # of devices

    @property
    def runs(self) -> int:
        """All of them, as the grid is now."""
        return self.ended + self.left


def measured_first(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The same plans so that a run is measured when it is trained, which happens once, by the first plan that has it.

    What costs nothing is measured by every plan that shares runs with one that asks for it; a plan that asks for more
    is put before the first that it shares runs with, unless a plan before that measures those already.
    """
    hashes = [{spec.hash for spec in one.plan.specs()} for one in wanted]
    sharing = [[k for k, theirs in enumerate(hashes) if theirs & ours] for ours in hashes]
    taken = [_with_cheap(one, [wanted[k] for k in sharing[i]]) for i, one in enumerate(wanted)]
    order: list[int] = []
    for i, this in enumerate(taken):
        for k in sharing[i]:
            if k in order or not _dear(taken[k]) > _dear(this):
                continue
            measured = {hash for j in order if _dear(taken[j]) >= _dear(taken[k]) for hash in hashes[j]}
            if (hashes[k] & hashes[i]) - measured:
                order.append(k)
        if i not in order:
            order.append(i)
    return [taken[k] for k in order]


def _dear(one: Wanted) -> set[str]:
    return set(one.carrier.measure) - set(CHEAP)


def _with_cheap(one: Wanted, sharing: Sequence[Wanted]) -> Wanted:
    """With every cheap measurement that a plan asks for which shares runs with this one."""
    asked = [kind for other in sharing for kind in other.carrier.measure if kind in CHEAP]
    return replace(one, carrier=replace(one.carrier, measure=tuple(dict.fromkeys((*one.carrier.measure, *asked)))))


def launch_many(
    wanted: Sequence[Wanted],
    store: Path,
    dataset: TokenDataset,
    execution: Execution,
    quiet: bool,
    early: EarlyWorker | None = None,
) -> int:
    """Run what is missing of these plans in their order; 0 when every run has ended. Quiet: no table at the end.

    A plan that is left as it is has runs that the command asked for and that were not made: 1, whatever the others do.
    """
    from nugpt.store.plans import OtherPlan

    if execution.executor != "local":
        raise ValueError("several studies at once need --executor local: submit each by itself")
    directories, skipped = [], 0
    for one in measured_first(wanted):
        try:
            directories.append(laid_down(one.plan, store, dataset, one.carrier, execution))
        except OtherPlan as error:  # an earlier stretch may have begun it with other multipliers
            print(f"left as it is: {error}", file=sys.stderr)
            skipped += 1
    status: int | None = 0
    if directories:
        status = run_workers(directories, execution, _watch(directories, execution.stale_after), early)
        status = status if status is not None else _summary(directories, execution.stale_after, quiet)
    return status or int(skipped > 0)


def count(directory: PlanDirectory, stale_after: float) -> Count:
    """Where the plan stands, as its grid is now."""
    from nugpt.sweep.state import plan_state

    plan = directory.plan()
    curves = plan_state(plan, directory, stale_after)
    places = {place.spec.hash: place for curve in curves for place in curve.places}
    left = {place.spec.hash for curve in curves for place in curve.left(plan.policy)}
    seconds = sum(device_seconds(place.record) for place in places.values() if place.record is not None)
    return Count(len(places) - len(left), len(left), seconds)


def _watch(directories: Sequence[PlanDirectory], stale_after: float) -> Callable[[], None]:
    """A function to call now and then, which prints a line when runs have ended."""
    looked, last = 0.0, -1

    def watch() -> None:
        nonlocal looked, last
        if time.monotonic() - looked < LOOK_EVERY_S:
            return
        looked = time.monotonic()
        counts = {directory.path.name: count(directory, stale_after) for directory in directories}
        ended = sum(c.ended for c in counts.values())
        if ended != last:
            last = ended
            runs = sum(c.runs for c in counts.values())
            at = next((f"; {name}: {c.ended} of {c.runs}" for name, c in counts.items() if c.left), "")
            print(f"{ended} of {counted(runs, 'run')} of all plans{at}", file=sys.stderr, flush=True)

    return watch


def _summary(directories: Sequence[PlanDirectory], stale_after: float, quiet: bool) -> int:
    """0 when every run has ended; a row for each plan, and what is left."""
    counts = {directory.path.name: count(directory, stale_after) for directory in directories}
    if not quiet:
        rows = [[name, str(c.ended), str(c.left), f"{c.seconds / 60:.1f}"] for name, c in counts.items()]
        print_table(["plan", "runs ended", "left", "device-minutes"], rows, right=range(1, 4))
    left = {name: c.left for name, c in counts.items() if c.left}
    if left:
        what = f"{counted(sum(left.values()), 'run')} of {counted(len(left), 'plan')}"
        print(f"{what} are left: the same command goes on", file=sys.stderr)
    return 1 if left else 0
