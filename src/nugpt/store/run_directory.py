"""One directory per run, named by the spec's hash: spec, metrics, checkpoints, record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store.atomic import read_json, write_bytes, write_json


class Store:
    """A directory of run directories."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, spec: RunSpec) -> RunDirectory:
        """The directory of this run, made if it is new."""
        directory = RunDirectory(self.root / spec.hash)
        directory.create(spec)
        return directory

    def find(self, name: str) -> RunDirectory:
        """The run whose hash begins with `name`, or the directory of that path."""
        if (Path(name) / "spec.json").is_file():
            return RunDirectory(Path(name))
        matches = [path for path in self.root.glob(f"{name}*") if (path / "spec.json").is_file()] if name else []
        if len(matches) != 1:
            what = "no run" if not matches else f"{len(matches)} runs"
            raise ValueError(f"{what} in {self.root} begins with {name!r}: give a run's directory or its hash")
        return RunDirectory(matches[0])

    def runs(self) -> Iterator[RunDirectory]:
        """Every run, by name."""
        if self.root.is_dir():
            yield from (RunDirectory(p) for p in sorted(self.root.iterdir()) if (p / "spec.json").is_file())


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    def create(self, spec: RunSpec) -> None:
        """Make the directory and write the spec, or check that the one there is the same."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "spec.json").is_file():
            write_json(self.path / "spec.json", spec.to_dict())
        elif self.spec().hash != spec.hash:
            raise ValueError(f"{self.path / 'spec.json'} is the spec of another run than its directory's name says")

    def spec(self) -> RunSpec:
        """The run's spec."""
        values = read_json(self.path / "spec.json")
        if not isinstance(values, dict):
            raise ValueError(f"{self.path / 'spec.json'}: not a run spec")
        return RunSpec.from_dict(values)

    def record(self) -> RunRecord | None:
        """The run's record, or none while it is not finished."""
        path = self.path / "record.json"
        return RunRecord.from_dict(read_json(path)) if path.is_file() else None

    def write_record(self, record: RunRecord) -> None:
        """Publish the result: from here on the run is done."""
        write_json(self.path / "record.json", record.to_dict())

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep a small file with the run, such as the tokenizer its tokens came from."""
        if not (self.path / name).is_file():
            write_bytes(self.path / name, content)

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to the metrics, a JSON object a line, forced to disk."""
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        if text:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of the metrics, a cut-off last line left out."""
        if not self.metrics.is_file():
            return []
        rows = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def cut_metrics(self, step: int) -> None:
        """Drop what was written after `step` steps: the run goes on from a checkpoint there."""
        rows = [row for row in self.read_metrics() if row["step"] <= step]
        if self.metrics.is_file():
            write_bytes(self.metrics, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
