"""A time limit: only what can end in time is begun, as runs of the same shape took before, and the rest is named."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sweep.small import STALE_AFTER, FakeEngine, make_directory, make_plan, make_spec, record_of, states

from nugpt.spec.plan import Policy, StopRule
from nugpt.spec.record import device_seconds
from nugpt.spec.run import RunSpec, shape_of
from nugpt.store.claims import claim
from nugpt.sweep import worker
from nugpt.sweep.cost import expected_seconds
from nugpt.sweep.pace import MARGIN, Pace, TimeLimit
from nugpt.sweep.state import reached
from nugpt.sweep.worker import WorkerOptions, work

OPTIONS = WorkerOptions(stale_after=STALE_AFTER, poll=0.01)
SPEC = make_spec()


def seen(per_run: float, replicas: int = 4) -> Pace:
    """A pace at which a run of SPEC's shape takes so many seconds as its share of an ensemble, and starts take none."""
    pace = Pace("cpu", starts=[0.0])
    carried = {"device_type": "cpu", "replicas": replicas}
    pace.saw(SPEC, record_of(SPEC, wall_s=per_run * replicas, carried_by=carried))
    return pace


def test_an_estimate_is_the_cost_model_until_a_run_was_seen_and_then_what_it_took() -> None:
    assert Pace("cuda").run_seconds(SPEC) == pytest.approx(MARGIN * expected_seconds(SPEC, "cuda"))
    assert seen(8.0).run_seconds(SPEC) == pytest.approx(MARGIN * 8.0)
    longer = make_spec(steps=2 * SPEC.steps)  # another shape: by what was seen, and twice the steps
    assert seen(8.0).run_seconds(longer) == pytest.approx(2 * MARGIN * 8.0)
    other = Pace("cuda")
    other.saw(SPEC, record_of(SPEC, wall_s=1e6, carried_by={"device_type": "cpu"}))
    assert other.run_seconds(SPEC) == Pace("cuda").run_seconds(SPEC)  # a CPU says nothing about a GPU


def test_a_run_that_diverged_halfway_counts_for_the_steps_it_took() -> None:
    pace = Pace("cpu")
    record = record_of(SPEC, None, "diverged", steps=SPEC.steps // 2, wall_s=4.0, carried_by={"device_type": "cpu"})
    pace.saw(SPEC, record)
    assert pace.run_seconds(SPEC) == pytest.approx(MARGIN * 8.0)


def test_a_run_counts_for_its_share_of_every_ensemble_it_was_in_and_of_a_worker_s_time_alone() -> None:
    carried = {"device_type": "cpu", "replicas": 1, "device_s": 8.0}  # four began together, and went on one by one
    pace = Pace("cpu")
    pace.saw(SPEC, record_of(SPEC, wall_s=14.0, carried_by=carried))
    assert pace.run_seconds(SPEC) == pytest.approx(MARGIN * 8.0)
    for device_s in ({"device_s": 20.0}, {}):
        pace = Pace("cpu")
        carried = {"device_type": "cpu", "replicas": 1, "ranks": 4, **device_s}
        record = record_of(SPEC, wall_s=5.0, carried_by=carried)
        pace.saw(SPEC, record)
        assert device_seconds(record) == 20.0  # four devices for five seconds
        assert pace.run_seconds(SPEC) == pytest.approx(MARGIN * 5.0)


def test_a_stores_records_tell_its_pace(tmp_path: Path) -> None:
    store = make_directory(tmp_path).store
    longer = make_spec(steps=2 * SPEC.steps)
    for seed, seconds in enumerate((8.0, 6.0, 4.0)):
        spec = SPEC.at(SPEC.lr, seed)
        store.run(spec).write_record(record_of(spec, wall_s=seconds, carried_by={"device_type": "cpu"}))
    store.run(longer)  # has not ended
    elsewhere = longer.at(longer.lr, 1)
    store.run(elsewhere).write_record(record_of(elsewhere, wall_s=1e6, carried_by={"device_type": "cuda"}))
    spoiled = longer.at(longer.lr, 2)
    store.run(spoiled).write_record(record_of(spoiled, carried_by={"device_type": "cpu"}))
    (store.root / spoiled.hash / "record.json").write_text("{")
    pace = Pace.of(store, "cpu")
    ((shape, ratios),) = pace.ratios.items()
    assert shape == shape_of(SPEC)
    assert sorted(ratios) == pytest.approx([seconds / expected_seconds(SPEC, "cpu") for seconds in (4.0, 6.0, 8.0)])
    assert pace.run_seconds(SPEC) == pytest.approx(MARGIN * 6.0)


def test_a_time_of_nothing_tells_nothing() -> None:
    pace = Pace("cpu")
    pace.saw(SPEC, record_of(SPEC, wall_s=0.0, carried_by={"device_type": "cpu"}))
    pace.saw(SPEC, record_of(SPEC, None, "diverged", steps=0, wall_s=1.0, carried_by={"device_type": "cpu"}))
    assert pace.ratios == {}
    pace.saw(SPEC, record_of(SPEC, wall_s=0.5, carried_by={"device_type": "cpu"}))
    assert pace.run_seconds(SPEC) == pytest.approx(MARGIN * 0.5)


def test_starting_an_ensemble_takes_what_it_took_beside_its_steps() -> None:
    pace = Pace("cpu")
    pace.started(9.0, [record_of(SPEC, wall_s=5.0), record_of(SPEC, wall_s=7.0)])  # one ensemble, its longest run
    assert pace.start_seconds() == pytest.approx(2.0)


def test_the_room_is_what_fits_in_the_time_that_is_left() -> None:
    limit = TimeLimit(time.time() + 10.5 * MARGIN, seen(4.0))
    assert limit.room([(SPEC, 1.0)] * 5) == 2
    assert limit.room([(SPEC, 0.25)] * 20) == 10  # of each, three quarters are behind it
    assert TimeLimit(time.time() - 1, seen(4.0)).room([(SPEC, 1.0)]) == 0


def test_a_worker_takes_what_fits_and_leaves_the_rest(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-8, -7, -6, -5, -4)))
    now = [0.0]
    said: list[str] = []

    class Clocked(TimeLimit):
        def left(self) -> float:
            return 100.0 - now[0]

    def spend(specs: list[RunSpec]) -> None:
        now[0] += 20.0 * len(specs)

    engine = FakeEngine(before=spend)
    pace = seen(20.0 / MARGIN)
    pace.starts = [15.0] * 5  # which what the fake ensembles take cannot outvote
    outcome = work(directory, engine, OPTIONS, said.append, limit=Clocked(0.0, pace))
    assert [len(ensemble) for ensemble in engine.ensembles] == [4]  # 15 + 4 × 20 fit into 100, five would not
    assert (outcome.done, outcome.postponed) == (4, 1)
    assert said[-1] == "1 of its runs cannot end in the 20 s that are left"
    assert sorted(place.state for curve in states(directory) for place in curve.places) == ["done"] * 4 + ["missing"]
    assert not list(directory.store.root.glob("*/claim-*"))


def test_runs_that_others_took_first_are_not_said_to_want_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, said = make_directory(tmp_path), list[str]()
    taken = claim
    lost = [5]  # so many claims go to somebody else, who soon gives up

    def racing(*args: Any) -> Any:
        if lost[0]:
            lost[0] -= 1
            return None
        return taken(*args)

    monkeypatch.setattr(worker, "claim", racing)
    limit = TimeLimit(time.time() + 1e6, seen(1.0))
    options = replace(OPTIONS, linger=100.0)
    outcome = work(directory, FakeEngine(), options, said.append, limit=limit)
    assert (outcome.done, outcome.postponed) == (5, 0)
    assert not any("cannot end" in line for line in said)


def test_what_a_stopped_run_still_takes_counts_against_the_time(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-6,)))
    (spec,) = directory.plan().specs()
    run = directory.store.run(spec)
    run.write_record(record_of(spec, 9.0, "stopped", steps=spec.steps // 4))  # by the rule of another plan
    (run.checkpoints / f"step-{spec.steps // 4:09d}").mkdir(parents=True)
    ((place,),) = (curve.places for curve in states(directory))
    assert place.state == "stopped"
    assert reached(place, directory.store, Policy()) == 0.25
    assert reached(place, directory.store, Policy(stop=StopRule())) == 1.0  # this plan would have stopped it too
    outcome = work(directory, FakeEngine(), OPTIONS, limit=TimeLimit(time.time() + 30.0 * MARGIN, seen(100.0)))
    assert (outcome.done, outcome.postponed) == (0, 1)  # three quarters of a hundred seconds are left of it


def test_what_is_under_way_counts_by_its_checkpoint_whatever_its_worker_does(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-6,)))
    (spec,) = directory.plan().specs()
    run = directory.store.run(spec)
    held = claim(run, STALE_AFTER)
    assert held is not None
    (run.checkpoints / f"step-{spec.steps // 4:09d}").mkdir(parents=True)

    def place() -> tuple[str, float]:
        ((place,),) = (curve.places for curve in states(directory))
        return place.state, reached(place, directory.store, Policy())

    assert place() == ("running", 0.25)
    os.utime(held.path, (1e9, 1e9))
    assert place() == ("stale", 0.25)
    held.release()
    assert place() == ("interrupted", 0.25)


def test_what_does_not_fit_makes_room_for_what_does(tmp_path: Path) -> None:
    long, short = make_plan(name="long", steps=1000), make_plan(name="short")
    both = make_plan(name="both")
    both = type(both)("both", (*long.curves, *short.curves), both.policy)
    directory = make_directory(tmp_path, both)
    engine = FakeEngine()
    limit = TimeLimit(time.time() + 600, seen(60.0 / MARGIN))  # ten minutes: a long run alone takes as much
    outcome = work(directory, engine, OPTIONS, limit=limit)
    assert {spec.steps for spec in both.specs() if any(spec.hash in e for e in engine.ensembles)} == {100}
    assert (outcome.done, outcome.postponed) == (5, 5)
