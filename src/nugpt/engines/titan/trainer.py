"""TorchTitan's trainer with our loop: the step, what is logged and saved, and the record at the end.

Nothing in a step waits for the device but one read of the step before, so that all ranks stop at the same step.
"""

from __future__ import annotations

import math
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer

import nugpt
from nugpt.core.schedule import multiplier
from nugpt.engines.lab.device import device_name
from nugpt.engines.lab.ensemble import DIVERGED_ABOVE, DIVERGED_FOR
from nugpt.engines.lab.evaluate import ValidationSet
from nugpt.engines.lab.loop import EMA_BETA, Interrupted, keep_tokenizer, source_hash
from nugpt.engines.titan.agree import agree
from nugpt.engines.titan.configure import Job
from nugpt.engines.titan.gradients import grad_norm_square, scale_gradients_, sum_vector_gradients_
from nugpt.engines.titan.model import fused_kernels, named_parameters
from nugpt.engines.titan.probe import Probe
from nugpt.engines.titan.sphere import norm_error
from nugpt.engines.titan.validate import validate
from nugpt.spec.model import flops_per_token
from nugpt.spec.record import RunRecord
from nugpt.store import RunDirectory
from nugpt.store.forms import check_ahead_of_own

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # some clusters announce preemption by the last


@dataclass
class Course:
    """What a run carries from step to step beside weights and Adam's state; saved with them."""

    died_at: int = -1
    high: int = 0  # steps in a row with a loss above the bound
    loss_sum: float = 0.0  # since the last logged row
    logged: int = 0  # steps in loss_sum
    grad_norm: float = 0.0
    ema: float | None = None
    wall_s: float = 0.0
    device_s: float = 0.0  # summed over the ranks, which may be others after an interruption
    measured_s: float = 0.0  # of it, what measuring took in the turns before this one
    measured_by: str | None = None  # what the lab engine noted of it
    train_loss: float | None = None
    val_loss: float | None = None
    by_source: dict[str, float] = field(default_factory=dict)


@dataclass
class Observer:
    """What rank 0 tells of a run while it goes on."""

    guard: Callable[[], None] = lambda: None  # called before anything is written; raises to leave it unwritten
    say: Callable[[str], None] = lambda text: None
    stop_asked: Callable[[], int | None] = lambda: None  # a signal's number when the run is to save and stop


class RunTrainer(Trainer):
    """A run from where it stands to its record."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """TorchTitan's, and the job it was made from."""

        job: Job

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.job: Job = config.job
        self.spec = self.job.spec
        (self.model,) = self.model_parts
        self.named = list(named_parameters(self.model))
        self.roles = self.spec.model.roles
        self.rank0 = dist.get_rank() == 0
        self.directory = RunDirectory(self.job.directory)
        batch_mesh = self.parallel_dims.get_mesh("batch") if self.parallel_dims.dp_enabled else None
        self.data_rank = 0 if batch_mesh is None else batch_mesh.get_local_rank()
        self.course = Course()
        self.rates: list[float] = []
        self.bound = math.log(self.spec.model.vocab_size) + DIVERGED_ABOVE
        self.patience = max(1, min(DIVERGED_FOR, self.spec.steps // 10))

    def init_distributed(self) -> ParallelDims:
        """The process group is there already: what every rank had to say was exchanged over it."""
        return ParallelDims.from_config(self.config.parallelism, dist.get_world_size())

    def run(self, observer: Observer) -> RunRecord | None:
        """Train to the end; rank 0 gets the record."""
        spec, options = self.spec, self.job.options
        self._restore()
        validation = ValidationSet.of(self.dataloader.dataset, spec.model.seq_len, spec.val_windows)
        validate_at = {math.ceil(k * spec.steps / spec.validations) for k in range(1, spec.validations + 1)}
        log_every = options.log_every or max(1, spec.steps // 200)
        save_every = options.checkpoint_every or max(1, math.ceil(spec.steps / 10))
        self.probe = Probe(spec, self.dataloader.dataset, options, self.named, self.device)
        if self.rank0:
            keep_tokenizer(self.directory, self.dataloader.dataset)
        self._start_counting()
        batches, late = self.batch_generator(self.dataloader), _Late(self.device)
        self.clock = self.logged_at = time.monotonic()
        stopping: int | None = None
        begun_at = self.step
        course = multiplier(spec.schedule, max(0, self.step - 1), spec.steps)
        while self.step < spec.steps:
            course = multiplier(spec.schedule, self.step, spec.steps)
            asked, died = late.exchange(self._step(batches, observer.stop_asked() or 0))
            if died:
                return self._finish("diverged", course, observer)
            if self.step % log_every == 0 or self.step == spec.steps:
                self._log(course, observer)
            if self.step in validate_at:
                with self._aside():
                    self._validate(validation, observer)
            if self.step in self.probe.steps:
                with self._aside():
                    for row in self.probe.rows(self.step):
                        self._write(row, observer)
            stopping = asked or None
            if stopping is not None and self.step < spec.steps:
                self._save(observer)
                raise Interrupted(self.step, stopping)
            if self.step % save_every == 0 and self.step < spec.steps:
                with self._aside():
                    self._save(observer)
        asked, _ = late.exchange(None)
        status = "diverged" if int(self.died_at) >= 0 else "done"
        # One that was killed before its record has its last checkpoint: it is what the record is made from.
        record = self._finish(status, course, observer, saved=begun_at == spec.steps)
        if stopping or asked:  # it came while the last steps were taken
            raise Interrupted(self.step, stopping or asked)
        return record

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is done here is no part of the tokens per second that rows and record tell."""
        if self.device.type == "cuda":  # the steps before are still under way
            torch.cuda.synchronize(self.device)
        begun = time.monotonic()
        yield
        self.logged_at += time.monotonic() - begun

    def _restore(self) -> None:
        """Where the run was interrupted, on whatever mesh, or its beginning."""
        small = self.checkpointer.restore(self.spec.hash)
        if small is not None:
            self.step = small["step"]
            course = small["course"]
            # One from before devices were counted does not say on how many it was trained: as on those here now.
            self.course = Course(**({"device_s": course["wall_s"] * self.job.mesh.world} | course))
            self.dataloader.step = self.step
            self.lr_schedulers.load_state_dict({"last_epoch": self.step})
            for scheduler in self.lr_schedulers:
                for group, lr in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
                    group["lr"] = lr
        problem: str | None = None
        if self.rank0:
            try:
                check_ahead_of_own(self.directory, self.step)
            except ValueError as error:
                problem = str(error)
        agree(problem)
        if self.rank0:
            self.directory.cut_metrics(self.step)

    def _start_counting(self) -> None:
        """The counters as tensors on the device."""
        course, device = self.course, self.device
        self.died_at = torch.tensor(course.died_at, device=device)
        self.high = torch.tensor(course.high, device=device)
        self.loss_sum = torch.tensor(course.loss_sum, dtype=torch.float64, device=device)
        self.grad_norm = torch.tensor(course.grad_norm, dtype=torch.float64, device=device)

    def _step(self, batches: Iterator[Any], stop: int) -> Tensor:
        """One optimizer step; whether a rank was asked to stop (by which signal) and whether the run has diverged."""
        self.optimizers.zero_grad()
        tokens = self.spec.batch * self.spec.model.seq_len
        loss = torch.zeros((), device=self.device)
        for _ in range(self.gradient_accumulation_steps):
            inputs, _ = next(batches)
            inputs = {name: self._to_device(x) for name, x in inputs.items()}
            loss += self.forward_backward_step(
                input_dict=inputs, labels=inputs["targets_BT"], global_valid_tokens=tokens
            ).detach()
        sum_vector_gradients_(self.named)
        # All that ranks must agree on in one sum: the loss, the gradient's length, and whether one was asked to stop.
        mine = torch.stack([loss.double() / self.parallel_dims.tp, grad_norm_square(self.named).double()])
        asked = torch.tensor([float(stop == number) for number in STOP_SIGNALS], dtype=torch.float64)
        shared = torch.cat([mine, self._to_device(asked)])
        dist.all_reduce(shared)
        loss, grad_norm = shared[0], shared[1].sqrt()
        if self.spec.grad_clip is not None:
            scale_gradients_(self.named, (self.spec.grad_clip / grad_norm.clamp_min(self.spec.grad_clip)).nan_to_num(0))
        self.optimizers.step()  # and retraction, which is its hook
        self.lr_schedulers.step()
        self.high = torch.where(loss > self.bound, self.high + 1, 0)
        healthy = loss.isfinite() & grad_norm.isfinite() & (self.high < self.patience)
        self.died_at = torch.where((self.died_at < 0) & ~healthy, self.step, self.died_at)
        self.loss_sum += torch.where(healthy, loss, 0.0)
        self.grad_norm = torch.where(healthy, grad_norm, self.grad_norm)
        self.course.logged += 1
        self.step += 1
        self.gc_handler.run(self.step)
        return torch.cat([shared[2:], (self.died_at >= 0).double().unsqueeze(0)])

    def _to_device(self, x: Tensor) -> Tensor:
        """A copy on the device that nobody waits for."""
        if self.device.type == "cuda":
            x = x.pin_memory()
        return x.to(self.device, non_blocking=True)

    def _log(self, course: float, observer: Observer) -> None:
        """A row of metrics: mean loss since the last one, gradient norm, distance from the sphere."""
        error = norm_error(self.named, self.roles).to(self.device)
        dist.all_reduce(error, op=dist.ReduceOp.MAX)
        state, row = self.course, {"step": self.step, "kind": "train", "lr_multiplier": course}
        died_at = int(self.died_at)
        if died_at >= 0:
            row["diverged_at"] = died_at
        else:
            state.train_loss = float(self.loss_sum) / state.logged
            distance = float(error)
            row["loss"], row["grad_norm"] = state.train_loss, float(self.grad_norm)
            row["norm_error"] = distance if math.isfinite(distance) else None
        now = time.monotonic()
        rate = state.logged * self.spec.batch * self.spec.model.seq_len / (now - self.logged_at)
        self.logged_at = now
        if state.logged:
            self.rates.append(rate)
        self.loss_sum.zero_()
        state.logged = 0
        self._write(row, observer)
        if died_at < 0:
            observer.say(
                f"step {self.step}/{self.spec.steps}  loss {row['loss']:.4f}  gradient {row['grad_norm']:.3g}  "
                f"{rate:,.0f} tokens/s"
            )

    def _validate(self, data: ValidationSet, observer: Observer) -> None:
        mesh, state = self.job.mesh, self.course
        mean, by_source = validate(self.model, data, mesh.micro_batch, self.data_rank, mesh.data, mesh.tp, self.device)
        if not math.isfinite(mean):
            state.val_loss, state.by_source = None, {}
            return
        state.val_loss, state.by_source = mean, by_source
        state.ema = mean if state.ema is None else EMA_BETA * state.ema + (1 - EMA_BETA) * mean
        values = {"val_loss": mean, "val_loss_ema": state.ema, "val_loss_by_source": by_source}
        self._write({"step": self.step, "kind": "validation", **values}, observer)
        observer.say(f"step {self.step}/{self.spec.steps}  validation loss {mean:.4f} (EMA {state.ema:.4f})")

    def _write(self, row: Mapping[str, Any], observer: Observer) -> None:
        if self.rank0:
            observer.guard()
            self.directory.append_metrics([row])

    def _save(self, observer: Observer) -> None:
        """A checkpoint; the time since the last one is the run's."""
        state = self.course
        state.died_at, state.high = int(self.died_at), int(self.high)
        state.loss_sum, state.grad_norm = float(self.loss_sum), float(self.grad_norm)
        self._count_time()
        if self.rank0:
            observer.guard()
        course = vars(state) | {"measured_s": state.measured_s + self.probe.seconds}
        self.checkpointer.write(self.step, {"spec": self.spec.hash, "course": course}, self.job.options.keep)
        self.clock = time.monotonic()

    def _count_time(self) -> None:
        """The time since the last checkpoint is the run's, on every rank."""
        took = time.monotonic() - self.clock
        self.course.wall_s += took
        self.course.device_s += took * self.job.mesh.world

    def _finish(self, status: str, course: float, observer: Observer, saved: bool = False) -> RunRecord | None:
        """The last row, the last checkpoint and the record; a diverged run's weights are not worth keeping."""
        if status == "diverged":
            if self.course.logged:
                self._log(course, observer)
            self._count_time()
        elif not saved:
            self._save(observer)
        lerp = {} if status == "diverged" else self.probe.lerp()  # all ranks: it gathers
        if not self.rank0:
            return None
        record = self._record(status, lerp)
        observer.guard()
        self.directory.write_record(record)
        return record

    def _record(self, status: str, lerp: Mapping[str, Any]) -> RunRecord:
        state, spec, died_at = self.course, self.spec, int(self.died_at)
        if state.val_loss is None and status == "done":  # the last validation was not finite
            status = "diverged"
        diverged = status == "diverged"
        steps = died_at if died_at >= 0 else self.step
        tokens = steps * spec.batch * spec.model.seq_len
        return RunRecord(
            hash=spec.hash,
            status=status,
            steps=steps,
            tokens=tokens,
            flops=float(tokens) * flops_per_token(spec.model),
            wall_s=state.wall_s,
            val_loss=None if diverged else state.val_loss,
            val_loss_ema=None if diverged else state.ema,
            train_loss=None if diverged else state.train_loss,
            diverged_at=died_at if died_at >= 0 else (self.step if diverged else None),
            val_loss_by_source={} if diverged else state.by_source,
            lerp={} if diverged else lerp,
            resolved=spec.resolved().to_dict(),
            carried_by=self._carried_by(),
        )

    def _attention(self) -> str:
        """The implementation of attention: as asked for, or what the fused kernels measured to be fastest."""
        if self.job.kernels == "plain":
            return self.job.options.attention
        precision = TORCH_DTYPE_MAP[self.spec.precision]
        return str(fused_kernels().attention_kernel(self.spec.model, self.job.mesh.micro_batch, precision, self.device))

    def _carried_by(self) -> dict[str, Any]:
        job, options, mesh, cuda = self.job, self.job.options, self.job.mesh, self.device.type == "cuda"
        return {
            "engine": "titan",
            "nugpt": nugpt.__version__,
            "torch": torch.__version__,
            "torchtitan": _version("torchtitan"),
            "python": platform.python_version(),
            "device": device_name(self.device),
            "device_type": self.device.type,
            "threads": torch.get_num_threads(),
            "ranks": mesh.world,
            "mesh": {"replicate": mesh.replicate, "shard": mesh.shard, "tp": mesh.tp},
            "compile": job.compiles,
            "kernels": job.kernels,
            "attention": self._attention(),
            "loss": options.loss if job.kernels == "plain" else "fused",
            "micro_batch": mesh.micro_batch,
            "activations": options.activations,
            "replicas": 1,
            "device_s": self.course.device_s,
            "deterministic": False,
            "measure": list(self.probe.kinds),
            "measured_s": self.course.measured_s + self.probe.seconds,
            "tokens_per_s": median(self.rates) if self.rates else None,
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.device) if cuda else None,
            "data": str(job.data),
            "data_hash": self.spec.data,
            "code": source_hash(),
        }


class _Late:
    """Numbers of the device, read a step late: by then they are there, and nobody waits for the step in flight."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.before: tuple[Tensor, Any] | None = None

    def exchange(self, values: Tensor | None) -> tuple[int, bool]:
        """Take these, and return those of the call before: the signal asked to stop by (or 0), and whether it died."""
        before, self.before = self.before, None
        if values is not None:
            host, event = values.to("cpu", non_blocking=self.cuda), None
            if self.cuda:
                event = torch.cuda.Event()
                event.record()
            self.before = host, event
        if before is None:
            return 0, False
        if before[1] is not None:
            before[1].synchronize()
        *asked, died = before[0].tolist()
        signals = [number for number, ranks in zip(STOP_SIGNALS, asked, strict=True) if ranks]
        return (signals[0] if signals else 0), bool(died)


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # carried to a node as bare files
        return None
