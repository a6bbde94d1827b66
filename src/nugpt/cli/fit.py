"""`nugpt fit`, and how any command reads curves: from a store, or from a table of the user's own runs."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import counted, flat, number, print_json, print_table, quiet, say
from nugpt.cli.store import check_unpacked

if TYPE_CHECKING:
    from nugpt.fit.alignment import AlignmentRun
    from nugpt.fit.curves import Answers, CurveAnswer, PathAnswer
    from nugpt.fit.groups import GroupDifference
    from nugpt.fit.measured import Measured, OwnRun
    from nugpt.fit.verdict import Verdict
    from nugpt.spec.run import RunSpec
    from nugpt.store import Store
    from nugpt.store.plans import PlanDirectory

STALE_AFTER = 300.0
# Words of a status column, in lower case; W&B writes finished, running, crashed, failed and killed.
DONE = ("done", "finished", "completed", "success")
NOT_ENDED = ("running", "pending", "crashed", "failed", "killed", "preempted", "preempting")
DIVERGED = ("diverged", "nan", "inf", "+inf", "-inf", "infinity", "-infinity")
MISSING = ("", "none", "null", "-")


@dataclass(frozen=True)
class Columns:
    """A table of the user's own runs: which column is what."""

    lr_column: str | None = None
    """Learning rates; by default the column lr."""
    loss_column: str | None = None
    """Final losses, by default the column loss; NaN, infinity and `diverged` count as diverged, an empty cell as no
    result."""
    size_column: str | None = None
    """What grows: width, layers, steps. Without it all runs are of one size."""
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
    if source.is_dir():
        for option, name in origin.columns.given().items():
            raise ValueError(
                f"{option} is {name!r}, but {source} is a store, whose runs say what they are: leave it out"
            )
        return store_curves(source, origin)
    if not source.is_file():
        raise ValueError(f"{source} is no store and no file: give a store, or a .csv or .jsonl file of runs")
    if origin.plan is not None:
        raise ValueError(f"plan is {origin.plan!r}, but {source} is a file of runs and has no plans")
    if origin.loss is not None:
        raise ValueError(f"loss is {origin.loss!r}, but {source} is a file of runs: --loss-column says which loss")
    return [_from_file(source, origin.columns)]


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


def _from_file(path: Path, columns: Columns) -> CurveSet:
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
    left_out: Counter[str] = Counter()
    seeds: dict[str, int] = {}
    runs = [run for where, row in rows if (run := _own_run(row, named, seeds, left_out, f"{path}:{where}")) is not None]
    if not runs:
        raise ValueError(f"{path}: no row has a result ({', '.join(f'{n} {why}' for why, n in left_out.items())})")
    notes = [f"left out: {count} {why}" for why, count in left_out.items()]
    if "seed" in named:
        runs, told = _without_repeats(runs)
        notes += told
    else:
        runs = _numbered(runs)
    curves = own_curves(runs, named.get("size", "size"), named.get("group", "group"))
    return CurveSet(path.name, None, tuple(curves), tuple(notes))


def _without_repeats(runs: Sequence[OwnRun]) -> tuple[list[OwnRun], list[str]]:
    """Rows that say the same twice count once; what else has the same learning rate and seed is averaged by the fit."""
    once = list(dict.fromkeys(runs))
    notes = [f"left out: {len(runs) - len(once)} repeated"] if len(once) < len(runs) else []
    again = len(once) - len({(run.group, run.size, run.lr, run.seed) for run in once})
    if again:
        notes.append(f"averaged: {again} with the learning rate and seed of another row")
    return once, notes


def _numbered(runs: Sequence[OwnRun]) -> list[OwnRun]:
    """Without seeds, the first run at each learning rate is of one seed, the second of another."""
    seen: Counter[tuple[str, float | None, float]] = Counter()
    found = []
    for run in runs:
        place = (run.group, run.size, run.lr)
        found.append(replace(run, seed=seen[place]))
        seen[place] += 1
    return found


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row by its columns' names; one that does not fit the header is refused, since its cells may have shifted."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header: list[str] | None = None
            for cells in reader:
                if not "".join(cells).strip() and len(cells) < 2:
                    continue  # a blank line
                if header is None:
                    header = _header(cells, f"{path}:{reader.line_num}")
                else:
                    _check_cells(cells, len(header), f"{path}:{reader.line_num}")
                    yield reader.line_num, dict(zip(header, cells, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
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
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8: {error}") from None
    for i, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{i}: not a JSON object: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{i}: {line.strip()[:40]!r} is not a JSON object")
            yield i, {name: "" if value is None else str(value) for name, value in flat(row)}


def _own_run(
    row: Mapping[str, str], named: Mapping[str, str], seeds: dict[str, int], left_out: Counter[str], where: str
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
        size=_positive(cells["size"], f"{where}: {named['size']}") if "size" in cells else None,
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


@dataclass(frozen=True)
class Fit:
    """Optimum, stability edge, drift, regret, power law and verdicts, each with its error."""

    source: Annotated[Path, tyro.conf.Positional]
    """A store, or a .csv or .jsonl file of your own runs."""
    origin: Annotated[Origin, AMONG_OPTIONS] = Origin()
    level: float = 0.90
    """Of the intervals."""
    out: Path | None = None
    """Also write the figures and report.html into this directory."""
    formats: tuple[str, ...] = ("pdf", "svg", "png")
    """Of the figures."""
    title: str | None = None
    """Of the page; by default the plan's or the file's name."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the answers, and write the page where one is asked for."""
        from nugpt.fit.claims import verdicts
        from nugpt.fit.curves import answer
        from nugpt.fit.interval import check_level
        from nugpt.spec import checks
        from nugpt.studies import STUDIES

        check_level(self.level)
        if self.out is None and self.title is not None:
            raise ValueError(f"title is {self.title!r}, but a page is written only with --out")
        if self.out is not None:
            from nugpt.report import check_page

            checks.folder(self.out, "out")
            check_page(self.out)
        if wrong := [name for name in self.formats if name not in ("pdf", "svg", "png")]:
            raise ValueError(f"format is {wrong[0]!r}, but must be one of pdf, svg, png")
        results = []
        for one in (read := read_curves(self.source, self.origin)):
            answers = answer(one.curves, self.level)
            study = STUDIES.get(one.study or "")
            claims = study.claims if study else ()
            found = verdicts(claims, answers)
            results.append((one, answers, [(c.text, verdict) for c, verdict in zip(claims, found, strict=True)]))
        if self.json:
            print_json({one.name: to_json(one, answers, judged) for one, answers, judged in results})
        else:
            for one, answers, judged in results:
                _print(one, answers, judged)
        return 0 if self.out is None else self._write(read, self.out)

    def _write(self, read: Sequence[CurveSet], out: Path) -> int:
        """Figures and page: a store's plans with all that is known of their runs, a file's curves as they are."""
        from nugpt.report import Source, from_curves, read_store, write_report
        from nugpt.studies import STUDIES

        source = Source("", ())
        if self.source.is_dir():
            from nugpt.store import opened

            names = () if self.origin.plan is None else (self.origin.plan,)
            source = read_store(opened(self.source), names, STUDIES, out, self.title, self.origin.loss)
        if not source.plans:  # a file's runs, or those of a store without a plan
            plans = tuple(from_curves(one.name, one.curves) for one in read)
            source = replace(source, title=self.title or read[0].name, plans=plans)
        source = replace(source, problems=(*source.problems, *(note for one in read for note in one.notes)))
        written = write_report(source, out, self.formats, self.level, quiet if self.json else say)
        size = written.page.stat().st_size / 1e6
        print(
            f"{written.page} ({size:.2f} MB), {len(written.figures)} figure files beside it",
            file=sys.stderr if self.json else sys.stdout,
        )
        return 0


def _print(one: CurveSet, answers: Answers, judged: Sequence[tuple[str, Verdict]]) -> None:
    runs = sum(len(curve.points) for curve in one.curves)
    have = "that has ended" if runs == 1 else "that have ended"
    what = f"{counted(len(one.curves), 'curve')}, {counted(runs, 'run')} {have}"
    print(f"{one.name}: {what}, intervals at {answers.level:.0%}")
    for note in one.notes:
        print(note)
    if not answers.curves:
        print("nothing to fit yet")
        return
    several = [c for c in answers.curves if len({point.log2_lr for point in c.curve.points}) > 1]
    if single := len(answers.curves) - len(several):
        print(f"in {counted(single, 'curve')} runs at one learning rate have ended: there is no optimum to look for")
    if several:
        _print_optima(several)
    if answers.left_out:
        print(f"no run has ended in {len(answers.left_out)} curves")
    if several:
        _print_paths(one, answers)
    for group, law in answers.laws:
        terms = [f"{k}^{v:.3f} ({span(law.intervals[k], 3)})" for k, v in law.exponents.items()]
        print(f"{answers.names[group]}: η* ∝ {' · '.join(terms)}" if terms else "")
    if judged:
        rows = [[text, v.answer or "open question", _reason(v)] for text, v in judged]
        print_table(["claim", "verdict", "because"], rows)
        if others := sorted({verdict.rule.level for _, verdict in judged} - {answers.level}):
            print(
                f"claims are judged by their rules, with intervals at {', '.join(f'{level:.0%}' for level in others)}"
            )


def _print_optima(several: Sequence[CurveAnswer]) -> None:
    columns = ["curve", "runs", "optimum", "log2 η*", "interval", "loss", "edge", "-1", "-1/2", "+1/2", "+1"]
    print_table(columns, [_curve_row(c) for c in several], right=(1, *range(3, 11)))
    print("edge: largest log2 η that trains and first that fails; -1 … +1: nats paid so many octaves off the optimum")
    for note, count in Counter(note for one in several for note in one.optimum.notes).items():
        print(f"{'1 curve' if count == 1 else f'{count} curves'}: {note}")


def _print_paths(one: CurveSet, answers: Answers) -> None:
    if answers.paths:
        print_table(
            ["group", "along", "sizes", "drift of η*", "interval", "no drift", "drift of the edge"],
            [_path_row(path, answers) for path in answers.paths],
            title="drift, octaves per octave",
        )
        for path in answers.paths:
            for note in path.drift.notes:
                print(f"{answers.names[path.group]}, {path.name}: {note}")
    regrets = [row for path in answers.paths for row in _regret_rows(path, answers)]
    if regrets:
        columns = ["group", "along", "base", "size", "regret", "interval"]
        print_table(columns, regrets, title="regret of the base's best η, in nats", right=(2, 3, 4))
    if compared := _compared(one, answers):
        rows = [_difference_row(each) for each in compared]
        columns = ["group", "less", "at", "nats", "interval", "seeds"]
        print_table(columns, rows, title="best loss of one group less that of another", right=(3, 5))


def _compared(one: CurveSet, answers: Answers) -> tuple[GroupDifference, ...]:
    """A study's claims say what is compared with what; elsewhere the groups are."""
    from nugpt.fit.groups import group_differences

    return group_differences(answers) if one.study is None else ()


def _difference_row(each: GroupDifference) -> list[str]:
    found = each.difference
    shown = "–" if found.nats is None else f"{found.nats:+.4f}"
    return [each.first, each.second, each.where, shown, span(found.interval, 4), str(found.seeds)]


def _reason(verdict: Verdict) -> str:
    if verdict.answer is not None:
        return verdict.reason
    found = [f"{e.where}: {number(e.value)} ({span(e.interval, 3)})".removeprefix(": ") for e in verdict.estimates]
    return "; ".join(found) or "there is no estimate"


def _curve_row(one: CurveAnswer) -> list[str]:
    found, edge = one.optimum, one.edge
    return [
        one.curve.name or "all",
        str(len(one.curve.points)),
        found.verdict + (f" ({found.side})" if found.side else ""),
        "–" if found.log2_lr is None else f"{found.log2_lr:.2f}",
        span(found.interval),
        number(found.loss),
        span(edge.interval),
        *(nats(cost.nats) for _, cost in one.sensitivity.costs),
    ]


def _path_row(path: PathAnswer, answers: Answers) -> list[str]:
    drift, edge = path.drift, path.edge_drift
    return [
        answers.names[path.group],
        path.name,
        " ".join(f"{one.curve.sizes[path.along]:g}" for one in path.curves),
        "–" if drift.slope is None else f"{drift.slope:+.3f}",
        span(drift.interval, 3),
        drift.no_drift,
        "–" if edge.slope is None else f"{edge.slope:+.3f} ({span(edge.interval, 3)})",
    ]


def _regret_rows(path: PathAnswer, answers: Answers) -> list[list[str]]:
    return [
        [answers.names[path.group], path.name, number(path.base), f"{size:g}", nats(cost.nats), span(cost.interval, 4)]
        for size, cost in path.regrets
    ]


def span(interval: Sequence[float], digits: int = 2) -> str:
    """An interval, whose ends may be open."""
    low, high = interval
    if not math.isfinite(low) and not math.isfinite(high):
        return "open"
    left = f"{low:.{digits}f}" if math.isfinite(low) else "open"
    return f"{left} … {high:.{digits}f}" if math.isfinite(high) else f"{left} … open"


def nats(value: float | None) -> str:
    """A cost, `fails` where it is infinite."""
    if value is None:
        return "–"
    return f"{value:.4f}" if math.isfinite(value) else "fails"


def finite(value: float | None) -> float | None:
    """A value that JSON has, or none."""
    return value if value is not None and math.isfinite(value) else None


def ends(interval: Sequence[float]) -> list[float | None]:
    """An interval as plain values, null where it is open."""
    return [finite(end) for end in interval]


def to_json(one: CurveSet, answers: Answers, judged: Sequence[tuple[str, Verdict]]) -> dict[str, Any]:
    """Every answer as plain values; an end without a bound is null."""
    return {
        "level": answers.level,
        "notes": list(one.notes),
        "curves": [_curve_json(c) for c in answers.curves],
        "paths": [_path_json(path, answers) for path in answers.paths],
        "laws": [
            {
                "group": answers.names[group],
                "exponents": dict(law.exponents),
                "intervals": {name: ends(interval) for name, interval in law.intervals.items()},
                "notes": list(law.notes),
            }
            for group, law in answers.laws
        ],
        "comparisons": [
            {
                "group": each.first,
                "less": each.second,
                "at": each.where,
                "nats": finite(each.difference.nats),
                "interval": ends(each.difference.interval),
                "seeds": each.difference.seeds,
                "notes": list(each.difference.notes),
            }
            for each in _compared(one, answers)
        ],
        "claims": [
            {
                "claim": text,
                "answer": verdict.answer,
                "reason": verdict.reason,
                "estimates": [
                    {"where": e.where, "value": finite(e.value), "interval": ends(e.interval)}
                    for e in verdict.estimates
                ],
            }
            for text, verdict in judged
        ],
    }


def _curve_json(one: CurveAnswer) -> dict[str, Any]:
    found, edge = one.optimum, one.edge
    return {
        "label": dict(one.curve.label),
        "sizes": dict(one.curve.sizes),
        "runs": [record.hash for record in one.curve.records if record is not None],
        "verdict": found.verdict,
        "side": found.side,
        "log2_lr": found.log2_lr,
        "interval": ends(found.interval),
        "loss": found.loss,
        "loss_interval": None if found.loss_interval is None else ends(found.loss_interval),
        "edge": {"verdict": edge.verdict, "log2_lr": edge.log2_lr, "interval": ends(edge.interval)},
        "sensitivity": [
            {"octaves": octaves, "nats": finite(cost.nats), "interval": ends(cost.interval)}
            for octaves, cost in one.sensitivity.costs
        ],
        "notes": list(found.notes),
    }


def _path_json(path: PathAnswer, answers: Answers) -> dict[str, Any]:
    return {
        "group": answers.names[path.group],
        "along": path.along,
        "at": dict(path.others),
        "together": list(path.together),
        "drift": {"slope": path.drift.slope, "interval": ends(path.drift.interval), "no_drift": path.drift.no_drift},
        "edge_drift": {"slope": path.edge_drift.slope, "interval": ends(path.edge_drift.interval)},
        "base": path.base,
        "regrets": [
            {"size": size, "nats": finite(cost.nats), "interval": ends(cost.interval)} for size, cost in path.regrets
        ],
        "notes": list(path.drift.notes),
    }


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"nugpt: warning: {text}", file=sys.stderr)
