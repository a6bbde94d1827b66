"""The one figure: the best learning rate against width, of nGPT and νGPT, and where smaller widths say it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nugpt.report import colours
from nugpt.report.answers import Path, PlanAnswer, table_of
from nugpt.report.charts import law_line, law_points
from nugpt.report.figures.paper import STYLE, panels, sizes_axis
from nugpt.report.words import NAMES, between, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLES = ("ngpt", "nugpt")
# On a page that is light or dark by its reader's choice: letters and lines that stand out on the ground of each.
INK = {False: "#24292f", True: "#e6edf3"}
FAINT = {False: "#d0d7de", True: "#3d444d"}


def paths_over_width(found: PlanAnswer) -> dict[str, Path]:
    """Of nGPT and νGPT, those that have a line through three widths or more."""
    paths = [path for path in found.paths if path.answer.along == "width" and path.law is not None]
    named = {str(table_of(path.curves[0])): path for path in paths}
    return {table: named[table] for table in TABLES if table in named}


def held_out_star(found: PlanAnswer | None) -> tuple[float, float] | None:
    """(width, log2 η) that νGPT's smaller widths predict for the one held out."""
    judged = [one for one in (found.judged if found else ()) if one.claim.rule.kind == "prediction"]
    estimates = [e for one in judged for e in one.verdict.estimates if e.where == "axis heads" and e.value is not None]
    if found is None or not estimates:
        return None
    for one in found.fitted.curves:
        label, at = one.curve.label, one.optimum.log2_lr
        if (label.get("table"), label.get("axis"), label.get("held_out")) == ("nugpt", "heads", 1) and at is not None:
            return one.curve.sizes["width"], at - float(estimates[0].value or 0.0)
    return None


def draw_headline(paths: dict[str, Path], star: tuple[float, float] | None, dark: bool) -> Figure:
    """Optima with intervals, the power law through them with its band, and the star."""
    from matplotlib import rc_context

    ink = INK[dark]
    style = {**STYLE, "font.size": 10, "axes.titlesize": 10, "legend.fontsize": 9, "grid.color": FAINT[dark]}
    style |= {"text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink}
    style |= {"axes.edgecolor": ink, "axes.facecolor": "none", "figure.facecolor": "none"}
    with rc_context(style):
        figure, (axes,) = panels(1, width=6.4)
        figure.set_figheight(3.7)
        shades = colours.named(2, dark)
        for (table, path), colour, marker in zip(paths.items(), shades, colours.SHAPES, strict=False):
            _path(axes, NAMES[table], path, colour, marker)
        if star is not None:
            what = "held out: νGPT's η as smaller widths predict it"
            axes.plot(*star, marker="*", markersize=15, color=ink, markerfacecolor="none", linestyle="none", label=what)
        sizes_axis(axes, _widths(paths.values()), "width (d_model)")
        axes.set_ylabel("log₂ of the best learning rate η")
        figure.legend(frameon=False, loc="outside lower center", handlelength=1.6)  # where no line can run through it
        axes.margins(y=0.12)
    return figure


def _widths(paths: Iterable[Path]) -> list[float]:
    return sorted({one.curve.sizes["width"] for path in paths for one in path.answer.curves})


def _path(axes: Axes, name: str, path: Path, colour: str, marker: str) -> None:
    line, slope = law_line(path), path.answer.drift
    axes.plot([row["x"] for row in line], [row["y"] for row in line], color=colour)
    low, high = [row["low"] for row in line], [row["high"] for row in line]
    axes.fill_between([row["x"] for row in line], low, high, color=colour, alpha=0.18, linewidth=0)
    told = f"{name}: slope {number(slope.slope)} ({between(slope.interval)})"
    axes.plot([], [], color=colour, marker=marker, markersize=6, label=told)
    for row in law_points(path):
        if row["kind"] == "optimum":
            if row["low"] is not None:
                axes.plot([row["x"]] * 2, [row["low"], row["high"]], color=colour, linewidth=2, alpha=0.7)
            axes.plot([row["x"]], [row["y"]], color=colour, marker=marker, markersize=6, linestyle="none")
        elif row["kind"] != "edge":
            shape = "^" if row["kind"] == "at least" else "v"
            axes.plot([row["x"]], [row["y"]], color=colour, marker=shape, fillstyle="none", linestyle="none")
