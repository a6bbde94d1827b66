"""The best learning rate against a size: optima with intervals, the power law through them, and the edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nugpt.report.answers import SIZE_WORDS, Path, PlanAnswer
from nugpt.report.charts import law_line, law_points, path_name, paths_to_draw
from nugpt.report.figures.paper import STYLE, legends, looks, panels, sizes_axis
from nugpt.report.words import between, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MARKS: dict[str, tuple[str, str]] = {
    "edge": ("_", "stability edge"),
    "at least": ("^", "at least, the best lies beyond the grid"),
    "at most": ("v", "at most, the best lies beyond the grid"),
}


def draw_law(found: PlanAnswer) -> dict[str, Figure]:
    """One figure for each size that has three values or more."""
    from matplotlib import rc_context

    made = {}
    for along, paths in paths_to_draw(found).items():
        with rc_context(STYLE):
            figure, (axes,) = panels(1, width=5.0)
            _draw(axes, along, paths)
            legends(figure, [axes])
        made[along] = figure
    return made


def _draw(axes: Axes, along: str, paths: Sequence[Path]) -> None:
    for path, look in zip(paths, looks(len(paths), ordered=False), strict=True):
        _path(axes, path, look)
    sizes = sorted({one.curve.sizes[along] for path in paths for one in path.answer.curves})
    sizes_axis(axes, sizes, SIZE_WORDS.get(along, along))
    axes.set_ylabel("log₂ of the best η")
    kinds = {row["kind"] for path in paths for row in law_points(path)}
    for kind, (marker, means) in MARKS.items():
        if kind in kinds:
            axes.plot([], [], marker=marker, label=means, color="#777777", linestyle="none", fillstyle="none")


def _path(axes: Axes, path: Path, look: dict[str, Any]) -> None:
    line = law_line(path)
    slope = path.answer.drift
    name = path_name(path)
    if slope.slope is not None:
        name += f": slope {number(slope.slope)} ({between(slope.interval)})"
    axes.plot([row["x"] for row in line], [row["y"] for row in line], color=look["color"])
    low, high = [row["low"] for row in line], [row["high"] for row in line]
    axes.fill_between([row["x"] for row in line], low, high, color=look["color"], alpha=0.12, linewidth=0)
    points = law_points(path)
    if points:
        axes.plot([], [], **look, label=name)
    for row in points:
        style = {"color": look["color"], "linestyle": "none"}
        if row["kind"] == "optimum":
            if row["low"] is not None:
                axes.plot([row["x"]] * 2, [row["low"], row["high"]], color=look["color"], linewidth=1.8, alpha=0.6)
            axes.plot([row["x"]], [row["y"]], marker=look["marker"], **style)
        elif row["kind"] == "edge":
            axes.plot([row["x"]], [row["y"]], marker=MARKS["edge"][0], markersize=9, **style)
        else:  # an arrow towards where the optimum may be
            axes.plot([row["x"]], [row["y"]], marker=MARKS[row["kind"]][0], fillstyle="none", **style)
