"""One directory per run, named by the spec's hash: spec, metrics, checkpoints, record."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nugpt.spec import checks
from nugpt.spec.recipe import load_recipe
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store.atomic import read_json, sync_file, write_bytes, write_json
from nugpt.store.checkpoint import steps_in

SPEC_FILE = "spec.json"
ENDED = ("done", "diverged", "stopped")
DISTRIBUTED = "dcp"  # the folder of checkpoints that many ranks wrote
BESIDE_RUNS = ("plans", "coords", "notes")
# A run's directory, even before its spec; recipes; and what is hidden, as what a kill left half written is.
_OURS = re.compile(r"[0-9a-f]{16}|recommendation(-\d+)?\.json|\..+")
ARCHIVE_FILE = "archive.json"  # what tells an archive of results, which nothing runs in, from a store

_T = TypeVar("_T")


class Store:
    """A directory of run directories."""

    def __init__(self, root: Path, archive: Path | None = None) -> None:
        self.root = root
        self.archive = archive  # the folder of text that it was made from, to be read, for a while

    @property
    def shown(self) -> Path:
        """The folder as the user knows it."""
        return self.archive or self.root

    def run(self, spec: RunSpec) -> RunDirectory:
        """The directory of this run, made if it is new."""
        self.check_runs_here()
        directory = RunDirectory(self.root / spec.hash)
        directory.create(spec)
        return directory

    def check_runs_here(self) -> None:
        """Refuse a file, and an archive: it holds results to read."""
        checks.folder(self.root, "store")
        if self.archive is not None or (self.root / ARCHIVE_FILE).is_file():
            raise ValueError(
                f"{self.shown} is an archive of results, in which nothing runs: `nugpt store merge` takes it to a store"
            )

    def check_is_one(self) -> None:
        """Refuse a folder that holds other things and none of a store's; a new or an empty one may become a store."""
        if self.others() and not self.is_begun():
            raise ValueError(f"{self.root} has files but is no store: give a store, or the name of a new folder")

    def is_begun(self) -> bool:
        """Whether anything of a store's, or of an archive's, is in the folder."""
        kept = any((self.root / part).is_dir() for part in BESIDE_RUNS)
        return kept or (self.root / ARCHIVE_FILE).is_file() or any(self.runs())

    def others(self) -> list[str]:
        """What lies in the folder and is none of a store's."""
        names = sorted(os.listdir(self.root)) if self.root.is_dir() else []
        return [name for name in names if name not in BESIDE_RUNS and not _OURS.fullmatch(name)]

    def find(self, name: str) -> RunDirectory:
        """The run whose hash begins with `name`, or the directory of that path."""
        with contextlib.suppress(OSError, ValueError):  # what cannot be a path may still begin a hash
            if (Path(name) / SPEC_FILE).is_file():
                return RunDirectory(Path(name))
        matches = [run for run in self.runs() if name and run.path.name.startswith(name)]
        if len(matches) != 1:
            what = "no run" if not matches else f"{len(matches)} runs"
            raise ValueError(f"{what} in {self.shown} begins with {name!r}: give a run's directory or its hash")
        return matches[0]

    def runs(self) -> Iterator[RunDirectory]:
        """Every run, by name."""
        if self.root.is_dir():
            yield from (RunDirectory(p) for p in sorted(self.root.iterdir()) if (p / SPEC_FILE).is_file())


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.distributed = path / DISTRIBUTED
        self.metrics = path / "metrics.jsonl"

    def create(self, spec: RunSpec) -> None:
        """Make the directory and write the spec, or check that the one there is the same."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / SPEC_FILE).is_file():
            write_json(self.path / SPEC_FILE, spec.to_dict())
        elif self.spec().hash != spec.hash:
            raise ValueError(f"{self.path / SPEC_FILE} is the spec of another run than its directory's name says")

    def spec(self) -> RunSpec:
        """The run's spec."""
        return _read(self.path / SPEC_FILE, "a run spec", RunSpec.from_dict, f"move {self.path} away")

    def record(self) -> RunRecord | None:
        """The run's record, or none while it is not finished."""
        path = self.path / "record.json"
        if not path.is_file():
            return None
        return _read(path, "a record", RunRecord.from_dict, "move it away")

    def write_record(self, record: RunRecord) -> None:
        """Publish the result: from here on the run is done."""
        write_json(self.path / "record.json", record.to_dict())

    def has_ended(self, as_: Collection[str] = ENDED) -> bool:
        """Whether the run has a record of one of these statuses."""
        record = self.record()
        return record is not None and record.status in as_

    def newest_step(self) -> int:
        """The step of the newest checkpoint by its name, −1 when there is none."""
        return max(steps_in(self.checkpoints), default=-1)

    def without_checkpoint(self, use: str) -> str:
        """That there is none for this use, and what would make one: converting, or a sweep that keeps its own."""
        none = f"run {self.path} has no checkpoint to {use}"
        if any(self.distributed.glob("step-*")):
            return f"{none}: `nugpt convert` makes one of what lies in {DISTRIBUTED}/"
        if self.has_ended(("done",)):
            return f"{none}: a sweep drops those of runs that are done, unless it is given --keep-checkpoints"
        return none

    def drop_checkpoints(self) -> int:
        """Remove the run's checkpoints, distributed ones too, as far as may be, and return the bytes won."""
        folders = (self.checkpoints, self.distributed)
        before = sum(map(_bytes_in, folders))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return before - sum(map(_bytes_in, folders))

    def add_failure(self, error: str, trace: str) -> None:
        """Note a crash: unlike a divergence it is no result, and the run is tried again."""
        line = json.dumps({"time": time.time(), "error": error, "traceback": trace}) + "\n"
        with open(self.path / "failures.jsonl", "a", encoding="utf-8") as file:
            file.write(line)

    def failures(self) -> int:
        """How often the run has crashed."""
        path = self.path / "failures.jsonl"
        return len(path.read_bytes().splitlines()) if path.is_file() else 0

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a small file with the run, such as the tokenizer its tokens came from."""
        if not (self.path / name).is_file():
            write_bytes(self.path / name, content)

    def end_of_text(self) -> str | None:
        """What the tokenizer kept with the run calls the end of a document, None for plain bytes."""
        path = self.path / "data.json"
        about = read_json(path) if path.is_file() else None
        if not isinstance(about, dict) or not isinstance(about.get("end_of_text", 0), str | None):
            raise ValueError(f"{path} does not say which tokenizer the run's data had")
        name: str | None = about["end_of_text"]
        return name

    def append_metrics(self, rows: Iterable[Mapping[str, Any]], sync: bool = True) -> None:
        """Add rows to the metrics, a JSON object a line, forced to disk; without `sync` only by `sync_metrics`."""
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        if text:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                if sync:
                    os.fsync(file.fileno())

    def sync_metrics(self) -> None:
        """Force the rows to disk: before a checkpoint or a record stands for them."""
        if self.metrics.is_file():
            sync_file(self.metrics)

    def read_metrics(self, kinds: Collection[str] | None = None) -> list[dict[str, Any]]:
        """The rows of the metrics (of these kinds alone), a cut-off last line left out."""
        if not self.metrics.is_file():
            return []
        rows = []
        wanted = None if kinds is None else [json.dumps({"kind": kind})[1:-1] for kind in kinds]
        try:
            text = self.metrics.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.metrics}: not rows of metrics: {error}") from None
        for line in text.splitlines():
            if wanted is not None and not any(word in line for word in wanted):
                continue  # parsing them all would take most of a report's time
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows if kinds is None else [row for row in rows if row.get("kind") in kinds]

    def add_measured(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put rows that were measured afterwards among the metrics, by step; those of their kinds are replaced."""
        new = list(rows)
        kinds = {row["kind"] for row in new}
        kept = [row for row in self.read_metrics() if row.get("kind") not in kinds]
        together = sorted([*kept, *new], key=lambda row: row["step"])
        write_bytes(self.metrics, "".join(json.dumps(row, allow_nan=False) + "\n" for row in together).encode())

    def cut_metrics(self, step: int) -> None:
        """Drop what was written after `step` steps: the run goes on from a checkpoint there."""
        rows = [row for row in self.read_metrics() if row["step"] <= step]
        if self.metrics.is_file():
            write_bytes(self.metrics, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def run_of_file(path: Path) -> RunSpec:
    """The run of a recipe, or of a run directory's spec; one that begins with another's weights needs them too."""
    spec = RunDirectory(path.parent).spec() if path.name == SPEC_FILE else load_recipe(path)
    if spec.start is not None:
        raise ValueError(f"the recipe starts from checkpoint {spec.start.hash}, but here runs start from their seed")
    return spec


def _read(path: Path, what: str, make: Callable[[dict[str, Any]], _T], away: str) -> _T:
    """What a run's file says; where it cannot be read, a line with the way out."""
    way = f"; restore it, or {away}: the run can then be done again"
    try:
        values = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}{way}") from None
    try:
        if not isinstance(values, dict):
            raise ValueError(f"not {what}")
        return make(values)
    except checks.OtherVersion as error:  # whole, and no reason to move a result away
        raise ValueError(f"{path}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}{way}") from None
