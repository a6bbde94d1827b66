"""Loss against learning rate, with optimum and interval for each size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nugpt.report.answers import Picture, PlanAnswer, Series
from nugpt.report.figures.paper import STYLE, by_width, legends, looks, panels, shortened
from nugpt.report.scale import Stretch, stretches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_curves(found: PlanAnswer) -> dict[str, Figure]:
    """One panel for each picture of the plan, on one scale of the loss."""
    from matplotlib import rc_context

    pictures = [p for p in found.pictures if any(run.ended for series in p.series for run in series.runs.runs)]
    if not pictures:
        return {}
    with rc_context(STYLE):
        figure, axes = panels(len(pictures), columns=2 if len(pictures) < 5 else 3)
        for at, picture, shown in zip(axes, pictures, stretches(pictures), strict=True):
            _draw(at, picture, shown)
        legends(figure, axes)
    return {"": figure}


def _draw(axes: Axes, picture: Picture, shown: Stretch) -> None:
    for series, look in zip(picture.series, looks(len(picture.series), ordered=True), strict=True):
        _series(axes, series, look, shown)
    axes.set_ylim(shown.low, shown.high)
    axes.set_title(shortened(by_width(picture.title, [series.runs for series in picture.series])))
    axes.set_xlabel("log₂ η")
    axes.set_ylabel("validation loss (nats)")


def _series(axes: Axes, series: Series, look: dict[str, Any], shown: Stretch) -> None:
    done = [run for run in series.runs.runs if run.trained and (run.loss or 0.0) <= shown.top]
    off = [run for run in series.runs.runs if run.ended and run not in done]
    means = [(x, y) for x, y in series.means if y <= shown.top]
    axes.plot([x for x, _ in means], [y for _, y in means], color=look["color"], zorder=2)
    style = {"linestyle": "none", "color": look["color"], "zorder": 3}
    axes.plot(
        [run.log2_lr for run in done],
        [float(run.loss or 0.0) for run in done],
        marker=look["marker"],
        alpha=0.7,
        **style,
    )
    axes.plot([run.log2_lr for run in off], [shown.mark] * len(off), marker="x", **style)
    if done or off:
        name = by_width(series.name, [series.runs])
        axes.plot([], [], color=look["color"], marker=look["marker"], label=name)
    best = series.answer.optimum if series.answer else None
    if best is not None and best.log2_lr is not None and best.loss is not None and best.interval.bounded:
        axes.plot(best.interval, [best.loss, best.loss], color=look["color"], linewidth=2.4, alpha=0.55, zorder=4)
        axes.plot(
            [best.log2_lr], [best.loss], marker="D", markersize=5.5, markerfacecolor="white", **{**style, "zorder": 5}
        )
