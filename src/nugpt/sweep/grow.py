"""What a finished curve calls for: points beyond an edge, then around the optimum. A pure function of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nugpt.spec.plan import Policy
from nugpt.store.plans import Addition
from nugpt.sweep.state import CurveState, plan_noise

if TYPE_CHECKING:
    from nugpt.fit.noise import NoiseModel
    from nugpt.fit.optimum import Optimum


def additions(curves: Sequence[CurveState], policy: Policy) -> list[list[Addition]]:
    """What each of a plan's curves calls for; one whose runs have all ended does not wait for the others."""
    if all(curve.left(policy) for curve in curves):  # fits take a second to import
        return [[] for _ in curves]
    noise = plan_noise(curves)
    return [next_points(curve, policy, noise) for curve in curves]


def next_points(state: CurveState, policy: Policy, noise: NoiseModel) -> list[Addition]:
    """The learning rates to add to a curve all of whose runs have ended; none when it is settled or at its limit."""
    if state.left(policy) or (found := state.optimum(noise)) is None:
        return []
    grid = sorted({place.log2_lr for place in state.places})
    beyond = [point for side in _sides(state, found, grid) for point in _extension(state, policy, grid, side)]
    if beyond:
        return beyond
    best = state.best()
    if found.log2_lr is not None:
        return _refinement(state, policy, grid, found.log2_lr)
    if best is not None and best.side is None:
        # Not sure to be enclosed, with nowhere to go on: points around the lowest mean tell more than none.
        return _refinement(state, policy, grid, best.log2_lr)
    return []


def _sides(state: CurveState, found: Optimum, grid: list[float]) -> list[str]:
    """Where the optimum may lie beyond the grid."""
    if found.verdict == "edge-censored":
        return [side for side in ("left", "right") if found.side in (None, side) and _near(state, grid, side)]
    best = state.best()
    if found.verdict == "flat" and best is not None and best.side in ("left", "right"):
        # Too noisy to be sure of an edge; the lowest mean at the very end still asks for the next point.
        return [best.side]
    return []


def _near(state: CurveState, grid: list[float], side: str) -> bool:
    """Whether the lowest loss seen is at one of the two outermost points: a grid is never extended away from it."""
    losses = [(point.loss, point.log2_lr) for point in state.points() if point.loss is not None]
    return not losses or min(losses)[1] in (grid[-2:] if side == "right" else grid[:2])


def _extension(state: CurveState, policy: Policy, grid: list[float], side: str) -> list[Addition]:
    first = state.curve.log2_lrs
    beyond = [x for x in grid if (x > first[-1] if side == "right" else x < first[0])]
    if len(beyond) >= policy.extend:
        return []
    step = policy.spacing if side == "right" else -policy.spacing
    edge = grid[-1] if side == "right" else grid[0]
    return [Addition(state.curve.key, edge + step, f"best at the {side} edge of the grid")]


def _refinement(state: CurveState, policy: Policy, grid: list[float], best: float) -> list[Addition]:
    """The first spacing whose points around the optimum are not all there yet."""
    for spacing in policy.refine:
        centre = round(best / spacing) * spacing
        wanted = [centre + k * spacing for k in range(-state.curve.fine, state.curve.fine + 1)]
        missing = [x for x in wanted if all(abs(x - there) > spacing / 100 for there in grid)]
        # One refinement per spacing: once its points are there, the optimum it gives does not call for more.
        if any(place.added == _reason(spacing) for place in state.places):
            continue
        if missing:
            return [Addition(state.curve.key, x, _reason(spacing)) for x in missing]
    return []


def _reason(spacing: float) -> str:
    return f"{spacing:g} octave around the optimum"
