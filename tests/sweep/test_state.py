"""What a curve shows by hand: its best so far, what counts as ended, and what a plan has spent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sweep.small import make_plan, parabola, record_of

from nugpt.spec.plan import Policy, StopRule
from nugpt.sweep.state import CurveState, Place, spent

CURVE = make_plan(seeds=(0, 1)).curves[0]
Ended = tuple[float, int, str, float | None]  # log2 η, seed, state, loss


def state_of(*ended: Ended, recorded: str | None = None, **changes: Any) -> CurveState:
    """A curve whose runs are so; `recorded`: what their records say, if not the same."""
    places = []
    for x, seed, state, loss in ended:
        spec = CURVE.run(x, seed)
        status = state if recorded is None else recorded
        record = None if state in ("missing", "failed") else record_of(spec, loss, status, **changes)
        places.append(Place(x, seed, spec, state, record, None))
    return CurveState(CURVE, tuple(places), "val_loss")


def test_the_best_is_the_lowest_mean_of_what_has_ended() -> None:
    found = state_of(
        (-8, 0, "done", 3.3),
        (-7, 0, "done", 3.0),
        (-7, 1, "done", 3.2),
        (-6, 0, "done", 3.15),
        (-5, 0, "missing", None),
    ).best()
    assert found is not None
    assert (found.log2_lr, found.loss, found.side) == (-7, pytest.approx(3.1), None)


@pytest.mark.parametrize(
    ("losses", "side"),
    [((3.0, 3.1, 3.2), "left"), ((3.2, 3.1, 3.0), "right"), ((3.1, 3.0, 3.2), None), ((3.0,), "both")],
)
def test_the_best_may_lie_at_an_end(losses: tuple[float, ...], side: str | None) -> None:
    found = state_of(*((-8 + i, 0, "done", loss) for i, loss in enumerate(losses))).best()
    assert found is not None
    assert found.side == side


def test_a_rate_at_which_half_of_the_seeds_diverged_is_not_the_best() -> None:
    half = [(-7, 0, "done", 2.0), (-7, 1, "diverged", None)]
    found = state_of(*half, (-8, 0, "done", 3.0), (-6, 0, "done", 3.5)).best()
    assert found is not None
    assert (found.log2_lr, found.side) == (-8, "left")
    assert state_of(*half).best() is None
    assert state_of((-7, 0, "missing", None)).best() is None


def test_a_run_that_was_stopped_and_goes_on_has_not_ended() -> None:
    going = state_of((-7, 0, "running", 3.0), recorded="stopped")
    assert (going.points(), going.best()) == ([], None)
    assert len(state_of((-7, 0, "stopped", 3.0)).points()) == 1


def test_what_is_left_of_a_curve_depends_on_the_plans_rule() -> None:
    places = [(-8, 0, "done", 3.0), (-7, 0, "stopped", 4.0), (-6, 0, "diverged", None), (-5, 0, "failed", None)]
    state = state_of(*places)
    assert [place.log2_lr for place in state.left(Policy())] == [-7, -5]
    assert [place.log2_lr for place in state.left(Policy(stop=StopRule()))] == [-5]


def test_a_plan_has_spent_what_its_runs_took_and_knows_what_is_sharp() -> None:
    loss = parabola(-6)
    grid = (-8.0, -7.5, -7.0, -6.5, -6.0, -5.5, -5.0, -4.5, -4.0)
    sharp = state_of(*((x, s, "done", loss(CURVE.run(x, s))) for x in grid for s in (0, 1)), wall_s=2.0)
    edge = state_of(*((x, s, "done", -x) for x in grid for s in (0, 1)), wall_s=1.0)
    single = state_of((-7.0, 0, "done", 3.0), (-7.0, 1, "missing", None), wall_s=5.0)
    assert (sharp.varies, single.varies) == (True, False)
    found = spent([sharp, edge, single])
    assert (found.seconds, found.known, found.curves) == (18 * 2.0 + 18 * 1.0 + 5.0, 1, 2)
