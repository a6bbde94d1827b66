"""The end of the page: how the runs were carried, and every run, which is where all its numbers lead."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nugpt.report.html import Child, Html, file_link, joined, link, scrolling, table, tag
from nugpt.report.layout import label_text
from nugpt.report.source import CARRIED_BY, CurveRuns, PlanRuns, Run
from nugpt.report.words import NONE, counted, duration, number

COLUMNS = ("run", "η", "log₂ η", "seed", "ended", "loss", "smoothed", "steps", "FLOPs", "time", "carried", "files")


def all_curves(plans: Sequence[PlanRuns]) -> dict[str, list[tuple[PlanRuns, CurveRuns]]]:
    """Every curve once by its key, with the plans that have it."""
    found: dict[str, list[tuple[PlanRuns, CurveRuns]]] = {}
    for plan in plans:
        for curve in plan.curves:
            found.setdefault(curve.key, []).append((plan, curve))
    return found


def runs_of(having: Sequence[tuple[PlanRuns, CurveRuns]]) -> list[Run]:
    """The runs of one curve over all plans that have it, each once."""
    runs = {run.id: run for _, curve in having for run in curve.runs}
    return sorted(runs.values(), key=lambda run: (run.log2_lr, run.seed))


def carriers(plans: Sequence[PlanRuns]) -> dict[str, int]:
    """Each way that runs were carried, as text, and its number."""
    ways = Counter(_way(run) for having in all_curves(plans).values() for run in runs_of(having) if run.carried_by)
    return {way: i for i, (way, _) in enumerate(ways.most_common(), 1)}


def _way(run: Run) -> str:
    return json.dumps({key: run.carried_by[key] for key in CARRIED_BY if key in run.carried_by}, sort_keys=True)


def carried_section(plans: Sequence[PlanRuns], version: str) -> Html:
    """Versions, devices, data: what is recorded because it may matter, and does not belong to a run's identity."""
    curves = all_curves(plans)
    runs = [run for having in curves.values() for run in runs_of(having)]
    ended = [run for run in runs if run.ended]
    ways = carriers(plans)
    counts = Counter(_way(run) for run in ended if run.carried_by)
    rows: list[list[Child]] = []
    for way, i in ways.items():
        values = json.loads(way)
        rows.append([i, *(_plain(values.get(key)) for key in CARRIED_BY), f"{counts[way]:,}"])
    specs = [curve.spec for having in curves.values() for _, curve in having[:1] if curve.spec]
    flops = sum(float(run.facts.get("flops") or 0.0) for run in ended)
    seconds = sum(float(run.facts.get("wall_s") or 0.0) for run in ended)
    parts: list[Child] = [tag("h2", "How it was run", id="how")]
    if runs and not specs:
        parts.append(tag("p", f"{counted(len(ended), 'run')}; how they were run is not recorded."))
    else:
        parts.append(
            tag(
                "p",
                f"{counted(len(ended), 'run')} of {counted(len(runs), 'planned run')} ended, {flops:.3g} FLOPs, ",
                f"{duration(seconds)} of training time summed over runs. ",
                "Runs that share an ensemble each count its whole time.",
            )
        )
    if rows:
        parts.append(table(["", *(key.replace("_", " ") for key in CARRIED_BY), "runs"], rows))
    if specs:
        parts.append(table(["", ""], [[name, _distinct(specs, *path)] for name, path in _SHARED.items()]))
        parts += _tables(specs)
    parts.append(tag("p", f"This page was written by nugpt {version}.", class_="soft"))
    return tag("section", *parts)


_SHARED: dict[str, tuple[str, ...]] = {
    "data set (content hash)": ("data",),
    "precision of products": ("precision",),
    "sequence length": ("model", "seq_len"),
    "vocabulary": ("model", "vocab_size"),
    "head dimension": ("model", "head_dim"),
    "sequences of the validation set": ("val_windows",),
    "tables": ("table", "name"),
}


def _distinct(specs: Sequence[dict[str, Any]], *path: str) -> str:
    found = []
    for spec in specs:
        value: Any = spec
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        found.append(_plain(value))
    return ", ".join(dict.fromkeys(found))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NONE if value is None else str(value)


def run_section(plans: Sequence[PlanRuns]) -> Html:
    """Every run by curve: hash, place, result, and where its files lie."""
    ways = carriers(plans)
    head = tag("thead", tag("tr", *(tag("th", column) for column in COLUMNS)))
    bodies = [_body(key, having, ways) for key, having in all_curves(plans).items()]
    told = (
        "Every number above leads here. A run's id is the hash of its spec; the spec of a curve is what all its runs "
        "share."
    )
    if any(run.files for plan in plans for curve in plan.curves for run in curve.runs):
        told += " Links to files work while the page lies where it was written, beside its store."
    return tag(
        "section",
        tag("h2", "Runs", id="runs"),
        tag("p", told, class_="soft"),
        scrolling(tag("table", head, *bodies, class_="runs")) if bodies else tag("p", "There are none."),
    )


def _body(key: str, having: Sequence[tuple[PlanRuns, CurveRuns]], ways: dict[str, int]) -> Html:
    names = dict.fromkeys(label_text(curve) or "all runs" for _, curve in having)
    places = ", ".join(plan.name for plan, _ in having)
    spec = having[0][1].spec
    named = spec.pop("table", None)  # tables are long and few: each stands once, above
    told = ["; ".join(names), " ", tag("small", f"in {places}")]
    title = tag("th", *told, *_spec(spec, named), colspan=str(len(COLUMNS)))
    return tag("tbody", tag("tr", title), *(_row(run, ways) for run in runs_of(having)), id=f"curve-{key}")


def _spec(spec: dict[str, Any], named: Any) -> list[Html]:
    if not spec:
        return []
    shown = tag("pre", json.dumps(spec, ensure_ascii=False))
    table_link = link(table_anchor(named), "table") if named else Html("")
    return [tag("details", tag("summary", "spec"), shown, table_link)]


def table_anchor(values: Any) -> str:
    """The place of a table in the page, by its content: tables of one name may differ."""
    return f"table-{hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]}"


def _tables(specs: Sequence[dict[str, Any]]) -> list[Html]:
    """Every table that some run has, whole, once."""
    found = {table_anchor(spec["table"]): spec["table"] for spec in specs if spec.get("table")}
    return [
        tag(
            "details",
            tag("summary", f"table {values.get('name', '')}"),
            tag("pre", json.dumps(values, indent=1, ensure_ascii=False)),
            id=anchor,
        )
        for anchor, values in found.items()
    ]


def _row(run: Run, ways: dict[str, int]) -> Html:
    facts = run.facts
    at = facts.get("diverged_at")
    files: Child = NONE
    if run.files is not None:
        wanted = ["spec.json"] + (["record.json"] if run.ended else [])
        files = joined((file_link(f"{run.files}/{name}", name.removesuffix(".json")) for name in wanted), " ")
    steps, flops, seconds = facts.get("steps"), facts.get("flops"), facts.get("wall_s")
    way = _way(run) if run.carried_by else ""
    row: list[Child] = [
        tag("code", run.id),
        f"{2.0**run.log2_lr:.4g}",
        number(run.log2_lr, 3),
        run.seed,
        run.state + (f" at step {at:,}" if isinstance(at, int) else ""),
        number(facts.get("val_loss", run.loss), 4),
        number(facts.get("val_loss_ema"), 4),
        f"{steps:,}" if isinstance(steps, int) else NONE,
        f"{flops:.3g}" if isinstance(flops, (int, float)) else NONE,
        duration(float(seconds)) if isinstance(seconds, (int, float)) else NONE,
        ways.get(way, NONE),
        files,
    ]
    return tag("tr", *(tag("td", cell) for cell in row), id=f"run-{run.id}")
