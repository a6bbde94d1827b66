"""Workers on one plan: every run ends exactly once, a failure is isolated, kept and tried again."""

from __future__ import annotations

import gc
import json
import os
import signal
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.sweep.small import (
    STALE_AFTER,
    FakeEngine,
    executions,
    finish,
    make_directory,
    make_plan,
    make_spec,
    race,
    record_of,
    states,
)

from nugpt.spec.plan import Curve, Plan, Policy, StopRule
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store
from nugpt.store.claims import LostClaim, claim
from nugpt.sweep.signals import Asked, requests
from nugpt.sweep.worker import WorkerOptions, work


def run_directory(store: Store, spec: RunSpec) -> RunDirectory:
    return RunDirectory(store.root / spec.hash)


def test_three_workers_do_every_run_exactly_once(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-15, 0), seeds=range(4)))
    said = race(directory, tmp_path / "log", workers=3, replicas=4, peers=3)
    assert executions(tmp_path / "log") == {spec.hash: 1 for spec in directory.plan().specs()}
    ended = [line.split()[1] for text in said for line in text.splitlines() if line.endswith(" done")]
    assert sorted(ended) == sorted(spec.hash for spec in directory.plan().specs())
    for text in said:  # each held runs while the others did
        assert " done" in text
    assert not list(directory.store.root.glob("*/claim-*"))


def test_workers_share_what_can_be_packed_together(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-12, 0)))
    engine = FakeEngine()
    finish(directory, engine, peers=3)
    assert [len(ensemble) for ensemble in engine.ensembles] == [4, 3, 2, 1, 1, 1]  # a third of what is left
    assert len(directory.plan().specs()) == 12


@pytest.mark.parametrize(("options", "sizes"), [({"replicas": 3}, [3, 2]), ({}, [4, 1])])
def test_an_ensemble_is_no_larger_than_asked_for_or_than_fits(
    tmp_path: Path, options: dict[str, int], sizes: list[int]
) -> None:
    engine = FakeEngine(room=4)
    finish(make_directory(tmp_path), engine, **options)
    assert [len(ensemble) for ensemble in engine.ensembles] == sizes


def test_only_runs_of_one_shape_and_step_share_an_ensemble(tmp_path: Path) -> None:
    shapes = [make_spec(), make_spec(steps=50), replace(make_spec(), multipliers={"output": 0.25})]
    curves = [Curve({"i": i}, spec, (-7, -6), (0,)) for i, spec in enumerate(shapes)]
    directory = make_directory(tmp_path, Plan("plan", tuple(curves), Policy(extend=0)))
    begun = curves[0].run(-7, 0)
    (directory.store.run(begun).checkpoints / "step-000000040").mkdir(parents=True)
    engine = FakeEngine()
    finish(directory, engine)
    together = {frozenset(ensemble) for ensemble in engine.ensembles}
    assert together == {
        frozenset([begun.hash]),
        frozenset([curves[0].run(-6, 0).hash, *(spec.hash for spec in curves[2].runs().values())]),
        frozenset(spec.hash for spec in curves[1].runs().values()),
    }


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    assert finish(directory, FakeEngine()).done == 5
    engine = FakeEngine()
    assert finish(directory, engine).done == 0
    assert engine.ensembles == []


def test_a_diverging_learning_rate_is_a_result(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    outcome = finish(directory, FakeEngine(loss=lambda spec: None if spec.lr > 2**-5.5 else 3.0))
    (curve,) = states(directory)
    assert [place.state for place in curve.places] == ["done"] * 3 + ["diverged"] * 2
    assert (outcome.done, outcome.failed) == (5, 0)
    again = FakeEngine()
    finish(directory, again)
    assert again.ensembles == []


def raising(guilty: RunSpec, error: Callable[[], BaseException]) -> Callable[[list[RunSpec]], None]:
    def before(specs: list[RunSpec]) -> None:
        if guilty in specs:
            raise error()

    return before


def test_a_crash_is_isolated_by_halving_recorded_and_tried_again_at_the_next_start(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-8, 0)))
    specs = directory.plan().specs()
    guilty = specs[2]
    said: list[str] = []
    engine = FakeEngine(log=tmp_path / "log", before=raising(guilty, lambda: RuntimeError("bad\nluck")))
    outcome = work(directory, engine, WorkerOptions(STALE_AFTER), say=said.append)
    assert (outcome.done, outcome.failed) == (7, 1)
    assert [len(ensemble) for ensemble in engine.ensembles] == [8, 4, 2, 2, 1, 1, 4]
    assert executions(tmp_path / "log") == {spec.hash: 1 for spec in specs if spec != guilty}
    run = run_directory(directory.store, guilty)
    assert run.record() is None
    (failure,) = [json.loads(line) for line in (run.path / "failures.jsonl").read_text().splitlines()]
    assert failure["error"] == "RuntimeError: bad luck"
    assert "test_worker.py" in failure["traceback"]
    assert f"run {guilty.hash} failed: RuntimeError: bad luck" in said
    (curve,) = states(directory)
    assert {place.spec.hash: place.state for place in curve.places}[guilty.hash] == "failed"

    assert finish(directory, FakeEngine(log=tmp_path / "log")).done == 1
    assert executions(tmp_path / "log") == {spec.hash: 1 for spec in specs}
    assert run.failures() == 1


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_an_ensemble_too_large_for_memory_is_halved_until_it_fits(tmp_path: Path, error: type[Exception]) -> None:
    def before(specs: list[RunSpec]) -> None:
        if len(specs) > 2:
            raise error(f"{len(specs)} replicas")

    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-8, 0)))
    engine = FakeEngine(log=tmp_path / "log", before=before)
    outcome = finish(directory, engine)
    assert (outcome.done, outcome.failed) == (8, 0)
    assert [len(ensemble) for ensemble in engine.ensembles] == [8, 4, 2, 2, 2, 2]  # four are not tried again
    assert set(executions(tmp_path / "log").values()) == {1}


def test_what_did_not_fit_is_remembered_for_its_shape_alone(tmp_path: Path) -> None:
    """Two shapes of ten runs each, claimed eight at the most at a time; of the first at most three fit."""
    curves = [Curve({"steps": n}, make_spec(steps=n), range(-10, 0), (0,)) for n in (100, 50)]
    directory = make_directory(tmp_path, Plan("plan", tuple(curves), Policy(extend=0)))
    tried: list[tuple[int, int]] = []

    def before(specs: list[RunSpec]) -> None:
        tried.append((specs[0].steps, len(specs)))
        if specs[0].steps == 100 and len(specs) > 3:
            raise torch.OutOfMemoryError("no room")

    asked: list[int] = []

    class Engine(FakeEngine):
        def capacity(self, spec: RunSpec, wanted: int) -> int:
            asked.append(wanted)
            return min(wanted, 8)

    outcome = finish(directory, Engine(before=before))
    assert (outcome.done, outcome.failed) == (20, 0)
    assert tried == [(100, 8), (100, 4), (100, 2), (100, 2), (100, 2), (100, 2), (100, 2), (50, 8), (50, 2)]
    # The engine is never asked whether more fit than are known not to; what it measures decides below that.
    assert asked == [10, 2, 10, 2]


def test_a_failure_that_is_not_for_want_of_memory_limits_nothing(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-8, 0)))
    engine = FakeEngine(room=4, before=raising(directory.plan().specs()[0], lambda: RuntimeError("bad luck")))
    finish(directory, engine)
    assert [len(ensemble) for ensemble in engine.ensembles] == [4, 2, 1, 1, 2, 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("moment", ["claims", "measures", "waits", "begins", "between parts"])
def test_a_signal_at_any_time_frees_what_is_held(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    directory = make_directory(tmp_path)
    specs = directory.plan().specs()
    if moment == "waits":
        for spec in specs:  # of a worker elsewhere, which is waited for
            assert claim(directory.store.run(spec), STALE_AFTER) is not None

    class Engine(FakeEngine):
        def capacity(self, spec: RunSpec, wanted: int) -> int:
            if moment == "measures":
                os.kill(os.getpid(), number)
            return wanted

    def before(given: list[RunSpec]) -> None:
        if moment == "begins":
            os.kill(os.getpid(), number)
        if moment == "between parts" and len(given) > 2:
            raise MemoryError

    def say(text: str) -> None:
        if moment == "between parts" and text == f"run {specs[1].hash} done":
            os.kill(os.getpid(), number)

    polls: list[float] = []

    def sleep(seconds: float) -> None:
        polls.append(seconds)
        os.kill(os.getpid(), number)

    stores_run = Store.run

    def store_run(self: Store, spec: RunSpec) -> RunDirectory:
        if moment == "claims" and spec == specs[2]:
            os.kill(os.getpid(), number)  # two are held by now
        return stores_run(self, spec)

    with pytest.MonkeyPatch.context() as patch, requests() as request:
        patch.setattr(Store, "run", store_run)
        patch.setattr("nugpt.sweep.worker.time.sleep", sleep)
        with pytest.raises(Asked) as asked:
            work(directory, Engine(before=before), WorkerOptions(STALE_AFTER, linger=100.0), say, request)
    assert asked.value.signal_number == number
    assert number.name in str(asked.value)
    assert bool(polls) == (moment == "waits")
    if moment != "waits":
        left = [place.state for place in states(directory)[0].places]
        assert left == (["done"] * 2 + ["missing"] * 3 if moment == "between parts" else ["missing"] * 5)
    assert not list(directory.store.root.glob("*/failures.jsonl"))


def test_a_second_ctrl_c_stops_at_once_and_the_old_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with requests() as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


def test_what_a_failed_ensemble_held_is_free_when_its_halves_begin(tmp_path: Path) -> None:
    class Weights:
        pass

    alive: list[int] = []
    made: list[weakref.ref[Weights]] = []

    def before(specs: list[RunSpec]) -> None:
        gc.collect()
        alive.append(sum(ref() is not None for ref in made))
        weights = Weights()
        made.append(weakref.ref(weights))
        if len(specs) > 1:
            raise MemoryError

    finish(make_directory(tmp_path, make_plan(log2_lrs=(-8, -7, -6, -5))), FakeEngine(before=before))
    assert alive == [0] * 6


def test_a_mistake_stops_the_worker_and_leaves_its_runs_free(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    with pytest.raises(ValueError, match="no such data"):
        finish(directory, FakeEngine(before=raising(directory.plan().specs()[0], lambda: ValueError("no such data"))))
    (curve,) = states(directory)
    assert {place.state for place in curve.places} == {"missing"}
    assert finish(directory, FakeEngine()).done == 5


@pytest.mark.parametrize("place", [0, 3], ids=["whole", "in-a-half"])
def test_an_interruption_is_no_failure_and_leaves_the_runs_free(tmp_path: Path, place: int) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-8, -4)))
    specs = directory.plan().specs()

    def before(given: list[RunSpec]) -> None:
        if place and len(given) > 2:
            raise MemoryError
        if specs[place] in given:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(directory, FakeEngine(before=before))
    (curve,) = states(directory)
    assert {p.state for p in curve.places} <= {"missing", "done"}
    assert not list(directory.store.root.glob("*/failures.jsonl"))
    finish(directory, FakeEngine())
    assert {p.state for p in states(directory)[0].places} == {"done"}


def test_a_run_that_cannot_be_claimed_leaves_the_others_of_its_ensemble_free(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    spoiled = directory.store.run(directory.plan().specs()[3])
    (spoiled.path / "spec.json").write_text("{")
    with pytest.raises(ValueError, match=r"spec\.json"):
        finish(directory, FakeEngine())
    (spoiled.path / "spec.json").unlink()
    assert {place.state for place in states(directory)[0].places} == {"missing"}


def test_a_worker_that_lost_a_run_writes_nothing_and_goes_on_with_the_others(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    specs = directory.plan().specs()
    taken = run_directory(directory.store, specs[1])
    said: list[str] = []

    def before(given: list[RunSpec]) -> None:
        if len(given) == 5:  # by another worker, whose clock says that this one has been silent for long
            assert claim(taken, 1.0, now=2e10) is not None

    engine = FakeEngine(log=tmp_path / "log", before=before)
    outcome = work(directory, engine, WorkerOptions(STALE_AFTER), say=said.append)
    assert (outcome.done, outcome.failed) == (4, 0)
    assert executions(tmp_path / "log") == {spec.hash: 1 for spec in specs if spec != specs[1]}
    assert taken.record() is None
    assert not taken.metrics.exists()
    assert any(specs[1].hash in line and "taken over" in line for line in said)
    assert states(directory)[0].places[1].state == "running"


def test_a_lost_claim_reaches_the_engine_as_an_exception(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-6,)))
    seen: list[str] = []

    class Engine(FakeEngine):
        def execute(self, specs, store, guard, stop):  # type: ignore[no-untyped-def]
            assert claim(run_directory(store, specs[0]), 1.0, now=2e10) is not None
            with pytest.raises(LostClaim):
                guard()
            seen.append("lost")
            raise LostClaim("lost")

    assert finish(directory, Engine()).done == 0
    assert seen == ["lost"]


def test_runs_of_a_worker_that_is_no_more_are_taken_over(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    for spec in directory.plan().specs():
        held = claim(directory.store.run(spec), STALE_AFTER)
        assert held is not None
        about = json.loads(held.path.read_text())
        held.path.write_text(json.dumps(about | {"began": "another time"}))  # of an earlier process of this number
    assert {place.state for place in states(directory)[0].places} == {"stale"}
    assert finish(directory, FakeEngine()).done == 5


@pytest.mark.parametrize("keep", [True, False])
def test_checkpoints_of_what_is_done_are_dropped_unless_kept(tmp_path: Path, keep: bool) -> None:
    rule = StopRule()
    directory = make_directory(tmp_path, make_plan(policy=Policy(extend=0, stop=rule)))
    specs = directory.plan().specs()
    bad = {specs[0].hash: 9.0, specs[4].hash: None}  # hopeless, and diverging

    def before(given: list[RunSpec]) -> None:
        for spec in given:
            (directory.store.run(spec).checkpoints / "step-000000100").mkdir(parents=True)

    finish(directory, FakeEngine(lambda spec: bad.get(spec.hash, 3.0), before=before), keep_checkpoints=keep)
    ended = {place.state: place.spec for place in states(directory)[0].places}
    assert set(ended) == {"stopped", "done", "diverged"}
    for state, spec in ended.items():
        # One that was stopped may be taken up again, so it always keeps its own.
        assert run_directory(directory.store, spec).checkpoints.is_dir() == (keep or state == "stopped")
        assert run_directory(directory.store, spec).record() is not None


def test_a_worker_waits_for_others_no_longer_than_it_was_told(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    spec = directory.plan().specs()[0]
    held = claim(directory.store.run(spec), STALE_AFTER)
    assert held is not None
    assert finish(directory, FakeEngine(), linger=0.05).done == 4
    held.run.write_record(record_of(spec))
    held.finish()
    assert finish(directory, FakeEngine()).done == 0


@pytest.mark.parametrize("options", [{"stale_after": 0.0}, {"stale_after": -1.0}, {"replicas": 0}, {"peers": 0}])
def test_options_that_cannot_be_meant_are_refused(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is {options[name]}"):
        WorkerOptions(**options)  # type: ignore[arg-type]
