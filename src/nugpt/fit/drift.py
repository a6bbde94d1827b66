"""How the best learning rate (or the edge) moves with size, and whether that is no drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nugpt.fit.interval import Interval, check_level
from nugpt.fit.regression import Line, fit_line
from nugpt.spec.study_rules import DRIFT

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "not decided here"


class Located(Protocol):
    """An optimum or an edge: a place on the axis of log2 η, if it has one."""

    @property
    def verdict(self) -> str: ...

    @property
    def log2_lr(self) -> float | None: ...

    @property
    def deviation(self) -> float | None: ...

    @property
    def independent(self) -> bool: ...


@dataclass(frozen=True)
class Drift:
    """Octaves of η* per octave of size."""

    slope: float | None
    interval: Interval
    no_drift: str  # holds, does not hold or not decided here: is the slope inside ±bound?
    bound: float
    sizes: tuple[float, ...]  # that the line is drawn through
    dropped: tuple[float, ...]  # sizes without an enclosed optimum
    level: float
    censored: bool = False  # a size among the dropped has its optimum beyond its grid
    bent: bool = False  # the sizes do not lie on a line
    notes: tuple[str, ...] = ()


def within(interval: Interval, allowed: Interval) -> str:
    """The verdict on a claim: the whole interval lies where it claims, none of it does, or neither."""
    if interval.inside(allowed):
        return HOLDS
    return FAILS if interval.apart(allowed) else UNDECIDED


def drift(located: Sequence[tuple[float, Located]], level: float = 0.90, bound: float = DRIFT) -> Drift:
    """The slope of log2 η* against log2 of the size; "no drift" is an equivalence test, not a slope that may be 0."""
    check_level(level)
    for size, _ in located:
        if not math.isfinite(size) or size <= 0:
            raise ValueError(f"size is {size!r}, but must be a finite number above 0")
    known = [(size, at.log2_lr, at.deviation) for size, at in located if at.log2_lr is not None]
    sizes = tuple(size for size, _, _ in known)
    dropped = tuple(size for size, at in located if at.log2_lr is None)
    censored = any(at.verdict == "edge-censored" for _, at in located)
    notes = [f"size {size:g} has no enclosed optimum" for size in dropped]
    independent = any(at.independent for _, at in located)
    line = _line(known, independent) if len(set(sizes)) >= 3 else None
    if line is None:
        notes.append(f"{len(set(sizes))} sizes with an optimum, but a slope needs 3")
        unbounded = Interval(-math.inf, math.inf)
        return Drift(None, unbounded, UNDECIDED, bound, sizes, dropped, level, censored, notes=tuple(notes))
    interval, bent = line.interval(1, level), line.bent()
    verdict = within(interval, Interval(-bound, bound))
    if bent:
        odds = f"by chance in {line.misfit():.2g} of cases"
        notes.append(f"they do not lie on a line ({odds}): the slope is an average")
        verdict = UNDECIDED if verdict == HOLDS else verdict
    if verdict == HOLDS and censored:
        # A size whose optimum has left its grid is just what no drift would rule out.
        verdict = UNDECIDED
        notes.append("a size whose optimum lies beyond its grid cannot be part of no drift")
    slope = float(line.coefficients[1])
    return Drift(slope, interval, verdict, bound, sizes, dropped, level, censored, bent, tuple(notes))


def _line(known: Sequence[tuple[float, float | None, float | None]], independent: bool) -> Line | None:
    x = np.log2([size for size, _, _ in known])
    y = np.array([at for _, at, _ in known], dtype=np.float64)
    own = np.array([deviation or 0.0 for _, _, deviation in known])
    return fit_line(np.column_stack([np.ones(len(x)), x]), y, own, independent)
