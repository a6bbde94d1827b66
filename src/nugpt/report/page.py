"""One self-contained page: verdicts first, charts, tables, how it was run, every run. It asks nothing of a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nugpt.report import ground
from nugpt.report.answers import PlanAnswer
from nugpt.report.charts import Chart, curve_charts, law_charts, lerp_charts, multiplier_charts
from nugpt.report.coords import COORDS, coord_charts, coord_section
from nugpt.report.html import Child, Html, joined, json_block, link, script, script_text, tag
from nugpt.report.loose import LOOSE, TITLE, loose_charts, loose_section
from nugpt.report.measured import alignment_charts, lerp_course_charts
from nugpt.report.runs import carried_section, run_section
from nugpt.report.sections import plan_anchor, plan_section, recommendation_section, verdict_section
from nugpt.report.source import Source
from nugpt.report.words import counted

Stills = Mapping[str, Sequence[tuple[str, bytes]]]  # plan → (what it shows, PNG)
MOST_ENTRIES = 8  # plans that the page's head names one by one; more are folded away
_HINT = (
    "Hover over a point for its run, seed, η and loss; a click leads to its row below. A click on a legend's entry "
    "shows that one alone, further clicks add or remove others. Beside a best η, its bar is the interval, a dash the "
    "stability edge, and an open triangle a bound of an optimum that is not enclosed."
)


def page(
    source: Source, found: Sequence[PlanAnswer], stills: Stills, version: str, loose: Sequence[PlanAnswer] = ()
) -> str:
    """The whole page as text."""
    specs = any(curve.spec for plan in source.plans for curve in plan.curves) or not source.plans
    advice = recommendation_section(source.recommendation, _run_ids(source), specs)
    sections: list[Child] = [verdict_section(found), advice] if _on_plans(source) else []
    drawn: dict[str, Chart] = {}
    for plan in found:
        charts = _charts(plan)
        here = {f"chart-{len(drawn) + i}": chart for i, chart in enumerate(charts)}
        drawn |= here
        hint = tag("p", _HINT, class_="hint") if here and len(drawn) == len(here) else None
        places = joined([hint, _places(here)])
        sections.append(plan_section(plan, places, _stills(stills.get(plan.plan.name, ()))))
    if source.coords:
        here = {f"chart-{len(drawn) + i}": chart for i, chart in enumerate(coord_charts(source.coords))}
        drawn |= here
        sections.append(coord_section(source.coords, _places(here), _stills(stills.get(COORDS, ()))))
    if loose:
        here = {f"chart-{len(drawn) + i}": chart for i, chart in enumerate(loose_charts(loose))}
        drawn |= here
        sections.append(loose_section(loose, _places(here), _stills(stills.get(LOOSE, ()))))
    runs = [*source.plans, *source.loose]
    if runs:
        sections += [carried_section(runs, version), run_section(runs)]
    return _document(source, _head(source, found), joined(sections), drawn)


def _on_plans(source: Source) -> bool:
    """Whether there is a plan, or advice from one: else verdicts and advice have nothing to be about."""
    return bool(source.plans) or source.recommendation is not None or not (source.coords or source.loose)


def _charts(found: PlanAnswer) -> list[Chart]:
    charts = [*curve_charts(found), *law_charts(found), *multiplier_charts(found), *lerp_charts(found)]
    return [*charts, *lerp_course_charts(found), *alignment_charts(found)]


def _run_ids(source: Source) -> set[str]:
    return {run.id for plan in (*source.plans, *source.loose) for curve in plan.curves for run in curve.runs}


def _places(charts: Mapping[str, Chart]) -> Html:
    figures = [
        tag(
            "figure",
            tag("figcaption", chart.title),
            tag("div", class_="chart", id=id, role="img", aria_label=chart.description),
        )
        for id, chart in charts.items()
    ]
    return tag("div", *figures, class_="charts") if figures else Html("")


def _stills(images: Sequence[tuple[str, bytes]]) -> Html:
    """What a reader without scripts sees instead of the charts."""
    if not images:
        return Html("")
    shown = [
        tag(
            "figure",
            tag("img", class_="still", alt=what, src="data:image/png;base64," + base64.b64encode(png).decode()),
        )
        for what, png in images
    ]
    return tag("noscript", *shown)


def _head(source: Source, found: Sequence[PlanAnswer]) -> Html:
    runs = (run for plan in (*source.plans, *source.loose) for curve in plan.curves for run in curve.runs)
    ended = {run.id for run in runs if run.ended}
    told = f"{counted(len(found), 'plan')}, {counted(len(ended), 'run')} that ended."
    entries = [link("verdicts", "Verdicts"), link("recommendation", "Recommendation")] if _on_plans(source) else []
    places = [link(plan_anchor(plan), plan.title) for plan in found]
    folded = len(places) > MOST_ENTRIES
    entries += [] if folded else places
    entries += [link(COORDS, "Coordinate checks")] if source.coords else []
    entries += [link(LOOSE, TITLE)] if source.loose else []
    entries += [link("how", "How it was run"), link("runs", "Runs")] if source.plans or source.loose else []
    parts: list[Child] = [tag("h1", source.title), tag("p", told, class_="soft")]
    if source.problems:
        listed = tag("ul", *(tag("li", problem) for problem in source.problems))
        parts.append(tag("div", tag("p", tag("strong", "Not everything could be read:")), listed))
    plans = tag("details", tag("summary", counted(len(places), "plan")), _listed(places)) if folded else None
    parts.append(tag("nav", _listed(entries), plans, aria_label="On this page"))
    return tag("header", *parts)


def _listed(entries: Sequence[Html]) -> Html:
    return tag("ul", *(tag("li", entry) for entry in entries))


def _document(source: Source, head: Html, body: Html, charts: Mapping[str, Chart]) -> str:
    data = _once({id: {"spec": chart.spec, "light": chart.light, "dark": chart.dark} for id, chart in charts.items()})
    scripts = [_library(), ground.SCRIPT] if charts else []
    parts = [
        Html("<!DOCTYPE html>"),
        Html('<html lang="en"><head><meta charset="utf-8">'),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", source.title),
        Html(f"<style>{ground.STYLE}</style><noscript><style>{ground.NO_SCRIPT_STYLE}</style></noscript></head><body>"),
        head,
        tag("main", body),
        tag("footer", tag("p", CREDIT)),
        *([json_block("charts", data), *map(script, scripts)] if charts else []),
        Html("</body></html>"),
    ]
    return "\n".join(parts) + "\n"


def _once(charts: Mapping[str, Any]) -> dict[str, Any]:
    """Charts by id; one that is the same as an earlier one, as plans that share runs have, is that one's id."""
    first: dict[str, str] = {}
    found = {}
    for id, chart in charts.items():
        same = first.setdefault(json.dumps(chart, sort_keys=True), id)
        found[id] = chart if same == id else same
    return found


CREDIT = (
    "Charts: Vega, Vega-Lite and vega-embed, © University of Washington Interactive Data Lab and contributors, BSD "
    "3-clause licence; they are part of this file, which loads nothing from anywhere."
)


def _policy(scripts: Sequence[str]) -> str:
    """No request at all, and no script but the page's own: markup that slipped in somewhere could not act."""
    digests = [base64.b64encode(hashlib.sha256(script_text(s).encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, of the version that the charts are written for."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    bundle: Any = vl_convert.javascript_bundle  # its stub asks for a snippet, which it does not need
    return str(bundle(vl_version=version))
