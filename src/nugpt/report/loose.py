"""Runs that belong to no plan, as `nugpt train` and `nugpt measure` leave them: what was measured in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.fit.lerp import lerp_laws
from nugpt.fit.measured import apart, group_key
from nugpt.report.answers import PlanAnswer, answer_plan
from nugpt.report.charts import Chart
from nugpt.report.html import Child, Html, tag
from nugpt.report.measured import alignment_charts, alignment_groups, alignment_tables, course_charts, courses
from nugpt.report.source import PlanRuns, read_runs
from nugpt.report.words import counted
from nugpt.spec.loss import loss_name
from nugpt.spec.plan import Curve
from nugpt.spec.resolve import Extent
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.plans import plans

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOSE = "no-plan"
TITLE = "Measured runs of no plan"


def read_loose(store: Store, page_folder: Path, problems: list[str]) -> tuple[PlanRuns, ...]:
    """The measured runs that no plan has, those of one learning rate and beginning together, each size once.

    Where a plan cannot be read nobody knows which runs are its own, and none is told here.
    """
    try:
        planned = {spec.hash for directory in plans(store) for spec in directory.specs()}
    except ValueError:
        return ()  # which reading the plans has told
    sets: dict[tuple[float, str | None], dict[str, list[RunSpec]]] = {}
    for directory in store.runs():
        try:
            if directory.path.name not in planned and directory.has_ended(("done",)):
                spec = directory.spec()
                if directory.read_metrics(("alignment", "lerp")):
                    sets.setdefault((spec.lr, spec.began), {}).setdefault(spec.at(1.0, 0).hash, []).append(spec)
        except ValueError as error:
            problems.append(str(error))
    return tuple(
        _set(_name(*place, i), curves, store, page_folder, problems)
        for place, found in sets.items()
        for i, curves in enumerate(apart(_in_order(found), lambda _: (), _size).values(), 1)
    )


def _size(specs: Sequence[RunSpec]) -> tuple[str, Extent]:
    return group_key(specs[0]), specs[0].extent


def _name(lr: float, began: str | None, number: int) -> str:
    return f"η {lr:.6g}" + (f", begun from {began}" if began else "") + (f" ({number})" if number > 1 else "")


def _set(
    name: str, found: Sequence[Sequence[RunSpec]], store: Store, page_folder: Path, problems: list[str]
) -> PlanRuns:
    """As a plan has its curves: the runs of each differ in their seed alone."""
    lr = found[0][0].lr
    curves = [Curve(_label(specs[0]), specs[0], (math.log2(lr),), tuple(s.seed for s in specs)) for specs in found]
    loss = loss_name(curves)
    read = [
        read_runs(curve, {(math.log2(lr), spec.seed): spec for spec in specs}, store, page_folder, loss, problems)
        for curve, specs in zip(curves, found, strict=True)
    ]
    return PlanRuns(name, tuple(read))


def _in_order(found: Mapping[str, list[RunSpec]]) -> list[list[RunSpec]]:
    """By size, as a reader looks for them."""
    return sorted(found.values(), key=lambda specs: [str(specs[0].table.name), *list(_label(specs[0]).values())[1:]])


def _label(spec: RunSpec) -> dict[str, str | int | float]:
    model = spec.model
    return {
        "table": spec.table.name,
        "heads": model.n_heads,
        "layers": model.n_layers,
        "steps": spec.steps,
        "batch": spec.batch,
    }


def loose_charts(found: Sequence[PlanAnswer]) -> list[Chart]:
    """LERP coefficients during training, and the three views of alignment."""
    charts: list[Chart] = []
    for one in found:
        charts += [*course_charts(courses(one)), *alignment_charts(one)]
    return charts


def loose_figures(found: Sequence[PlanAnswer]) -> dict[str, tuple[str, Figure]]:
    """Name of the file → what it shows, and the figure."""
    from nugpt.report.figures.alignment import alignment_figures
    from nugpt.report.figures.lerp_course import course_figure

    made = {}
    for i, one in enumerate(found, 1):
        name = LOOSE if len(found) == 1 else f"{LOOSE}-{i}"
        if some := courses(one):
            made[f"{name}-alpha-course"] = f"{one.plan.name}: LERP coefficients during training", course_figure(some)
        for view, figure in alignment_figures(alignment_groups(one.plan)).items():
            made[f"{name}-alignment-{view}"] = f"{one.plan.name}: alignment exponents", figure
    return made


def loose_section(found: Sequence[PlanAnswer], charts: Html, stills: Html) -> Html:
    """Each set of runs: the power of depth of its coefficients, and its alignment exponents."""
    told = "Trained one by one, or by `nugpt measure`: no optimum is looked for among them, and no claim is judged."
    parts: list[Child] = [tag("h2", TITLE), tag("p", told, class_="soft"), charts, stills]
    for one in found:
        runs = counted(sum(len(curve.runs) for curve in one.plan.curves), "run")
        parts += [tag("h3", f"{one.plan.name}: {runs}"), _laws(one), *alignment_tables(one)]
    return tag("section", *parts, id=LOOSE)


def _laws(found: PlanAnswer) -> Html | None:
    pairs: list[tuple[RunSpec, Mapping[str, Any]]] = [
        (curve.measured.spec, record.lerp)
        for curve in found.plan.curves
        for record in curve.measured.records
        if curve.measured.spec is not None and record is not None and record.lerp
    ]
    lines = [law.text for law in lerp_laws(pairs, found.fitted.level) if law.exponent is not None]
    return tag("ul", *(tag("li", line) for line in lines)) if lines else None


def loose_answers(loose: Sequence[PlanRuns], level: float) -> list[PlanAnswer]:
    """In the form that charts and tables share with plans."""
    return [answer_plan(one, level) for one in loose]
