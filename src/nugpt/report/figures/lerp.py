"""The mean effective LERP coefficients against depth, with their power law."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nugpt.report.answers import PlanAnswer
from nugpt.report.charts import lerp_law, lerp_name
from nugpt.report.figures.paper import STYLE, legends, looks, panels, sizes_axis
from nugpt.report.words import between, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_lerp(found: PlanAnswer) -> dict[str, Figure]:
    """One panel: each coefficient at each depth's best η, every seed a point."""
    from matplotlib import rc_context
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    if not found.lerps:
        return {}
    with rc_context(STYLE):
        figure, (axes,) = panels(1, width=5.0)
        for line, look in zip(found.lerps, looks(len(found.lerps), ordered=False), strict=True):
            law = lerp_law(line)
            exponent, interval = line.law.exponents.get("depth"), line.law.intervals.get("depth")
            name = lerp_name(line)
            if exponent is not None and interval is not None:
                name += f": power {number(exponent)} ({between(interval)})"
            axes.plot([row["x"] for row in law], [row["y"] for row in law], color=look["color"])
            points = [one.layers for one in line.at], [one.mean for one in line.at]
            axes.plot(*points, linestyle="none", **look, label=name)
        sizes_axis(axes, [float(n) for n in sorted({one.layers for line in found.lerps for one in line.at})], "layers")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("mean effective α̂ at the best η")
        legends(figure, [axes])
    return {"": figure}
