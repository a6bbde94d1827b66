"""No time on the hopeless: the rule in its own units, what a plan does with it, and what it leaves alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.small import directory_of, make_dataset, result_of
from tests.engines.small import make_spec as trained_spec
from tests.sweep.small import STEPS, FakeEngine, finish, make_directory, make_plan, optima, states

from nugpt.data import TokenDataset
from nugpt.engines.lab import Options
from nugpt.engines.lab.engine import LabEngine
from nugpt.spec.plan import Curve, Plan, Policy, StopRule
from nugpt.store import RunDirectory, Store
from nugpt.sweep.stop import hopeless
from nugpt.sweep.worker import WorkerOptions, work

RULE = StopRule(after=0.3, margin=0.7, times=2)
WITH_STOP = Policy(extend=0, stop=RULE)


def test_the_rule_is_in_nats_steps_and_validations() -> None:
    best = {10: 5.0, 20: 4.0, 30: 3.0, 40: 3.0}
    # Step, so many nats above the best → stopped there?
    for step, above, expected in (
        ((10, 20), 9.0, False),  # too early in a run of 100 steps
        ((20, 30), 9.0, False),  # one of the two is too early
        ((30, 40), 9.0, True),
        ((30, 40), 0.71, True),
        ((30, 40), 0.69, False),  # not far enough above
        ((40,), 9.0, False),  # once is not twice
    ):
        poor = {s: best[s] + above for s in step}
        assert hopeless(RULE, 100, [best, poor]) == [False, expected], (step, above)
    recovered = {10: 9.0, 20: 9.0, 30: 9.0, 40: 3.1}
    assert hopeless(RULE, 100, [best, recovered]) == [False, False]


def test_the_best_may_be_a_run_that_has_ended_and_only_the_same_step_counts() -> None:
    alone = {30: 5.0, 40: 5.0}
    assert hopeless(RULE, 100, [alone]) == [False]
    assert hopeless(RULE, 100, [alone], others=[{30: 3.0, 40: 3.0}]) == [True]
    assert hopeless(RULE, 100, [alone], others=[{31: 3.0, 41: 3.0}]) == [False]
    assert hopeless(RULE, 100, [alone], others=[{100: 1.0}]) == [False]  # its own later self would beat anybody
    assert hopeless(RULE, 100, [{}], others=[{30: 3.0, 40: 3.0}]) == [False]


@given(st.lists(st.lists(st.floats(0, 20), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_best_run_of_a_step_is_never_hopeless_there(losses: list[list[float]]) -> None:
    runs = [dict(zip((25, 50, 75, 100), values, strict=True)) for values in losses]
    verdicts = hopeless(RULE, 100, runs)
    lowest = min(run[100] for run in runs)
    assert not any(verdict for run, verdict in zip(runs, verdicts, strict=True) if run[100] <= lowest + RULE.margin)


def cliff(spec) -> float:  # type: ignore[no-untyped-def]
    """Good up to 2^−6, two nats worse at every octave beyond it."""
    return 3.0 + 0.01 * abs(math.log2(spec.lr) + 6) + 2.0 * max(0.0, math.log2(spec.lr) + 6)


def losses_of(run: RunDirectory) -> list[int]:
    return [row["step"] for row in run.read_metrics()]


def test_a_hopeless_run_is_recorded_as_stopped_and_is_no_optimum(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(policy=WITH_STOP))
    finish(directory, FakeEngine(loss=cliff))
    (curve,) = states(directory)
    assert {place.log2_lr: place.state for place in curve.places} == {
        -8: "done", -7: "done", -6: "done", -5: "stopped", -4: "stopped"
    }  # fmt: skip
    stopped = RunDirectory(directory.store.root / curve.places[-1].spec.hash)
    assert losses_of(stopped) == [10, 20, 30, 40]  # the second validation after 30 % of a run of 100 steps
    assert [point.loss for point in curve.points() if point.status == "stopped"] == [None, None]
    assert curve.left(WITH_STOP) == []


def test_a_stopped_run_with_the_lowest_loss_of_all_is_still_no_optimum(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(policy=WITH_STOP))
    finish(directory, FakeEngine(loss=cliff))
    run = RunDirectory(directory.store.root / directory.plan().specs()[-1].hash)
    record = json.loads((run.path / "record.json").read_text())
    (run.path / "record.json").write_text(json.dumps(record | {"val_loss": 0.1}))
    (found,) = optima(directory)
    assert found is not None
    assert found.log2_lr is None or found.log2_lr < -5
    assert found.best_point is None or found.best_point.log2_lr == -6


def test_runs_are_compared_within_their_curve_and_seed_alone(tmp_path: Path) -> None:
    # Seed 1 is far worse than seed 0 at every learning rate, and longer runs far better than shorter ones.
    def loss(spec) -> float:  # type: ignore[no-untyped-def]
        return 3.0 + 2.0 * spec.seed

    directory = make_directory(tmp_path, make_plan(seeds=(0, 1), policy=WITH_STOP))
    finish(directory, FakeEngine(loss=loss))
    assert {place.state for place in states(directory)[0].places} == {"done"}


def test_a_run_is_held_against_those_that_ended_before_it(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(policy=WITH_STOP))
    engine = FakeEngine(loss=cliff, room=1)  # one after the other, the best at last but two
    finish(directory, engine)
    assert {place.log2_lr for place in states(directory)[0].places if place.state == "stopped"} == {-5, -4}


def test_a_plan_without_a_rule_takes_stopped_runs_up_again(tmp_path: Path) -> None:
    finish(make_directory(tmp_path, make_plan(policy=WITH_STOP)), FakeEngine(loss=cliff))
    whole = make_directory(tmp_path, make_plan(name="whole"))
    assert sum(place.state == "stopped" for place in states(whole)[0].places) == 2
    assert len(states(whole)[0].left(whole.plan().policy)) == 2
    engine = FakeEngine(loss=cliff)
    assert finish(whole, engine).done == 2
    assert {place.state for place in states(whole)[0].places} == {"done"}
    assert finish(make_directory(tmp_path, make_plan(policy=WITH_STOP)), engine).done == 0  # nor the other way round


def test_no_rule_asks_nothing_of_the_engine(tmp_path: Path) -> None:
    asked: list[object] = []

    class Engine(FakeEngine):
        def execute(self, specs, store, guard, stop):  # type: ignore[no-untyped-def]
            asked.append(stop)
            return super().execute(specs, store, guard, stop)

    finish(make_directory(tmp_path), Engine(loss=cliff))
    assert asked == [None]
    assert STEPS == 100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


def train(plan: Plan, store: Path, dataset: TokenDataset) -> dict[str, RunDirectory]:
    """Let the lab engine run the plan as one ensemble."""
    from nugpt.store.plans import PlanDirectory

    directory = PlanDirectory.of(Store(store), plan)
    engine = LabEngine(dataset, Options(device="cpu", checkpoint_every=6, log_every=1, threads=1))
    work(directory, engine, WorkerOptions())
    return {f"{math.log2(spec.lr):g}": directory_of(spec, store) for spec in plan.specs()}


def test_the_lab_engine_stops_a_hopeless_replica_and_its_neighbours_do_not_feel_it(
    tmp_path: Path, dataset: TokenDataset
) -> None:
    # At 2^−20 nothing is learnt in 30 steps; one nat is a margin that such short runs can show.
    spec = trained_spec(dataset, steps=30, validations=10)
    curve = Curve({}, spec, (-20.0, -5.0, -4.75), (0,))
    rule = StopRule(after=0.5, margin=1.0, times=2)
    plain = train(Plan("plain", (curve,), Policy(extend=0)), tmp_path / "plain", dataset)
    stopped = train(Plan("stop", (curve,), Policy(extend=0, stop=rule)), tmp_path / "stop", dataset)
    for name in ("-5", "-4.75"):
        assert result_of(stopped[name]) == result_of(plain[name])
    record = stopped["-20"].record()
    assert record is not None
    assert (record.status, record.steps) == ("stopped", 18)  # validations every 3 steps, the second one from 15 on
    rows = stopped["-20"].read_metrics()
    assert rows == [row for row in plain["-20"].read_metrics() if row["step"] <= 18]
    # A plan without the rule goes on from where it was stopped and comes to the same end as if nothing had been.
    train(Plan("plain", (curve,), Policy(extend=0)), tmp_path / "stop", dataset)
    assert result_of(stopped["-20"]) == result_of(plain["-20"])
