"""The figures for print: each file draws one kind from a plan's answers, as far as its records have it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nugpt.report.answers import PlanAnswer
from nugpt.report.figures.alignment import draw_alignment
from nugpt.report.figures.curves import draw_curves
from nugpt.report.figures.law import draw_law
from nugpt.report.figures.lerp import draw_lerp
from nugpt.report.figures.lerp_course import draw_lerp_course
from nugpt.report.figures.multipliers import draw_multipliers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KINDS", "Drawn", "draw"]

# Kind → its function; the kind is part of the file's name. A new figure is one file and one line here.
KINDS: dict[str, Callable[[PlanAnswer], dict[str, Figure]]] = {
    "loss": draw_curves,
    "best-lr": draw_law,
    "multipliers": draw_multipliers,
    "alpha": draw_lerp,
    "alpha-course": draw_lerp_course,
    "alignment": draw_alignment,
}


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure and what it is called."""

    plan: str
    kind: str
    of: str  # what tells figures of one kind apart; empty where there is one
    figure: Figure

    @property
    def name(self) -> str:
        """The name of its files, without the ending; a plan's name is fit for one."""
        return "-".join(part for part in (self.plan, self.kind, re.sub(r"[^A-Za-z0-9.-]+", "_", self.of)) if part)


def draw(found: PlanAnswer) -> list[Drawn]:
    """Every figure that the plan's records allow."""
    return [
        Drawn(found.plan.name, kind, of, figure)
        for kind, function in KINDS.items()
        for of, figure in function(found).items()
    ]
