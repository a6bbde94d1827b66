"""A store's results as a folder of plain text that belongs beside code: records, plans and what was measured.

    archive.json             says what the folder is
    shared.jsonl             what lines share (specs but for learning rate and seed, tables, ways of carrying, data
                             sets), each once, by the hash of what it says
    plans/NAME.jsonl         a line for the plan, for each of its curves, and for whatever was added to its grid
    runs/D.jsonl             a line for each ended run whose hash begins with that digit, by hash: no file grows large
    coords/NAME.json         coordinate checks

The same results give the same bytes, and more of them more lines. Nothing says where on which machine they were made.
Of the metrics it keeps what answers are made from: ten validations, LERP means and spreads, alignment exponents, to six
digits; training losses and the LERP course block by block stay behind. Records are kept to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nugpt.spec import checks
from nugpt.store.atomic import read_json, write_bytes
from nugpt.store.run_directory import ARCHIVE_FILE, Store
from nugpt.store.transfer import Merged, Pack, PackedRun, goes_on, pack_of, read_pack, result_of, result_words, rows_of

FORMAT = 1
HEAD = {"archive": "results of a nugpt store", "format": FORMAT}
SHARED_FILE = "shared.jsonl"
VALIDATIONS = 10  # of a run that are kept, evenly spaced, the last among them
DIGITS = 6  # that matter, of what was measured
KINDS = ("validation", "lerp", "alignment")  # of metrics
_BLOCKS = ("mean_by_block", "std_by_block")  # of the LERP course; those at the end are in the record
_MACHINE = ("data", "path")  # keys whose values are places of a machine
_PLACE = re.compile(r"(/|~|\\|[A-Za-z]:\\).*", re.S)  # what an absolute path looks like
_OF_RUN = ("threads", "compile", "replicas", "device_s", "measured", "measured_s", "peak_memory_bytes", "tokens_per_s")


@dataclass
class _Contents:
    """An archive as values."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # by hash: spec, record, metrics by kind, data
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name: plan, added
    coords: dict[str, Any] = field(default_factory=dict)


def is_archive(path: Path) -> bool:
    """Whether the folder says of itself that it is one."""
    return (path / ARCHIVE_FILE).is_file()


def pack_folder(store: Store, folder: Path) -> Merged:
    """Add a store's ended runs, plans and checks to the archive; nothing there is lost, and a disagreement is named."""
    here = _Contents()
    if is_archive(folder):
        here = _contents(read_pack(folder))
    elif folder.exists() and (not folder.is_dir() or any(not _may_stand_in_new(path) for path in folder.iterdir())):
        raise ValueError(f"{folder} exists and is no archive of a store: choose another name")
    theirs = _contents(pack_of(store))
    if not theirs.runs and not theirs.plans:
        raise ValueError(f"store {store.root} has no ended run and no plan to pack")
    merged = _combine(here, theirs)
    _write(here, folder)
    return merged


def _may_stand_in_new(path: Path) -> bool:
    """Whether a folder with this in it may become an archive: notes, and what a write that was killed left behind."""
    return path.name == "notes" or re.fullmatch(r"\.archive\.json\..*\.tmp", path.name) is not None


def merge_folder(file: Path, folder: Path) -> Merged:
    """The same with what was packed elsewhere: a pack or another archive."""
    here = _contents(read_pack(folder))
    merged = _combine(here, _contents(read_pack(file)))
    _write(here, folder)
    return merged


def write_empty(folder: Path) -> None:
    """An archive that holds nothing yet."""
    _write(_Contents(), folder)


def archive_members(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a store that the archive stands for: their names, and their contents."""
    head = read_json(folder / ARCHIVE_FILE)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"{folder / ARCHIVE_FILE}: not an archive of a form that this version reads")
    shared = {line["key"]: line["value"] for line in _lines(folder / SHARED_FILE, ("key", "value"))}
    for path in sorted((folder / "runs").glob("*.jsonl")):
        for line in _lines(path, ("spec", "record")):
            yield from _run_members(path, line, shared)
    for path in sorted((folder / "plans").glob("*.jsonl")):
        yield from _plan_members(path, shared)
    for path in sorted((folder / "coords").glob("*.json")):
        yield f"coords/{path.name}", path.read_bytes()


# ── from a store to values ──


def _contents(packed: Pack) -> _Contents:
    """What is kept of a pack."""
    found = _Contents()
    for name, run in packed.runs.items():
        found.runs[name] = _run(run)
    for name, files in packed.plans.items():
        added = {key.removeprefix("added/"): json.loads(text) for key, text in files.items() if key != "plan.json"}
        found.plans[name] = {"plan": json.loads(files["plan.json"]), "added": added}
    found.coords = {name: _without_places(json.loads(content)) for name, content in packed.coords.items()}
    return found


def _run(run: PackedRun) -> dict[str, Any]:
    record = json.loads(run.files["record.json"])
    record["carried_by"] = _without_places(record["carried_by"])
    rows = rows_of(run.files.get("metrics.jsonl", b""))
    kept = {kind: _thinned(kind, [row for row in rows if row.get("kind") == kind], run.spec.steps) for kind in KINDS}
    about = _without_places(json.loads(run.files["data.json"])) if "data.json" in run.files else None
    spec = json.loads(run.files["spec.json"])
    return {"spec": spec, "record": record, "metrics": {k: v for k, v in kept.items() if v}, "data": about}


def _without_places(value: Any) -> Any:
    """The same without anything that is a place of the machine that it was made on."""
    if isinstance(value, Mapping):
        kept = {key: one for key, one in value.items() if key not in _MACHINE and not _is_place(one)}
        return {key: _without_places(one) for key, one in kept.items()}
    if isinstance(value, list):
        return [_without_places(one) for one in value if not _is_place(one)]
    return value


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and _PLACE.fullmatch(value) is not None


def _thinned(kind: str, rows: Sequence[Mapping[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The rows of a kind that are kept, to so many digits; doing it twice changes nothing."""
    by_step = {row["step"]: row for row in rows}
    if kind == "validation":
        asked = [k * steps / VALIDATIONS for k in range(1, VALIDATIONS + 1)]
        later = [[step for step in by_step if step >= at] for at in asked]
        by_step = {step: by_step[step] for step in {min(steps) for steps in later if steps} | {*sorted(by_step)[-1:]}}
    return [_rounded(by_step[step]) for step in sorted(by_step)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items() if key not in _BLOCKS}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _combine(here: _Contents, theirs: _Contents) -> Merged:
    """Add what is new; what is here stays, but for runs that had been stopped and have gone on to their end."""
    from nugpt.spec.record import RunRecord

    added = same = 0
    conflicts = []
    for name, run in sorted(theirs.runs.items()):
        if name not in here.runs:
            here.runs[name] = run
            added += 1
            continue
        ours, other = (RunRecord.from_dict(one["record"]) for one in (here.runs[name], run))
        if goes_on(ours, other):
            here.runs[name] = run
            added += 1
            continue
        if goes_on(other, ours):
            same += 1
            continue
        if result_of(ours) != result_of(other):
            conflicts.append(f"{name}: {result_words(ours)} in the archive, {result_words(other)} in the store")
            continue
        here.runs[name]["metrics"] = {**run["metrics"], **here.runs[name]["metrics"]}
        same += 1
    for name, plan in sorted(theirs.plans.items()):
        ours_plan = here.plans.setdefault(name, plan)
        if ours_plan["plan"] != plan["plan"]:
            conflicts.append(f"plans/{name}: another plan of the same name")
            continue
        for key, points in sorted(plan["added"].items()):
            if ours_plan["added"].setdefault(key, points) != points:
                conflicts.append(f"plans/{name}/added/{key}: other points were added in the archive")
    for name, check in sorted(theirs.coords.items()):
        if here.coords.setdefault(name, check) != check:
            conflicts.append(f"coords/{name}: another check of the same name")
    return Merged(added, same, tuple(conflicts))


# ── from values to files ──


def _write(contents: _Contents, folder: Path) -> None:
    """All files of the archive; others in the folder, such as notes, stay.

    Whenever this is cut short, what is there can be read: a line is written after what it names.
    """
    checks.folder(folder, "archive")
    shared: dict[str, Any] = {}

    def key_of(value: Any) -> str:
        key = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
        shared[key] = value
        return key

    files: dict[str, list[str]] = {}
    for name in sorted(contents.runs):
        run = contents.runs[name]
        files.setdefault(f"runs/{name[0]}.jsonl", []).append(_line(_run_line(run, key_of)))
    for name, plan in contents.plans.items():
        curves = [{**curve, "spec": _spec_line(curve["spec"], key_of)} for curve in plan["plan"]["curves"]]
        head = {key: value for key, value in plan["plan"].items() if key != "curves"}
        lines = [{"plan": head, "curves": len(curves)}, *({"curve": curve} for curve in curves)]
        lines += [{"added": key, "points": plan["added"][key]} for key in sorted(plan["added"])]
        files[f"plans/{name}.jsonl"] = [_line(line) for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / ARCHIVE_FILE, json.dumps(HEAD, indent=1) + "\n")
    before = {line["key"]: line["value"] for line in _lines(folder / SHARED_FILE, ("key", "value"))}
    _put_shared(folder, before | shared)
    for file, texts in files.items():  # runs, then plans
        _put(folder / file, "".join(text + "\n" for text in texts))
    for name, check in contents.coords.items():
        _put(folder / "coords" / f"{name}.json", json.dumps(check, indent=1, allow_nan=False) + "\n")
    _put_shared(folder, shared)  # without what no line names any more


def _put_shared(folder: Path, shared: Mapping[str, Any]) -> None:
    _put(folder / SHARED_FILE, "".join(_line({"key": key, "value": shared[key]}) + "\n" for key in sorted(shared)))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_bytes(path, content)


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _run_line(run: Mapping[str, Any], key_of: Callable[[Any], str]) -> dict[str, Any]:
    record = dict(run["record"])
    carried = record["carried_by"]
    own = {key: carried[key] for key in _OF_RUN if key in carried}
    record["carried_by"] = {"as": key_of({k: v for k, v in carried.items() if k not in own}), **own}
    line: dict[str, Any] = {"spec": _spec_line(run["spec"], key_of), "record": record}
    line["metrics"] = {kind: _columns(rows) for kind, rows in run["metrics"].items()}
    if run["data"] is not None:
        line["data"] = key_of(run["data"])
    return line


def _spec_line(spec: Mapping[str, Any], key_of: Callable[[Any], str]) -> dict[str, Any]:
    """A spec as what tells it from others of its curve, and where the rest stands."""
    rest = {key: value for key, value in spec.items() if key not in ("lr", "seed")}
    rest["table"] = key_of(rest["table"])
    return {"as": key_of(rest), "lr": spec["lr"], "seed": spec["seed"]}


# ── from files to values ──


def _spec_of(line: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    rest = shared[line["as"]]
    return {**rest, "table": shared[rest["table"]], "lr": line["lr"], "seed": line["seed"]}


def _lines(path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, each with these keys."""
    if not path.is_file():
        return
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from None
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not a JSON object: {error}") from None
        if not isinstance(line, dict) or not set(keys) <= set(line):
            raise ValueError(f"{path}:{number}: not a line of an archive: it must have {' and '.join(keys)}")
        yield line


def _run_members(path: Path, line: dict[str, Any], shared: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    try:
        spec, record = _spec_of(line["spec"], shared), dict(line["record"])
        name = str(record["hash"])
        carried = dict(record["carried_by"])
        record["carried_by"] = {**shared[carried.pop("as")], **carried}
        about = shared[line["data"]] if "data" in line else None
        rows = [row for kind in line["metrics"] for row in _rows(line["metrics"][kind])]
        text = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["step"]))
    except (KeyError, TypeError, ValueError) as error:
        what = str(line["record"].get("hash")) if isinstance(line["record"], dict) else "?"
        raise ValueError(f"{path}: run {what} is not whole: {error!r}") from None
    yield f"{name}/spec.json", _document(spec)
    if text:
        yield f"{name}/metrics.jsonl", text.encode()
    if about is not None:
        yield f"{name}/data.json", _document({**about, "path": None})
    yield f"{name}/record.json", _document(record)


def _plan_members(path: Path, shared: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    lines = list(_lines(path, ()))
    try:
        plan = dict(lines[0]["plan"])
        curves = [line["curve"] for line in lines if "curve" in line]
        plan["curves"] = [{**curve, "spec": _spec_of(curve["spec"], shared)} for curve in curves]
        added = {str(line["added"]): line["points"] for line in lines if "added" in line}
        if len(curves) != lines[0]["curves"] or len(curves) + len(added) != len(lines) - 1:
            raise KeyError(f"it should have {lines[0]['curves']} curves")
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: not a plan of an archive: {error!r}") from None
    yield f"plans/{path.stem}/plan.json", _document(plan)
    for key, points in added.items():
        yield f"plans/{path.stem}/added/{key}", _document(points)


def _document(value: Any) -> bytes:
    """As the store itself writes it."""
    return (json.dumps(value, indent=1) + "\n").encode()


# ── rows as columns: each name once ──


def _columns(rows: Sequence[Any]) -> Any:
    """Rows of one form as {"columns": …}, names outside and values inside; else as {"rows": …}."""
    forms = {json.dumps(_form(row)) for row in rows}
    return {"columns": _column(rows)} if len(forms) == 1 else {"rows": list(rows)}


def _form(value: Any) -> Any:
    return {key: _form(one) for key, one in value.items()} if isinstance(value, Mapping) else None


def _column(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {key: _column([value[key] for value in values]) for key in values[0]}
    return values[0] if isinstance(values[0], str) and len(set(values)) == 1 else list(values)


def _rows(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "rows" in kept:
        return list(kept["rows"])
    count = len(kept["columns"]["step"])
    return [_row(kept["columns"], i) for i in range(count)]


def _row(column: Any, i: int) -> Any:
    if isinstance(column, Mapping):
        return {key: _row(one, i) for key, one in column.items()}
    return column if isinstance(column, str) else column[i]
