"""The loss reached against the multiplier of each role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nugpt.report.answers import PlanAnswer
from nugpt.report.figures.paper import STYLE, legend, looks, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_multipliers(found: PlanAnswer) -> Figure | None:
    """One panel for each role, a line for each size."""
    from matplotlib import rc_context

    roles = dict.fromkeys(line.role for line in found.multipliers)
    if not roles:
        return None
    with rc_context(STYLE):
        figure, axes = panels(len(roles))
        for at, role in zip(axes, roles, strict=True):
            lines = [line for line in found.multipliers if line.role == role]
            for line, look in zip(lines, looks(len(lines), ordered=True), strict=True):
                x, y = [t.log2_multiplier for t in line.tried], [t.loss for t in line.tried]
                at.plot(x, y, **look, label=line.name or role)
                for one in line.tried:
                    if one.low is not None and one.high is not None:
                        ends = [one.low, one.high]
                        at.plot([one.log2_multiplier] * 2, ends, color=look["color"], linewidth=1.8, alpha=0.5)
            at.set_xlabel(f"log₂ of the multiplier of {role}")
            at.set_ylabel("loss reached (nats)")
            legend(at)
    return figure
