"""`nugpt launch`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from nugpt.cli.run_arguments import warn_of_other_data
from nugpt.cli.titan import MeshArguments

SLURM_ONLY = [
    "nodes",
    "partition",
    "time_limit",
    "cpus_per_task",
    "memory",
    "account",
    "sbatch",
    "no_requeue",
    "notice",
]
WAIT = 400  # seconds: longer than a run whose holder was lost with its node counts as held


@dataclass(frozen=True)
class EngineMesh(MeshArguments):
    """What is not given is as in the engine: FSDP2 alone, all of a rank's batch at once, nothing computed again."""


@dataclass(frozen=True)
class Launch:
    """Train a recipe on many GPUs: the torchrun command, or with --slurm a job of several nodes that resumes itself."""

    recipe: Path
    """A file that `nugpt recommend --emit titan` wrote, or the spec.json of a run's directory."""
    data: Path
    """A directory that `nugpt data prepare` made."""
    store: Path = Path("runs")
    """Where runs are kept, on a file system that all nodes see."""
    slurm: bool = False
    """Print a SLURM job instead of a command for this machine."""
    submit: bool = False
    """With --slurm: submit it."""
    nodes: int = 1
    """Nodes of the job."""
    gpus_per_node: int = 8
    """GPUs, and so processes, of each node."""
    mesh: EngineMesh = EngineMesh()
    engine: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Further options of the engine, each one word, as often as needed: --engine=--no-compile."""
    seed: int | None = None
    """Instead of the recipe's."""
    precision: str | None = None
    """Of matrix products, instead of the recipe's: float32 or bfloat16."""
    device: str = "auto"
    """auto, cuda, or cpu (processes without GPUs, to try things out)."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; by default ten a run."""
    partition: str | None = None
    """slurm: partition."""
    time_limit: str | None = None
    """slurm: time limit, as 1-00:00:00; the run saves before it and is queued again."""
    cpus_per_task: int | None = None
    """slurm: cores of each node."""
    memory: str | None = None
    """slurm: memory of each node, as 500G."""
    account: str | None = None
    """slurm: account."""
    sbatch: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """slurm: further options, each one word, as often as needed: --sbatch=--qos=long."""
    no_requeue: bool = False
    """slurm: do not queue the job again, neither when it was preempted nor at its time limit."""
    notice: int = 300
    """slurm: seconds before the time limit at which the run is told to save."""

    def run(self) -> int:
        """Check everything that can be checked here, then print or submit."""
        from nugpt.engines.titan.__main__ import read_arguments
        from nugpt.engines.titan.execute import read_run, with_data
        from nugpt.engines.titan.options import mesh_of
        from nugpt.sweep.executors.slurm import SlurmOptions, check_sbatch
        from nugpt.sweep.executors.torchrun import LOGS, Nodes, job_script, submit_job, torchrun

        if self.submit and not self.slurm:
            raise ValueError("--submit needs --slurm, which says where to")
        slurm = SlurmOptions(
            partition=self.partition,
            time_limit=self.time_limit,
            cpus_per_task=self.cpus_per_task,
            memory=self.memory,
            account=self.account,
            requeue=not self.no_requeue,
            notice=self.notice,
            extra=self.sbatch,
        )
        nodes, training = Nodes(self.nodes, self.gpus_per_node), self._training()
        for name in () if self.slurm else SLURM_ONLY:
            if (value := getattr(self, name)) != getattr(Launch, name):
                raise ValueError(f"{name} is {value!r}, but without --slurm the command is for this machine alone")
        request, _ = read_arguments(training[2:])  # as every rank will read them
        found = read_run(request)
        spec = with_data(found, request.data, check="sizes")
        mesh_of(spec, request.options, nodes.ranks)
        request.options.check_kernels(spec)
        warn_of_other_data(self.recipe, found, spec.data)
        if not self.slurm:
            print(shlex.join(torchrun(nodes, sys.executable, training)))
            return 0
        directory = request.store / spec.hash
        logs = directory / LOGS if self.submit else None  # what is printed writes its log where somebody submits it
        script = job_script(directory, nodes, sys.executable, training, slurm, self.device != "cpu", logs)
        if not self.submit:
            print(script, end="")
            return 0
        from nugpt.store import Store

        check_sbatch("--submit")  # what is refused leaves no run behind
        Store(request.store).run(spec)
        print(f"submitted job {submit_job(directory, script)}: run {directory}")
        return 0

    def _training(self) -> list[str]:
        """The arguments of every rank."""
        names = {"recipe": _whole(self.recipe), "data": _whole(self.data), "store": _whole(self.store)}
        given = {"seed": self.seed, "precision": self.precision, "checkpoint-every": self.checkpoint_every}
        given |= {name.replace("_", "-"): value for name, value in self.mesh.given().items()}
        words = [f"--{name}={value}" for name, value in {**names, **given}.items() if value is not None]
        waits = [f"--wait={WAIT}"] if self.slurm else []
        return ["-m", "nugpt.engines.titan", *words, f"--device={self.device}", *waits, *self.engine]


def _whole(path: Path) -> Path:
    return path.expanduser().resolve()
