"""What a report is made from, as values; read from a store, or made by hand from anyone's runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nugpt.fit.alignment import alignment_run
from nugpt.fit.measured import Measured, measured
from nugpt.fit.points import LARGEST
from nugpt.spec.loss import loss_name, loss_of
from nugpt.spec.plan import Curve, Label
from nugpt.spec.record import RunRecord, device_seconds
from nugpt.spec.run import RunSpec
from nugpt.spec.study import Study
from nugpt.store import RunDirectory, Store
from nugpt.store.atomic import read_json
from nugpt.store.coords import read_coords
from nugpt.store.plans import PlanDirectory, plans

ENDED = ("done", "diverged", "stopped")
RECOMMENDATION = "recommendation.json"
# How a run was carried is grouped by these; a path of the machine is nobody's business but its owner's.
CARRIED_BY = ("engine", "nugpt", "torch", "python", "device_type", "device", "compile", "attention", "loss")


@dataclass(frozen=True)
class Run:
    """One run: where on its curve, how it ended, and what is known of it."""

    id: str
    log2_lr: float
    seed: int
    state: str  # done, diverged, stopped, or not ended
    loss: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)  # steps, flops, wall_s, diverged_at, …
    lerp: Mapping[str, Any] = field(default_factory=dict, hash=False)
    carried_by: Mapping[str, Any] = field(default_factory=dict, hash=False)
    files: str | None = None  # the run's directory, as the page links to it
    course: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # its LERP statistics during training

    @property
    def ended(self) -> bool:
        """Whether it has a result; a divergence is one."""
        return self.state in ENDED

    @property
    def trained(self) -> bool:
        """Whether it ended with a loss that is a sensible number."""
        return self.state == "done" and self.loss is not None and abs(self.loss) <= LARGEST


@dataclass(frozen=True)
class CurveRuns:
    """The runs that differ in learning rate and seed only."""

    key: str  # names what they share; the same in every plan
    measured: Measured  # as the fits take it
    runs: tuple[Run, ...]

    @property
    def label(self) -> Label:
        """What tells it from the plan's other curves."""
        return self.measured.label

    @property
    def spec(self) -> dict[str, Any]:
        """What its runs share, as plain values; nothing for runs that are not ours."""
        spec = self.measured.spec
        return {k: v for k, v in spec.to_dict().items() if k not in ("lr", "seed")} if spec is not None else {}


@dataclass(frozen=True)
class PlanRuns:
    """A plan's curves, and the study it belongs to, if any."""

    name: str
    curves: tuple[CurveRuns, ...]
    study: Study | None = None
    scale: str | None = None
    note: str = ""  # what a person wrote about its runs, in Markdown


@dataclass(frozen=True)
class Source:
    """Everything that a report says something about."""

    title: str
    plans: tuple[PlanRuns, ...]
    recommendation: Any = None  # plain values, as `nugpt recommend` writes them
    problems: tuple[str, ...] = ()  # what could not be read
    coords: tuple[Mapping[str, Any], ...] = ()  # coordinate checks, as `nugpt measure coords` keeps them
    loose: tuple[PlanRuns, ...] = ()  # measured runs of no plan, those of one learning rate together


def read_store(
    store: Store,
    names: Sequence[str],
    studies: Mapping[str, Study],
    page_folder: Path,
    title: str | None = None,
    loss: str | None = None,
) -> Source:
    """The plans of these names, or all, by the loss that is due or this one; what cannot be read is a problem.

    Those of studies come first, in the studies' order.
    """
    found = plans(store)
    there = [directory.path.name for directory in found]
    for name in names:
        if name not in there:
            raise ValueError(f"store {store.shown} has no plan {name!r}, it has {', '.join(there) or 'none'}")
    problems: list[str] = []
    read = []
    for directory in found:
        if not names or directory.path.name in names:
            try:
                read.append(_read_plan(directory, studies, page_folder, loss, problems))
            except ValueError as error:
                problems.append(str(error))
    order = {id: i for i, id in enumerate(studies)}
    read.sort(key=lambda plan: order.get(plan.study.id, len(order)) if plan.study is not None else len(order))
    advice = _recommendation(store, problems)
    checks: list[dict[str, Any]] = []
    try:
        checks = read_coords(store)
    except ValueError as error:
        problems.append(str(error))
    return Source(title or _title(read), tuple(read), advice, tuple(problems), tuple(checks))


def _title(read: Sequence[PlanRuns]) -> str:
    if not read:
        return "Report on measurements"
    return read[0].name if len(read) == 1 else f"Report on {len(read)} plans"


def _recommendation(store: Store, problems: list[str]) -> Any:
    path = store.shown / RECOMMENDATION
    if not path.is_file():
        return None
    try:
        return read_json(path)
    except ValueError as error:
        problems.append(str(error))
        return None


def _read_plan(
    directory: PlanDirectory, studies: Mapping[str, Study], page_folder: Path, loss: str | None, problems: list[str]
) -> PlanRuns:
    plan, store = directory.plan(), directory.store
    loss = loss or loss_name(plan.curves)
    added: dict[str, set[float]] = {}
    for addition in directory.additions():
        added.setdefault(addition.curve, set()).add(addition.log2_lr)
    curves = [
        read_runs(curve, curve.runs(grid), store, page_folder, loss, problems)
        for curve in plan.curves
        for grid in [sorted({*curve.log2_lrs, *added.get(curve.key, ())})]
    ]
    note = read_note(store.shown, plan.study or plan.name, problems)
    return PlanRuns(plan.name, tuple(curves), studies.get(plan.study or ""), plan.scale, note)


def note_path(folder: Path, name: str) -> Path:
    """Where a note lies on the runs of a study, or of a plan without one, if anyone wrote it."""
    return folder / "notes" / f"{name}.md"


def read_note(folder: Path, name: str, problems: list[str]) -> str:
    """What it says; nothing where there is none."""
    path = note_path(folder, name)
    try:
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path} cannot be read as text: {error}")
        return ""


def read_runs(
    curve: Curve,
    specs: Mapping[tuple[float, int], RunSpec],
    store: Store,
    page_folder: Path,
    loss: str,
    problems: list[str],
) -> CurveRuns:
    """A curve with these of its runs, each at its log2 η and seed."""
    runs, ended, aligned = [], [], []
    for (log2_lr, seed), spec in specs.items():
        path = store.root / spec.hash
        record = None
        try:
            record = RunDirectory(path).record()
        except ValueError as error:
            problems.append(str(error))
        files = _relative(path, page_folder) if path.is_dir() and store.archive is None else None
        rows = RunDirectory(path).read_metrics(("alignment", "lerp")) if record is not None else []
        course = tuple(row for row in rows if row["kind"] == "lerp")
        runs.append(replace(_run(spec.hash, log2_lr, seed, record, loss, files), course=course))
        if record is not None:
            ended.append((log2_lr, seed, record))
        if (found := alignment_run(spec, rows)) is not None:
            aligned.append(found)
    return CurveRuns(curve.key, measured(curve, ended, loss, aligned), tuple(runs))


def _run(id: str, log2_lr: float, seed: int, record: RunRecord | None, loss: str, files: str | None) -> Run:
    if record is None:
        return Run(id, log2_lr, seed, "not ended", files=files)
    facts = {
        name: getattr(record, name)
        for name in ("steps", "tokens", "flops", "wall_s", "val_loss", "val_loss_ema", "train_loss", "diverged_at")
    }
    facts["device_s"] = device_seconds(record)
    facts["by_source"] = record.val_loss_by_source
    carried = {name: record.carried_by[name] for name in CARRIED_BY if name in record.carried_by}
    return Run(id, log2_lr, seed, record.status, loss_of(record, loss), facts, record.lerp, carried, files)


def _relative(path: Path, folder: Path) -> str | None:
    """From the page to a run; none where no relative path leads there, as between two drives."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:
        return None


def from_curves(name: str, curves: Sequence[Measured]) -> PlanRuns:
    """A plan of anyone's runs: each is known by its place in its curve."""
    made = []
    for curve in curves:
        key = hashlib.sha256(f"{name} {curve.name} {sorted(curve.sizes.items())}".encode()).hexdigest()[:16]
        runs = [
            Run(f"{key}-{i}", point.log2_lr, point.seed, point.status, point.loss)
            for i, point in enumerate(curve.points, 1)
        ]
        made.append(CurveRuns(key, curve, tuple(runs)))
    return PlanRuns(name, tuple(made))
