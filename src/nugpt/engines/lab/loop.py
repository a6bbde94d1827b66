"""The training loop: from specs to records, resuming what was interrupted and redoing nothing that is done."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nugpt
from nugpt.core.schedule import multiplier
from nugpt.data import TokenDataset, prefetch
from nugpt.data.manifest import facts
from nugpt.data.tokenizer import TOKENIZER_FILE
from nugpt.engines.lab.device import Ahead, device_name
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.engines.lab.evaluate import ValidationLoss, ValidationSet, validate
from nugpt.engines.lab.options import Options
from nugpt.engines.lab.probe import Probe, check_measurable
from nugpt.engines.lab.restore import replica_counters, replica_tensors, restored_state
from nugpt.measure.lerp import lerp_statistics
from nugpt.spec.model import ModelConfig, flops_per_token, parameter_shapes, total_parameters
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec, Start, packable
from nugpt.store import Checkpoint, RunDirectory, Store, save_checkpoint
from nugpt.store.checkpoint import checkpoint_at, drop_after, steps_in
from nugpt.store.forms import check_ahead_of_distributed
from nugpt.store.meeting import START, meetings
from nugpt.store.run_directory import ENDED

EMA_BETA = 0.95  # of the validation loss, as in the paper
# Unless asked for by steps, checkpoints lie at least so far apart, and so many times what it takes to save one of all
# replicas: fifteen of a small model take seconds, and a sweep would spend more on saving than a lost worker costs.
SAVE_APART_S = 60.0
SAVE_APART_TIMES = 30
SAVED_BYTES_PER_S = 4e8  # until one was saved: fifteen times 160 MB took 4 to 8 s beside an H200


class Interrupted(BaseException):  # like KeyboardInterrupt: no failure, and not to be handled as one
    """The run was asked to stop: its state is saved, and the same call goes on from there."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped after step {step}; the state is saved, the same command goes on from there")
        self.step, self.signal_number = step, signal_number


@dataclass
class Progress:
    """What an observer is told while a run goes on; every function may be left as it is."""

    start: Callable[[int, int], None] = lambda step, steps: None
    step: Callable[[int], None] = lambda step: None
    rows: Callable[[int, dict[str, Any]], None] = lambda replica, row: None
    say: Callable[[str], None] = lambda text: None


# (step, each run's validation loss or None where it has ended) → which runs to give up
StopAsked = Callable[[int, list[float | None]], list[bool]]


@dataclass(frozen=True)
class Hooks:
    """What a plan's worker has to say: whether its claims still hold, and which runs are hopeless."""

    guard: Callable[[], None] = lambda: None  # called before anything is written; raises to leave it unwritten
    stop: StopAsked | None = None  # asked at every validation; without it a run stopped before is taken up again


@dataclass
class _Run:
    """One replica's place on disk and what it carries from row to row."""

    number: int  # its place among the specs asked for, which an observer knows it by
    spec: RunSpec
    directory: RunDirectory
    checkpoint: Checkpoint | None
    ema: float | None = None
    wall_s: float = 0.0
    device_s: float = 0.0  # of it, the run's share: the time of an ensemble is that of the runs still in it
    measured_s: float = 0.0  # of that share, what measuring took: the others wait while this run is measured
    measured_by: str | None = None  # as `Probe.measured_by`
    train_loss: float | None = None
    by_source: dict[str, float] = field(default_factory=dict)
    val_loss: float | None = None
    ended: bool = False  # its record is written


def execute(
    specs: list[RunSpec],
    store: Store,
    dataset: TokenDataset,
    options: Options | None = None,
    progress: Progress | None = None,
    starts: dict[str, Checkpoint] | None = None,
    hooks: Hooks | None = None,
) -> list[RunRecord]:
    """Train these runs as one ensemble and return their records; `starts`: the checkpoints that specs name, by hash."""
    if not specs:
        return []
    options, progress, hooks = options or Options(), progress or Progress(), hooks or Hooks()
    check_trainable(specs, dataset, options, starts or {})
    ended = ("done", "diverged") if hooks.stop is None else ENDED
    once = {spec.hash: number for number, spec in reversed(list(enumerate(specs)))}
    runs = [_Run(number, specs[number], store.run(specs[number]), None) for number in sorted(once.values())]
    todo = [run for run in runs if not run.directory.has_ended(ended)]
    hooks.guard()
    # Replicas that stand at different steps cannot share a batch: each group goes on by itself.
    for group in _find_checkpoints(todo):
        for run in group:
            step = run.checkpoint.step if run.checkpoint else 0
            run.directory.cut_metrics(step)
            drop_after(run.directory.checkpoints, step)
        _train(group, runs, dataset, options, progress, starts or {}, hooks)
    records = {run.spec.hash: record for run in runs if (record := run.directory.record()) is not None}
    return [records[spec.hash] for spec in specs]


def check_trainable(
    specs: list[RunSpec], dataset: TokenDataset, options: Options, starts: dict[str, Checkpoint]
) -> None:
    """Refuse what could not be trained as one ensemble, before anything is written: runs, data, device, start."""
    if not packable(specs):
        raise ValueError(
            "these runs differ in more than table, learning rate, multipliers, decay and seed: run them apart"
        )
    spec = specs[0]
    _check_data(spec, dataset)
    options.kernels_on(options.torch_device(), spec.model.architecture)
    check_measurable(specs, options, starts)
    for start in (spec.start for spec in specs if spec.start is not None):
        if start.hash in starts:  # one that goes on from its own checkpoint needs it no more
            _check_start(spec.model, start, starts[start.hash])


def _find_checkpoints(runs: list[_Run]) -> list[list[_Run]]:
    """Give each run the checkpoint it goes on from, and return those that go on together, the furthest first."""
    saved = [set(steps_in(run.directory.checkpoints)) for run in runs]
    loaded: dict[tuple[int, int], Checkpoint] = {}
    while True:
        found = meetings([run.spec for run in runs], saved)
        spoiled = False
        for meeting in found:
            for i in meeting.members if meeting.step != START else ():
                if (i, meeting.step) not in loaded:
                    checkpoint = checkpoint_at(runs[i].directory.checkpoints, meeting.step)
                    if checkpoint is None:
                        saved[i].discard(meeting.step)
                        spoiled = True
                    else:
                        loaded[i, meeting.step] = checkpoint
        if not spoiled:
            break
    for run, steps in zip(runs, saved, strict=True):
        check_ahead_of_distributed(run.directory, max(steps, default=0))
    for meeting in found:
        for i in meeting.members:
            runs[i].checkpoint = loaded.get((i, meeting.step))
    return [[runs[i] for i in meeting.members] for meeting in found]


def _check_data(spec: RunSpec, dataset: TokenDataset) -> None:
    if dataset.content_hash != spec.data:
        raise ValueError(f"the data set's content hash is {dataset.content_hash}, but the run's spec says {spec.data}")
    dataset.check_suits(spec.model)


def _check_start(model: ModelConfig, start: Start, given: Checkpoint) -> None:
    """Refuse weights, or an optimizer's state, of another shape than this model's."""
    sources = [(given.model, "")]
    if start.kind == "extend":
        sources += [(given.optimizer, "first."), (given.optimizer, "second.")]
    for source, prefix in sources:
        for name, needed in parameter_shapes(model).items():
            found = source.get(prefix + name)
            if found is None or tuple(found.shape) != needed:
                shape = "none" if found is None else tuple(found.shape)
                raise ValueError(f"tensor {prefix + name!r} of the given weights is {shape}, needed is {needed}")


def _train(
    group: list[_Run],
    all_runs: list[_Run],
    dataset: TokenDataset,
    options: Options,
    progress: Progress,
    starts: dict[str, Checkpoint],
    hooks: Hooks,
) -> None:
    """One ensemble from where it stands to its records."""
    runs, spec = group, group[0].spec
    device = options.torch_device()
    prepare_torch(options)
    kernels = options.kernels_on(device, spec.model.architecture)
    compiled = options.compiles(device, kernels)
    ensemble = Ensemble([run.spec for run in runs], device, options.attention, options.loss, compiled, kernels)
    state = _starting_state(ensemble, runs, starts)
    micro = min(options.micro_batch or spec.batch, spec.batch)
    validation = ValidationSet.of(dataset, spec.model.seq_len, spec.val_windows)
    probe = Probe(spec, dataset, options, starts)
    probe.begin(ensemble, state)
    if ensemble.fused is not None:
        ensemble.fused.meanwhile = probe.rehearsal(ensemble, state)
    validate_at = {math.ceil(k * spec.steps / spec.validations) for k in range(1, spec.validations + 1)}
    log_every = options.log_every or max(1, spec.steps // 200)
    save_every = options.checkpoint_every or max(1, math.ceil(spec.steps / 10))
    for run in runs:
        keep_tokenizer(run.directory, dataset)
    progress.start(state.step, spec.steps)
    clock = saved_at = time.monotonic()
    saving_s = len(runs) * 12 * total_parameters(spec.model) / SAVED_BYTES_PER_S  # weights and their two moments

    def save(replicas: Iterable[int]) -> None:
        """A checkpoint of each of these replicas; the time since the last one is theirs."""
        nonlocal clock, saved_at, saving_s
        now = time.monotonic()
        sharing = [run for run in runs if not run.ended]
        for run in sharing:
            run.wall_s += now - clock
            run.device_s += (now - clock) / len(sharing)
        saved = list(replicas)
        for r in saved:
            hooks.guard()
            _save(state, r, runs[r], options.keep)
        clock = time.monotonic()
        if len(saved) == len(sharing):  # else those that go on are as long without a checkpoint as before
            saved_at, saving_s = clock, clock - now

    def finish(replicas: list[int], status: str) -> None:
        """The records of these replicas; a run that was stopped may be taken up again, and needs its checkpoint."""
        save(replicas if options.last_checkpoint or status == "stopped" else [])
        for r in replicas:
            hooks.guard()
            runs[r].ended = True
            runs[r].directory.sync_metrics()
            runs[r].directory.write_record(_record(ensemble, state, r, runs[r], status, options, compiled, dataset))

    ahead = Ahead(device)
    with _stop_signals() as stop:
        batches = _batches([run.spec for run in runs], dataset, state.step, device)
        while state.step < spec.steps:
            tokens, targets = next(batches)
            course = multiplier(spec.schedule, state.step, spec.steps)
            ensemble.train_step(state, tokens, targets, course, micro)
            ahead.step()
            progress.step(state.step)
            if state.step % log_every == 0 or state.step == spec.steps:
                _log(ensemble, state, runs, course, progress, hooks.guard)
                alive = state.alive.tolist()
                if dead := [r for r, run in enumerate(runs) if not alive[r] and not run.ended]:
                    finish(dead, "diverged")
            if state.step in probe.steps:
                hooks.guard()
                _measured_rows(probe, ensemble, state, runs, progress)
            if state.step in validate_at:
                found = validate(ensemble, state, validation, micro)
                hooks.guard()  # after what takes time, and once for the rows of a step, which take none
                _validation_rows(state, runs, found, progress)
                if hooks.stop is not None and state.step < spec.steps:
                    asked = hooks.stop(state.step, [_current_loss(run, group) for run in all_runs])
                    flagged = {run.spec.hash for run, stopped in zip(all_runs, asked, strict=True) if stopped}
                    if given_up := [r for r, run in enumerate(runs) if run.spec.hash in flagged and not run.ended]:
                        finish(given_up, "stopped")
            left = [r for r, run in enumerate(runs) if not run.ended]
            if not left:
                break
            if stop.signal_number is not None and state.step < spec.steps:
                save(left)
                raise Interrupted(state.step, stop.signal_number)
            apart = max(SAVE_APART_S, SAVE_APART_TIMES * saving_s)
            due = options.checkpoint_every is not None or time.monotonic() - saved_at >= apart
            if due and state.step % save_every == 0 and state.step < spec.steps:
                save(left)
            # What has ended costs nothing more; a compiled program is made anew only when that halves the work.
            if len(left) < len(runs) and (not compiled or len(left) <= len(runs) // 2):
                ensemble, state = ensemble.subset(state, left)
                runs = [runs[r] for r in left]
                batches = _batches([run.spec for run in runs], dataset, state.step, device)
        finish([r for r, run in enumerate(runs) if not run.ended], "done")
        if stop.signal_number is not None:  # it came while the last step was taken or the records were written
            raise Interrupted(state.step, stop.signal_number)


def _current_loss(run: _Run, group: list[_Run]) -> float | None:
    """The run's last validation loss, if it is being trained."""
    return None if run.ended or not any(run is member for member in group) else run.val_loss


def keep_tokenizer(directory: RunDirectory, dataset: TokenDataset) -> None:
    """Keep with the run what turns its tokens into text, so that it can be used where the data is not."""
    tokenizer = dataset.tokenizer()
    if tokenizer.text:
        directory.keep_file(TOKENIZER_FILE, tokenizer.text.encode())
    about: dict[str, Any] = {"content_hash": dataset.content_hash, "end_of_text": tokenizer.end_of_text}
    about |= {"path": str(dataset.path), "facts": facts(dataset.manifest)}
    directory.keep_file("data.json", json.dumps(about).encode())


def prepare_torch(options: Options) -> None:
    """Torch's threads and determinism as asked; before its first product."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def _starting_state(ensemble: Ensemble, runs: list[_Run], starts: dict[str, Checkpoint]) -> State:
    """Where the runs were interrupted, else where their specs say that they begin."""
    checkpoints = [run.checkpoint for run in runs if run.checkpoint is not None]
    if checkpoints:
        for run, checkpoint in zip(runs, checkpoints, strict=True):
            run.ema, run.wall_s = checkpoint.state["ema"], checkpoint.state["wall_s"]
            run.measured_s = checkpoint.state.get("measured_s", 0.0)
            run.measured_by = checkpoint.state.get("measured_by")
            # One from before shares were noted does not say with how many it was trained: as with those here now.
            run.device_s = checkpoint.state.get("device_s", run.wall_s / len(runs))
            run.train_loss, run.val_loss = checkpoint.state["train_loss"], checkpoint.state["val_loss"]
            run.by_source = checkpoint.state["val_loss_by_source"]
        return restored_state(ensemble, checkpoints)
    state = ensemble.initial_state()
    for r, run in enumerate(runs):
        start = run.spec.start
        if start is None:
            continue
        if start.hash not in starts:
            raise ValueError(f"the run starts from checkpoint {start.hash}, which was not given")
        given = starts[start.hash]
        _copy_replica_(state.params, r, given.model, "")
        if start.kind == "extend":
            _copy_replica_(state.first, r, given.optimizer, "first.")
            _copy_replica_(state.second, r, given.optimizer, "second.")
            state.step = start.step
    return state


@torch.no_grad()
def _copy_replica_(into: dict[str, Tensor], r: int, source: Any, prefix: str) -> None:
    for name, stacked in into.items():
        stacked[r].copy_(source[prefix + name])


def _batches(
    specs: list[RunSpec], dataset: TokenDataset, step: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches from `step` on, stacked over replicas; replicas of one seed see the same tokens."""
    spec = specs[0]
    seeds = list(dict.fromkeys(s.seed for s in specs))
    places = torch.tensor([seeds.index(s.seed) for s in specs], device=device)
    streams = [prefetch(dataset, seed, step, spec.batch, spec.model.seq_len, stop_step=spec.steps) for seed in seeds]
    for pieces in zip(*streams, strict=True):
        pair = []
        for which in (0, 1):
            stacked = torch.from_numpy(np.stack([piece[which] for piece in pieces])).to(torch.int64)
            if device.type == "cuda":  # from other memory the copy, and so Python, would wait for the steps under way
                stacked = stacked.pin_memory()
            stacked = stacked.to(device, non_blocking=True)
            pair.append(stacked[places] if len(seeds) < len(specs) or len(seeds) > 1 else stacked)
        yield pair[0], pair[1]


def _log(
    ensemble: Ensemble,
    state: State,
    runs: list[_Run],
    course: float,
    progress: Progress,
    guard: Callable[[], None],
) -> None:
    """A row of metrics per replica: mean loss since the last row, gradient norm, distance from the sphere."""
    losses = (state.loss_sum / state.logged).tolist()
    norms, errors = state.grad_norm.tolist(), ensemble.norm_error(state).tolist()
    alive, died_at = state.alive.tolist(), state.died_at.tolist()
    guard()  # only here, where the device has been waited for
    for r, run in enumerate(runs):
        row: dict[str, Any] = {"step": state.step, "kind": "train", "lr_multiplier": course}
        if alive[r]:
            run.train_loss = losses[r]
            # Weights that this step spoiled have no length; the next step will find the replica dead.
            error = errors[r] if math.isfinite(errors[r]) else None
            row |= {"loss": losses[r], "grad_norm": norms[r], "norm_error": error}
        else:
            row |= {"diverged_at": died_at[r]}
        run.directory.append_metrics([row], sync=False)
        progress.rows(run.number, row)
    state.loss_sum.zero_()
    state.logged = 0


def _validation_rows(state: State, runs: list[_Run], loss: ValidationLoss, progress: Progress) -> None:
    alive = state.alive.tolist()
    for r, run in enumerate(runs):
        if not alive[r]:
            continue
        if not math.isfinite(loss.mean[r]):
            run.val_loss, run.by_source = None, {}
            continue
        run.val_loss, run.by_source = loss.mean[r], loss.by_source[r]
        run.ema = loss.mean[r] if run.ema is None else EMA_BETA * run.ema + (1 - EMA_BETA) * loss.mean[r]
        row = {
            "step": state.step,
            "kind": "validation",
            "val_loss": run.val_loss,
            "val_loss_ema": run.ema,
            "val_loss_by_source": run.by_source,
        }
        run.directory.append_metrics([row], sync=False)
        progress.rows(run.number, row)


def _measured_rows(probe: Probe, ensemble: Ensemble, state: State, runs: list[_Run], progress: Progress) -> None:
    alive = state.alive.tolist()
    going = [(r, run) for r, run in enumerate(runs) if alive[r] and not run.ended]
    waited_s = 0.0
    if ensemble.fused is not None and going:  # for the rehearsal, which was for all of them
        waited_s, ensemble.fused.waited_s = ensemble.fused.waited_s / len(going), 0.0
    for r, run in going:
        before = probe.seconds
        rows = probe.rows(ensemble, state, r)
        run.measured_s += probe.seconds - before + waited_s
        run.measured_by = probe.measured_by
        run.directory.append_metrics(rows, sync=False)
        for row in rows:
            progress.rows(run.number, row)


def _save(state: State, r: int, run: _Run, keep: int) -> None:
    model, optimizer = replica_tensors(state, r)
    small = {
        "spec": run.spec.hash,
        "counters": replica_counters(state, r),
        "ema": run.ema,
        "wall_s": run.wall_s,
        "device_s": run.device_s,
        "measured_s": run.measured_s,
        "measured_by": run.measured_by,
        "train_loss": run.train_loss,
        "val_loss": run.val_loss,
        "val_loss_by_source": run.by_source,
    }
    # Rows beyond the last checkpoint are dropped when a run goes on, so that only here they must be safe: forcing each
    # to disk would keep the device waiting, a few milliseconds for every replica and row.
    run.directory.sync_metrics()
    save_checkpoint(run.directory.checkpoints, state.step, model, optimizer, small, keep)


def _record(
    ensemble: Ensemble,
    state: State,
    r: int,
    run: _Run,
    status: str,
    options: Options,
    compiled: bool,
    dataset: TokenDataset,
) -> RunRecord:
    died_at, cuda = int(state.died_at[r]), ensemble.device.type == "cuda"
    if run.val_loss is None and status == "done":  # the last validation was not finite
        status = "diverged"
    diverged = status == "diverged"
    steps = died_at if died_at >= 0 else state.step
    tokens = steps * run.spec.batch * run.spec.model.seq_len
    return RunRecord(
        hash=run.spec.hash,
        status=status,
        steps=steps,
        tokens=tokens,
        flops=float(tokens) * flops_per_token(run.spec.model),
        wall_s=run.wall_s,
        val_loss=None if diverged else run.val_loss,
        val_loss_ema=None if diverged else run.ema,
        train_loss=None if diverged else run.train_loss,
        diverged_at=died_at if died_at >= 0 else (state.step if diverged else None),
        val_loss_by_source={} if diverged else run.by_source,
        lerp={} if diverged else _lerp(ensemble, state, r),
        resolved=ensemble.resolved[r].to_dict(),
        carried_by={
            "engine": "lab",
            "nugpt": nugpt.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": device_name(ensemble.device),
            "device_type": ensemble.device.type,
            "threads": torch.get_num_threads(),
            "compile": compiled,
            "kernels": ensemble.kernels,
            "attention": ensemble.fused.program.attention if ensemble.fused else options.attention,
            "loss": "fused" if ensemble.fused else options.loss,
            "micro_batch": options.micro_batch,
            "replicas": len(ensemble.specs),
            "device_s": run.device_s,
            "deterministic": options.deterministic,
            "measured": list(options.measure),
            "measured_s": run.measured_s,
            "measured_by": run.measured_by,
            "peak_memory_bytes": torch.cuda.max_memory_allocated(ensemble.device) if cuda else None,
            "data": str(dataset.path),
            "data_hash": run.spec.data,
            "code": source_hash(),
        },
    )


@cache
def source_hash() -> str:
    """16 digits that name the code: a hash of every source file of the package, whatever its version says."""
    root = Path(nugpt.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _lerp(ensemble: Ensemble, state: State, r: int) -> dict[str, Any]:
    if ensemble.config.architecture != "normalized":
        return {}
    params = {name: stacked[r] for name, stacked in state.params.items()}
    return lerp_statistics(params, ensemble.resolved[r].gains, ensemble.config.n_layers)


@dataclass
class _Stop:
    signal_number: int | None = None


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Turn the first SIGTERM or Ctrl-C into a request to save and stop; a second Ctrl-C stops at once."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: Any) -> None:
        if stop.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal_number = number

    # Some clusters announce preemption by a user signal before SIGTERM.
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
