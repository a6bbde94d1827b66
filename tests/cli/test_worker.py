"""`nugpt worker` on several plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sweep.small import STALE_AFTER, FakeEngine, make_plan, record_of

from nugpt.cli import worker as command
from nugpt.cli.main import main
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
