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
    grid = state.log2_lrs
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
    """The first spacing whose points around the optimum are not all there yet; then the last, where it has moved."""
    refined = [spacing for spacing in policy.refine if _was_added(state, _reason(spacing))]
    for spacing in policy.refine:
        reason = _reason(spacing)
        if spacing in refined:
            # One more round at the most, of the finest spacing so far, where its points do not surround the optimum.
            reason = _reason(spacing, moved=True)
            surrounded = not _missing(grid, best, spacing, min(1, state.curve.fine))
            if spacing != refined[-1] or surrounded or _was_added(state, reason):
                continue
        if missing := _missing(grid, best, spacing, state.curve.fine):
            return [Addition(state.curve.key, x, reason) for x in missing]
    return []


def _missing(grid: list[float], best: float, spacing: float, fine: int) -> list[float]:
    """Of so many points on either side of the one nearest to the best, those that are not there."""
    centre = round(best / spacing) * spacing
    wanted = [centre + k * spacing for k in range(-fine, fine + 1)]
    return [x for x in wanted if all(abs(x - there) > spacing / 100 for there in grid)]


def _was_added(state: CurveState, reason: str) -> bool:
    return any(place.added == reason for place in state.places)


def _reason(spacing: float, moved: bool = False) -> str:
    return f"{spacing:g} octave around the optimum" + (", which had moved" if moved else "")
