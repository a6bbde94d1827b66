"""The two forms of checkpoints: which distributed ones count, and that no engine goes on from behind the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from nugpt.store import RunDirectory
from nugpt.store.forms import check_ahead_of_distributed, check_ahead_of_own, distributed_steps


def distributed(run: RunDirectory, step: int, *files: str) -> None:
    (run.distributed / f"step-{step}").mkdir(parents=True)
    for name in files:
        (run.distributed / f"step-{step}" / name).touch()


def own(run: RunDirectory, step: int) -> None:
    (run.checkpoints / f"step-{step:09d}").mkdir(parents=True)


def test_distributed_checkpoints_count_once_they_were_whole(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert distributed_steps(run.distributed) == []
    distributed(run, 100, ".metadata", "sums.json")
    distributed(run, 9, ".metadata")  # older than sums, or killed before they were written
    distributed(run, 20, "sums.json")  # its metadata is lost
    distributed(run, 300, "__0_0.distcp", "nugpt.json")  # cut off
    for name in ("spoiled-1-step-400", "step-", "step-0500", "steps-600"):
        (run.distributed / name).mkdir()
        (run.distributed / name / ".metadata").touch()
    assert distributed_steps(run.distributed) == [9, 20, 100]


def test_no_engine_goes_on_from_behind_the_other(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a run")
    for step in (0, 7):
        check_ahead_of_own(run, step)
        check_ahead_of_distributed(run, step)
    own(run, 10)
    distributed(run, 20, ".metadata")
    check_ahead_of_own(run, 10)
    check_ahead_of_distributed(run, 20)
    with pytest.raises(ValueError, match=r"checkpoints/step-000000010, ahead of step 9,.* --to dcp` takes it over"):
        check_ahead_of_own(run, 9)
    with pytest.raises(ValueError, match=r"dcp/step-20, ahead of its beginning,.*`nugpt convert '\S+ run'` takes it"):
        check_ahead_of_distributed(run, 0)
