"""How any command reads curves: from a store, or from a table of the user's own runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.cli.own_runs import Columns, RunColumns, read_table

if TYPE_CHECKING:
    from nugpt.fit.alignment import AlignmentRun
    from nugpt.fit.measured import Measured
    from nugpt.spec.run import RunSpec
    from nugpt.store import Store
    from nugpt.store.plans import PlanDirectory


@dataclass(frozen=True)
class OfStore:
    """Which curves of a store."""

    plan: str | None = None
    """One plan of the store; all of them by default."""
    loss: str | None = None
    """val_loss (final, over the whole validation set) or val_loss_ema (averaged over validations); by default the
    second where every curve of a plan has one seed and at least 100 validations, as in the paper, else the first."""


@dataclass(frozen=True)
class Origin(OfStore):
    """Where curves come from."""

    columns: Columns = Columns()


@dataclass(frozen=True)
class CurveSet:
    """Curves that are answered together: a plan's, or those of a user's table."""

    name: str
    study: str | None
    curves: tuple[Measured, ...]
    notes: tuple[str, ...] = ()


def read_curves(source: Path, origin: Origin) -> list[CurveSet]:
    """The curves of a store's plans, or of a CSV or JSONL file."""
    check_heeded(source, origin, origin.columns)
    if source.is_dir():
        return store_curves(source, origin)
    curves, notes = read_table(source, origin.columns)
    return [CurveSet(source.name, None, tuple(curves), tuple(notes))]


def check_heeded(source: Path, origin: OfStore, columns: RunColumns) -> None:
    """What chooses among a store's curves needs a store, and columns a file."""
    if source.is_dir():
        for option, name in columns.given().items():
            raise ValueError(
                f"{option} is {name!r}, but {source} is a store, whose runs say what they are: leave it out"
            )
        return
    if not source.is_file():
        raise ValueError(f"{source} is no store and no file: give a store, or a .csv or .jsonl file of runs")
    if origin.plan is not None:
        raise ValueError(f"plan is {origin.plan!r}, but {source} is a file of runs and has no plans")
    if origin.loss is not None:
        raise ValueError(f"loss is {origin.loss!r}, but {source} is a file of runs: --loss-column says which loss")


def store_curves(path: Path, origin: OfStore) -> list[CurveSet]:
    """The curves of a store's plans, or those of its runs where it has none."""
    from nugpt.store import opened
    from nugpt.store.plans import plans

    store = opened(path)
    there = plans(store)
    found = [directory for directory in there if origin.plan in (None, directory.path.name)]
    if origin.plan is not None and not found:
        names = ", ".join(directory.path.name for directory in there) or "none"
        raise ValueError(f"store {path} has no plan {origin.plan!r}, it has {names}")
    if found:
        return [_of_plan(directory, origin.loss) for directory in found]
    alone = _unplanned(store, origin.loss)
    if not alone:
        raise ValueError(f"store {path} has no plan and no run that has ended")
    return [CurveSet("runs of no plan", None, tuple(alone))]


def _of_plan(directory: PlanDirectory, loss: str | None) -> CurveSet:
    from nugpt.fit.measured import measured
    from nugpt.store.transfer import STALE_AFTER
    from nugpt.sweep.state import plan_state

    plan = directory.plan()
    curves = [
        measured(
            state.curve,
            [(p.log2_lr, p.seed, p.record) for p in state.places if p.record is not None],
            loss or state.loss,
            _aligned(directory.store, [p.spec for p in state.places if p.record is not None]),
        )
        for state in plan_state(plan, directory, STALE_AFTER)
    ]
    return CurveSet(plan.name, plan.study, tuple(curves))


def _aligned(store: Store, specs: Iterable[RunSpec]) -> list[AlignmentRun]:
    """Those of the runs in which alignment was measured."""
    from nugpt.fit.alignment import alignment_run
    from nugpt.store import RunDirectory

    found = [alignment_run(spec, RunDirectory(store.root / spec.hash).read_metrics(("alignment",))) for spec in specs]
    return [run for run in found if run is not None]


def _unplanned(store: Store, loss: str | None) -> list[Measured]:
    """Runs of `nugpt train` that differ in learning rate and seed alone, as curves."""
    from nugpt.fit.measured import measured
    from nugpt.spec.loss import loss_name
    from nugpt.spec.plan import Curve

    runs: dict[str, list[Any]] = {}
    for directory in store.runs():
        record = directory.record()
        if record is not None:
            spec = directory.spec()
            runs.setdefault(Curve({}, spec, (0.0,), (0,)).key, []).append((spec, record))
    curves = []
    for ended in runs.values():
        spec = ended[0][0]
        label = {"table": spec.table.name, "layers": spec.model.n_layers, "heads": spec.model.n_heads}
        seeds = tuple(sorted({s.seed for s, _ in ended}))
        curves.append(Curve(label | {"steps": spec.steps}, spec, (0.0,), seeds))
    loss = loss or loss_name(curves)
    return [
        measured(curve, [(math.log2(s.lr), s.seed, record) for s, record in ended], loss)
        for curve, ended in zip(curves, runs.values(), strict=True)
    ]
