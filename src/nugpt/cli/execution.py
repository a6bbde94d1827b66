"""Whether and where a plan runs: the arguments of `sweep` and `study` after its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from nugpt.sweep.executors.slurm import SlurmOptions

EXECUTORS = ("local", "slurm")
SLURM_ONLY = ("partition", "gpus_per_task", "cpus_per_task", "memory", "account", "sbatch", "no_requeue", "detach")


@dataclass(frozen=True)
class Execution:
    """Whether and where the plan runs."""

    run: bool = False
    """Run what is missing; without it the plan is printed."""
    executor: str = "local"
    """local, or slurm (an array of workers)."""
    workers: int | None = None
    """local: processes, by default one per device (on a CPU one per core, two at most); slurm: tasks of the array."""
    devices: tuple[str, ...] = ()
    """local: the devices to use; by default every GPU, else the CPU."""
    replicas: int | None = None
    """Runs per ensemble at the most; as many as the device holds by default."""
    titan: int | None = None
    """Train each run by TorchTitan on so many GPUs of a worker's machine; by default several runs share one GPU."""
    titan_tp: int | None = None
    """titan: GPUs that share each matrix product."""
    titan_replicate: int | None = None
    """titan: groups of GPUs with a whole model each."""
    titan_activations: str | None = None
    """titan: what the backward pass computes again: none, selective, full."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of runs that are done; by default a sweep keeps their records and metrics alone."""
    stale_after: float = 300.0
    """Seconds without a sign of life after which a worker's runs are taken over."""
    partition: str | None = None
    """slurm: partition."""
    time_limit: str | None = None
    """local: take only runs that can end in this time; what is still trained at its end is then saved. Minutes, or as
    4:00:00. slurm: time limit of a task; it saves before and is queued again."""
    gpus_per_task: int | None = None
    """slurm: GPUs of a task."""
    cpus_per_task: int | None = None
    """slurm: cores of a task."""
    memory: str | None = None
    """slurm: memory of a task, as 32G."""
    account: str | None = None
    """slurm: account."""
    sbatch: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """slurm: further options, each one word, as often as needed: --sbatch=--qos=long."""
    no_requeue: bool = False
    """slurm: queue no task again, neither a preempted one nor one at its time limit."""
    detach: bool = False
    """slurm: submit and leave; the same command again shows or heals the plan."""

    def check(self) -> None:
        """Refuse what cannot be meant, in one line; raised while parsing it would become a box of several."""
        if self.executor not in EXECUTORS:
            raise ValueError(f"executor is {self.executor!r}, but must be {' or '.join(EXECUTORS)}")
        for name in ("workers", "replicas", "titan", "titan_tp", "titan_replicate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of at least 1")
        if not self.stale_after > 0:
            raise ValueError(f"stale_after is {self.stale_after!r}, but must be a number of seconds above 0")
        self._check_titan()
        for name in SLURM_ONLY if self.executor == "local" else ():
            if (value := getattr(self, name)) != getattr(Execution, name):
                raise ValueError(f"{name} is {value!r}, but is for SLURM: give --executor slurm too, or leave it out")
        if self.time_limit is not None:
            from nugpt.sweep.executors.slurm import seconds_of

            if seconds_of(self.time_limit) <= 0:
                raise ValueError(f"time_limit is {self.time_limit!r}, but must be more than nothing")

    def titan_mesh(self) -> dict[str, Any]:
        """What was given of the mesh, by the titan engine's names."""
        given = {name: getattr(self, f"titan_{name}") for name in ("tp", "replicate", "activations")}
        return {name: value for name, value in given.items() if value is not None}

    def _check_titan(self) -> None:
        """Refuse what has no meaning for the engine that is asked for, and would be left out in silence."""
        if self.titan is None:
            for name, value in self.titan_mesh().items():
                raise ValueError(f"titan_{name} is {value!r}, but without --titan no run has several GPUs")
            return
        if (self.replicas or 1) > 1:
            raise ValueError(f"replicas is {self.replicas}, but with --titan each run has all GPUs of its worker")
        if self.executor == "local" and (self.workers or 1) > 1:
            raise ValueError(f"workers is {self.workers}, but with --titan one worker has all GPUs of this machine")
        gpus = self.gpus_per_task or self.titan  # none are asked for where processes share a CPU
        if self.executor == "slurm" and gpus < self.titan:
            raise ValueError(
                f"gpus_per_task is {self.gpus_per_task}, but with --titan {self.titan} a task needs one per process"
            )
        if len(self.devices) > 1 or any(":" in name for name in self.devices):
            devices = " ".join(self.devices)
            raise ValueError(
                f"devices is {devices!r}, but with --titan must be cpu or cuda: a rank's number says which"
            )

    def slurm(self, tasks: int) -> SlurmOptions:
        """What an array of so many tasks asks for."""
        from nugpt.sweep.executors.slurm import SlurmOptions

        return SlurmOptions(
            tasks=tasks,
            partition=self.partition,
            time_limit=self.time_limit,
            gpus_per_task=self.gpus_per_task,
            cpus_per_task=self.cpus_per_task,
            memory=self.memory,
            account=self.account,
            requeue=not self.no_requeue,
            extra=self.sbatch,
        )

    def until(self) -> float | None:
        """When a local worker that starts now and still trains is asked to save and leave, which takes its time.

        In seconds since the epoch; none without a limit.
        """
        from nugpt.sweep.executors.slurm import seconds_of

        if self.executor != "local" or self.time_limit is None:
            return None
        return time.time() + seconds_of(self.time_limit)


def default_devices(execution: Execution, device: str = "auto") -> list[str]:
    """One entry per local worker: the devices asked for, else the plan's one device, every GPU, or the CPU."""
    import os

    import torch

    from nugpt.engines.lab.options import Options

    execution.check()
    devices = list(execution.devices) or ([] if device == "auto" else [device])
    for name in devices:
        Options(device=name).torch_device()  # refused here rather than in a worker's log
    if not devices:
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"]
    if devices == ["cpu"]:
        devices *= execution.workers or min(2, os.cpu_count() or 1)
    elif execution.workers is not None:
        devices = [devices[i % len(devices)] for i in range(execution.workers)]
    return devices
