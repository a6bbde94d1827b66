"""`nugpt worker` on several plans, and what it tells the engine of each."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from tests.sweep.small import STALE_AFTER, FakeEngine, make_plan, record_of

from nugpt.cli import worker as command
from nugpt.cli.main import main
from nugpt.cli.run_arguments import Carrier
from nugpt.engines.lab import Options
from nugpt.engines.titan.engine import TitanEngine
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.claims import claim
from nugpt.store.plans import PlanDirectory
from nugpt.sweep import worker


def test_a_worker_alone_does_a_later_plan_before_it_waits_for_another_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "runs")
    first, second = (PlanDirectory.of(store, make_plan(name=name, steps=n)) for name, n in (("a", 100), ("b", 200)))
    for directory in (first, second):
        directory.write_launch({"data": "", "options": {"device": "cpu"}, "titan": None})
    theirs = first.plan().specs()[0]
    held = claim(store.run(theirs), STALE_AFTER)
    assert held is not None

    def before(specs: list[RunSpec]) -> None:
        if specs[0].steps == 200:  # meanwhile the other comes to its end
            held.run.write_record(record_of(theirs))
            held.finish()

    def asleep(seconds: float) -> None:
        raise AssertionError("it waits while the second plan has runs to be had")

    engine = FakeEngine(before=before)
    monkeypatch.setattr(command, "_engine", lambda *_: engine)
    monkeypatch.setattr(worker.time, "sleep", asleep)
    words: list[Any] = ["worker", first.path, second.path, "--linger", 86400, "--stale-after", STALE_AFTER]
    assert main([str(word) for word in words]) == 0
    assert [len(ensemble) for ensemble in engine.ensembles] == [4, 5]
    assert all(store.run(spec).has_ended() for d in (first, second) for spec in d.plan().specs())


# A value other than the default for everything that `sweep` and `study` take about how runs are carried.
CARRIED: dict[str, Any] = {
    "device": "cpu",
    "kernels": "plain",
    "compile": True,
    "attention": "plain",
    "loss": "plain",
    "micro_batch": 4,
    "checkpoint_every": 7,
    "keep": 3,
    "log_every": 5,
    "threads": 3,
    "measure": ("alignment",),
    "measure_points": 6,
    "measure_windows": 2,
}


def titan_engine(options: Options, mesh: dict[str, Any] | None = None) -> TitanEngine:
    launch = {"data": "tokens", "titan": 2} | ({} if mesh is None else {"titan_mesh": mesh})
    engine = command._engine(launch, options)
    assert isinstance(engine, TitanEngine)
    return engine


def test_titan_is_told_all_that_a_plan_says_of_how_runs_are_carried() -> None:
    assert {*CARRIED, "deterministic"} == {field.name for field in fields(Carrier)}
    told = titan_engine(Carrier(**CARRIED).options())
    assert {**asdict(told.options), "threads": told.threads}.items() >= CARRIED.items()
    environment = told._environment()
    assert environment is not None
    assert environment["OMP_NUM_THREADS"] == "3"


def test_titan_is_told_the_plans_mesh() -> None:
    told = titan_engine(Options(), {"tp": 2, "replicate": 1, "activations": "full"})
    assert (told.options.tp, told.options.replicate, told.options.activations) == (2, 1, "full")
    assert titan_engine(Options()).options.tp == 1  # a plan launched before it could say so


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"deterministic": True}, "deterministic is asked for"), ({"device": "cuda:1"}, "device is 'cuda:1'")],
)
def test_what_titan_has_not_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        titan_engine(replace(Options(), **changes))
