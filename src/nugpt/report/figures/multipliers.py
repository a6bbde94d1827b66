"""The loss reached against the multiplier of each role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nugpt.report.answers import MultiplierLine, PlanAnswer
from nugpt.report.figures.paper import PANEL, STYLE, by_width, legends, looks, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_multipliers(found: PlanAnswer) -> dict[str, Figure]:
    """One panel for each role; roles whose lines are the same ones share a figure."""
    from matplotlib import rc_context

    together: dict[tuple[str, ...], list[str]] = {}
    for role in dict.fromkeys(line.role for line in found.multipliers):
        together.setdefault(tuple(line.name for line in found.multipliers if line.role == role), []).append(role)
    made = {}
    for roles in together.values():
        with rc_context(STYLE):
            figure, axes = panels(len(roles), width=5.0 if len(roles) == 1 else PANEL[0])
            for at, role in zip(axes, roles, strict=True):
                _draw(at, role, [line for line in found.multipliers if line.role == role])
            legends(figure, axes)
        made["" if len(together) == 1 else "-".join(roles)] = figure
    return made


def _draw(axes: Axes, role: str, lines: Sequence[MultiplierLine]) -> None:
    for line, look in zip(lines, looks(len(lines), ordered=True), strict=True):
        axes.plot(
            [t.log2_multiplier for t in line.tried],
            [t.loss - line.lowest for t in line.tried],
            **look,
            label=by_width(line.name, [one.curve for one in line.tried]) or role,
        )
        for one in line.tried:
            if one.low is not None and one.high is not None:
                x = [one.log2_multiplier] * 2
                axes.plot(
                    x, [one.low - line.lowest, one.high - line.lowest], color=look["color"], linewidth=1.8, alpha=0.5
                )
    axes.set_xlabel(f"log₂ of the multiplier of {role}")
    axes.set_ylabel("loss above the line's lowest (nats)")
