"""What a training run shows while it goes on: a live line in a terminal, plain lines elsewhere, trackers on request."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nugpt.engines.lab.loop import Progress
from nugpt.spec.run import RunSpec

Tracker = Callable[[int, dict[str, Any]], None]


@contextmanager
def training_progress(
    specs: list[RunSpec], tensorboard: Path | None, wandb: str | None, quiet: bool = False
) -> Iterator[Progress]:
    """A Progress that shows rate, loss and time left, and passes rows on to the trackers asked for."""
    with ExitStack() as stack:
        trackers: list[Tracker] = []
        if tensorboard is not None:
            trackers.append(_tensorboard(stack, specs, tensorboard))
        if wandb is not None:
            trackers.append(_wandb(stack, specs, wandb))
        shown = _Shown(specs, quiet)
        if sys.stderr.isatty() and not quiet:
            shown.bar = stack.enter_context(_bar())

        def rows(replica: int, row: dict[str, Any]) -> None:
            shown.row(replica, row)
            for track in trackers:
                track(replica, row)

        yield Progress(start=shown.start, step=shown.step, rows=rows, say=shown.say)


class _Shown:
    """The state of what is shown."""

    def __init__(self, specs: list[RunSpec], quiet: bool) -> None:
        self.specs, self.quiet = specs, quiet
        self.bar: Any = None
        self.task: Any = None
        self.begun = time.monotonic()
        self.first = self.steps = self.now = 0
        self.losses: dict[int, float] = {}

    def start(self, step: int, steps: int) -> None:
        self.begun, self.first, self.steps, self.now = time.monotonic(), step, steps, step
        if self.bar is not None:
            self.task = self.bar.add_task("training", total=steps, completed=step, loss="–", rate="–")
        if step:
            self.say(f"going on from the checkpoint at step {step} of {steps}")

    def step(self, step: int) -> None:
        self.now = step
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=step, loss=self._loss(), rate=f"{self._rate():,.0f}")

    def row(self, replica: int, row: dict[str, Any]) -> None:
        if row["kind"] == "train" and "loss" in row:
            self.losses[replica] = row["loss"]
        if row["kind"] == "validation" and self.bar is None:
            left = (self.steps - self.now) * (time.monotonic() - self.begun) / max(1, self.now - self.first)
            what = "" if len(self.specs) == 1 else f"η {self.specs[replica].lr:.5g} seed {self.specs[replica].seed}  "
            self.say(
                f"step {row['step']:>6} of {self.steps}  {what}validation loss {row['val_loss']:.4f}  "
                f"{self._rate():,.0f} tokens/s  {left:.0f} s left"
            )

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.console.print(text)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def _loss(self) -> str:
        return f"{min(self.losses.values()):.4f}" if self.losses else "–"

    def _rate(self) -> float:
        """Tokens per second of this start, all replicas together."""
        per_step = self.specs[0].batch * self.specs[0].model.seq_len * len(self.specs)
        return (self.now - self.first) * per_step / max(1e-9, time.monotonic() - self.begun)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[rate]} tokens/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """A row's numbers under flat names; of what was measured the averages, since the rest would be hundreds."""
    if row["kind"] == "lerp":
        return {f"{role}/{name}": row[role][name] for role in ("alpha_A", "alpha_M") for name in ("mean", "std")}
    if row["kind"] == "alignment":
        return _averages(row)
    flat = {key: value for key, value in row.items() if isinstance(value, (int, float)) and key != "step"}
    for source, loss in row.get("val_loss_by_source", {}).items():
        flat[f"val_loss/{source}"] = loss
    return flat


def _averages(row: dict[str, Any]) -> dict[str, float]:
    """Each exponent averaged over the matrices of all layers, and of the unembedding."""
    flat = {}
    for quantity in ("alpha", "omega", "nu"):
        hidden = [v for matrix, values in row[quantity].items() if matrix != "E_out" for v in values if v is not None]
        output = [v for v in row[quantity]["E_out"] if v is not None]
        for part, values in (("hidden", hidden), ("output", output)):
            if values:
                flat[f"alignment/{quantity}_{part}"] = sum(values) / len(values)
    return flat


def _tensorboard(stack: ExitStack, specs: list[RunSpec], directory: Path) -> Tracker:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("--tensorboard needs the package tensorboard: pip install 'nugpt[track]'") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)  # here, not at the first row, when a run has begun
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"--tensorboard is {directory}, but must be a directory, there already or new") from None
    writers: dict[int, Any] = {}

    def track(replica: int, row: dict[str, Any]) -> None:
        if replica not in writers:
            # What an earlier start wrote from here on is written again: it must not be shown twice.
            writers[replica] = SummaryWriter(str(directory / specs[replica].hash), purge_step=row["step"])
            stack.callback(writers[replica].close)
        for name, value in _numbers(row).items():
            writers[replica].add_scalar(name, value, row["step"])

    return track


def _wandb(stack: ExitStack, specs: list[RunSpec], project: str) -> Tracker:
    try:
        import wandb
    except ImportError:
        raise ValueError("--wandb needs the package wandb: pip install 'nugpt[track]'") from None
    runs = [
        wandb.init(project=project, id=spec.hash, resume="allow", config=spec.to_dict(), reinit="create_new")
        for spec in specs
    ]
    for run in runs:
        stack.callback(run.finish)

    def track(replica: int, row: dict[str, Any]) -> None:
        runs[replica].log(_numbers(row), step=row["step"])

    return track
