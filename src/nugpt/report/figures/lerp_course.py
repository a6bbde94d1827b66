"""The mean effective LERP coefficients during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nugpt.report.answers import COEFFICIENTS, PlanAnswer
from nugpt.report.figures.paper import STYLE, legends, looks, panels, steps_axis
from nugpt.report.measured import Course, asked_courses

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_lerp_course(found: PlanAnswer) -> dict[str, Figure]:
    """A panel for each coefficient, a line for each curve's run at its best η, where the study asks for them."""
    some = asked_courses(found)
    return {"": course_figure(some)} if some else {}


def course_figure(some: Sequence[Course]) -> Figure:
    """These runs' coefficients."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure, axes = panels(len(COEFFICIENTS))
        for at, (role, symbol) in zip(axes, COEFFICIENTS.items(), strict=True):
            for one, look in zip(some, looks(len(some), ordered=True), strict=True):
                steps = [row["step"] for row in one.run.course]
                mean = [row[role]["mean"] for row in one.run.course]
                std = [row[role]["std"] for row in one.run.course]
                at.plot(steps, mean, **look, label=one.name)
                low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
                at.fill_between(steps, low, high, color=look["color"], alpha=0.08, linewidth=0)
            steps_axis(at)
            at.set_ylabel(f"mean effective {symbol}, and its spread")
        legends(figure, axes)
    return figure
