"""A coordinate check: sizes over width and over depth, each relative to the smallest model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nugpt.fit.coords import AXES, STATES
from nugpt.report.coords import octaves, shown_name
from nugpt.report.figures.paper import STYLE, looks, panels, sizes_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_coords(name: str, slopes: Sequence[Mapping[str, Any]]) -> Figure:
    """Two rows of panels: what the model shows above, how far each role moved below; width left, depth right."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure, axes = panels(4)
        for at, (moved, axis) in zip(axes, [(moved, axis) for moved in (False, True) for axis in AXES], strict=True):
            _draw(at, [s for s in slopes if s["axis"] == axis and _is_shown(s["quantity"], moved)], axis)
            at.set_title(f"{name}: {'how far each role moves' if moved else 'states'}")
        for row in (axes[:2], axes[2:]):
            for at in row:
                at.legend(fontsize=5.5, frameon=False, ncols=2, handlelength=1.6, loc="upper left")
    return figure


def _is_shown(quantity: str, moved: bool) -> bool:
    return quantity.startswith("moved ") if moved else quantity in STATES


def _draw(axes: Axes, slopes: Sequence[Mapping[str, Any]], axis: str) -> None:
    for slope, look in zip(slopes, looks(len(slopes), ordered=False), strict=True):
        places = octaves(slope)
        name = shown_name(slope["quantity"]).removeprefix("moved ")
        label = name if slope["slope"] is None else f"{name} {slope['slope']:+.2f}"
        axes.plot([x for x, _ in places], [y for _, y in places], **look, label=label)
    if slopes and slopes[0]["sizes"]:
        sizes_axis(axes, [float(x) for x, _ in slopes[0]["sizes"]], axis)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -1.0), max(high, 1.0))  # so that flat looks flat
    axes.set_ylabel("octaves above the smallest model")
