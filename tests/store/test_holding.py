"""Holding runs for a while: one process at a time, given back whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from nugpt.spec import Base, Extent, ModelConfig, load_table
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.claims import LostClaim, claim, file_system_time, holder_state, holding
from nugpt.store.run_directory import RunDirectory
from nugpt.sweep.state import run_state


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return Store(tmp_path).run(small_spec())


def small_spec() -> RunSpec:
    model = ModelConfig(1, 1, 8, 128, 16, d_mlp=16)
    extent = Extent.of(model, 10, 2)
    return RunSpec(model, load_table("nugpt"), Base.of(extent), 2**-6, 10, 2, "0" * 64)


def test_a_run_that_is_held_is_refused_to_a_second(run: RunDirectory) -> None:
    with holding([run]):
        assert holder_state(run, 300.0) == "running"
        assert run_state(run, None, 300.0, file_system_time(run.path.parent)) == "running"
        with pytest.raises(ValueError, match="is being trained by another process"), holding([run]):
            pass
    assert holder_state(run, 300.0) == "none"


def test_it_is_given_back_after_an_error(run: RunDirectory) -> None:
    with pytest.raises(KeyError), holding([run]):
        raise KeyError
    assert holder_state(run, 300.0) == "none"
    with holding([run]):
        pass


def test_the_guard_raises_when_the_run_was_taken_over(run: RunDirectory) -> None:
    with holding([run], stale_after=300.0) as guard:
        guard()
        (mine,) = run.path.glob("claim-*.json")
        later = file_system_time(run.path.parent) + 1000
        mine.write_text("{}")  # as a holder of another machine would look: no process to ask after
        assert claim(run, 300.0, now=later) is not None
        with pytest.raises(LostClaim):
            guard()
