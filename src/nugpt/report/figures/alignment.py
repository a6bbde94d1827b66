"""Alignment exponents as the paper shows them: against the step, against loss decrease, against the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from nugpt.fit.alignment import PARTS, QUANTITIES, REGIMES, AlignmentRun
from nugpt.report.answers import PlanAnswer
from nugpt.report.figures.paper import STYLE, legends, looks, panels, steps_axis
from nugpt.report.measured import SYMBOLS, VIEWS, alignment_groups, places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {"hidden": "-", "output": "--"}
FILLS: dict[str, Literal["full", "none"]] = {"hidden": "full", "output": "none"}


def draw_alignment(found: PlanAnswer) -> dict[str, Figure]:
    """The three views of each set of measured runs."""
    return alignment_figures(alignment_groups(found.plan))


def alignment_figures(groups: Mapping[str, Sequence[AlignmentRun]]) -> dict[str, Figure]:
    """One figure for each view and set, a panel for each exponent, a line for each width."""
    from matplotlib import rc_context

    made = {}
    for i, runs in enumerate(groups.values(), 1):
        for view in VIEWS:
            with rc_context(STYLE):
                figure, axes = panels(len(QUANTITIES), columns=3, width=2.6)
                for at, quantity in zip(axes, QUANTITIES, strict=True):
                    _draw(at, runs, view, quantity)
                legends(figure, axes)
            made[view if len(groups) == 1 else f"{view}-{i}"] = figure
    return made


def _draw(axes: Axes, runs: Sequence[AlignmentRun], view: str, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    widths = sorted({run.width for run in runs})
    for width, look in zip(widths, looks(len(widths), ordered=True), strict=True):
        of_width = [run for run in runs if run.width == width]
        for part in PARTS:
            shown = places(of_width, view, quantity, part)
            if shown:
                x, y = [place.x for place in shown], [place.mean for place in shown]
                axes.plot(x, y, **look, linestyle=DASHES[part], fillstyle=FILLS[part], label=f"{part}, width {width}")
    for regime in REGIMES:
        axes.axhline(regime, color="#999999", linewidth=0.6, linestyle=":")
    axes.set_xlabel(VIEWS[view])
    if view == "steps":
        steps_axis(axes)
    if view == "layers":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # there is no layer 1.2
    axes.set_title(f"{SYMBOLS[quantity]}")
    axes.set_ylabel("exponent, averaged over " + ("steps" if view == "layers" else "layers"))
