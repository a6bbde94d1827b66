"""A plan's curves as lines of a table: how many runs are in which state, and the best learning rate so far."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nugpt.cli.show import counted, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nugpt.fit.noise import NoiseModel
    from nugpt.spec.plan import Curve
    from nugpt.sweep.state import CurveState, Spent

SEEN_COLUMNS = ["curve", "runs", "best log2 η so far", "mean loss there", "edge"]
CURVE_COLUMNS = ["curve", "runs", "best log2 η", "90 % interval", "verdict", "lowest loss of a run"]


def label_text(curve: Curve) -> str:
    """A curve's label in words."""
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in curve.label.items()
    )


def seen_row(curve: CurveState) -> list[str]:
    """A curve's line without a fit: the best learning rate seen, and whether the best may lie beyond it."""
    best = curve.best()
    if best is None:
        return [label_text(curve.curve), _runs(curve), "–", "–", ""]
    edge = "only point" if best.side == "both" else best.side or ""
    return [label_text(curve.curve), _runs(curve), f"{best.log2_lr:g}", number(best.loss), edge]


def curve_rows(curves: Sequence[CurveState], fine: bool = True) -> list[list[str]]:
    """A plan's curves with their optima as far as they are known; by quick fits where they are made again and again."""
    from nugpt.sweep.state import plan_noise

    noise = plan_noise(curves)
    return [_curve_row(curve, noise, fine) for curve in curves]


def _curve_row(curve: CurveState, noise: NoiseModel, fine: bool) -> list[str]:
    best = interval = verdict = "–"
    if not curve.varies:  # there is nothing to fit
        verdict = f"at {curve.places[0].log2_lr:g} alone" if curve.points() else "–"
    elif (found := curve.optimum(noise, fine)) is not None:
        best = "–" if found.log2_lr is None else f"{found.log2_lr:.2f}"
        interval = interval_text(*found.interval)
        verdict = found.verdict + (f" ({found.side})" if found.side else "")
    lowest = min((point.loss for point in curve.points() if point.loss is not None), default=None)
    return [label_text(curve.curve), _runs(curve), best, interval, verdict, number(lowest)]


def spent_text(spent: Spent) -> str:
    """What the plan has cost, on one line; per optimum once there is one, of the curves that can have one."""
    if not spent.curves:
        return f"{spent.seconds / 60:.3g} device-minutes"
    line = f"{spent.seconds / 60:.3g} device-minutes, the optimum known to ±1/8 octave on {spent.known} of "
    each = f": {spent.seconds / 60 / spent.known:.3g} minutes for each" if spent.known else ""
    return f"{line}{counted(spent.curves, 'curve')}{each}"


def interval_text(low: float, high: float) -> str:
    """An interval in words; an end at infinity is one that the data put no bound on."""
    if math.isfinite(low) and math.isfinite(high):
        return f"{low:.2f} … {high:.2f}"
    if math.isfinite(low):
        return f"at least {low:.2f}"
    return f"at most {high:.2f}" if math.isfinite(high) else "not bounded"


def _runs(curve: CurveState) -> str:
    """How many of the curve's runs have ended, and what the others are."""
    counts: dict[str, int] = {}
    for place in curve.places:
        counts[place.state] = counts.get(place.state, 0) + 1
    ended = sum(counts.get(state, 0) for state in ("done", "diverged", "stopped"))
    others = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "done")
    return f"{ended}/{len(curve.places)}" + (f" ({others})" if others else "")
