"""From a plan to its records: the printed plan, the executors, and the live table. Shared by `sweep` and `study`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from nugpt.cli.curve_rows import CURVE_COLUMNS, curve_rows, label_text, spent_text
from nugpt.cli.run_arguments import Carrier
from nugpt.cli.show import counted, print_table
from nugpt.spec import checks
from nugpt.spec.plan import Curve, Plan
from nugpt.spec.run import run_flops
from nugpt.sweep.cost import refined, told, total_seconds

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.spec.run import RunSpec
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.executors.local import EarlyWorker
    from nugpt.sweep.executors.slurm import SlurmOptions
    from nugpt.sweep.state import CurveState

EXECUTORS = ("local", "slurm")
SLURM_ONLY = ("partition", "gpus_per_task", "cpus_per_task", "memory", "account", "sbatch", "no_requeue", "detach")
LEAVING_S = 5.0  # of a time limit, for a worker to look once more at every plan and go
# Where an estimate comes from while the store has no record of the device.
ASSUMED = {"cpu": "as first measured on one core", "cuda": "as first measured on one H200"}
ENOUGH_RUNS = 200  # of a store, to estimate by


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


def show_plan(plan: Plan, store: Path, device_type: str, workers: int) -> None:
    """The plan as a table: curves, counts, FLOPs, tokens, and an estimated time."""
    rows, specs = [_plan_row(curve) for curve in plan.curves], plan.specs()
    print(f"plan {plan.name}: {counted(len(plan.curves), 'curve')}, {counted(len(specs), 'run')}")
    columns = ["curve", "d_model", "layers", "steps", "batch", "log2 η", "seeds", "runs", "tokens", "FLOPs"]
    print_table(columns, rows, right=range(1, len(columns)))
    flops = sum(run_flops(spec) for spec in specs)
    slower, source = _slower(store, device_type)
    tokens = sum(spec.steps * spec.batch * spec.model.seq_len for spec in specs)
    seconds = slower * total_seconds(specs, device_type) / workers
    print(f"all: {tokens:.3g} tokens, {flops:.3g} FLOPs, about {told(seconds)} ({source})")
    known, left = _known_and_left(plan, store)
    if len(left) < len(known):
        rest = told(slower * total_seconds(left, device_type) / workers)
        grown = f" (the grid has grown by {len(known) - len(specs)})" if len(known) > len(specs) else ""
        of = f"{len(known) - len(left)} of {counted(len(known), 'run')}{grown}"
        print(f"{of} have ended in {store}; " + (f"the rest takes about {rest}" if left else "none is left"))
    policy = plan.policy
    grows = [f"up to {counted(policy.extend, 'point')} beyond an edge"] if policy.extend else []
    grows += [f"{spacing:g} octave around the optimum" for spacing in policy.refine]
    if grows:
        more = slower * total_seconds(refined(plan), device_type) / workers - seconds
        longer = f"; refining takes about {told(more)} more" if policy.refine else ""
        print(f"the grid grows by itself: {', then '.join(grows)}{longer}")
    if policy.stop is not None:
        rule = policy.stop
        print(
            f"hopeless runs are stopped: {rule.margin:g} nats above the best at {rule.times} validations "
            f"after {100 * rule.after:g} % of the run"
        )


def _known_and_left(plan: Plan, store: Path) -> tuple[list[RunSpec], list[RunSpec]]:
    """The runs that the plan has by now, those included by which its grid has grown there, and which have not ended."""
    from nugpt.store import Store
    from nugpt.store.plans import PlanDirectory
    from nugpt.store.run_directory import RunDirectory
    from nugpt.sweep.state import ended_states

    begun = PlanDirectory(store / "plans" / plan.name, Store(store))
    ours = (begun.path / "plan.json").is_file() and begun.plan().hash == plan.hash
    known, ended = begun.specs() if ours else plan.specs(), ended_states(plan.policy)
    return known, [spec for spec in known if not RunDirectory(store / spec.hash).has_ended(ended)]


def _plan_row(curve: Curve) -> list[str]:
    spec, runs = curve.spec, curve.runs().values()
    tokens = sum(r.steps * r.batch * r.model.seq_len for r in runs)
    grid = curve.log2_lrs
    return [
        label_text(curve),
        str(spec.model.d_model),
        str(spec.model.n_layers),
        f"{spec.steps:,}",
        str(spec.batch),
        f"{grid[0]:g} … {grid[-1]:g} ({len(grid)})" if len(grid) > 1 else f"{grid[0]:g}",
        str(len(curve.seeds)),
        str(len(runs)),
        f"{tokens:.3g}",
        f"{sum(run_flops(r) for r in runs):.3g}",
    ]


def _slower(store: Path, device_type: str) -> tuple[float, str]:
    """How much longer runs take than first measured: the median of the store's records on such a device, and how known.

    A ratio and not a rate: a store's runs may be of other shapes, and small ones waste more of a device.
    """
    from itertools import islice
    from statistics import median

    from nugpt.store import Store
    from nugpt.sweep.pace import slowness

    ratios = [found for _, found in islice(slowness(Store(store).runs(), device_type), ENOUGH_RUNS)]
    if ratios:
        return median(ratios), f"by {counted(len(ratios), 'run')} of this store"
    return 1.0, f"{ASSUMED[device_type]}: no run to go by yet"


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


@contextmanager
def early_worker(execution: Execution, store: Path) -> Iterator[EarlyWorker | None]:
    """A worker that loads torch while the launcher does, where one will be needed; it ends with it if it was not."""
    if execution.run:
        checks.folder(store, "store")
    if not execution.run or execution.executor != "local" or execution.titan is not None:
        yield None
        return
    from nugpt.sweep.executors.local import EarlyWorker

    early = EarlyWorker()
    try:
        yield early
    finally:
        early.end()


def launch(
    plan: Plan,
    store: Path,
    dataset: TokenDataset,
    carrier: Carrier,
    execution: Execution,
    quiet: bool = False,
    early: EarlyWorker | None = None,
) -> int:
    """Run what is missing of the plan, showing its progress; 0 when every run has ended. Quiet: no table at the end."""
    directory = laid_down(plan, store, dataset, carrier, execution)
    if execution.executor == "local":
        with plan_view(plan, directory, execution.stale_after) as watch:
            status = run_workers([directory], execution, watch, early)
    else:
        status = _launch_slurm(plan, directory, execution)
    return status if status is not None else _verdict(plan, directory, execution.stale_after, quiet)


def laid_down(plan: Plan, store: Path, dataset: TokenDataset, carrier: Carrier, execution: Execution) -> PlanDirectory:
    """The plan in the store, with how it is to be run."""
    from nugpt.store import Store
    from nugpt.store.plans import PlanDirectory

    if execution.titan is not None:
        _check_for_titan(plan, carrier, execution)
    elif execution.executor == "local":
        _check_kernels(plan, carrier, execution)
    options = asdict(carrier.options())  # refused before anything is written
    for curve in plan.curves:
        dataset.check_suits(curve.spec.model)
    if execution.executor == "slurm" and not (store / "plans" / plan.name / "plan.json").is_file():
        from nugpt.sweep.executors.slurm import check_sbatch

        execution.slurm(tasks=1)
        check_sbatch("executor 'slurm'")  # a plan that is there can be looked at without
    directory = PlanDirectory.of(Store(store), plan)
    data, keep = str(dataset.path.resolve()), execution.keep_checkpoints
    values = {"data": data, "options": options, "keep_checkpoints": keep, "titan": execution.titan}
    directory.write_launch({**values, "titan_mesh": execution.titan_mesh()})
    return directory


def _check_kernels(plan: Plan, carrier: Carrier, execution: Execution) -> None:
    """Refuse here kernels that every worker of this machine would refuse, in its log."""
    options = carrier.options()
    if options.kernels != "fused":  # others are never refused, and asking a GPU what it is would take memory there
        return
    for name in dict.fromkeys(default_devices(execution, carrier.device)):
        device = replace(options, device=name).torch_device()
        for architecture in {curve.spec.model.architecture for curve in plan.curves}:
            options.kernels_on(device, architecture)


def _check_for_titan(plan: Plan, carrier: Carrier, execution: Execution) -> None:
    """Refuse here what the titan engine would refuse of every run, in a worker's log."""
    from nugpt.engines.titan.options import mesh_of, options_of_plan

    assert execution.titan is not None
    if plan.policy.stop is not None:
        raise ValueError("hopeless runs are to be stopped, but with --titan none is: leave out --stop-hopeless")
    options = options_of_plan(carrier.options(), execution.titan_mesh())
    for spec in plan.specs():
        mesh_of(spec, options, execution.titan)
        options.check_kernels(spec)


def _worker_command(directories: Sequence[PlanDirectory], execution: Execution, peers: int) -> list[str]:
    from nugpt.sweep.executors.local import NUGPT

    paths = [str(directory.path.resolve()) for directory in directories]
    command = [*NUGPT, "worker", *paths, "--peers", str(peers)]
    command += ["--stale-after", str(execution.stale_after)]
    if execution.replicas is not None:
        command += ["--replicas", str(execution.replicas)]
    return command


def run_workers(
    directories: Sequence[PlanDirectory],
    execution: Execution,
    watch: Callable[[], None],
    early: EarlyWorker | None = None,
) -> int | None:
    """Workers of this machine on these plans, one by one; the exit status where it is not for the store to say."""
    from nugpt.sweep.executors.local import run_local

    until = execution.until()
    launched = [directory.launch() for directory in directories]
    devices = default_devices(execution, launched[0]["options"]["device"])
    if execution.titan is not None:  # one worker, whose processes find their devices
        devices = [devices[0].split(":")[0]]
    if devices.count("cpu") > 1:
        for directory, values in zip(directories, launched, strict=True):
            if values["options"]["threads"] is None:
                directory.write_launch({**values, "options": {**values["options"], "threads": 1}})
    base = [*_worker_command(directories, execution, len(devices)), "--linger", "86400"]
    if until is not None:
        base += ["--until", f"{until - LEAVING_S:.0f}"]
    commands = [[*base, "--device", device] for device in devices]
    ended = run_local(directories[0], commands, watch, until=until, early=early)
    logs = directories[0].path / "logs"
    if ended.interrupted:
        print(_interrupted(ended.statuses, logs), file=sys.stderr)
        return 130
    if ended.out_of_time:
        print("the time limit has come: what was being trained is saved", file=sys.stderr)
    for line in ended.complaints:
        print(line, file=sys.stderr)
    if ended.complaints or (any(ended.statuses) and not ended.out_of_time):
        print(f"the workers' logs are in {logs}", file=sys.stderr)
    return 2 if 2 in ended.statuses else None


def _interrupted(statuses: Sequence[int], logs: Path) -> str:
    """What the workers' exit statuses say of how they left: 128 and more when they left by themselves on a signal."""
    lost = sum(not (status == 0 or status > 128) for status in statuses)
    if not statuses:
        return "interrupted: no worker had begun, the same command goes on"
    if not lost:
        return "interrupted: the workers have saved, the same command goes on"
    which = f"{lost} of {counted(len(statuses), 'worker')} ended without saving (logs in {logs})"
    return f"interrupted: {which}; the same command goes on from the last checkpoints"


def _launch_slurm(plan: Plan, directory: PlanDirectory, execution: Execution) -> int | None:
    """The exit status where it is not for the store to say."""
    from nugpt.sweep.executors.slurm import is_active, submit
    from nugpt.sweep.worker import grown

    curves = grown(plan, directory, execution.stale_after)
    open_runs = sum(place.state != "running" for curve in curves for place in curve.left(plan.policy))
    tasks = execution.workers or max(1, min(8, open_runs))
    command = [*_worker_command([directory], execution, tasks), "--linger", str(2 * execution.stale_after)]
    job = submit(directory, command, execution.slurm(tasks)) if open_runs else None
    if job is not None:
        print(f"submitted {counted(tasks, 'task')} as job {job}; logs in {directory.path / 'slurm'}", file=sys.stderr)
    if execution.detach:
        return 0
    with plan_view(plan, directory, execution.stale_after) as watch:
        while job is not None and is_active(job):
            watch()
            time.sleep(2)
        watch()
    return None


def _verdict(plan: Plan, directory: PlanDirectory, stale_after: float, quiet: bool) -> int:
    """0 when every run of the grown plan has ended; else say what is left and how to go on."""
    from nugpt.sweep.state import spent
    from nugpt.sweep.worker import grown

    curves = grown(plan, directory, stale_after)
    left = sum(len(curve.left(plan.policy)) for curve in curves)
    if not quiet:
        print_table(CURVE_COLUMNS, curve_rows(curves))
        print(spent_text(spent(curves)))
    if left:
        word = "is" if left == 1 else "are"
        print(f"{counted(left, 'run')} {word} left: the same command goes on", file=sys.stderr)
    return 1 if left else 0


@contextmanager
def plan_view(plan: Plan, directory: PlanDirectory, stale_after: float) -> Iterator[Callable[[], None]]:
    """A function to call now and then: a live table in a terminal, elsewhere a line at every end and every tenth."""
    from nugpt.sweep.state import plan_state, reached

    begun = time.monotonic()
    first: dict[str, float] = {}
    now, last = (0, 0), (-1, -1)  # runs that have ended, tenths of the plan

    def progress() -> tuple[list[CurveState], str]:
        nonlocal now
        curves = plan_state(plan, directory, stale_after)
        places = [place for curve in curves for place in curve.places]
        ended = sum(p.record is not None for p in places)
        # What is under way counts by its checkpoints: a plan may be one ensemble that ends all at once.
        done_flops = sum(run_flops(p.spec) * reached(p, directory.store, plan.policy) for p in places)
        all_flops = sum(run_flops(p.spec) for p in places)
        first.setdefault("flops", done_flops)
        speed = (done_flops - first["flops"]) / max(1e-9, time.monotonic() - begun)
        left = all_flops - done_flops
        under_way = f", {100 * done_flops / all_flops:.0f} %" if 0 < done_flops < all_flops else ""
        eta = f", about {told(left / speed)} left" if speed > 0 and left > 0 else ""
        now = (ended, int(10 * done_flops / all_flops))
        return curves, f"{ended} of {counted(len(places), 'run')}{under_way}{eta}"

    if sys.stderr.isatty():
        from rich.console import Console, Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        with Live(console=Console(stderr=True), refresh_per_second=2, transient=True) as live:

            def show() -> None:
                curves, line = progress()
                table = Table(*CURVE_COLUMNS, box=None)
                for row in curve_rows(curves):
                    table.add_row(*map(Text, row))
                live.update(Group(table, Text(line)))

            yield show
    else:

        def tell() -> None:
            nonlocal last
            _, line = progress()
            if now != last:
                last = now
                print(line, file=sys.stderr, flush=True)

        yield tell
