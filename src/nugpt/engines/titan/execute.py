"""One process of a run on many devices: agree with the others, train, and say on rank 0 what came out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from nugpt.data import open_dataset
from nugpt.engines.titan import compat
from nugpt.engines.titan.agree import agree
from nugpt.engines.titan.engine import STOP_FILE
from nugpt.engines.titan.options import TitanOptions, mesh_of
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store, run_of_file
from nugpt.store.claims import Claim, LostClaim, holding

if TYPE_CHECKING:
    from nugpt.engines.titan.configure import Job

T = TypeVar("T")
LOOK_EVERY = 2.0  # seconds between looks for that file and at the claim


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    recipe: Path
    data: Path
    store: Path
    options: TitanOptions = TitanOptions()
    seed: int | None = None  # instead of the recipe's
    precision: str | None = None
    held: str | None = None  # the claim by which whoever started this process holds the run
    wait: float = 0.0  # seconds to wait for a process that still has the run, as one on a lost node seems to


def execute(request: Request, say: Callable[[str], None] = print) -> tuple[str, RunRecord | None]:
    """Train the recipe's run with the other ranks: its status, and on rank 0 the record."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    job: Job | None = None
    problem: str | None = None
    try:
        job = _job(request, rank, world)
    except (ValueError, OSError) as error:
        problem = " ".join(str(error).split())
    join(request, world)
    try:
        agree(problem)
        assert job is not None
        record = _train(job, request, say if rank == 0 else lambda text: None)
        return _as_rank_0_has_it("" if record is None else record.status), record
    finally:
        dist.destroy_process_group()


def _job(request: Request, rank: int, world: int) -> Job:
    """The job, checked as far as one rank can: recipe, mesh, device, data."""
    device_type = request.options.device_type()
    compat.prepare(device_type)
    spec = read_run(request)
    mesh = mesh_of(spec, request.options, world)
    request.options.kernels_for(spec, device_type)
    # Rank 0 reads all of the data against its checksums, every other rank makes sure that it sees the files.
    spec = with_data(spec, request.data, check="auto" if rank == 0 else "sizes")
    from nugpt.engines.titan.configure import Job

    return Job(spec, request.store / spec.hash, request.data, request.options, mesh, device_type)


def read_run(request: Request) -> RunSpec:
    """The run of a recipe, or of a run directory's spec, with what the user changes of it."""
    spec = run_of_file(request.recipe)
    if request.seed is not None:
        spec = replace(spec, seed=request.seed)
    if request.precision is not None:
        spec = replace(spec, precision=request.precision)
    return spec


def with_data(spec: RunSpec, data: Path, check: str) -> RunSpec:
    """The run on this data, which must be there and go with its model."""
    dataset = open_dataset(data, check)
    dataset.check_suits(spec.model)
    return replace(spec, data=dataset.content_hash)


def join(request: Request, world: int) -> None:
    """Meet the other ranks; a process that torchrun did not start is the only one."""
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(defaults)
    cuda = request.options.device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.autograd.set_multithreading_enabled(False)  # as TorchTitan wants it for recomputation
    timeout = timedelta(seconds=request.options.timeout)
    store = dist.HashStore() if world == 1 else None  # type: ignore[attr-defined] # alone, no port is needed
    more: dict[str, Any] = {} if store is None else {"store": store, "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timeout, **more)


def _train(job: Job, request: Request, say: Callable[[str], None]) -> RunRecord | None:
    """Rank 0 holds the run while all train it, or makes sure that whoever holds it for them still does."""
    from nugpt.engines.titan.configure import settings
    from nugpt.engines.titan.trainer import Observer, RunTrainer

    compat.quiet()
    rank0, observer = dist.get_rank() == 0, Observer()
    with ExitStack() as stack:
        problem: str | None = None
        ended: RunRecord | None = None
        if rank0:
            try:
                directory = Store(request.store).run(job.spec)
                found = directory.record()
                ended = found if found is not None and found.status in ("done", "diverged") else None
                if request.held is None:
                    observer.guard = _hold(stack, directory, request.wait)
                else:
                    observer.guard = Claim.named(directory, request.held).check_for_holder
                    observer.guard()
            except (ValueError, OSError, LostClaim) as error:
                problem = " ".join(str(error).split())
        agree(problem)
        if _as_rank_0_has_it(ended is not None):
            return ended
        observer.say = say
        file = job.directory / STOP_FILE if rank0 else None
        observer.stop_asked = stack.enter_context(_stop_asked(file, observer.guard))
        trainer = RunTrainer.Config(job=job, **settings(job)).build()
        try:
            return trainer.run(observer)
        finally:
            trainer.close()


def _hold(stack: ExitStack, directory: RunDirectory, wait: float) -> Callable[[], None]:
    """Take the run, once whoever had it gives it back or has been silent for long enough."""
    give_up = time.monotonic() + wait
    while True:
        try:
            return stack.enter_context(holding([directory]))
        except ValueError:
            if time.monotonic() >= give_up:
                raise
        time.sleep(min(5.0, wait))


def _as_rank_0_has_it(value: T) -> T:
    """Rank 0's value, whatever this rank's is."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@contextmanager
def _stop_asked(file: Path | None, guard: Callable[[], None]) -> Iterator[Callable[[], int | None]]:
    """A function that says by which signal this process was asked to stop; the file stands for SIGUSR1.

    Rank 0, which has a file to look for, also looks whether the run is still its own: what was taken over must not go
    on, though nothing is to be written for hours.
    """
    got: list[int] = []
    looked = 0.0

    def note(number: int, frame: Any) -> None:
        if got and number == signal.SIGINT:
            raise KeyboardInterrupt
        got.append(number)

    def asked() -> int | None:
        nonlocal looked
        if file is not None and time.monotonic() - looked > LOOK_EVERY:
            looked = time.monotonic()
            with suppress(OSError):  # a file system that is away for a moment is no reason to die
                guard()
            if not got and file.exists():
                got.append(signal.SIGUSR1)
        return got[0] if got else None

    from nugpt.engines.titan.trainer import STOP_SIGNALS

    if file is not None:
        file.unlink(missing_ok=True)  # of the turn before
    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
