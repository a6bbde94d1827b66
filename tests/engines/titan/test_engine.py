"""A plan whose runs TorchTitan trains: done once, with the lab engine's losses; a run asked to stop saves first."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.small import train
from tests.engines.titan.ranks import make_run, rows

from nugpt.data import TokenDataset
from nugpt.engines.titan.engine import TitanEngine
from nugpt.engines.titan.options import TitanOptions
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store
from nugpt.store.plans import PlanDirectory
from nugpt.sweep.worker import WorkerOptions, work

pytestmark = pytest.mark.titan
CPU = TitanOptions(device="cpu")


@pytest.fixture(scope="module")
def spec(dataset: TokenDataset) -> RunSpec:
    return make_run(dataset)


def test_a_plan_is_worked_off_with_the_lab_engines_losses(
    spec: RunSpec, dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    store = Store(tmp_path / "runs")
    plan = Plan("plan", (Curve({}, spec, (-6.0, -5.0), (0,)),), Policy(extend=0))
    directory = PlanDirectory.of(store, plan)
    said: list[str] = []
    engine = TitanEngine(dataset.path, 2, CPU)
    outcome = work(directory, engine, WorkerOptions(keep_checkpoints=True), say=said.append)
    assert (outcome.done, outcome.failed) == (2, 0), said
    specs = plan.specs()
    lab = train(specs, tmp_path / "lab", dataset)
    for run, record in zip(specs, lab, strict=True):
        found = RunDirectory(store.root / run.hash).record()
        assert found is not None
        assert found.carried_by["engine"] == "titan"
        assert found.val_loss == pytest.approx(record.val_loss, abs=1e-5)  # float32 on both sides: the order of sums


class Leave(BaseException):
    """What a worker's guard raises when a signal has come."""


def test_what_is_asked_to_leave_saves_first(
    spec: RunSpec,
    dataset: TokenDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = replace(spec, steps=300)  # some seconds: a run looks for the request every other second
    store = Store(tmp_path / "runs")
    run = store.run(spec)
    engine = TitanEngine(dataset.path, 1, replace(CPU, checkpoint_every=10_000))

    def guard() -> None:
        if run.metrics.is_file() and run.metrics.read_text().count('"kind": "train"') >= 3:
            raise Leave

    monkeypatch.setattr("nugpt.engines.titan.engine.LOOK_EVERY", 0.02)
    with pytest.raises(Leave):
        engine.execute([spec], store, guard, None)
    assert run.record() is None
    reached = max(json.loads(line)["step"] for line in run.metrics.read_text().splitlines())
    assert 3 <= reached < spec.steps
    assert [path.name for path in run.distributed.iterdir()] == [f"step-{reached}"]  # and no other: none was due
    capfd.readouterr()
    (record,) = engine.execute([spec], store, lambda: None, None)
    assert record.status == "done"
    taken = [int(number) for number in re.findall(r"^step (\d+)/300  loss", capfd.readouterr().out, re.MULTILINE)]
    assert taken == list(range(reached + 1, 301))  # it went on where it had saved
    assert list(rows(run, "train")) == list(range(1, 301))  # and no step is there twice


def test_a_run_that_leaves_no_record_is_a_failure(spec: RunSpec, tmp_path: Path) -> None:
    engine = TitanEngine(tmp_path / "no data here", 1, CPU)
    with pytest.raises(RuntimeError, match="left no record"):
        engine.execute([spec], Store(tmp_path / "runs"), lambda: None, None)


def test_a_number_of_processes_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="titan is 0, but must be a whole number"):
        TitanEngine(tmp_path, 0, CPU)
