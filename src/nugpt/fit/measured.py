"""Runs grouped into curves: a plan's, or those of a user's own table.

A curve's runs differ in learning rate and seed alone. Curves of one group differ in size alone.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from nugpt.fit.alignment import AlignmentRun
from nugpt.fit.points import Point
from nugpt.spec.loss import LOSSES, loss_of
from nugpt.spec.parametrization import TABLES
from nugpt.spec.plan import Curve, Label
from nugpt.spec.record import RunRecord
from nugpt.spec.resolve import Extent
from nugpt.spec.run import RunSpec

SIZES = ("width", "layers", "steps", "batch")  # the axes along which a table says how η goes
LABELS_OF_SIZE = ("heads", "n_heads", "layers", "n_layers", "steps", "batch", "axis", "held_out", "horizon")
_KEPT = ("head_dim", "vocab_size", "seq_len", "rope_theta", "architecture")  # of a model, whatever its size


@dataclass(frozen=True)
class Measured:
    """A curve with what its runs gave."""

    label: Label = field(hash=False)
    group: str  # what its curves share but for size, as a key
    sizes: Mapping[str, float] = field(hash=False)  # axis → size
    points: tuple[Point, ...]
    records: tuple[RunRecord | None, ...] = field(default=(), repr=False)  # of each point; none for a user's own rows
    spec: RunSpec | None = field(default=None, repr=False)  # of every run but for lr and seed
    loss: str = "loss"  # which of a run's losses its points hold
    alignment: tuple[AlignmentRun, ...] = field(default=(), repr=False)  # of the runs that were measured

    @property
    def name(self) -> str:
        """The label in words."""
        return words(self.label)


def sizes_of(extent: Extent) -> dict[str, float]:
    """Where a run stands on each axis; a batch counts in tokens."""
    return dict(zip(SIZES, (extent.d_model, extent.n_layers, extent.steps, extent.batch_tokens), strict=True))


def words(label: Mapping[str, Any]) -> str:
    """A label, or a place, on one line."""
    return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in label.items())


def measured(
    curve: Curve,
    runs: Iterable[tuple[float, int, RunRecord]],
    loss: str,
    alignment: Iterable[AlignmentRun] = (),
) -> Measured:
    """A plan's curve with the (log2 η, seed, record) of each run that has ended, and the loss to read."""
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}, but must be one of {', '.join(LOSSES)}")
    ended = list(runs)
    return Measured(
        label=curve.label,
        group=group_key(curve.spec),
        sizes=sizes_of(curve.spec.extent),
        points=tuple(Point(x, loss_of(record, loss), seed, record.status) for x, seed, record in ended),
        records=tuple(record for _, _, record in ended),
        spec=curve.spec,
        loss=loss,
        alignment=tuple(alignment),
    )


@dataclass(frozen=True)
class OwnRun:
    """One row of a user's own table of runs."""

    lr: float
    loss: float | None
    seed: int = 0
    sizes: tuple[tuple[str, float], ...] = ()  # what grows → how large, the same names in every row
    group: str = ""
    status: str = "done"


def own_curves(runs: Iterable[OwnRun], group_name: str = "group") -> list[Measured]:
    """A user's own runs as curves: one for each group and sizes, in that order."""
    points: dict[tuple[str, tuple[tuple[str, float], ...]], list[Point]] = {}
    for run in runs:
        for name, value in (("lr", run.lr), *run.sizes):
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} is {value!r}, but must be a finite number above 0")
        point = Point(math.log2(run.lr), run.loss, run.seed, run.status)
        points.setdefault((run.group, run.sizes), []).append(point)
    found = []
    for (group, sizes), members in sorted(points.items()):
        label: dict[str, str | float] = ({group_name: group} if group else {}) | dict(sizes)
        found.append(Measured(label, group, dict(sizes), tuple(members)))
    return found


def as_runs(curves: Iterable[Measured], run_at: Callable[[Mapping[str, float]], RunSpec]) -> list[Measured]:
    """A user's own curves as those of runs whose model and table are known, by the sizes of each; all are one group."""
    found: list[Measured] = []
    for curve in curves:
        spec = run_at(curve.sizes)
        group = found[0].group if found else group_key(spec)
        label: Label = {"table": spec.table.name, "layers": spec.model.n_layers, "heads": spec.model.n_heads}
        label = {**label, "steps": spec.steps, "batch": spec.batch}
        found.append(replace(curve, label=label, group=group, sizes=sizes_of(spec.extent), spec=spec))
    return found


def group_key(spec: RunSpec) -> str:
    """What two runs share when they differ in size, learning rate and seed alone."""
    values, model = spec.to_dict(), spec.model
    for name in ("lr", "seed", "steps", "batch", "validations", "val_windows", "start"):
        values.pop(name)
    values["model"] = {name: values["model"][name] for name in _KEPT}
    values["model"] |= {"mlp": round(model.d_mlp / model.d_model, 2), "group": model.n_heads // model.n_kv_heads}
    values["schedule"]["warmup"] = round(spec.schedule.warmup / spec.steps, 2)  # as a share of the run
    return json.dumps(values, sort_keys=True)


_T = TypeVar("_T")


def apart(
    items: Iterable[_T], kind: Callable[[_T], Hashable], place: Callable[[_T], Hashable]
) -> dict[tuple[Hashable, int], list[_T]]:
    """Those of one kind together, but no two of one place: they differ in what no kind goes by, and repeat nothing."""
    sets: dict[tuple[Hashable, int], list[_T]] = {}
    seen: Counter[Hashable] = Counter()
    for item in items:
        of = kind(item)
        at = of, place(item)
        sets.setdefault((of, seen[at]), []).append(item)
        seen[at] += 1
    return sets


def pooled(curves: Iterable[Measured]) -> list[Measured]:
    """Curves of several plans, which may share some: one for each run but for η and seed, with every plan's runs.

    Plans may read another loss than others do. Where those of one group do, all of it is read from the final loss.
    """
    found: dict[str, list[Measured]] = {}
    for curve in curves:
        if curve.spec is None:
            raise ValueError(f"curve {curve.name!r} has no spec: only runs of plans are told apart by theirs")
        found.setdefault(replace(curve.spec, lr=1.0, seed=0).hash, []).append(curve)
    losses: dict[str, set[str]] = {}
    for alike in found.values():
        losses.setdefault(alike[0].group, set()).update(curve.loss for curve in alike if curve.points)
    return [_pooled(alike, losses[alike[0].group]) for alike in found.values()]


def _pooled(alike: Sequence[Measured], losses: set[str]) -> Measured:
    longest = max(alike, key=lambda curve: len(curve.points))
    loss = longest.loss if len(losses) < 2 else LOSSES[0]
    ended = {
        (point.log2_lr, point.seed): record
        for curve in (longest, *alike)
        for point, record in zip(curve.points, curve.records, strict=True)
        if record is not None
    }
    points = tuple(Point(x, loss_of(record, loss), seed, record.status) for (x, seed), record in ended.items())
    return replace(longest, points=points, records=tuple(ended.values()), loss=loss)


def by_group(curves: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The curves of each group, in the order of their first."""
    groups: dict[str, list[Measured]] = {}
    for curve in curves:
        groups.setdefault(curve.group, []).append(curve)
    return groups


MOST_TOLD = 3  # fields of a run that a group is told apart by


def group_names(curves: Sequence[Measured]) -> dict[str, str]:
    """A name for each group: what all its labels say beyond their size, and where that is not enough what else differs.

    Of those whose labels say the same, the one whose table is as it is built in needs no more words.
    """
    groups = by_group(curves)
    names = {group: _labelled(group, members) for group, members in groups.items()}
    alike: dict[str, list[str]] = {}
    for group, name in names.items():
        alike.setdefault(name, []).append(group)
    for name, several in alike.items():
        plain = [group for group in several if (spec := groups[group][0].spec) is not None and as_built_in(spec)]
        apart = _told_apart(name, several, groups) if len(several) > 1 else {}
        names |= {group: told for group, told in apart.items() if plain != [group]}
    return names


def as_built_in(spec: RunSpec) -> bool:
    """Whether a run's table, with its multipliers, is one that is built in."""
    defaults = {role: 2.0 ** float(row.multiplier_log2) for role, row in spec.table.rows.items()}
    same = all(math.isclose(factor, defaults[role]) for role, factor in spec.multipliers.items())
    return same and spec.table == TABLES.get(spec.table.name)


def _labelled(group: str, members: Sequence[Measured]) -> str:
    common = dict(members[0].label)
    for member in members[1:]:
        common = {k: v for k, v in common.items() if member.label.get(k) == v}
    said = {k: v for k, v in common.items() if k not in LABELS_OF_SIZE}
    spec = members[0].spec
    if spec is None:
        return group or "all runs"
    table = said.pop("table", None) or said.pop("parametrization", None) or spec.table.name
    return f"{table} {words(said)}".strip()


def _told_apart(name: str, groups: Sequence[str], members: Mapping[str, Sequence[Measured]]) -> dict[str, str]:
    """By the fields of their runs in which they differ; by a number where runs have none that is known."""
    if any(members[group][0].spec is None for group in groups):
        return {group: name if n == 1 else f"{name} ({n})" for n, group in enumerate(groups, 1)}
    fields = [dict(_leaves(json.loads(group))) for group in groups]
    differ = [
        key
        for key in dict.fromkeys(key for one in fields for key in one)
        if len({str(one.get(key)) for one in fields}) > 1
    ]
    said = [f"{name} {words({key: _told(one.get(key)) for key in differ[:MOST_TOLD]})}" for one in fields]
    many = Counter(said)
    return {
        group: told if many[told] == 1 else f"{told} ({n})"
        for n, (group, told) in enumerate(zip(groups, said, strict=True), 1)
    }


def _told(value: Any) -> str:
    return "none" if value is None else str(value)[:12]


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """Every field of nested values, by its path."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
