"""Moving results: records and metrics of a store as one small file, merged into another without loss or doubt."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store.atomic import write_bytes
from nugpt.store.run_directory import RunDirectory, Store

RUN_FILES = ("spec.json", "record.json", "metrics.jsonl", "data.json")
MOST_BYTES = 256 << 20  # of one file in a pack: a stranger's file cannot fill the disk unseen


@dataclass(frozen=True)
class Merged:
    """What a merge did: run by run, and the names of those that it left alone because they disagree."""

    added: int
    same: int
    conflicts: tuple[str, ...]


def pack(store: Store, file: Path) -> int:
    """Write every ended run's spec, record and metrics, and every plan, to one new compressed file."""
    if file.exists():
        raise ValueError(f"{file} exists: choose another name")
    members = dict(_members(store))
    if not members:
        raise ValueError(f"store {store.root} has no ended run to pack")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in sorted(members.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    write_bytes(file, buffer.getvalue())
    return sum(name.endswith("/record.json") for name in members)


def _members(store: Store) -> Iterator[tuple[str, bytes]]:
    for run in store.runs():
        if run.has_ended():
            for name in RUN_FILES:
                if (run.path / name).is_file():
                    yield f"{run.path.name}/{name}", (run.path / name).read_bytes()
    for path in sorted((store.root / "plans").rglob("*.json")):
        yield path.relative_to(store.root).as_posix(), path.read_bytes()


def merge(file: Path, store: Store) -> Merged:
    """Add a pack's runs and plans to the store; what is there already stays, and a disagreement is named."""
    runs, plans = _read_pack(file)
    added = same = 0
    conflicts = []
    for name, files in sorted(runs.items()):
        run = RunDirectory(store.root / name)
        spec = RunSpec.from_dict(json.loads(files["spec.json"]))
        if spec.hash != name:
            raise ValueError(f"{file}: the spec in {name} is that of run {spec.hash}")
        theirs = RunRecord.from_dict(json.loads(files["record.json"]))
        ours = run.record()
        if ours is not None:
            if _result(ours) == _result(theirs):
                same += 1
            else:
                conflicts.append(f"{name}: {_words(ours)} here, {_words(theirs)} in {file.name}")
            continue
        if (run.path / "spec.json").is_file() and run.newest_step() >= 0:
            conflicts.append(f"{name}: under way here, {_words(theirs)} in {file.name}")
            continue
        run.create(spec)
        for member in ("metrics.jsonl", "data.json", "record.json"):  # the record last: it says that the run is whole
            if member in files:
                write_bytes(run.path / member, files[member])
        added += 1
    for name, content in sorted(plans.items()):
        path = store.root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        elif path.read_bytes() != content and path.name == "plan.json":
            conflicts.append(f"{name}: another plan of the same name")
    return Merged(added, same, tuple(conflicts))


def _result(record: RunRecord) -> tuple[object, ...]:
    """What two records of one run must agree in."""
    return record.status, record.steps, record.val_loss


def _words(record: RunRecord) -> str:
    return f"{record.status}, validation loss {record.val_loss}"


def _read_pack(file: Path) -> tuple[dict[str, dict[str, bytes]], dict[str, bytes]]:
    """The pack's files by run, and its plans' by path; anything that is not of that form is refused."""
    runs: dict[str, dict[str, bytes]] = {}
    plans: dict[str, bytes] = {}
    try:
        with tarfile.open(file, mode="r:gz") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                if not member.isfile() or member.size > MOST_BYTES or ".." in parts or member.name.startswith("/"):
                    raise ValueError(f"{file}: member {member.name!r} is not of a store's form")
                stream = archive.extractfile(member)
                assert stream is not None
                content = stream.read()
                if parts[0] == "plans" and parts[-1].endswith(".json"):
                    plans[member.name] = content
                elif len(parts) == 2 and parts[1] in RUN_FILES:
                    runs.setdefault(parts[0], {})[parts[1]] = content
                else:
                    raise ValueError(f"{file}: member {member.name!r} is not of a store's form")
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{file} is not a whole pack of a store: {error}") from None
    for name, files in runs.items():
        if not {"spec.json", "record.json"} <= set(files):
            raise ValueError(f"{file}: run {name} lacks its spec or its record")
    return runs, plans


def prune(store: Store, keep: frozenset[str] = frozenset()) -> int:
    """Drop the checkpoints of ended runs but those named, and return the bytes won; stopped runs keep theirs."""
    won = 0
    for run in store.runs():
        if run.path.name in keep or not run.has_ended(("done", "diverged")) or not run.checkpoints.is_dir():
            continue
        won += sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
        shutil.rmtree(run.checkpoints)
    return won
