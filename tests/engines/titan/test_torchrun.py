"""Under torchrun, as a user starts it: a run, a mistake, and a rank that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.titan.ranks import Place, make_run

from nugpt.data import TokenDataset

pytestmark = pytest.mark.titan


def torchrun(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with open(log, "wb") as file:
        return subprocess.Popen([*start, "-m", "nugpt.engines.titan", *arguments], stdout=file, stderr=file)


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that torchrun started, in the order of their ranks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(int(pid) for pid in children.read_text().split()) if children.exists() else []


def test_a_mistake_ends_all_ranks_with_one_line(place: Place, dataset: TokenDataset) -> None:
    log = place.root / "log"
    process = torchrun(place.arguments(make_run(dataset), "runs", "--tp", "4"), log)
    assert process.wait(120) == 1  # torchrun's own status; it prints the ranks' 2
    text = log.read_text()
    assert text.count("nugpt: error: ") == 1
    assert "nugpt: error: tp 4 × replicate 1 is 4, but must divide the 2 ranks\n" in text
    assert "exitcode  : 2" in text


def test_a_rank_that_dies_does_not_leave_the_others_hanging(place: Place, dataset: TokenDataset) -> None:
    spec = replace(make_run(dataset), steps=5000)
    directory = place.directory(spec, "runs")
    process = torchrun(place.arguments(spec, "runs"), place.root / "log")
    while not directory.read_metrics():
        assert process.poll() is None, (place.root / "log").read_text()
        time.sleep(0.05)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    assert process.wait(100) != 0
    assert directory.record() is None
