"""What the figures share: sizes for print, a grid of panels, and how series look."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nugpt.report import colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (3.3, 2.5)  # inches; two panels fill the text of a page
STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # text stays text in the PDF
    "svg.fonttype": "none",
    "svg.hashsalt": "nugpt",  # the same records give the same file
    "text.parse_math": False,  # a `$` in a label is a dollar sign
}


def panels(n: int, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels."""
    from matplotlib.figure import Figure

    across = min(n, columns)
    down = math.ceil(n / across)
    figure = Figure(figsize=(PANEL[0] * across, PANEL[1] * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for spare in axes[n:]:
        spare.set_visible(False)
    return figure, axes[:n]


def looks(n: int, ordered: bool) -> list[dict[str, Any]]:
    """Colour and marker of so many series: colour is never the only difference."""
    chosen = colours.ordered(n) if ordered else colours.named(n)
    return [{"color": colour, "marker": colours.SHAPES[i % len(colours.SHAPES)]} for i, colour in enumerate(chosen)]


def sizes_axis(axes: Axes, sizes: list[float], title: str) -> None:
    """A logarithmic axis with the sizes that were run as its ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(title)


def legend(axes: Axes, title: str | None = None) -> None:
    """Where it hides least; small when there is much to tell."""
    entries = len(axes.get_legend_handles_labels()[1])
    if entries:
        axes.legend(title=title, title_fontsize=7, frameon=True, framealpha=0.8, edgecolor="none", fontsize=7 if entries < 7 else 5)
