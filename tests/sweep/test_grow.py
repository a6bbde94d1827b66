"""Grids that grow: beyond an edge until the best is enclosed, then around it; each point once, with its reason."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.sweep.small import (
    FakeEngine,
    executions,
    finish,
    grid,
    make_directory,
    make_plan,
    make_spec,
    optima,
    parabola,
    plain_optimum,
    race,
    record_of,
    states,
)

from nugpt.fit.curves import answer
from nugpt.fit.measured import measured
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.run import RunSpec
from nugpt.store.plans import Addition, PlanDirectory
from nugpt.sweep import state, worker
from nugpt.sweep.grow import additions
from nugpt.sweep.state import plan_noise
from nugpt.sweep.worker import grown


@pytest.fixture(autouse=True)
def _plain_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts that are beyond doubt; the fit of noisy curves has tests of its own."""
    monkeypatch.setattr(sys.modules["nugpt.fit.optimum"], "optimum", plain_optimum)


START = (-8.0, -7.0, -6.0, -5.0)


def loss_at(best: float, diverges_from: float = math.inf):  # type: ignore[no-untyped-def]
    """A steep parabola around `best`, and nothing but divergence from some learning rate on."""
    return lambda spec: None if math.log2(spec.lr) >= diverges_from else parabola(best)(spec)


@pytest.mark.parametrize(
    ("best", "side", "expected"),
    [(-3.0, "right", [-4.0, -3.0, -2.0]), (-10.0, "left", [-11.0, -10.0, -9.0])],
)
def test_points_are_added_beyond_the_edge_until_the_best_is_enclosed(
    tmp_path: Path, best: float, side: str, expected: list[float]
) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=8, spacing=1.0)))
    finish(directory, FakeEngine(loss=loss_at(best)))
    (curve,) = states(directory)
    (found,) = optima(directory)
    assert found.verdict == "enclosed"
    # On that side alone, and no further than it takes to see the loss rise again.
    assert [addition.log2_lr for addition in directory.additions()] == expected
    for place in curve.places:
        assert place.state == "done"
        assert place.added == (None if place.log2_lr in START else f"best at the {side} edge of the grid")


@pytest.mark.parametrize("extend", [0, 1, 3])
def test_no_more_points_are_added_than_the_policy_allows(tmp_path: Path, extend: int) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=extend, spacing=0.5)))
    finish(directory, FakeEngine(loss=loss_at(20.0)))
    assert grid(directory) == [*START, *(-5 + 0.5 * k for k in range(1, extend + 1))]
    (found,) = optima(directory)
    assert (found.verdict, found.side) == ("edge-censored", "right")


def test_a_grid_of_which_nothing_trains_grows_to_the_left(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=6, spacing=1.0)))
    finish(directory, FakeEngine(loss=loss_at(-10.0, diverges_from=-8.5)))
    assert grid(directory) == [-11, -10, -9, *START]
    (found,) = optima(directory)
    assert found.verdict == "enclosed"


def test_a_divergence_closes_the_grid_on_its_side(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=4, spacing=1.0)))
    finish(directory, FakeEngine(loss=loss_at(-5.5, diverges_from=-5)))
    assert grid(directory) == list(START)


@pytest.mark.parametrize(("best", "expected"), [(-4.0, [-4.0]), (-9.0, [-9.0]), (-6.1, [-6.5, -5.5])])
def test_a_curve_lost_in_noise_grows_around_its_lowest_mean_or_beyond_it_where_that_is_at_an_end(
    tmp_path: Path, best: float, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = SimpleNamespace(verdict="flat", side=None, log2_lr=None)
    monkeypatch.setattr(state.CurveState, "optimum", lambda self, noise: flat)
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=1, spacing=1.0, refine=(0.5,))))
    finish(directory, FakeEngine(loss=loss_at(best)))
    assert [addition.log2_lr for addition in directory.additions()] == expected


def test_an_edge_that_the_grid_may_not_go_beyond_does_not_keep_the_best_inside_from_being_refined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    censored = SimpleNamespace(verdict="edge-censored", side="right", log2_lr=None)
    monkeypatch.setattr(state.CurveState, "optimum", lambda self, noise: censored)
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=4, spacing=1.0, refine=(0.5,))))
    finish(directory, FakeEngine(loss=loss_at(-7.1)))  # two points lie right of the best: not where a grid goes on
    assert [addition.log2_lr for addition in directory.additions()] == [-7.5, -6.5]


def test_one_point_alone_grows_on_both_sides(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan((-6,), policy=Policy(extend=4, spacing=1.0)))
    finish(directory, FakeEngine(loss=loss_at(-6)))
    assert grid(directory) == [-7, -6, -5]


def test_the_optimum_is_refined_spacing_by_spacing(tmp_path: Path) -> None:
    policy = Policy(extend=4, spacing=1.0, refine=(0.5, 0.25))
    directory = make_directory(tmp_path, make_plan((-8, -7, -6, -5, -4), policy=policy))
    finish(directory, FakeEngine(loss=loss_at(-6.25)))
    added = [(addition.log2_lr, addition.reason) for addition in directory.additions()]
    half, quarter = "0.5 octave around the optimum", "0.25 octave around the optimum"
    # Two steps on either side of the best so far, without what is there: first around −6, then around −6.5 or −6,
    # which are as good as each other.
    assert [x for x, reason in added if reason == half] == [-6.5, -5.5]
    assert [x for x, reason in added if reason == quarter] in ([-6.75, -6.25], [-6.25, -5.75])
    assert len(added) == 4


def moving(*bests: float):  # type: ignore[no-untyped-def]
    """A parabola around −6, but for dips that are each deeper than the one before."""
    dips = {best: 9.0 * (i + 1) for i, best in enumerate(bests)}
    return lambda spec: 3.0 + (math.log2(spec.lr) + 6) ** 2 - dips.get(round(math.log2(spec.lr), 6), 0.0)


FIRST, AGAIN = "0.25 octave around the optimum", "0.25 octave around the optimum, which had moved"


@pytest.mark.parametrize(
    ("fine", "bests", "first", "again"),
    [
        (2, (-5.75,), [-6.5, -6.25, -5.75, -5.5], []),  # it has a neighbour at a quarter octave on either side
        (2, (-5.5,), [-6.5, -6.25, -5.75, -5.5], [-5.25]),  # of −5.25 and −5 the grid has one
        (2, (-6.5,), [-6.5, -6.25, -5.75, -5.5], [-6.75]),
        (1, (-6.25,), [-6.25, -5.75], [-6.5]),
        (1, (-5.75,), [-6.25, -5.75], [-5.5]),
        (2, (-5.5, -5.25), [-6.5, -6.25, -5.75, -5.5], [-5.25]),
        (1, (-5.75, -5.5), [-6.25, -5.75], [-5.5]),  # it moves once more, which is not followed
        (0, (), [], []),
    ],
)
def test_a_refinement_follows_an_optimum_that_moves_once(
    tmp_path: Path, fine: int, bests: tuple[float, ...], first: list[float], again: list[float]
) -> None:
    curve = Curve({}, make_spec(), (-8, -7, -6, -5, -4), (0,), fine)
    directory = make_directory(tmp_path, Plan("plan", (curve,), Policy(extend=0, refine=(0.25,))))
    finish(directory, FakeEngine(loss=moving(*bests)))
    added = directory.additions()
    assert [a.log2_lr for a in added if a.reason == FIRST] == first
    assert [a.log2_lr for a in added if a.reason == AGAIN] == again
    assert len(added) == len(first) + len(again)
    assert additions(states(directory), directory.plan().policy) == [[]]


@pytest.mark.parametrize(
    ("start", "bests", "half", "half_again", "quarter", "quarter_again"),
    [
        # −5.5 has no −5 beside it; then it has, and the quarters are those around it.
        ((-8, -6, -4), (-5.5,), [-6.5, -5.5], [-5.0], [-5.75, -5.25], []),
        # −6.5 has −7 and −6 beside it, −6.75 then −7 and −6.5: halves are not looked at again.
        ((-8, -7, -6, -5), (-6.5, -6.75), [-6.5, -5.5], [], [-6.75, -6.25], []),
        # −6.5 lacks −7; of its quarters −6.75 is best, which has −7 and −6.5 beside it.
        ((-8, -6, -4), (-6.5, -6.75), [-6.5, -5.5], [-7.0], [-6.75, -6.25], []),
        ((-8, -6, -4), (-6.25,), [-6.5, -5.5], [], [-6.25, -5.75], []),
    ],
)
def test_a_spacing_follows_an_optimum_that_moves_before_the_next_begins(
    tmp_path: Path,
    start: tuple[float, ...],
    bests: tuple[float, ...],
    half: list[float],
    half_again: list[float],
    quarter: list[float],
    quarter_again: list[float],
) -> None:
    curve = Curve({}, make_spec(), start, (0,), 1)
    directory = make_directory(tmp_path, Plan("plan", (curve,), Policy(extend=0, refine=(0.5, 0.25))))
    finish(directory, FakeEngine(loss=moving(*bests)))
    added: dict[str, list[float]] = {}
    for addition in directory.additions():
        added.setdefault(addition.reason, []).append(addition.log2_lr)
    wanted = {FIRST.replace("0.25", "0.5"): half, AGAIN.replace("0.25", "0.5"): half_again}
    wanted |= {FIRST: quarter, AGAIN: quarter_again}
    assert added == {reason: points for reason, points in wanted.items() if points}


def test_a_plan_that_ended_by_one_round_alone_goes_on(tmp_path: Path) -> None:
    """As stores have them in which the optimum moved before anyone followed: points at −9, then from −8 up."""
    policy = Policy(extend=4, spacing=1.0, refine=(0.25,))
    directory = make_directory(tmp_path, make_plan((-9, -8, -7), policy=policy))
    (curve,) = directory.plan().curves
    directory.add([Addition(curve.key, x, FIRST) for x in (-7.75, -7.5, -7.25)])
    finish(directory, FakeEngine(loss=loss_at(-8.04)))
    assert [a.log2_lr for a in directory.additions() if a.reason == AGAIN] == [-8.5, -8.25]


def test_a_finished_plan_asks_for_nothing_more(tmp_path: Path) -> None:
    policy = Policy(extend=4, spacing=1.0, refine=(0.5, 0.25))
    directory = make_directory(tmp_path, make_plan(START, policy=policy))
    finish(directory, FakeEngine(loss=loss_at(-4.5)))
    before = directory.additions()
    assert before
    engine = FakeEngine(loss=loss_at(-4.5))
    assert finish(directory, engine).done == 0
    assert engine.ensembles == []
    assert directory.additions() == before
    assert additions(grown(directory.plan(), directory, 60.0), directory.plan().policy) == [[]]


def test_a_plan_that_asked_for_nothing_more_is_not_reopened_by_another_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=4, spacing=1.0, refine=(0.5,))))
    assert not directory.settled()
    finish(directory, FakeEngine(loss=loss_at(-6.2)))
    assert directory.settled()
    before = directory.additions()
    (curve,) = directory.plan().curves
    asked = []

    def otherwise(curves: list[state.CurveState], policy: Policy) -> list[list[Addition]]:
        asked.append(1)
        return [[Addition(curve.key, -3.0, "read otherwise")]]

    monkeypatch.setattr(worker, "additions", otherwise)
    grown(directory.plan(), directory, 60.0)
    assert (directory.additions(), asked) == (before, [])
    # Points that come from elsewhere are another grid: once they have ended too, it is asked again.
    directory.add([Addition(curve.key, -9.0, "merged")])
    assert not directory.settled()
    grown(directory.plan(), directory, 60.0)
    assert asked
    assert -3.0 in {addition.log2_lr for addition in directory.additions()}


def test_points_that_another_worker_adds_meanwhile_are_not_settled_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the curves while others were unfinished, from other noise; nobody has looked at its points yet."""
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=0)))
    finish(make_directory(tmp_path, make_plan(START, policy=Policy(extend=0), name="same")), FakeEngine())
    (curve,) = directory.plan().curves

    def none(curves: list[state.CurveState], policy: Policy) -> list[list[Addition]]:
        directory.add([Addition(curve.key, -9.0, "another worker's")])
        return [[]]

    with monkeypatch.context() as patch:
        patch.setattr(worker, "additions", none)
        grown(directory.plan(), directory, 60.0)
    assert not directory.settled()
    finish(directory, FakeEngine())
    assert directory.settled()


def test_a_plan_with_runs_left_is_not_settled(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=0)))
    grown(directory.plan(), directory, 60.0)
    assert not directory.settled()
    finish(make_directory(tmp_path, make_plan(START[1:], policy=Policy(extend=0), name="part")), FakeEngine())
    grown(directory.plan(), directory, 60.0)
    assert not directory.settled()
    finish(directory, FakeEngine())
    assert directory.settled()


def test_a_curve_that_is_not_finished_does_not_grow(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=4)))
    (curve,) = grown(directory.plan(), directory, 60.0)
    assert optima(directory) == [None]
    finish(make_directory(tmp_path, make_plan(START[1:], name="part")), FakeEngine(loss=loss_at(20.0)))
    (curve,) = grown(directory.plan(), directory, 60.0)
    assert [place.state for place in curve.places] == ["missing", "done", "done", "done"]
    (found,) = optima(directory)
    assert found.verdict == "edge-censored"
    assert directory.additions() == []


def test_curves_grow_each_for_itself(tmp_path: Path) -> None:
    curves = [Curve({"steps": steps}, make_spec(steps=steps), START, (0,)) for steps in (100, 200)]
    directory = make_directory(tmp_path, Plan("plan", tuple(curves), Policy(extend=4, spacing=1.0)))
    finish(directory, FakeEngine(loss=lambda spec: parabola(-6.5 if spec.steps == 100 else -4.0)(spec)))
    assert {addition.curve for addition in directory.additions()} == {curves[1].key}


def test_an_addition_needs_all_of_its_seeds(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(START, seeds=(0, 1, 2), policy=Policy(extend=4, spacing=1.0)))
    finish(directory, FakeEngine(loss=lambda spec: parabola(-4.5)(spec) + 0.0001 * spec.seed))
    (curve,) = states(directory)
    for x in grid(directory):
        assert sorted(place.seed for place in curve.places if place.log2_lr == x) == [0, 1, 2]


def test_two_workers_grow_a_plan_together_and_add_each_point_once(tmp_path: Path) -> None:
    policy = Policy(extend=6, spacing=1.0, refine=(0.5,))
    directory = make_directory(tmp_path, make_plan((-10, -9, -8, -7), seeds=(0, 1), policy=policy))
    race(directory, tmp_path / "log", workers=2, peers=2)
    added = [addition.log2_lr for addition in directory.additions()]
    assert len(set(added)) == len(added)
    (curve,) = states(directory)
    assert executions(tmp_path / "log") == {place.spec.hash: 1 for place in curve.places}
    alone = make_directory(tmp_path / "alone", make_plan((-10, -9, -8, -7), seeds=(0, 1), policy=policy))
    finish(alone, FakeEngine())
    assert directory.additions() == alone.additions()


def test_what_was_added_elsewhere_is_taken_up(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    (curve,) = directory.plan().curves
    directory.add([Addition(curve.key, -6.5, "asked for"), Addition("0" * 16, -1.0, "of no curve of this plan")])
    assert finish(directory, FakeEngine()).done == 6
    (state,) = states(directory)
    assert [p.log2_lr for p in state.places if p.added == "asked for"] == [-6.5]


@pytest.mark.parametrize(("start", "best"), [(range(-8, -4), -4.0), (range(-5, -1), -6.0)])
def test_the_fit_itself_leads_a_plan_to_a_gentle_slope_before_a_cliff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: range, best: float
) -> None:
    monkeypatch.undo()

    def loss(spec: RunSpec) -> float:
        """What a learning-rate curve looks like: a slope of 0.1 nats an octave, then e^3-fold an octave."""
        u = math.log2(spec.lr) - best
        return 3.0 + 0.1 * (math.expm1(3 * u) / 3 - u) + 0.05 * u * u + 0.001 * spec.seed

    policy = Policy(extend=4, spacing=1.0)
    directory = make_directory(tmp_path, make_plan(tuple(start), seeds=(0, 1, 2), policy=policy))
    finish(directory, FakeEngine(loss=loss))
    assert min(grid(directory)) < best < max(grid(directory))
    (found,) = optima(directory)
    assert found.verdict == "enclosed"


# A curve of one seed, as measured: 0.06 nats deep, which is much against noise of 0.003 and little before it is known.
SHALLOW = {-8.0: 3.299, -7.0: 3.228, -6.0: 3.284}
# Noise around the parabola of three seeds, whose sum is nothing along either way: deviation 0.003·√(9·⅔ / 4) = 0.0037.
NOISE = {(i, j): 0.003 * ((i + j) % 3 - 1) for i in range(3) for j in range(3)}


def one_seed_beside_three(path: Path) -> PlanDirectory:
    """A plan of a curve of three seeds (a hundred steps), and one of a single seed (two hundred)."""
    octaves = tuple(SHALLOW)
    curves = [
        Curve({"steps": 100}, make_spec(steps=100), octaves, (0, 1, 2)),
        Curve({"steps": 200}, make_spec(steps=200), octaves, (0,)),
    ]
    return make_directory(path, Plan("plan", tuple(curves), Policy(extend=4, spacing=1.0, refine=(0.25,))))


def losses(spec: RunSpec) -> float:
    """Of either curve."""
    x = math.log2(spec.lr)
    if spec.steps == 200:
        return SHALLOW[x]
    return parabola(-7.0)(spec) + NOISE[round(x) % 3, spec.seed]


def write(directory: PlanDirectory, steps: int, *, but: int = 0) -> None:
    """Records of the first grid's runs of so many steps, without the last few."""
    runs = [spec for spec in directory.plan().specs() if spec.steps == steps]
    for spec in runs[: len(runs) - but]:
        directory.store.run(spec).write_record(record_of(spec, losses(spec)))


def refines(added: list[Addition]) -> None:
    """Quarter octaves between the outer points, the best of which no three points tell much closer."""
    assert {addition.reason for addition in added} == {"0.25 octave around the optimum"}
    assert len(added) >= 3
    assert all(-8 < addition.log2_lr < -6 for addition in added)


def test_a_curve_of_one_seed_is_judged_by_the_noise_of_its_plan_as_in_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    directory = one_seed_beside_three(tmp_path)
    write(directory, 200)
    assert [found.verdict for found in optima(directory) if found] == ["flat"]
    write(directory, 100)
    curves = states(directory)
    noise = plan_noise(curves)
    assert noise.deviation == pytest.approx(0.003 * math.sqrt(9 * 2 / 3 / 4), rel=0.05)  # high points weigh less
    assert [found.verdict for found in optima(directory)] == ["enclosed", "enclosed"]
    told = answer([measured(c.curve, [(p.log2_lr, p.seed, p.record) for p in c.places], c.loss) for c in curves])
    assert told.noise == noise
    assert [one.optimum.verdict for one in told.curves] == ["enclosed", "enclosed"]
    refines(additions(curves, directory.plan().policy)[1])


def test_a_curve_grows_while_runs_of_others_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    directory = one_seed_beside_three(tmp_path)
    write(directory, 200)
    write(directory, 100, but=2)
    grown(directory.plan(), directory, 60.0)
    assert {addition.curve for addition in directory.additions()} == {directory.plan().curves[1].key}
    refines(directory.additions())


def test_what_another_worker_added_in_between_is_not_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_directory(tmp_path, make_plan(START, policy=Policy(extend=4, spacing=1.0, refine=(0.5,))))
    (curve,) = directory.plan().curves
    theirs = [Addition(curve.key, -6.75, "as they saw it")]

    def late(curves: list[state.CurveState], policy: Policy) -> list[list[Addition]]:
        directory.add(theirs)  # after this worker has looked, and before it adds
        return [[Addition(curve.key, -6.5, "as we saw it")]]

    monkeypatch.setattr(worker, "additions", late)
    (now,) = grown(directory.plan(), directory, 60.0)
    assert directory.additions() == theirs
    assert -6.75 in {place.log2_lr for place in now.places}
