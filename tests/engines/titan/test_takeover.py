"""Two sets of ranks never write one run: they end with the worker that started them, or when its claim is another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.titan.ranks import Place, make_run, rows, run, said, start

from nugpt.data import TokenDataset
from nugpt.engines.titan import compat
from nugpt.engines.titan.engine import TitanEngine
from nugpt.engines.titan.execute import _stop_asked
from nugpt.engines.titan.options import TitanOptions
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.claims import Claim, LostClaim, claim
from nugpt.store.plans import PlanDirectory

pytestmark = pytest.mark.titan
LONG = 100_000  # steps: what trains it is still at it when a test has seen enough
PATIENCE = 60.0  # seconds after which something does not happen any more
CPU = TitanOptions(device="cpu", log_every=1, checkpoint_every=LONG)


def until(happens: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def processes(store: Path) -> list[int]:
    """Whatever torchrun and ranks there are of this store."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if str(store).encode() in words and b"nugpt.engines.titan" in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def store(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store whose ranks do not outlive the test, as they do where it fails."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    store = Store(place.root / "runs")
    yield store
    for pid in processes(store.root):
        os.kill(pid, signal.SIGKILL)


def worker(directory: PlanDirectory, log: Path) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        words = ["worker", str(directory.path), "--stale-after", "10"]
        return subprocess.Popen([sys.executable, "-m", "nugpt", *words], stdout=file, stderr=file)


def test_ranks_end_with_a_worker_that_is_killed_and_the_next_has_the_run_alone(
    dataset: TokenDataset, place: Place, store: Store
) -> None:
    spec = replace(make_run(dataset), steps=400)
    plan = Plan("plan", (Curve({}, spec, (-6.0,), (0,)),), Policy(extend=0))
    directory = PlanDirectory.of(store, plan)
    options = {"device": "cpu", "log_every": 1, "checkpoint_every": 20}
    directory.write_launch({"data": str(place.data), "options": options, "titan": 2})
    (spec,) = plan.specs()
    trained = store.run(spec)
    first = worker(directory, place.root / "first")
    until(lambda: list(trained.distributed.glob("step-*/sums.json")), (place.root / "first").read_text())
    assert len(processes(store.root)) == 3  # torchrun and two ranks
    first.kill()
    first.wait()
    until(lambda: not processes(store.root), "torchrun and its ranks end with their worker")
    assert trained.record() is None
    second = worker(directory, place.root / "second")
    assert second.wait(2 * PATIENCE) == 0, (place.root / "second").read_text()
    record = trained.record()
    assert record is not None
    assert (record.status, record.steps) == ("done", 400)
    assert list(rows(trained, "train")) == list(range(1, 401))


def test_a_worker_that_lost_the_run_ends_its_ranks_and_asks_nobody_elses_to_stop(
    dataset: TokenDataset, place: Place, store: Store
) -> None:
    spec = replace(make_run(dataset), steps=LONG)
    trained = store.run(spec)

    def guard() -> None:
        if trained.metrics.is_file() and trained.read_metrics()[3:]:
            raise LostClaim("another has it")

    with pytest.raises(LostClaim):
        TitanEngine(place.data, 1, CPU).execute([spec], store, guard, None)
    until(lambda: not processes(store.root), "the rank ends with torchrun")
    assert not (trained.path / "stop").exists()
    assert not trained.distributed.exists()


def held_by_us(store: Store, spec: RunSpec) -> Claim:
    held = claim(store.run(spec), 300.0)
    assert held is not None
    return held


def test_ranks_leave_a_run_whose_claim_is_another_workers(dataset: TokenDataset, place: Place, store: Store) -> None:
    spec = replace(make_run(dataset), steps=LONG)
    held, trained = held_by_us(store, spec), store.run(spec)
    ranks = start(place.arguments(spec, "runs", "--held", held.name), 2, place.root / "log")
    try:
        until(lambda: trained.metrics.is_file() and trained.read_metrics()[3:], "they train for whoever holds the run")
        os.utime(held.path, (0, 0))  # it has not been heard of for long
        later = claim(trained, 300.0)
        assert later is not None
        written = len(trained.read_metrics())
        for rank in ranks:
            rank.join(PATIENCE)
        assert ranks[0].exitcode == 1, said(place.root / "log", 2)
        assert ranks[1].exitcode
    finally:
        for rank in ranks:
            rank.kill()
    assert f"nugpt: error: run {spec.hash} was taken over by another worker\n" in said(place.root / "log", 2)[0]
    assert len(trained.read_metrics()) <= written + 1  # one that was on its way when the claim was taken
    assert later.is_held()


def test_ranks_do_not_begin_where_their_workers_claim_is_gone(
    dataset: TokenDataset, place: Place, store: Store
) -> None:
    spec = make_run(dataset)
    held = held_by_us(store, spec)
    held.release()
    assert run(place.arguments(spec, "runs", "--held", held.name), 2, place.root / "log") == [2, 2]
    assert said(place.root / "log", 2) == [f"nugpt: error: run {spec.hash} was taken over by another worker\n", ""]
    assert not store.run(spec).metrics.exists()


def test_between_two_rows_rank_0_looks_whether_the_run_is_still_its_own(tmp_path: Path) -> None:
    def guard() -> None:
        raise LostClaim("another has it")

    compat.prepare("cpu")
    with _stop_asked(tmp_path / "stop", guard) as asked, pytest.raises(LostClaim):
        asked()
    with _stop_asked(None, guard) as asked:  # other ranks hold nothing
        assert asked() is None
