"""Moving results: records and metrics of a store as one small file, merged into another without loss or doubt."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nugpt.spec.plan import Plan
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store.atomic import check_writable, write_bytes
from nugpt.store.claims import claim
from nugpt.store.coords import coords_of, coords_path, read_coords
from nugpt.store.plans import PlanDirectory, additions_of, plans
from nugpt.store.run_directory import RunDirectory, Store

RUN_FILES = ("spec.json", "record.json", "metrics.jsonl", "data.json")
# Of one file in a pack, and of all together: a stranger's file can fill neither memory nor disk unseen.
MOST_BYTES, MOST_BYTES_TOGETHER = 256 << 20, 4 << 30
ENDED_FOR_GOOD = ("done", "diverged")  # a stopped run may be taken up again
STALE_AFTER = 300.0  # seconds without a heartbeat after which a run is not under way any more
_RUN_MEMBER = re.compile(rf"([0-9a-f]{{16}})/({'|'.join(map(re.escape, RUN_FILES))})")
_PLAN_MEMBER = re.compile(r"plans/([A-Za-z0-9][A-Za-z0-9._-]{0,99})/(plan\.json|added/[A-Za-z0-9_+.-]+\.json)")
_COORDS_MEMBER = re.compile(r"coords/([A-Za-z0-9][A-Za-z0-9._-]{0,99})\.json")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Merged:
    """What a merge did: run by run, and the names of those that it left alone because they disagree."""

    added: int
    same: int
    conflicts: tuple[str, ...]


def pack(store: Store, file: Path) -> int:
    """Write every ended run's spec, record and metrics, every plan and coordinate check, to one new compressed file."""
    if file.exists():
        raise ValueError(f"{file} exists: choose another name")
    if not file.parent.is_dir():
        raise ValueError(f"{file.parent} is no directory: make it, or choose another place for {file.name}")
    check_writable(file.parent, "the folder of file")
    members = dict(members_of(store))
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


def members_of(store: Store) -> Iterator[tuple[str, bytes]]:
    """What a pack holds of a store: names in it, and contents."""
    for run in store.runs():
        if run.has_ended():
            for name in RUN_FILES:
                if (run.path / name).is_file():
                    content = (run.path / name).read_bytes()
                    if name == "metrics.jsonl":
                        _check_rows(str(run.metrics), content)
                    yield f"{run.path.name}/{name}", content
    for directory in plans(store):  # without how it was launched: that is this machine's
        directory.plan(), directory.additions()  # what a merge would refuse is refused here, by the file's name
        for path in (directory.path / "plan.json", *sorted((directory.path / "added").glob("*.json"))):
            yield path.relative_to(store.root).as_posix(), path.read_bytes()
    read_coords(store)
    for path in sorted((store.root / "coords").glob("*.json")):
        yield path.relative_to(store.root).as_posix(), path.read_bytes()


def merge(file: Path, store: Store) -> Merged:
    """Add the runs, plans and checks of a pack or archive; what is there already stays, and a disagreement is named.

    A run that was stopped here and ended elsewhere is no disagreement: its end is taken over.
    """
    packed = read_pack(file)  # all of it is checked before anything is written
    added = same = 0
    conflicts = []
    for name, theirs in sorted(packed.runs.items()):
        run = RunDirectory(store.root / name)
        ours = run.record()
        if ours is not None and goes_on(theirs.record, ours):
            same += 1
        elif ours is not None and result_of(ours) == result_of(theirs.record):
            _add_measured(run, theirs)
            same += 1
        elif ours is not None and not goes_on(ours, theirs.record):
            conflicts.append(f"{name}: {result_words(ours)} here, {result_words(theirs.record)} in {file.name}")
        elif (ours is None and run.newest_step() >= 0) or not _add_run(run, theirs):
            conflicts.append(f"{name}: under way here, {result_words(theirs.record)} in {file.name}")
        else:
            added += 1
    for name, files in sorted(packed.plans.items()):
        conflicts += _add_plan(PlanDirectory(store.root / "plans" / name), files)
    for name, content in sorted(packed.coords.items()):
        path = coords_path(store, name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        elif json.loads(path.read_bytes()) != json.loads(content):
            conflicts.append(f"coords/{name}: another check of the same name")
    return Merged(added, same, tuple(conflicts))


def _add_run(run: RunDirectory, theirs: PackedRun) -> bool:
    """Write a run that has begun nowhere here or was stopped here; False when a worker has just taken it."""
    run.create(theirs.spec)
    held = claim(run, STALE_AFTER, ENDED_FOR_GOOD)
    if held is None:
        return False
    for member in ("metrics.jsonl", "data.json", "record.json"):  # the record last: it says that the run is whole
        if member in theirs.files and not (member == "data.json" and (run.path / member).is_file()):
            write_bytes(run.path / member, theirs.files[member])
    held.finish()
    return True


def _add_measured(run: RunDirectory, theirs: PackedRun) -> None:
    """Take over what was measured of the same run elsewhere and never here; what is here stays."""
    here = {row.get("kind") for row in run.read_metrics()}
    new = [row for row in rows_of(theirs.files.get("metrics.jsonl", b"")) if row.get("kind") not in (None, *here)]
    if new:
        run.add_measured(new)


def _add_plan(ours: PlanDirectory, files: Mapping[str, bytes]) -> list[str]:
    """Add a plan, or what was added to its grid elsewhere, and return the disagreements."""
    theirs = Plan.from_dict(json.loads(files["plan.json"]))
    if (ours.path / "plan.json").is_file() and ours.plan().hash != theirs.hash:
        return [f"plans/{ours.path.name}: another plan of the same name"]
    conflicts = []
    for name, content in sorted(files.items()):
        path = ours.path / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        elif name != "plan.json" and json.loads(path.read_bytes()) != json.loads(content):
            conflicts.append(f"plans/{ours.path.name}/{name}: other points were added here")
    return conflicts


def result_of(record: RunRecord) -> tuple[object, ...]:
    """What two records of one run must agree in."""
    return record.status, record.steps, record.val_loss


def goes_on(ours: RunRecord, theirs: RunRecord) -> bool:
    """Whether a run that was stopped in the one was taken up again and came to its end in the other."""
    return ours.status == "stopped" and theirs.status in ENDED_FOR_GOOD and theirs.steps > ours.steps


def result_words(record: RunRecord) -> str:
    """The result, for a line that names a disagreement."""
    return f"{record.status}, validation loss {record.val_loss}"


@dataclass(frozen=True)
class PackedRun:
    """A run that has ended."""

    spec: RunSpec
    record: RunRecord
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Pack:
    """What was packed of a store, checked."""

    runs: dict[str, PackedRun] = field(default_factory=dict)
    plans: dict[str, dict[str, bytes]] = field(default_factory=dict)
    coords: dict[str, bytes] = field(default_factory=dict)


def read_pack(file: Path) -> Pack:
    """The runs by hash, plans and checks by name, of a pack or an archive; what is not of that form is refused."""
    from nugpt.store.archive import archive_members, is_archive

    if is_archive(file):
        return checked(file, archive_members(file))
    if file.is_dir():
        raise ValueError(f"{file} is a folder and no archive of a store: it has no archive.json")
    try:
        return checked(file, _read_members(file))
    except FileNotFoundError:
        raise ValueError(f"{file} does not exist: give what `nugpt store pack` made") from None
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{file} is not a whole pack of a store: {error}") from None


def pack_of(store: Store) -> Pack:
    """The store as if it had been packed and read back."""
    return checked(store.root, members_of(store))


def checked(file: Path, members: Iterable[tuple[str, bytes]]) -> Pack:
    """Runs, plans and checks of these members, each a name in a store and its content."""
    runs: dict[str, dict[str, bytes]] = {}
    packed = Pack()
    for name, content in members:
        of_run, of_plan = _RUN_MEMBER.fullmatch(name), _PLAN_MEMBER.fullmatch(name)
        if of_run:
            runs.setdefault(of_run[1], {})[of_run[2]] = content
        elif of_plan:
            packed.plans.setdefault(of_plan[1], {})[of_plan[2]] = content
        elif of_coords := _COORDS_MEMBER.fullmatch(name):
            packed.coords[of_coords[1]] = content
        else:
            raise ValueError(f"{file}: member {name!r} is not of a store's form")
    for name, files in runs.items():
        packed.runs[name] = _packed_run(file, name, files)
    for name, files in packed.plans.items():
        if "plan.json" not in files:
            raise ValueError(f"{file}: plan {name} lacks its plan.json")
        for member, content in files.items():
            where = f"{file}: plans/{name}/{member}"
            values = _json(content, where)
            if member != "plan.json":
                additions_of(where, values)
            elif _named(where, Plan.from_dict, values).name != name:
                raise ValueError(f"{where} is a plan of another name")
    for name, content in packed.coords.items():
        where = f"{file}: coords/{name}.json"
        if coords_of(where, _json(content, where)).get("name") != name:
            raise ValueError(f"{where} is a check of another name")
    return packed


def _read_members(file: Path) -> Iterator[tuple[str, bytes]]:
    together = 0
    with gzip.open(file) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
        for member in archive:
            if not member.isfile():
                raise ValueError(f"{file}: member {member.name!r} is not of a store's form")
            together += member.size
            if member.size > MOST_BYTES or together > MOST_BYTES_TOGETHER:
                raise ValueError(f"{file}: member {member.name!r} has {member.size:,} bytes, which is too much")
            stream = archive.extractfile(member)
            assert stream is not None
            yield member.name, stream.read()
        # tarfile takes a file that was cut off between two members for a whole one; gzip's checksum does not.
        while unpacked.read(1 << 20):
            pass


def _packed_run(file: Path, name: str, files: Mapping[str, bytes]) -> PackedRun:
    """A run of the pack, its spec and record checked against its name."""
    if not {"spec.json", "record.json"} <= set(files):
        raise ValueError(f"{file}: run {name} lacks its spec or its record")
    where = {member: f"{file}: {name}/{member}" for member in files}
    values = {member: _json(files[member], where[member]) for member in ("spec.json", "record.json")}
    spec = _named(where["spec.json"], RunSpec.from_dict, values["spec.json"])
    record = _named(where["record.json"], RunRecord.from_dict, values["record.json"])
    for member, found in (("spec.json", spec.hash), ("record.json", record.hash)):
        if found != name:
            raise ValueError(f"{where[member]} is of run {found}")
    if "metrics.jsonl" in files:
        _check_rows(where["metrics.jsonl"], files["metrics.jsonl"])
    return PackedRun(spec, record, files)


def _json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where}: not a whole JSON document: {error}") from None


def rows_of(content: bytes) -> list[dict[str, Any]]:
    """The rows of packed metrics, a cut-off last line left out."""
    rows = []
    lines = content.decode("utf-8").splitlines()
    for i, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            if i == len(lines) and not content.endswith(b"\n"):
                break
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(f"line {i} is no row of metrics")
        rows.append(row)
    return rows


def _check_rows(where: str, content: bytes) -> None:
    try:
        rows_of(content)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _named(where: str, read: Callable[[Any], _T], values: Any) -> _T:
    """What these values describe, or a line that says where they stand."""
    try:
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return read(values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def prune(store: Store, keep: frozenset[str] = frozenset(), only: frozenset[str] | None = None) -> int:
    """Drop the checkpoints of ended runs (of `only` these) but those to keep, and return the bytes won."""
    runs = [run for run in prunable(store, keep) if only is None or run.path.name in only]
    return sum(run.drop_checkpoints() for run in runs)


def prunable(store: Store, keep: frozenset[str] = frozenset()) -> list[RunDirectory]:
    """The ended runs, but those to keep, that have checkpoints; a stopped one needs its own to be taken up again."""
    runs = (run for run in store.runs() if run.path.name not in keep and run.has_ended(ENDED_FOR_GOOD))
    return [run for run in runs if run.checkpoints.exists() or run.distributed.exists()]
