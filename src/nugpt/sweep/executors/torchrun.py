"""One run on many nodes: a SLURM job that starts torchrun on each, stops in time, and is queued again to go on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nugpt.store.atomic import write_bytes
from nugpt.sweep.executors.slurm import SlurmOptions, directives, submit_script, waiting

LOGS = "slurm"  # folder of a run's directory
FIRST_PORT, PORTS = 20_000, 20_000  # the job's number chooses one of these, so that two jobs on a node do not meet


@dataclass(frozen=True)
class Nodes:
    """What a run gets of the cluster."""

    nodes: int = 1
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")

    @property
    def ranks(self) -> int:
        """Processes of the run, one per GPU."""
        return self.nodes * self.gpus_per_node


def torchrun(nodes: Nodes, python: str, training: Sequence[str]) -> list[str]:
    """The command that starts a run on this machine alone."""
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nodes.gpus_per_node}", *training]


def job_script(
    run: Path,
    nodes: Nodes,
    python: str,
    training: Sequence[str],
    options: SlurmOptions,
    gpus: bool,
    logs: Path | None = None,
) -> str:
    """The job's script: a notice becomes a file that rank 0 looks for, and what is not finished is queued again.

    SLURM makes no folder for a log, and a job whose folder is not there fails without one: without `logs`, a folder
    that is there when the script is submitted, the log is written where that is done.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", run.name)
    asked = {
        "job-name": f"nugpt-{name}",
        "nodes": nodes.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": nodes.gpus_per_node if gpus else None,
        "cpus-per-task": options.cpus_per_task,
        "mem": options.memory,
        "partition": options.partition,
        "time": options.sbatch_time,
        "account": options.account,
        "output": f"nugpt-{name}-%j.log" if logs is None else f'"{str(logs).replace("%", "%%")}/%j.log"',
        "open-mode": "append",
    }
    command = " ".join(shlex.quote(word) for word in training)
    start = f"{shlex.quote(python)} -m torch.distributed.run"
    meet = '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID.$SLURM_RESTART_COUNT" --rdzv-endpoint="$head:$port"'
    again = [
        "# The scheduler queues a preempted job again; one that was told of its time limit sees to it itself.",
        'if [ -n "$notice" ] && [ ! -e "$run/record.json" ]; then scontrol requeue "$SLURM_JOB_ID" || true; fi',
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *directives(asked, options),
            f"run={shlex.quote(str(run))}",
            'rm -f "$run/stop"',
            "# The time limit's notice: rank 0 sees the file, and all ranks save and stop at the same step.",
            'asked="" notice=""',
            "trap 'asked=1; notice=1; touch \"$run/stop\"' USR1",
            "trap 'asked=1; touch \"$run/stop\"' TERM",
            'first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            'head="$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname)" # a node\'s name need not be its host\'s',
            f"port=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))",
            "export SLURM_RESTART_COUNT=${SLURM_RESTART_COUNT:-0}",
            f"srun --kill-on-bad-exit=1 {start} --nnodes={nodes.nodes} --nproc-per-node={nodes.gpus_per_node} \\",
            f"  --max-restarts=0 {meet} \\",
            f"  {command} &",
            "step=$!",
            "# Again and again: a run that is just starting removes the file of the turn before.",
            *waiting("step", 'if [ -n "$asked" ]; then touch "$run/stop"; sleep 1; else wait "$step"; fi'),
            *(again if options.requeue else []),
            'exit "$status"',
            "",
        ]
    )


def submit_job(run: Path, script: str) -> str:
    """Keep the script with the run, submit it, and return the job's id."""
    path = run / LOGS / "job.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, script.encode())
    return submit_script(path, f"run {run.name}")
