"""The lab engine under a worker: how many replicas it takes, and runs that race, die and diverge for real."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.process import kill_when, run, start
from tests.engines.small import contents, make_dataset, make_spec, result_of
from tests.sweep.measure import measured_bytes, wide

from nugpt.data import TokenDataset
from nugpt.engines.lab import Options, loop
from nugpt.engines.lab import engine as engine_module
from nugpt.engines.lab.engine import MOST_ON_CPU, USABLE, LabEngine
from nugpt.spec.model import total_parameters
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.store import RunDirectory, Store
from nugpt.store.checkpoint import steps_in
from nugpt.store.claims import LostClaim, claim
from nugpt.store.plans import PlanDirectory
from nugpt.sweep.state import plan_state
from nugpt.sweep.worker import WorkerOptions, work

OPTIONS = Options(device="cpu", checkpoint_every=5, log_every=1, threads=1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


def lay_down(store: Path, dataset: TokenDataset, steps: int = 24, log2_lrs: tuple[float, ...] = (-8, -6, 12)) -> Path:
    """A plan as `sweep --run` leaves it for its workers; 2^12 diverges."""
    curve = Curve({}, make_spec(dataset, steps=steps, validations=4), log2_lrs, (0, 1))
    directory = PlanDirectory.of(Store(store), Plan("plan", (curve,), Policy(extend=0)))
    directory.write_launch({"data": str(dataset.path), "options": asdict(OPTIONS)})
    return directory.path


LONG: dict[str, Any] = {"steps": 60, "log2_lrs": (-8, -6)}  # as of a plan whose workers are killed on the way


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, dataset: TokenDataset) -> dict[str, object]:
    """The results of the long plan when nothing stops its worker."""
    folder = tmp_path_factory.mktemp("whole")
    plan = lay_down(folder / "runs", dataset, **LONG)
    assert run(worker(plan), folder / "log") == 0
    return results(plan)


def worker(plan: Path, *more: str) -> list[str]:
    return ["worker", str(plan), "--stale-after", "30", *more]


def results(plan: Path) -> dict[str, object]:
    directory = PlanDirectory(plan)
    return {spec.hash: result_of(directory.store.run(spec)) for spec in directory.plan().specs()}


def rows_written(plan: Path) -> int:
    """Rows of metrics of all the plan's runs."""
    return sum(path.read_bytes().count(b"\n") for path in plan.parents[1].glob("*/metrics.jsonl"))


def ended(log: Path) -> list[str]:
    """The runs that workers said had ended, once for every time that they said it."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return sorted(words[1] for words in lines if len(words) == 3 and words[0] == "run")


def test_two_workers_do_every_run_once_and_as_one_would_alone(tmp_path: Path, dataset: TokenDataset) -> None:
    plan, alone = lay_down(tmp_path / "two", dataset), lay_down(tmp_path / "one", dataset)
    assert run(worker(alone), tmp_path / "alone") == 0
    log = tmp_path / "log"
    command = worker(plan, "--peers", "2", "--replicas", "2", "--linger", "100")
    processes = [start(command, log) for _ in range(2)]
    for process in processes:
        process.join()
        assert process.exitcode == 0, log.read_text()
    assert ended(log) == sorted(spec.hash for spec in PlanDirectory(plan).plan().specs())
    assert results(plan) == results(alone)


def test_a_diverging_learning_rate_is_recorded_and_its_neighbours_train(tmp_path: Path, dataset: TokenDataset) -> None:
    plan = lay_down(tmp_path / "runs", dataset)
    assert run(worker(plan), tmp_path / "log") == 0
    directory = PlanDirectory(plan)
    records = {spec.lr: directory.store.run(spec).record() for spec in directory.plan().specs()}
    statuses = {math.log2(lr): record.status for lr, record in records.items() if record is not None}
    assert statuses == {-8: "done", -6: "done", 12: "diverged"}


def test_killed_five_times_at_random_the_plan_ends_as_if_nothing_had_been(
    tmp_path: Path, dataset: TokenDataset, uninterrupted: dict[str, object]
) -> None:
    plan = lay_down(tmp_path / "runs", dataset, **LONG)
    rng = random.Random(11)
    log = tmp_path / "log"
    for _ in range(5):
        reached = rows_written(plan) + rng.randint(1, 40)
        process = start(worker(plan, "--replicas", "3"), log)
        killed = kill_when(process, lambda: rows_written(plan) >= reached, rng.uniform(0, 0.02))  # noqa: B023
        assert killed, f"it ended before it was killed: {log.read_text()}"
    assert run(worker(plan, "--replicas", "3"), log) == 0
    assert results(plan) == uninterrupted
    assert not list(plan.parents[1].glob("*/claim-*"))


@pytest.mark.parametrize("save", [1, 2])
def test_killed_between_two_replicas_checkpoints_the_ensemble_stays_one(
    tmp_path: Path,
    dataset: TokenDataset,
    uninterrupted: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    save: int,
) -> None:
    """Four replicas; the process dies when two of them have saved, at the first or at the second round of saves."""
    plan = lay_down(tmp_path / "runs", dataset, **LONG)
    log = tmp_path / "log"
    assert run(worker(plan), log, saves=4 * (save - 1) + 2) == -signal.SIGKILL
    directory = PlanDirectory(plan)
    steps = [steps_in(directory.store.run(spec).checkpoints)[-1:] for spec in directory.plan().specs()]
    assert steps == [[5 * save]] * 2 + ([[]] * 2 if save == 1 else [[5]] * 2)

    sizes: list[tuple[int, int]] = []
    train = loop._train

    def counting(group: list[Any], *rest: Any) -> None:
        sizes.append((len(group), group[0].checkpoint.step if group[0].checkpoint else 0))
        train(group, *rest)

    monkeypatch.setattr(loop, "_train", counting)
    work(directory, LabEngine(dataset, OPTIONS), WorkerOptions(30.0))
    assert sizes == [(4, 5 * (save - 1))]
    assert results(plan) == uninterrupted


def test_a_signal_saves_frees_the_runs_and_names_itself(
    tmp_path: Path, dataset: TokenDataset, uninterrupted: dict[str, object]
) -> None:
    plan = lay_down(tmp_path / "runs", dataset, **LONG)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        log, before = tmp_path / f"log-{number}", rows_written(plan)
        process = start(worker(plan), log)
        while process.is_alive() and rows_written(plan) <= before:
            process.join(0.001)
        assert process.pid is not None
        os.kill(process.pid, number)  # a row has been written: the runs are being trained
        process.join()
        assert process.exitcode == 128 + number, log.read_text()
        assert "the state is saved" in log.read_text()
        claims = [path.read_text() for path in plan.parents[1].glob("*/claim-*")]
        assert any('"released": true' in text for text in claims)
        (curve,) = plan_state(PlanDirectory(plan).plan(), PlanDirectory(plan), 30.0)
        assert {place.state for place in curve.places} == {"interrupted"}
    assert not list(plan.parents[1].glob("*/failures.jsonl"))
    assert run(worker(plan), tmp_path / "log") == 0
    assert results(plan) == uninterrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_worker_that_waits_for_others_leaves_on_a_signal(
    tmp_path: Path, dataset: TokenDataset, number: signal.Signals
) -> None:
    plan = lay_down(tmp_path / "runs", dataset, log2_lrs=(-8,))
    directory, log = PlanDirectory(plan), tmp_path / "log"
    first, second = directory.plan().specs()
    assert claim(directory.store.run(first), 30.0) is not None  # held here, so that the worker has to wait for it
    process = start(worker(plan, "--linger", "1000"), log)
    while process.is_alive() and not (directory.store.run(second).path / "record.json").is_file():
        process.join(0.01)
    while process.is_alive() and f"run {second.hash} done" not in log.read_text():
        process.join(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)  # in the engine's last steps or later: either way it has nothing left to save
    process.join()
    assert process.exitcode == 128 + number, log.read_text()
    assert log.read_text().splitlines()[-1].startswith(f"left on {number.name}: no run was being trained")


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda plan: (plan / "launch.json").unlink(), "never launched"),
        (lambda plan: (plan / "launch.json").write_text('{"data": "/nowhere", "options": {}}'), "/nowhere"),
        (lambda plan: (plan / "launch.json").write_text('{"data": "", "options": {"warp": 9}}'), "warp"),
        (lambda plan: (plan / "plan.json").write_text("{"), "plan.json"),
        (lambda plan: (plan / "plan.json").unlink(), "no plan: it has no plan.json"),
        (lambda plan: shutil.rmtree(plan), "no plan: there is no such directory"),
    ],
)
def test_a_worker_that_cannot_work_says_why_in_one_line(
    tmp_path: Path, dataset: TokenDataset, capsys: pytest.CaptureFixture[str], spoil: object, word: str
) -> None:
    from nugpt.cli.main import main

    plan = lay_down(tmp_path / "runs", dataset)
    spoil(plan)  # type: ignore[operator]
    assert main(worker(plan)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


def test_other_data_than_the_plans_is_one_line(
    tmp_path: Path, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    from nugpt.cli.main import main

    plan = lay_down(tmp_path / "runs", dataset)
    other = make_dataset(tmp_path / "other", seed=1)
    PlanDirectory(plan).write_launch({"data": str(other.path), "options": asdict(OPTIONS)})
    assert main(worker(plan)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert dataset.content_hash in line
    assert other.content_hash in line
    assert not list(plan.parents[1].glob("*/failures.jsonl"))


def test_as_many_replicas_as_memory_allows(dataset: TokenDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LabEngine(dataset, OPTIONS)
    spec = make_spec(dataset)
    one = 1_000_000
    measured: list[int] = []
    monkeypatch.setattr(engine, "_measure", lambda spec, device: measured.append(1) or one)
    for free, wanted, expected in (
        (one * 3.5, 100, 3),
        (one * 3.5, 2, 2),  # no more than wanted
        (one * 0.5, 100, 1),  # at least one: training it shows whether it fits
        (one * 1e6, 100, MOST_ON_CPU),
        (0, 100, 1),
    ):
        monkeypatch.setattr(engine_module, "_free_host_memory", lambda free=free: int(free / USABLE))
        assert engine.capacity(spec, wanted) == expected
    assert len(measured) == 1  # once per shape
    engine.capacity(wide(spec, 4), 100)
    engine.capacity(make_spec(dataset, lr=0.5, seed=3), 100)
    assert len(measured) == 2


def test_one_replica_is_not_measured_and_one_that_does_not_fit_is_still_tried(
    dataset: TokenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LabEngine(dataset, OPTIONS)

    def too_large(spec: object, device: object) -> int:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(engine, "_measure", too_large)
    assert engine.capacity(make_spec(dataset), 1) == 1
    assert engine.capacity(make_spec(dataset), 8) == 1


def test_the_measure_grows_with_the_model(dataset: TokenDataset) -> None:
    # In a process of its own, where nothing has been allocated and freed before.
    small, large = measured_bytes(dataset.path, heads=2), measured_bytes(dataset.path, heads=64)
    # Weights, gradients, two moments: four times the parameters, and never as much as fifty times.
    parameters = 4 * total_parameters(wide(make_spec(dataset), 64).model)
    assert 4 * parameters <= large <= 50 * parameters
    assert small < large


def test_the_claims_are_looked_at_before_anything_is_written(
    tmp_path: Path, dataset: TokenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def noted(name: str, function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            events.append(name)
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(RunDirectory, "append_metrics", noted("rows", RunDirectory.append_metrics))
    monkeypatch.setattr(RunDirectory, "cut_metrics", noted("rows", RunDirectory.cut_metrics))
    monkeypatch.setattr(RunDirectory, "write_record", noted("record", RunDirectory.write_record))
    monkeypatch.setattr(loop, "save_checkpoint", noted("checkpoint", loop.save_checkpoint))
    specs = [make_spec(dataset, lr=lr) for lr in (2**-8, 2**-6, 2.0**12)]
    engine = LabEngine(dataset, OPTIONS)
    engine.execute(specs, Store(tmp_path / "runs"), guard=lambda: events.append("guard"), stop=None)
    assert {"rows", "record", "checkpoint"} <= set(events)
    assert events[0] == "guard"
    # Every checkpoint and every record has a look of its own; the rows of one step share theirs.
    for before, event in pairwise(events):
        assert event not in ("checkpoint", "record") or before == "guard"
        assert event != "rows" or before in ("guard", "rows")


@pytest.mark.parametrize("moment", [1, 2, 7, 20, 27])
def test_a_worker_that_has_lost_its_runs_writes_nothing_more(
    tmp_path: Path, dataset: TokenDataset, moment: int
) -> None:
    store, calls, seen = tmp_path / "runs", 0, {}

    def guard() -> None:
        nonlocal calls, seen
        calls += 1
        if calls == moment:
            seen = contents(store)
            raise LostClaim("taken over")

    specs = [make_spec(dataset, lr=lr) for lr in (2**-8, 2**-6)]
    with pytest.raises(LostClaim):
        LabEngine(dataset, OPTIONS).execute(specs, Store(store), guard, None)
    assert contents(store) == seen
