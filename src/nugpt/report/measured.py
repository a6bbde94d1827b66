"""What was measured in a plan's runs beside the loss: alignment exponents, and LERP coefficients during training."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nugpt.fit.alignment import (
    PARTS,
    QUANTITIES,
    REGIMES,
    WEIGHTINGS,
    AlignmentRun,
    Implied,
    Place,
    at_one_rate,
    implied,
    left_out,
    over_layers,
    over_loss,
    over_steps,
)
from nugpt.fit.measured import apart
from nugpt.fit.verdict import Estimate
from nugpt.report import colours
from nugpt.report.answers import COEFFICIENTS, PlanAnswer, table_of
from nugpt.report.charts import ROW, Chart, Layers, tooltips, values
from nugpt.report.html import Child, Html, joined, link, table, tag
from nugpt.report.source import CurveRuns, PlanRuns, Run
from nugpt.report.words import NONE, between, counted, number

SYMBOLS = {"alpha": "α", "omega": "ω", "nu": "ν"}
VIEWS = {"steps": "step", "loss": "loss decrease since step 0 (nats)", "layers": "layer"}
VIEW_WORDS = {"steps": "step", "loss": "loss decrease", "layers": "layer"}


def alignment_groups(plan: PlanRuns) -> dict[str, list[AlignmentRun]]:
    """Measured runs that differ in width and seed alone, each set under a name; a study not about them has none.

    Where several learning rates were measured it is one of them: the name says which.
    """
    if plan.study is not None and "alignment" not in plan.study.measures:
        return {}
    pairs = [(curve, run) for curve in plan.curves for run in curve.measured.alignment]
    named = []
    for members in apart(pairs, _alike, lambda pair: (pair[1].width, pair[1].seed, pair[1].lr)).values():
        curve, runs = members[0][0], [run for _, run in members]
        sizes, taken = curve.measured.sizes, at_one_rate(runs)
        size = f"{counted(int(sizes.get('layers', 0)), 'layer')}, {sizes['steps']:g} steps"
        rates = len({run.lr for run in runs})
        which = f", η {taken[0].lr:.4g} of {rates} that were measured" if rates > 1 else ""
        named.append((f"{table_of(curve) or plan.name}, {size}{which}", taken))
    twice = len({name for name, _ in named}) < len(named)
    return {f"{name} ({i})" if twice else name: runs for i, (name, runs) in enumerate(named, 1)}


def asked_views(plan: PlanRuns) -> set[str]:
    """The views that a plan's claims are about; all where it has none."""
    rules = [claim.rule for claim in plan.study.claims] if plan.study is not None else []
    views = {"layers" if r.by == "layer" else "loss" if r.at == "loss-weighted" else "steps" for r in rules}
    return views or set(VIEWS)


def _alike(pair: tuple[CurveRuns, AlignmentRun]) -> tuple[Hashable, ...]:
    """What runs share that are told together."""
    (curve, run), sizes = pair, pair[0].measured.sizes
    return curve.measured.group, sizes.get("layers"), sizes.get("steps"), sizes.get("batch"), run.began


def places(runs: Sequence[AlignmentRun], view: str, quantity: str, part: str) -> list[Place]:
    """The points of one line of one of the paper's three views; the output is one layer, and has no third."""
    if view == "layers":
        return over_layers(runs, quantity) if part == "hidden" else []
    return (over_steps if view == "steps" else over_loss)(runs, quantity, part)


def alignment_charts(found: PlanAnswer) -> list[Chart]:
    """The three views, of the widest model of each set; the figures for print have every width."""
    charts = []
    for name, runs in alignment_groups(found.plan).items():
        widest = [run for run in runs if run.width == max(run.width for run in runs)]
        charts += [_alignment_chart(name, widest, view) for view in VIEWS]
    return charts


def _alignment_chart(name: str, runs: Sequence[AlignmentRun], view: str) -> Chart:
    import altair as alt

    rows: list[ROW] = [
        {
            "x": round(place.x, 5),
            "y": round(place.mean, 4),
            "low": round(place.low, 4),
            "high": round(place.high, 4),
            "s": f"{SYMBOLS[quantity]} {part}",
            "href": f"#run-{runs[0].id}",
        }
        for part in PARTS
        for quantity in QUANTITIES
        for place in places(runs, view, quantity, part)
    ]
    series = list(dict.fromkeys(row["s"] for row in rows))
    scale = alt.Scale(type="log", padding=14) if view == "steps" else alt.Scale(zero=False, padding=14)
    axis = alt.Axis(tickMinStep=1, format="d") if view == "layers" else alt.Undefined
    x = alt.X("x:Q", title=VIEWS[view], scale=scale, axis=axis)
    y = alt.Y("y:Q", title="exponent, averaged over layers", scale=alt.Scale(zero=False))
    layers = Layers(x, y, "exponent", series, faint=0.1)
    tooltip = tooltips(s="exponent", x=VIEWS[view], y="mean", low="lowest layer", high="highest layer")
    regimes = values([{"y": regime} for regime in REGIMES]).mark_rule(strokeDash=[4, 4], opacity=0.4).encode(y="y:Q")
    drawn = [layers.band(rows), layers.line(rows), layers.links(rows, tooltip, size=40), regimes]
    what = f"Alignment exponents against {VIEWS[view]}, {name}, width {runs[0].width}"
    described = f"{what}; bands run from the lowest layer to the highest, dashes mark one half, three quarters and one."
    return layers.chart(drawn, what, described, colours.named)


def alignment_tables(found: PlanAnswer) -> list[Html]:
    """max(α, ν) under each weighting, at each width and as a slope across them."""
    parts: list[Html] = []
    for name, runs in alignment_groups(found.plan).items():
        widths = sorted({run.width for run in runs})
        rows: list[list[Child]] = []
        answers: list[Implied] = []
        for part in PARTS:
            for weighting, means in WEIGHTINGS.items():
                one = implied(runs, part, weighting)
                answers.append(one)
                at = dict(one.at_widths)
                rows.append(
                    [
                        part,
                        means,
                        SYMBOLS[one.quantity],
                        *(_written(at.get(width)) for width in widths),
                        _written(one.slope),
                        _written(one.per_token),
                        one.reading,
                    ]
                )
        columns = [
            "",
            "weighting",
            "larger",
            *(f"width {w}" for w in widths),
            "slope over widths",
            "per token",
            "reads",
        ]
        ids = joined((link(f"run-{run.id}", run.id) for run in runs), ", ")
        left = joined((link(f"run-{run.id}", run.id) for run in left_out(runs, answers)), ", ")
        told = (
            "At one width an exponent holds a constant factor: the slope across three widths or more is the estimate. "
            "Intervals are over layers and seeds, a slope's also about its line. From runs "
        )
        parts += [
            tag("h3", f"Alignment: max(α, ν), {name}"),
            table(columns, rows, right=tuple(range(3, 5 + len(widths)))),
            tag("p", told, ids, ".", class_="soft"),
            *([tag("p", "No slope has ", left, ": their seed was not measured at every width.")] if left else []),
        ]
    return parts


def _written(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return NONE
    return f"{number(estimate.value)} ({between(estimate.interval)})"


@dataclass(frozen=True)
class Course:
    """The LERP coefficients of one run during its training."""

    name: str
    layers: int
    run: Run


def courses(found: PlanAnswer) -> list[Course]:
    """The runs of one seed at each curve's best η (or its only one) whose coefficients were taken during training."""
    chosen = []
    for curve in found.plan.curves:
        runs = [run for run in curve.runs if run.trained and run.course]
        if not runs:
            continue
        answer = next((one for one in found.fitted.curves if one.curve is curve.measured), None)
        best = answer.optimum.log2_lr if answer is not None else None
        if best is None and len({run.log2_lr for run in curve.runs}) > 1:
            continue  # no optimum to look at
        run = min(runs, key=lambda r: (abs(r.log2_lr - (best or r.log2_lr)), r.seed))
        chosen.append(Course(_course_name(curve, found.plan), int(curve.measured.sizes.get("layers", 0)), run))
    return chosen


def asked_courses(found: PlanAnswer) -> list[Course]:
    """Those of a plan whose study asks for them."""
    study = found.plan.study
    return courses(found) if study is not None and "lerp" in study.measures else []


def _course_name(curve: CurveRuns, plan: PlanRuns) -> str:
    """What tells the curve from the plan's others."""
    labels: list[Mapping[str, Any]] = [c.label for c in plan.curves]
    differs = [key for key in curve.label if len({str(label.get(key)) for label in labels}) > 1]
    return " ".join(f"{key} {curve.label[key]}" for key in differs) or plan.name


def lerp_course_charts(found: PlanAnswer) -> list[Chart]:
    """The mean coefficients against the step, where the plan's study asks for them."""
    return course_charts(asked_courses(found))


def course_charts(some: Sequence[Course]) -> list[Chart]:
    """These runs' coefficients, a chart for each."""
    return [_course_chart(role, some) for role in COEFFICIENTS] if some else []


def _course_chart(role: str, some: Sequence[Course]) -> Chart:
    import altair as alt

    rows = [
        {
            "x": row["step"],
            "y": float(f"{row[role]['mean']:.5g}"),
            "std": f"{row[role]['std']:.3g}",
            "s": one.name,
            "href": f"#run-{one.run.id}",
        }
        for one in some
        for row in one.run.course
    ]
    names = [one.name for one in some]
    x = alt.X("x:Q", title="step", scale=alt.Scale(type="log", padding=14))
    y = alt.Y("y:Q", title=f"mean effective {COEFFICIENTS[role]}", scale=alt.Scale(type="log", base=2))
    layers = Layers(x, y, "curve", names)
    tooltip = tooltips(s="curve", x="step", y="mean", std="spread over components and blocks")
    drawn = [layers.line(rows), layers.links(rows, tooltip, size=30)]
    title = f"{COEFFICIENTS[role]} during training"
    described = f"Mean effective {COEFFICIENTS[role]} against the step, one line for each curve's run at its best η."
    return layers.chart(drawn, title, described, colours.ordered)
