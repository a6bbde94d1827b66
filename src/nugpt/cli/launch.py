"""From a plan to its records: the printed plan, the executors, and the live table. Shared by `sweep` and `study`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.cli.curve_rows import CURVE_COLUMNS, curve_rows, label_text, spent_text
from nugpt.cli.execution import Execution, default_devices
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
    from nugpt.sweep.state import CurveState

LEAVING_S = 5.0  # of a time limit, for a worker to look once more at every plan and go
# Where an estimate comes from while the store has no record of the device.
ASSUMED = {"cpu": "as first measured on one core", "cuda": "as first measured on one H200"}
ENOUGH_RUNS = 200  # of a store, to estimate by


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
                for row in curve_rows(curves, fine=False):
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
