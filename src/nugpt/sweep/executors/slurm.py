"""Workers as tasks of a SLURM array. The store is the truth: the scheduler starts workers and is asked nothing else."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nugpt.spec.checks import one_line
from nugpt.store.atomic import write_bytes
from nugpt.store.plans import PlanDirectory


@dataclass(frozen=True)
class SlurmOptions:
    """What the cluster is asked for."""

    tasks: int = 1
    partition: str | None = None
    time_limit: str | None = None  # minutes, or as sbatch writes it: 4:00:00, 1-12:00
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    memory: str | None = None  # as sbatch writes it: 32G
    account: str | None = None
    requeue: bool = True
    notice: int = 120  # seconds before the time limit at which the task is told to save; a quarter of a short limit
    extra: tuple[str, ...] = ()  # further options for sbatch, each as one word

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise ValueError(f"tasks is {self.tasks}, but must be at least 1")
        if self.notice < 1:
            raise ValueError(f"notice is {self.notice}, but must be at least 1 second")
        if self.time_limit is not None and seconds_of(self.time_limit) <= 0:
            raise ValueError(f"time_limit is {self.time_limit!r}, but must be more than nothing")
        for option in self.extra:
            if not option.startswith("--") or "\n" in option:
                raise ValueError(f"sbatch option {option!r} must be one word that begins with --")

    @property
    def sbatch_time(self) -> str | None:
        """The time limit for sbatch, which takes no fraction of a minute."""
        if self.time_limit is None or "." not in self.time_limit:
            return self.time_limit
        minutes, seconds = divmod(seconds_of(self.time_limit), 60)
        return f"{minutes}:{seconds:02}"


def seconds_of(time_limit: str) -> int:
    """Seconds of a time limit as sbatch writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; M may have a fraction."""
    if re.fullmatch(r"\d+\.\d+", time_limit):
        return round(60 * float(time_limit))
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time_limit)
    if not match:
        raise ValueError(f"time_limit is {time_limit!r}, but must be minutes, or as sbatch writes it: 4:00:00, 1-12:00")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:  # hours come first
        hours, minutes, seconds = numbers + [0] * (3 - len(numbers))
    else:
        hours, minutes, seconds = 0, *numbers, *[0] * (2 - len(numbers))
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


def check_sbatch(who: str) -> None:
    """Refuse to submit where there is nothing to submit with."""
    if shutil.which("sbatch") is None:
        raise ValueError(f"{who} needs the program sbatch on PATH")


def submit(directory: PlanDirectory, worker: Sequence[str], options: SlurmOptions) -> str:
    """Submit an array of workers on this plan and return its job id."""
    check_sbatch("executor 'slurm'")
    logs = directory.path / "slurm"
    logs.mkdir(exist_ok=True)
    script = logs / "array.sh"
    write_bytes(script, batch_script(directory.path.resolve(), worker, options).encode())
    return submit_script(script, "the plan")


def submit_script(script: Path, what: str) -> str:
    """Submit a script and return its job id."""
    found = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
    if found.returncode:
        raise OSError(f"sbatch refused {what}: {one_line(found.stderr)}")
    return found.stdout.strip().split(";")[0]


def batch_script(plan: Path, worker: Sequence[str], options: SlurmOptions) -> str:
    """The array's script: a worker that is told of preemption or of its time limit, saves, and is queued again."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", plan.name)
    asked = {
        "job-name": f"nugpt-{name}",
        "array": f"0-{options.tasks - 1}",
        "output": f'"{str(plan).replace("%", "%%")}/slurm/%A_%a.log"',
        "open-mode": "append",
        "partition": options.partition,
        "time": options.sbatch_time,
        "gpus-per-task": options.gpus_per_task,
        "ntasks": 1,
        "cpus-per-task": options.cpus_per_task,
        "mem": options.memory,
        "account": options.account,
    }
    lines = directives(asked, options)
    command = " ".join(shlex.quote(word) for word in worker)
    again = [
        "# 138: saved on SIGUSR1, the notice before the time limit. What is left goes on in another turn.",
        "# Not by SLURM_JOB_ID: one task of an array has the array's own number, which stands for all of them.",
        'task="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        'if [ "$status" -eq 138 ]; then scontrol requeue "$task" || true; fi',
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "# The worker saves on SIGTERM and SIGUSR1; bash holds a signal back while it waits in the foreground.",
            "# One that comes before there is a worker is kept for it: by the script's own end nobody would tell it.",
            'worker="" early=""',
            'pass() { if [ -n "$worker" ]; then kill -"$1" "$worker"; else early="$1"; fi; }',
            "trap 'pass USR1' USR1",
            "trap 'pass TERM' TERM",
            f"{command} &",
            "started=$!",
            "sleep 1 # bash's child hears no signal before it has become the worker",
            "worker=$started",
            'if [ -n "$early" ]; then kill -"$early" "$worker"; fi',
            *waiting("worker"),
            *(again if options.requeue else []),
            'exit "$status"',
            "",
        ]
    )


def waiting(process: str, turn: str | None = None) -> list[str]:
    """The lines that wait for a script's own process, by the variable of its number, and take its status.

    A turn of the wait is ended by a signal, after which the process may go on; another kind of turn may be given.
    """
    turn = turn or f'wait "${process}"'
    return [
        f'while kill -0 "${process}" 2>/dev/null; do {turn}; done',
        f'wait "${process}"; status=$? # its own, which bash keeps, and not that of a wait that a signal ended',
    ]


def directives(asked: Mapping[str, object], options: SlurmOptions) -> list[str]:
    """The lines that ask the scheduler for these things, for a notice before the time limit, and for another turn."""
    # A notice as long as the limit would come at once, again and again, and nothing would ever be trained.
    limit = None if options.time_limit is None else seconds_of(options.time_limit)
    notice = options.notice if limit is None else max(1, min(options.notice, limit // 4))
    lines = [f"#SBATCH --{key}={value}" for key, value in asked.items() if value is not None]
    lines += [f"#SBATCH --signal=B:USR1@{notice}", f"#SBATCH --{'' if options.requeue else 'no-'}requeue"]
    return lines + [f"#SBATCH {option}" for option in options.extra]


def is_active(job: str) -> bool:
    """Whether tasks of the job are pending or running; a scheduler that does not answer says nothing about them."""
    found = subprocess.run(["squeue", "--noheader", "--array", "--jobs", job], capture_output=True, text=True)
    if found.returncode:
        return "Invalid job id" not in found.stderr  # what it says of a job that it has forgotten
    return bool(found.stdout.strip())
