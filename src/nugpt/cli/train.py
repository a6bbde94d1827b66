"""`nugpt train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nugpt.cli.run_arguments import Carrier, RunArguments, check_seeds
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import number, print_json
from nugpt.spec.run import RunSpec, Start

if TYPE_CHECKING:
    from nugpt.spec.record import RunRecord
    from nugpt.store import Checkpoint, RunDirectory


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
        from nugpt.engines.lab import Hooks, Interrupted, check_trainable, execute
        from nugpt.store import Store
        from nugpt.store.claims import holding

        check_seeds(self.seed)
        options = self.carrier.options()
        device_type = options.torch_device().type
        given, begun = self._given()
        lrs = self.lr or (self._default_lr(begun),)
        dataset = self.arguments.dataset()
        starts = {} if given is None else {given.hash: given}
        start = None if given is None else self._start(given)
        specs = [
            self.arguments.spec(dataset, device_type, lr, seed, start)
            for lr in dict.fromkeys(lrs)
            for seed in self.seed
        ]
        check_trainable(specs, dataset, options, starts)  # what is refused leaves no run behind
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

    def _start(self, given: Checkpoint) -> Start:
        return Start("weights", given.hash) if self.start_from else Start("extend", given.hash, given.step)

    def _default_lr(self, begun: RunDirectory | None) -> float:
        """That of the run to extend, where it is there beside its checkpoint; else the scale's."""
        if self.extend and begun is not None and (begun.path / "spec.json").is_file():
            return begun.spec().lr
        return self.arguments.default_lr()

    def _given(self) -> tuple[Checkpoint | None, RunDirectory | None]:
        """The checkpoint to start from, a checkpoint's directory or a run's newest, and the directory of its run."""
        from nugpt.cli.trained import check_not_distributed, is_folder
        from nugpt.store import RunDirectory, Store, latest_checkpoint, load_checkpoint

        if self.start_from and self.extend:
            raise ValueError(
                "--start-from and --extend exclude each other: weights alone, or weights and optimizer state"
            )
        name = self.start_from or self.extend
        if not name:
            return None, None
        if (Path(name) / "state.json").is_file():
            return load_checkpoint(Path(name)), RunDirectory(Path(name).resolve().parent.parent)
        if is_folder(name):
            raise ValueError(f"{name} is an exported folder: `nugpt import hf` makes a run of it to start from")
        check_not_distributed(name)
        begun = Store(self.store).find(name)
        found = latest_checkpoint(begun.checkpoints)
        if found is None:
            raise ValueError(begun.without_checkpoint("start from"))
        return found, begun


def _summary(spec: RunSpec, record: RunRecord, store: Path) -> str:
    what = f"{spec.table.name} η {number(spec.lr)} seed {spec.seed}"
    where = store / record.hash
    if record.status == "diverged":
        return f"{what}: diverged at step {record.diverged_at}   {where}"
    return (
        f"{what}: validation loss {number(record.val_loss)} (EMA {number(record.val_loss_ema)}) "
        f"after {record.steps} steps, {record.tokens:,} tokens, {record.wall_s:.1f} s   {where}"
    )
