"""Claims: of any number of workers one has the run, a silent one is taken over, and then writes nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.sweep.small import make_spec, record_of

from nugpt.store import RunDirectory, Store
from nugpt.store.claims import Claim, Heartbeat, LostClaim, claim, file_system_time, holder_state, newest_claim

SPEC = make_spec()
STALE_AFTER = 30.0
SERVER = multiprocessing.get_context("forkserver")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return Store(tmp_path / "runs").run(SPEC)


def hold(run: RunDirectory) -> Claim:
    held = claim(run, STALE_AFTER)
    assert held is not None
    return held


def holds(held: Claim) -> bool:
    try:
        held.check()
    except LostClaim:
        return False
    return True


def date(held: Claim, when: float) -> None:
    """Give the claim's last touch a date."""
    os.utime(held.path, (when, when))


def test_a_process_that_works_for_the_holder_knows_the_claim_by_its_name(run: RunDirectory) -> None:
    assert newest_claim(run) is None
    held = hold(run)
    theirs = Claim.named(run, held.name)
    assert theirs == newest_claim(run) == held
    theirs.check_for_holder()
    date(held, 0.0)
    later = hold(run)
    assert newest_claim(run) == later
    with pytest.raises(LostClaim, match="was taken over by another worker"):
        theirs.check_for_holder()
    later.release()
    assert newest_claim(run) is None


def test_it_has_no_business_when_the_holder_has_died(run: RunDirectory) -> None:
    source = "import sys; from pathlib import Path; from nugpt.store import RunDirectory"
    source += "; from nugpt.store.claims import claim; print(claim(RunDirectory(Path(sys.argv[1])), 30.0).name)"
    found = subprocess.run([sys.executable, "-c", source, str(run.path)], capture_output=True, text=True, check=True)
    theirs = Claim.named(run, found.stdout.strip())
    theirs.check()  # nobody else has it
    with pytest.raises(LostClaim, match="is no more"):
        theirs.check_for_holder()


@pytest.mark.parametrize("name", ["", "1", "1-", "one-ab", "1-ab\n2"])
def test_what_names_no_claim_is_refused(run: RunDirectory, name: str) -> None:
    with pytest.raises(ValueError, match="claim is"):
        Claim.named(run, name)


def test_a_run_is_had_by_one_worker(run: RunDirectory) -> None:
    assert holder_state(run, STALE_AFTER) == "none"
    held = hold(run)
    assert holder_state(run, STALE_AFTER) == "running"
    assert claim(run, STALE_AFTER) is None
    held.check()


def test_an_ended_run_is_not_claimed_but_one_that_was_stopped_may_be(run: RunDirectory) -> None:
    for status, loss in (("done", 3.0), ("diverged", None), ("stopped", 5.0)):
        run.write_record(record_of(SPEC, loss, status))
        assert claim(run, STALE_AFTER) is None
        assert not list(run.path.glob("claim-*"))
    assert claim(run, STALE_AFTER, ended=("done", "diverged")) is not None


def test_a_released_run_is_free_at_once(run: RunDirectory) -> None:
    first = hold(run)
    first.release()
    assert holder_state(run, STALE_AFTER) == "none"
    assert not holds(first)
    second = hold(run)
    assert second.number == first.number + 1
    first.release()  # of what it has no more
    assert holds(second)
    assert holder_state(run, STALE_AFTER) == "running"


def test_finishing_leaves_no_claim_file(run: RunDirectory) -> None:
    hold(run).release()
    held = hold(run)
    run.write_record(record_of(SPEC))
    held.finish()
    assert not list(run.path.glob("claim-*"))
    assert holder_state(run, STALE_AFTER) == "none"


def test_letting_go_finishes_what_has_ended_and_gives_back_what_has_not(run: RunDirectory) -> None:
    hold(run).let_go()
    assert holder_state(run, STALE_AFTER) == "none"
    assert len(list(run.path.glob("claim-*"))) == 1  # the number that the next one counts on from
    held = hold(run)
    run.write_record(record_of(SPEC))
    held.let_go()
    assert not list(run.path.glob("claim-*"))


def test_where_a_machine_cannot_be_told_a_claim_is_only_timed(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold(run)
    held.path.write_text(json.dumps(json.loads(held.path.read_text()) | {"pid": 1 << 30, "machine": None}))
    monkeypatch.setattr("nugpt.store.claims._machine", lambda: None)
    assert holder_state(run, STALE_AFTER) == "running"


def test_silence_makes_a_claim_stale_and_the_silent_worker_loses_it(run: RunDirectory) -> None:
    first = hold(run)
    date(first, 1000.0)
    assert holder_state(run, STALE_AFTER, now=1000.0 + STALE_AFTER) == "running"
    assert claim(run, STALE_AFTER, now=1000.0 + STALE_AFTER) is None
    assert holder_state(run, STALE_AFTER, now=1001.0 + STALE_AFTER) == "stale"
    second = claim(run, STALE_AFTER, now=1001.0 + STALE_AFTER)
    assert second is not None
    with pytest.raises(LostClaim, match=SPEC.hash):
        first.check()
    second.check()
    first.beat()  # a late sign of life changes nothing
    assert not holds(first)
    assert holds(second)


def test_a_sign_of_life_keeps_the_claim(run: RunDirectory) -> None:
    held = hold(run)
    date(held, 1000.0)
    held.beat()
    assert holder_state(run, STALE_AFTER) == "running"


def test_a_worker_that_slept_through_the_end_of_its_run_does_not_take_a_new_claim_for_its_own(
    run: RunDirectory,
) -> None:
    asleep = hold(run)
    taken = claim(run, STALE_AFTER, now=2e10)
    assert taken is not None
    run.write_record(record_of(SPEC, 5.0, "stopped"))
    taken.finish()
    other_plan = claim(run, STALE_AFTER, ended=("done", "diverged"))
    assert other_plan is not None
    assert other_plan.number == asleep.number  # numbers begin again where the run had ended
    assert holds(other_plan)
    assert not holds(asleep)


def test_a_run_finished_between_the_first_look_and_the_claim_is_left(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended, looks = RunDirectory.has_ended, []

    def ends_after_the_first_look(self: RunDirectory, *args: object) -> bool:
        found = has_ended(self, *args)  # type: ignore[arg-type]
        if not looks:
            run.write_record(record_of(SPEC))
        looks.append(found)
        return found

    monkeypatch.setattr(RunDirectory, "has_ended", ends_after_the_first_look)
    assert claim(run, STALE_AFTER) is None
    assert looks == [False, True]
    assert not list(run.path.glob("claim-*"))


def sleeper(run: RunDirectory) -> subprocess.Popen[str]:
    """A process that claims the run, says so, and sleeps."""
    code = """
import sys, time
from pathlib import Path
from nugpt.store.claims import claim
from nugpt.store import RunDirectory
print(claim(RunDirectory(Path(sys.argv[1])), 30.0) is not None, flush=True)
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_the_claim_of_a_dead_process_of_this_machine_is_stale_at_once(run: RunDirectory) -> None:
    with sleeper(run) as process:
        assert holder_state(run, STALE_AFTER) == "running"
        process.send_signal(signal.SIGKILL)
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        assert holder_state(run, STALE_AFTER) == "stale"  # though nobody has asked for its exit status yet
        process.wait()
        assert holder_state(run, STALE_AFTER) == "stale"
    assert claim(run, STALE_AFTER) is not None


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"pid": 1 << 30}, "stale"),  # no process of this number
        ({"began": "0"}, "stale"),  # the number went to a later process
        ({"pid": 1 << 30, "machine": "another boot"}, "running"),  # another machine's process is only timed
        ({"pid": 1 << 30, "machine": None}, "running"),
        ({"pid": "x"}, "running"),
    ],
)
def test_whose_process_a_claim_names(run: RunDirectory, change: dict[str, object], state: str) -> None:
    held = hold(run)
    held.path.write_text(json.dumps(json.loads(held.path.read_text()) | change))
    assert holder_state(run, STALE_AFTER) == state


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null"])
def test_a_claim_that_says_nothing_is_timed_like_any_other(run: RunDirectory, content: bytes) -> None:
    path = run.path / "claim-000001.json"
    path.write_bytes(content)
    assert holder_state(run, STALE_AFTER) == "running"
    assert claim(run, STALE_AFTER) is None
    os.utime(path, (1000.0, 1000.0))
    assert holder_state(run, STALE_AFTER) == "stale"
    assert claim(run, STALE_AFTER) is not None


@pytest.mark.parametrize("skew", [-86_400.0, 86_400.0])
def test_a_clock_that_is_a_day_off_makes_no_difference(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + skew)
    hold(run)
    assert holder_state(run, STALE_AFTER) == "running"
    assert abs(file_system_time(run.path) - true_time()) < 600  # by the files' clock, not by ours
    assert not list(run.path.glob(".clock-*"))


def test_a_store_that_may_only_be_read_is_still_dated(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(run)

    def refused(self: Path, *args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refused)
    assert holder_state(run, STALE_AFTER) == "running"


def test_the_heartbeat_touches_what_it_holds_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    held = [hold(store.run(make_spec(seed=seed))) for seed in range(3)]
    for one in held:
        date(one, 1000.0)
    beaten = threading.Event()
    with Heartbeat(stale_after=0.01) as heart:
        heart.hold([held[0], held[1]])
        held[1].finish()  # as when its run ends: nothing to touch, and no reason to die
        while held[0].path.stat().st_mtime == 1000.0:
            beaten.wait(0.001)
        date(held[0], 1000.0)
        while held[0].path.stat().st_mtime == 1000.0:
            beaten.wait(0.001)
        assert held[2].path.stat().st_mtime == 1000.0
    date(held[0], 1000.0)
    assert not any(thread.name == "nugpt-heartbeat" for thread in threading.enumerate())
    assert held[0].path.stat().st_mtime == 1000.0
    assert not held[1].path.exists()


def test_several_signs_of_life_fit_into_the_time_after_which_a_claim_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    heart, waited = Heartbeat(stale_after=60.0), list[float | None]()

    def end_at_once(timeout: float | None = None) -> bool:
        waited.append(timeout)
        return True

    monkeypatch.setattr(heart._stop, "wait", end_at_once)
    heart._beat()
    assert waited == [12.0]  # a few may be late, or be lost


def _grab(path: Path, barrier: Barrier, won: Queue[int]) -> None:
    runs = [RunDirectory(one) for one in sorted(path.iterdir())]
    for i, run in enumerate(runs):
        barrier.wait(timeout=100)
        if claim(run, STALE_AFTER) is not None:
            won.put(i)


def test_processes_that_grab_at_the_same_moment_do_not_both_get_a_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for seed in range(40):
        store.run(make_spec(seed=seed))
    barrier, won = SERVER.Barrier(3), SERVER.Queue()
    processes = [SERVER.Process(target=_grab, args=(store.root, barrier, won)) for _ in range(3)]
    for process in processes:
        process.start()
    got = [won.get(timeout=200) for _ in range(40)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(got) == list(range(40))
    assert won.empty()


class Claims(RuleBasedStateMachine):
    """Any order of what workers of two plans can do, at any time: no two of them hold the run at once."""

    @initialize()
    def begin(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.run = Store(Path(self.place.name)).run(SPEC)
        self.now = 1e9
        self.held: list[Claim] = []  # every claim ever made: a worker may sleep for long and wake up

    def teardown(self) -> None:
        self.place.cleanup()

    def holders(self) -> list[Claim]:
        return [one for one in self.held if holds(one)]

    @rule(stops=st.booleans())
    def take(self, stops: bool) -> None:
        ended = ("done", "diverged", "stopped") if stops else ("done", "diverged")
        before = self.holders()
        found = claim(self.run, STALE_AFTER, ended, now=self.now)
        if found is not None:
            date(found, self.now)
            self.held.append(found)
            assert not self.run.has_ended(ended)
            assert holds(found)
        else:
            assert self.run.has_ended(ended) or before  # nobody is refused a run that is free

    @rule(seconds=st.sampled_from([1.0, STALE_AFTER / 2, STALE_AFTER + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        if holds(one):
            one.beat()
            date(one, self.now)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        others = [other for other in self.holders() if other is not one]
        one.release()
        assert not holds(one)
        assert self.holders() == others

    @precondition(lambda self: self.held)
    @rule(data=st.data(), status=st.sampled_from(["stopped", "stopped", "done"]))
    def end(self, data: st.DataObject, status: str) -> None:
        one = data.draw(st.sampled_from(self.held))
        if holds(one) and not self.run.has_ended(("done",)):  # the guard that stands before every write
            self.run.write_record(record_of(SPEC, 3.0, status))
            one.finish()
            assert self.holders() == []

    @invariant()
    def at_most_one_holds_the_run(self) -> None:
        assert len(self.holders()) <= 1


TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=60, stateful_step_count=25)
