"""What the figures share: sizes for print, a grid of panels, and how series look."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nugpt.report import colours
from nugpt.report.source import CurveRuns
from nugpt.report.words import printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST = 90  # letters of a label
PANEL = (3.3, 2.5)  # inches; two panels fill the text of a page
STYLE: Any = {  # what matplotlib types as one of four hundred names
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


def panels(n: int, columns: int = 2, width: float = PANEL[0]) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels."""
    from matplotlib.figure import Figure

    across = min(n, columns)
    down = math.ceil(n / across)
    figure = Figure(figsize=(width * across, PANEL[1] * down), layout="constrained")
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


def steps_axis(axes: Axes) -> None:
    """A logarithmic axis of steps, its ticks as plain numbers."""
    from matplotlib.ticker import FormatStrFormatter, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("step")


def legends(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below the panels where a look means the same in all of them, else one in each."""
    told = [at.get_legend_handles_labels() for at in axes]
    style: dict[str, Any] = {"frameon": False, "handlelength": 1.6, "columnspacing": 1.2}
    pairs = [(label, handle) for handles, labels in told for handle, label in zip(handles, labels, strict=True)]
    looks_of = {(label, _look(handle)) for label, handle in pairs}
    together = dict(pairs)
    if len(together) == len(looks_of) == len({look for _, look in looks_of}):  # a look means one thing in all panels
        labels, handles = list(together), list(together.values())
        shown = [shortened(label) for label in labels]
        longest = max(map(len, shown), default=0)
        columns = max(1, int(float(figure.get_figwidth()) / (0.35 + 0.06 * longest)))
        figure.set_figheight(figure.get_figheight() + 0.16 * math.ceil(len(labels) / columns))
        figure.legend(handles, shown, loc="outside lower center", ncols=min(columns, len(labels) or 1), **style)
        return
    for at, (handles, labels) in zip(axes, told, strict=True):
        at.legend(handles, [shortened(label) for label in labels], fontsize=6, **style)


def _look(handle: Any) -> tuple[str, ...]:
    return tuple(str(getattr(handle, f"get_{name}")()) for name in ("color", "marker", "linestyle", "fillstyle"))


def by_width(label: str, curves: Iterable[CurveRuns]) -> str:
    """With the width for the heads that a label names, where the curves that it is of have one."""
    widths = {curve.measured.sizes.get("width") for curve in curves}
    if len(widths) > 1 or None in widths:
        return label
    return re.sub(r"\bheads \d+\b", f"d_model {widths.pop():g}", label)


def shortened(label: str) -> str:
    """As a figure writes it, and as long as one has room for."""
    label = printed(label)
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
