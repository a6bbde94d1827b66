"""A real SLURM on loopback: tasks are preempted, killed and lost with their node, and every run still ends once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from tests.engines.process import run
from tests.engines.small import make_dataset, result_of

from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.sweep.executors.slurm import SlurmOptions, batch_script, is_active, seconds_of
from nugpt.sweep.state import plan_state

CLUSTER = Path(__file__).with_name("slurm_local.sh")
STALE_AFTER = 20.0
T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """A worker that SLURM started: where, and as which task."""

    pid: int
    node: str
    task: str


def until(reached: Callable[[], T | None], what: str, seconds: float = 120.0) -> T:
    """What must come, once it is there; the limit only keeps a broken cluster from hanging the tests."""
    end = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < end, f"it never came to pass that {what}"
        time.sleep(0.05)
    return found


def both(first: Process | None, second: Process | None) -> tuple[Process, Process] | None:
    return None if first is None or second is None else (first, second)


def restarts(task: str) -> int:
    """How often this task of an array was queued again."""
    blocks = [block for block in tell("scontrol", "show", "job").split("\n\n") if f"ArrayTaskId={task} " in block]
    return max((int(number) for block in blocks for number in re.findall(r"Restarts=(\d+)", block)), default=0)


def tell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def workers(plan: Path) -> list[Process]:
    """The workers of this plan that are alive, by what their own environment says."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"worker" not in words or str(plan).encode() not in words:
                continue
            pairs = (line.partition(b"=") for line in (entry / "environ").read_bytes().split(b"\0"))
            environment = {key.decode(): value.decode() for key, _, value in pairs}
            if "SLURMD_NODENAME" in environment:
                node, task = environment["SLURMD_NODENAME"], environment["SLURM_ARRAY_TASK_ID"]
                found.append(Process(int(entry.name), node, task))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Cluster:
    """Two nodes of two cores; partition `high` takes a node from partition `low`, whose jobs are queued again."""

    path: Path

    def lose(self, node: str, worker: Process) -> None:
        """Take a node away with all that runs on it; the daemon alone would leave its job running."""
        pid_file = self.path / "run" / f"slurmd.{node}.pid"
        script = parent(worker.pid)
        step = parent(script)
        for pid in (int(pid_file.read_text()), step, script, worker.pid):
            kill(pid)
        pid_file.unlink()

    def bring_back(self, node: str) -> None:
        if not (self.path / "run" / f"slurmd.{node}.pid").exists():
            tell("slurmd", "-N", node)
        until(lambda: "idle" in tell("sinfo", "-h", "-n", node, "-p", "low", "-o", "%T"), f"{node} is back")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    path = Path(tempfile.mkdtemp(prefix="nugpt-slurm-"))  # a short name: it holds sockets
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(path / "slurm.conf")
    try:
        subprocess.run(["bash", str(CLUSTER), "start", str(path)], check=True, timeout=120)
        yield Cluster(path)
    finally:
        subprocess.run(["bash", str(CLUSTER), "stop", str(path)], check=False)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        subprocess.run(["scancel", "--partition=low"], check=False)  # complains where there is none
        until(lambda: not tell("squeue", "--noheader"), "all jobs are gone")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data")).path


def sweep(data: Path, store: Path, steps: int, *more: str) -> list[str]:
    shape = ["--preset", "tiny-l1h1", "--seq-len", "16", "--batch", "8", "--base-batch", "1", "--steps", str(steps)]
    often = ["--validations", "4", "--val-windows", "8", "--log-every", "5", "--checkpoint-every", "50"]
    where = ["--data", str(data), "--store", str(store), "--device", "cpu", "--threads", "1"]
    grid = ["--log2-lr", "-8", "-6", "-4", "--seed", "0", "1", "--extend", "0", "--replicas", "1"]
    # Kept, so that the last weights can be compared to the bit.
    slurm = ["--run", "--executor", "slurm", "--partition", "low", "--cpus-per-task", "2", "--keep-checkpoints"]
    return ["sweep", "--name", "plan", *shape, *often, *where, *grid, *slurm, "--stale-after", str(STALE_AFTER), *more]


def last_steps(store: Path) -> dict[str, int]:
    """How far each run that is not done has come."""
    found = {}
    for path in store.glob("*/metrics.jsonl"):
        rows = [line for line in path.read_text().splitlines() if line.endswith("}")]
        if rows and not (path.parent / "record.json").exists():
            found[path.parent.name] = int(json.loads(rows[-1])["step"])
    return found


def held_by(store: Path, worker: Process) -> str | None:
    """The run that this worker is training."""
    for path in store.glob("*/claim-*.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text()).get("pid") == worker.pid and not (path.parent / "record.json").exists():
                return path.parent.name
    return None


def results(store: Path) -> dict[str, object]:
    directory = PlanDirectory(store / "plans" / "plan")
    return {spec.hash: result_of(directory.store.run(spec)) for spec in directory.plan().specs()}


def states(store: Path) -> Counter[str]:
    directory = PlanDirectory(store / "plans" / "plan")
    curves = plan_state(directory.plan(), directory, STALE_AFTER)
    return Counter(place.state for curve in curves for place in curve.places)


@pytest.mark.slurm
@pytest.mark.timeout(600)
def test_a_plan_survives_a_killed_worker_a_preemption_and_a_lost_node(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    # A run lasts longer than SLURM takes to preempt it.
    steps, store, whole = 1800, tmp_path / "runs", tmp_path / "whole"
    plan = store / "plans" / "plan"
    command = [sys.executable, "-m", "nugpt", *sweep(data, store, steps, "--workers", "3")]
    with open(tmp_path / "sweep.log", "wb") as log:
        sweeping = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    found: dict[tuple[int, str], int] = {}  # how far a run was when its worker was first seen with it

    def training(node: str, but: Process | None = None) -> Process | None:
        """The worker on this node, if it is in the midst of a run that it will not end at once."""
        for worker in workers(plan):
            run_name = held_by(store, worker)
            if worker.node == node and worker != but and run_name:
                step = last_steps(store).get(run_name, 0)
                # Taken over from a worker that was killed, it has steps before this one has trained any.
                return worker if found.setdefault((worker.pid, run_name), step) < step < 0.5 * steps else None
        return None

    first, second = until(lambda: both(training("n1"), training("n2")), "a task trains on each node")
    kill(first.pid)
    cluster.lose("n2", second)
    # The task ends with its worker, and the one that had to wait for a node takes over.
    third = until(lambda: training("n1", but=first), "the third task trains on n1")
    high = ["sbatch", "--parsable", "--partition=high", "--nodelist=n1", "--cpus-per-task=2", f"--chdir={tmp_path}"]
    asked = subprocess.run(
        [*high, "--output=/dev/null"], input="#!/bin/bash\nsleep 2\n", text=True, capture_output=True
    )
    assert asked.returncode == 0, asked.stderr
    until(lambda: not Path(f"/proc/{third.pid}").exists(), "it makes room for what is more urgent")
    until(lambda: restarts(third.task), "it is queued again")

    assert sweeping.wait(timeout=300) == 0, (tmp_path / "sweep.log").read_text()
    assert states(store) == {"done": 6}
    said = {path.name: path.read_text() for path in (plan / "slurm").glob("*.log")}
    ended = Counter(name for text in said.values() for name in re.findall(r"^run (\w+) done$", text, re.M))
    assert ended == dict.fromkeys(results(store), 1), said
    assert any("the state is saved" in text for text in said.values())  # the one that was preempted
    # Those that were lost or preempted came back; the one whose worker was killed had ended, and stays so.
    assert restarts(second.task)
    assert not restarts(first.task)
    assert not list(store.glob("*/failures.jsonl"))

    # The same plan where nothing happens.
    directory = PlanDirectory.of(Store(whole), PlanDirectory(plan).plan())
    directory.write_launch(PlanDirectory(plan).launch())
    assert run(["worker", str(directory.path), "--replicas", "3"], tmp_path / "whole.log") == 0
    assert results(whole) == results(store)
    cluster.bring_back("n2")


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_before_its_time_limit_a_task_saves_and_is_queued_again(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    plan = store / "plans" / "plan"
    command = sweep(data, store, 10_000_000, "--workers", "1", "--time-limit", "1", "--detach")
    started = subprocess.run([sys.executable, "-m", "nugpt", *command], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    (job,) = re.findall(r"as job (\d+)", started.stderr)
    assert is_active(job)

    def said() -> str:
        return "".join(path.read_text() for path in (plan / "slurm").glob("*.log"))

    until(lambda: "the state is saved" in said(), "the task is told to save")
    (stopped,) = re.findall(r"stopped after step (\d+)", said())
    until(lambda: "Restarts=1" in tell("scontrol", "show", "job"), "it is queued again")
    until(lambda: any(step > int(stopped) for step in last_steps(store).values()), "it goes on from there")
    tell("scancel", job)
    until(lambda: not is_active(job), "it is cancelled")
    assert "Restarts=2" not in tell("scontrol", "show", "job")  # what is cancelled stays so
    assert "DUE TO TIME LIMIT" not in said()
    assert sum(step > 0 for step in last_steps(store).values()) == 1
    until(lambda: not workers(plan), "its worker is gone")
    assert states(store) == {"interrupted": 1, "missing": 5}


@pytest.mark.slurm
def test_a_job_that_the_scheduler_has_forgotten_is_not_active(cluster: Cluster) -> None:
    assert not is_active("99999")


@pytest.mark.slurm
def test_what_sbatch_refuses_is_one_line(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    command = sweep(data, tmp_path / "runs", 20, "--partition", "nowhere")
    done = subprocess.run([sys.executable, "-m", "nugpt", *command], capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "sbatch refused the plan" in line
    assert "partition" in line


def script_of(options: SlurmOptions, plan: str = "/runs/plans/mine") -> str:
    return batch_script(Path(plan), ["python", "-m", "nugpt", "worker", plan], options)


def test_the_script_asks_for_what_was_asked_for() -> None:
    options = SlurmOptions(4, "gpu", "4:00:00", 1, 8, "32G", "me", extra=("--qos=long",))
    asked = [line.removeprefix("#SBATCH ") for line in script_of(options).splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        "--job-name=nugpt-mine",
        "--array=0-3",
        '--output="/runs/plans/mine/slurm/%A_%a.log"',
        "--open-mode=append",
        "--partition=gpu",
        "--time=4:00:00",
        "--gpus-per-task=1",
        "--ntasks=1",
        "--cpus-per-task=8",
        "--mem=32G",
        "--account=me",
        "--signal=B:USR1@120",
        "--requeue",
        "--qos=long",
    ]
    assert "--no-requeue" in script_of(SlurmOptions(requeue=False))
    assert "--time" not in script_of(SlurmOptions())


def test_a_notice_leaves_most_of_a_short_limit_to_train_in() -> None:
    for limit, notice in (("1", 15), ("2:00", 30), ("8", 120), ("1-0", 120)):
        assert f"--signal=B:USR1@{notice}\n" in script_of(SlurmOptions(time_limit=limit))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("2:30", 150),
        ("1:02:03", 3723),
        ("2-3", 183_600),
        ("1-02:30", 95_400),
        ("1-02:30:15", 95_415),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds
    assert SlurmOptions(time_limit=text).sbatch_time == text


@pytest.mark.parametrize(
    ("text", "seconds", "theirs"), [("8.75", 525, "8:45"), ("0.1", 6, "0:06"), ("90.0", 5400, "90:00")]
)
def test_minutes_may_have_a_fraction_which_sbatch_takes_as_seconds(text: str, seconds: int, theirs: str) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of(theirs) == seconds
    assert (
        f"#SBATCH --time={theirs}" in batch_script(Path("plan"), ["true"], SlurmOptions(time_limit=text)).splitlines()
    )


@pytest.mark.parametrize(
    "text", ["", "soon", "1:2:3:4", "-5", "1h", "4:00\n", "0", "0.0", ".5", "1.", "1.5:00", "1.5.2"]
)
def test_a_time_limit_that_sbatch_would_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time_limit is"):
        SlurmOptions(time_limit=text)


@pytest.mark.parametrize("option", ["qos=long", "-p", "--a\n--b", ""])
def test_an_option_for_sbatch_is_one_word(option: str) -> None:
    with pytest.raises(ValueError, match="sbatch option"):
        SlurmOptions(extra=(option,))


WORKER = "\nbash -c "  # where the script starts it


class Script:
    """The array's script with another worker and a scontrol that only notes what it was asked.

    `done` is what the script itself does just before this part of it.
    """

    def __init__(self, folder: Path, worker: str, before: str = WORKER, done: str = "") -> None:
        self.folder, programs = folder, folder / "bin"
        programs.mkdir(parents=True)
        (programs / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {folder}/scontrol\n')
        (programs / "scontrol").chmod(0o755)
        script = batch_script(folder, ["bash", "-c", worker], SlurmOptions())
        assert script.count(before) == 1
        (folder / "array.sh").write_text(script.replace(before, f"\n{done}{before}"))
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"} | {
            "SLURM_ARRAY_JOB_ID": "17",
            "SLURM_ARRAY_TASK_ID": "3",
        }
        self.process = subprocess.Popen(["bash", str(folder / "array.sh")], env=environment, cwd=folder)

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Its status and what was asked, once it has ended: by itself, or after a signal to a worker that is ready."""
        if number is not None:
            until(lambda: (self.folder / "ready").exists(), "the worker is ready")
            self.process.send_signal(number)
        status, asked = self.process.wait(), self.folder / "scontrol"
        return status, asked.read_text() if asked.exists() else ""


def test_the_script_ends_as_its_worker_does(tmp_path: Path) -> None:
    begun = {status: Script(tmp_path / str(status), f"exit {status}") for status in (0, 1, 2, 137)}
    assert {status: script.end() for status, script in begun.items()} == {status: (status, "") for status in begun}


SAVES = 'trap "exit {status}" {name}; touch ready; while :; do sleep 0.01; done'


# How a worker ends by a signal, and what is asked of the cluster then.
ENDS = {signal.SIGUSR1: (138, "requeue 17_3\n"), signal.SIGTERM: (143, "")}


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_reaches_the_worker_and_a_notice_has_the_task_queued_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    worker = SAVES.format(status=ENDS[number][0], name=number.name.removeprefix("SIG"))
    assert Script(tmp_path, worker).end(number) == ENDS[number]


def test_a_signal_while_the_worker_is_started_is_kept_for_it(tmp_path: Path) -> None:
    # It reaches the worker before that has begun to listen, and ends it: the status is the signal's own.
    begun = {
        (number, before): Script(tmp_path / f"{number}-{i}", "exec sleep 60", before, f"kill -{number} $$")
        for number in ENDS
        for i, before in enumerate([WORKER, "\nstarted=", "\nsleep 1", "\nworker=$", "\nif [ -n"])
    }
    assert {case: script.end() for case, script in begun.items()} == {case: ENDS[case[0]] for case in begun}


def test_a_worker_that_ends_by_itself_as_the_notice_comes_is_not_queued_again(tmp_path: Path) -> None:
    # The notice ends the wait; before the script looks again the worker has ended, with nothing left to do.
    worker = SAVES.format(status=0, name="USR1")
    late = '\nwait() { builtin wait "$@"; set -- $?; sleep 0.5; return "$1"; }'
    assert Script(tmp_path, worker, done=late).end(signal.SIGUSR1) == (0, "")
