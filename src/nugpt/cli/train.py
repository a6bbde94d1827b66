"""`nugpt train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nugpt.cli.run_arguments import Carrier, RunArguments
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import number, print_json
from nugpt.spec.run import RunSpec, Start

if TYPE_CHECKING:
    from nugpt.spec.record import RunRecord
    from nugpt.store import Checkpoint


@dataclass(frozen=True)
class Train:
    """Train a model on one device. The same command again goes on where it was, or shows the result when it is done."""

    arguments: Annotated[RunArguments, AMONG_OPTIONS] = RunArguments()
    lr: tuple[float, ...] = ()
    """The global learning rate η; several train as one ensemble. By default the scale's, or of the run to extend."""
    seed: tuple[int, ...] = (0,)
    """Of initial weights and data order; several train as one ensemble."""
    start_from: str | None = None
    """A run or checkpoint whose weights to start from, with a fresh optimizer."""
    extend: str | None = None
    """A run to take to a longer horizon as a new run: its weights, optimizer state and step, under the new --steps."""
    store: Path = Path("runs")
    """Where runs are kept, a directory each, named by the run's hash."""
    carrier: Carrier = Carrier()
    tensorboard: Path | None = None
    """Write TensorBoard logs below this directory."""
    wandb: str | None = None
    """Log to this Weights & Biases project."""
    json: bool = False
    """Print the records as JSON."""

    def run(self) -> int:
        """Train, and print what came out."""
        from nugpt.cli.progress import training_progress
        from nugpt.engines.lab import Hooks, Interrupted, execute
        from nugpt.store import Store
        from nugpt.store.claims import holding

        if not self.seed:
            raise ValueError("--seed has no number, but must have at least one")
        options = self.carrier.options()
        device_type = options.torch_device().type
        starts = self._starts()
        lrs = self.lr or (self._extended_lr() or self.arguments.default_lr(),)
        dataset = self.arguments.dataset()
        start = self._start(next(iter(starts.values()), None))
        specs = [
            self.arguments.spec(dataset, device_type, lr, seed, start)
            for lr in dict.fromkeys(lrs)
            for seed in dict.fromkeys(self.seed)
        ]
        with training_progress(specs, self.tensorboard, self.wandb, quiet=self.json) as progress:
            try:
                store = Store(self.store)
                with holding([store.run(spec) for spec in specs]) as guard:
                    records = execute(specs, store, dataset, options, progress, starts, Hooks(guard))
            except Interrupted as stopped:
                progress.say(str(stopped))
                return 128 + stopped.signal_number
        if self.json:
            print_json([record.to_dict() for record in records])
        else:
            for spec, record in zip(specs, records, strict=True):
                print(_summary(spec, record, self.store))
        return 0 if all(record.status == "done" for record in records) else 1

    def _start(self, given: Checkpoint | None) -> Start | None:
        if given is None:
            return None
        return Start("weights", given.hash) if self.start_from else Start("extend", given.hash, given.step)

    def _extended_lr(self) -> float | None:
        """That of the run to extend; none without one, or where a checkpoint alone was given."""
        from nugpt.store import Store
        from nugpt.store.run_directory import RunDirectory

        if not self.extend:
            return None
        if not _is_checkpoint(self.extend):
            return Store(self.store).find(self.extend).spec().lr
        run = Path(self.extend).resolve().parent.parent
        return RunDirectory(run).spec().lr if (run / "spec.json").is_file() else None

    def _starts(self) -> dict[str, Checkpoint]:
        """The checkpoint to start from by its hash: a checkpoint's directory, or a run's newest."""
        from nugpt.store import Store, latest_checkpoint, load_checkpoint

        if self.start_from and self.extend:
            raise ValueError(
                "--start-from and --extend exclude each other: weights alone, or weights and optimizer state"
            )
        name = self.start_from or self.extend
        if not name:
            return {}
        if _is_checkpoint(name):
            found: Checkpoint | None = load_checkpoint(Path(name))
        else:
            found = latest_checkpoint(Store(self.store).find(name).checkpoints)
        if found is None:
            raise ValueError(f"run {name!r} has no checkpoint to start from")
        return {found.hash: found}


def _is_checkpoint(name: str) -> bool:
    return (Path(name) / "state.json").is_file()


def _summary(spec: RunSpec, record: RunRecord, store: Path) -> str:
    what = f"{spec.table.name} η {number(spec.lr)} seed {spec.seed}"
    where = store / record.hash
    if record.status == "diverged":
        return f"{what}: diverged at step {record.diverged_at}   {where}"
    return (
        f"{what}: validation loss {number(record.val_loss)} (EMA {number(record.val_loss_ema)}) "
        f"after {record.steps} steps, {record.tokens:,} tokens, {record.wall_s:.1f} s   {where}"
    )
