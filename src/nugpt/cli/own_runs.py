"""A table of the user's own runs, a CSV or JSONL file, as curves: which column is what, and what its cells mean."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.cli.show import counted, flat
from nugpt.cli.store import check_unpacked

if TYPE_CHECKING:
    from nugpt.fit.measured import Measured, OwnRun

# Words of a status column, in lower case; W&B writes finished, running, crashed, failed and killed.
DONE = ("done", "finished", "completed", "success")
NOT_ENDED = ("running", "pending", "crashed", "failed", "killed", "preempted", "preempting")
DIVERGED = ("diverged", "nan", "inf", "+inf", "-inf", "infinity", "-infinity")
MISSING = ("", "none", "null", "-")


@dataclass(frozen=True)
class RunColumns:
    """A table of the user's own runs: which column is what."""

    lr_column: str | None = None
    """Learning rates; by default the column lr."""
    loss_column: str | None = None
    """Final losses, by default the column loss; NaN, infinity and `diverged` count as diverged, an empty cell as no
    result."""
    seed_column: str | None = None
    """Seeds, which pair runs across learning rates; without it repeated learning rates count as seeds, in order."""
    group_column: str | None = None
    """What is compared, such as tables or architectures; without it all runs belong together."""
    status_column: str | None = None
    """How runs ended, as W&B's State; those that did not end are left out."""

    def named(self) -> dict[str, str]:
        """What each column is → its name, for those that are given or needed."""
        given = {key.removesuffix("_column"): value for key, value in self.given().items()}
        return {"lr": "lr", "loss": "loss", **given}

    def given(self) -> dict[str, str]:
        """The options that are given."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def sizes(self, there: Sequence[str]) -> dict[str, str]:
        """What grows, by the name that its curves have → its column, of a file with these columns."""
        return {}

    def meant(self) -> dict[str, str]:
        """A column that likely is something, by its name's last part, and the option that would say so."""
        told = {"seed": "seed", "table": "group", "parametrization": "group", "method": "group", "group": "group"}
        told |= {"status": "status", "state": "status"}
        return {name: what for name, what in told.items() if what not in self.named()}


@dataclass(frozen=True)
class Columns(RunColumns):
    """With one column of sizes, whatever it is that grows."""

    size_column: str | None = None
    """What grows: width, layers, steps. Without it all runs are of one size."""

    def sizes(self, there: Sequence[str]) -> dict[str, str]:
        """By the column's own name."""
        return {} if self.size_column is None else {self.size_column: self.size_column}

    def meant(self) -> dict[str, str]:
        """Sizes too: without an option for it, a second one goes with the group."""
        names = ("d_model", "width", "n_layers", "layers", "depth", "n_heads", "heads", "steps", "batch")
        return super().meant() | dict.fromkeys(names, "size" if self.size_column is None else "group")


@dataclass(frozen=True)
class ModelColumns(RunColumns):
    """Of a file of your own runs: which column is what. A size that no column says is that of --base."""

    width_column: str | None = None
    """d_model of each run; by default the column d_model, if there is one."""
    layers_column: str | None = None
    """Blocks of each run; by default the column n_layers, if there is one."""
    heads_column: str | None = None
    """Query heads of each run; by default the column n_heads, if there is one, else d_model over --base-head-dim."""
    head_dim_column: str | None = None
    """Dimension of a head, which must be the base's; by default the column head_dim, if there is one."""
    d_mlp_column: str | None = None
    """Hidden dimension of the MLP of each run; by default the column d_mlp, if there is one."""
    steps_column: str | None = None
    """Iterations of each run; by default the column steps, if there is one, else --base-steps."""
    batch_column: str | None = None
    """Sequences per step of each run; by default the column batch, if there is one, else --base-batch."""

    def sizes(self, there: Sequence[str]) -> dict[str, str]:
        """By the names of a run's fields; a column of that very name need not be named."""
        named = {"d_model": self.width_column, "n_layers": self.layers_column}
        named |= {"n_heads": self.heads_column, "head_dim": self.head_dim_column, "d_mlp": self.d_mlp_column}
        named |= {"steps": self.steps_column, "batch": self.batch_column}
        return {name: column or name for name, column in named.items() if column is not None or name in there}

    def meant(self) -> dict[str, str]:
        """Sizes too, such as config.d_model, which is not read by its last part."""
        told = {"d_model": "width", "width": "width", "n_layers": "layers", "layers": "layers", "depth": "layers"}
        told |= {"n_heads": "heads", "heads": "heads", "steps": "steps", "batch": "batch"}
        return super().meant() | {name: what for name, what in told.items() if what not in self.named()}


def read_table(path: Path, columns: RunColumns) -> tuple[list[Measured], list[str]]:
    """The curves of a file of runs, and what there is to say about rows that do not count by themselves."""
    from nugpt.fit.measured import own_curves

    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    check_unpacked(path)
    if path.suffix not in readers:
        raise ValueError(f"{path} ends in {path.suffix!r}, but must be a .csv or .jsonl file, or a store's directory")
    rows = list(readers[path.suffix](path))
    if not rows:
        raise ValueError(f"{path} has no rows")
    named, there = columns.named(), list(dict.fromkeys(key for _, row in rows for key in row))
    for what, name in named.items():
        if name not in there:
            raise ValueError(f"{what} column is {name!r}, but {path} has the columns {', '.join(there)}")
    sizes, left_out = columns.sizes(there), Counter[str]()
    if "seed" not in named:
        rows, left_out["repeated"] = _without_copies(rows)
    seeds: dict[str, int] = {}
    read = (_own_run(row, named, sizes, seeds, left_out, f"{path}:{where}") for where, row in rows)
    runs = [run for run in read if run is not None]
    if not runs:
        raise ValueError(f"{path}: no row has a result ({', '.join(f'{n} {why}' for why, n in left_out.items() if n)})")
    notes = [f"left out: {count} {why}" for why, count in left_out.items() if count]
    notes += _unread(there, rows, columns, {*named.values(), *sizes.values()})
    if "seed" in named:
        runs, told = _without_repeats(runs)
        notes += told
    else:
        runs = _numbered(runs)
    return own_curves(runs, named.get("group", "group")), notes


def _unread(
    there: Sequence[str], rows: Sequence[tuple[int, Mapping[str, str]]], columns: RunColumns, read: set[str]
) -> list[str]:
    """Columns that tell rows apart, by what they hold and what they are called, and that nobody named."""
    meant = columns.meant()
    found = []
    for name in there:
        what = meant.get(name.lower().split(".")[-1].split("/")[-1])
        values = {row.get(name, "").strip() for _, row in rows}
        if what is not None and name not in read and len(values) > 1:
            way = f" (--{what}-column {name} reads it)" if what not in columns.named() else ""
            found.append(f"not read: column {name}, of {len(values)} values{way}")
    return found


def _without_copies(rows: list[tuple[int, dict[str, str]]]) -> tuple[list[tuple[int, dict[str, str]]], int]:
    """Without seeds, a row that says the same as another in every column is no second seed; and how many those are."""
    once: dict[frozenset[tuple[str, str]], tuple[int, dict[str, str]]] = {}
    for where, row in rows:
        once.setdefault(frozenset(row.items()), (where, row))
    return list(once.values()), len(rows) - len(once)


def _without_repeats(runs: Sequence[OwnRun]) -> tuple[list[OwnRun], list[str]]:
    """Rows that say the same twice count once; what else has the same learning rate and seed is averaged by the fit."""
    once = list(dict.fromkeys(runs))
    notes = [f"left out: {len(runs) - len(once)} repeated"] if len(once) < len(runs) else []
    again = len(once) - len({(run.group, run.sizes, run.lr, run.seed) for run in once})
    if again:
        notes.append(f"averaged: {again} with the learning rate and seed of another row")
    return once, notes


def _numbered(runs: Sequence[OwnRun]) -> list[OwnRun]:
    """Without seeds, the first run at each learning rate is of one seed, the second of another."""
    seen: Counter[tuple[object, ...]] = Counter()
    found = []
    for run in runs:
        place = (run.group, run.sizes, run.lr)
        found.append(replace(run, seed=seen[place]))
        seen[place] += 1
    return found


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row by its columns' names; one that does not fit the header is refused, since its cells may have shifted."""
    at = 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            closed = (re.sub(r'"[ \t]+(?=,|\r?$)', '"', line) for line in file)  # blanks before a comma, as after one
            reader = csv.reader(closed, skipinitialspace=True, strict=True)
            header: list[str] | None = None
            for cells in reader:
                if "".join(cells).strip() or len(cells) > 1:  # no blank line
                    if header is None:
                        header = _header([cell.strip() for cell in cells], f"{path}:{at}")
                    else:
                        _check_cells(cells, len(header), f"{path}:{at}")
                        yield at, dict(zip(header, cells, strict=True))
                at = reader.line_num + 1
    except csv.Error as error:
        way = "a quote in its row is not closed" if "end of data" in str(error) else error
        raise ValueError(f"{path}:{at}: not a CSV file: {way}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8: {error}") from None


def _header(names: list[str], where: str) -> list[str]:
    """The columns' names; those without one cannot be asked for, and may be several."""
    for mark in (";", "\t"):
        if len(names) == 1 and mark in names[0]:
            way = "by commas, and numbers written with a point"
            raise ValueError(f"{where}: the header {names[0][:40]!r} is separated by {mark!r}, but cells must be {way}")
    for name, count in Counter(names).items():
        if name and count > 1:
            raise ValueError(f"{where}: the header names the column {name!r} {count} times, but each must have its own")
    return names


def _check_cells(cells: list[str], columns: int, where: str) -> None:
    if len(cells) != columns:
        way = "quote a cell that has a comma" if len(cells) > columns else "leave a cell empty, but keep its comma"
        found = f"the row {','.join(cells)[:40]!r} has {counted(len(cells), 'cell')}"
        raise ValueError(f"{where}: {found}, but the header has {counted(columns, 'column')}: {way}")


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """One object a line; the fields of objects inside it are named with dots, as config.lr."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text inside may have other ends of lines
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from None
    for i, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{i}: not a JSON object on one line: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{i}: {line.strip()[:40]!r} is not a JSON object")
            yield i, {name: "" if value is None else str(value) for name, value in flat(row)}


def _own_run(
    row: Mapping[str, str],
    named: Mapping[str, str],
    sizes: Mapping[str, str],
    seeds: dict[str, int],
    left_out: Counter[str],
    where: str,
) -> OwnRun | None:
    """The run of one row; none where it has no result, which is counted."""
    from nugpt.fit.measured import OwnRun

    cells = {what: row.get(name, "").strip() for what, name in named.items()}
    status = _status(cells.get("status", "done").lower(), f"{where}: {named.get('status')}")
    loss = cells["loss"].lower()
    if status is None:
        left_out["did not end"] += 1
        return None
    if loss in DIVERGED or (loss in MISSING and status == "diverged"):
        status = "diverged"
    elif loss in MISSING and status == "done":
        left_out["without a loss"] += 1
        return None
    if cells["lr"].lower() in MISSING:
        left_out["without a learning rate"] += 1
        return None
    return OwnRun(
        lr=_positive(cells["lr"], f"{where}: {named['lr']}"),
        loss=_float(loss, f"{where}: {named['loss']}") if status == "done" else None,
        seed=seeds.setdefault(cells.get("seed", ""), len(seeds)),
        sizes=tuple((name, _positive(row.get(at, "").strip(), f"{where}: {at}")) for name, at in sizes.items()),
        group=cells.get("group", ""),
        status=status,
    )


def _status(word: str, where: str) -> str | None:
    if word in DONE:
        return "done"
    if word in ("diverged", "stopped"):
        return word
    if word in NOT_ENDED:
        return None
    raise ValueError(f"{where} is {word!r}, but must be one of {', '.join((*DONE, 'diverged', 'stopped', *NOT_ENDED))}")


def _float(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where} is {text!r}, but must be a number") from None


def _positive(text: str, where: str) -> float:
    value = _float(text, where)
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{where} is {text!r}, but must be a number above 0")
    return value
