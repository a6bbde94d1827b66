"""`nugpt train`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from nugpt.cli.run_arguments import Carrier, RunArguments, check_lrs, check_seeds, differing, warn_of_other_data
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import number, print_json
from nugpt.spec.run import RunSpec, Start

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.spec.record import RunRecord
    from nugpt.store import Checkpoint, RunDirectory


@dataclass(frozen=True)
class Train:
    """Train a model on one device. The same command again goes on where it was, or shows the result when it is done."""

    recipe: Path | None = None
    """What `nugpt recommend --emit` wrote, or a run's spec.json: all of the run but data, unless given also seed and
    precision."""
    arguments: Annotated[RunArguments, AMONG_OPTIONS] = RunArguments()
    lr: tuple[float, ...] = ()
    """The global learning rate η; several train as one ensemble. By default the scale's, or of the run to extend."""
    seed: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="[INT [INT ...]]")] = None
    """Of initial weights and data order, 0 by default or the recipe's; several train as one ensemble."""
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

        options = self.carrier.options()
        specs, dataset, starts = (
            self._of_arguments(options.torch_device().type) if self.recipe is None else self._of_recipe(self.recipe)
        )
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

    def _of_arguments(self, device_type: str) -> tuple[list[RunSpec], TokenDataset, dict[str, Checkpoint]]:
        """The runs, their data, and the checkpoint that they start from, by its hash."""
        seeds = (0,) if self.seed is None else self.seed
        check_seeds(seeds)
        check_lrs(self.lr)
        given, begun = self._given()
        lrs = self.lr or (self._default_lr(begun),)
        dataset = self.arguments.dataset()
        starts = {} if given is None else {given.hash: given}
        start = None if given is None else self._start(given)
        specs = [self.arguments.spec(dataset, device_type, lr, seed, start) for lr in lrs for seed in seeds]
        return specs, dataset, starts

    def _of_recipe(self, recipe: Path) -> tuple[list[RunSpec], TokenDataset, dict[str, Checkpoint]]:
        """The recipe's run for each seed, on the data that is given; it starts from no checkpoint."""
        from nugpt.store import run_of_file

        asked = self.arguments
        heeded = replace(self, arguments=RunArguments(data=asked.data, precision=asked.precision))
        for name, value in differing(self, replace(heeded, lr=(), start_from=None, extend=None)):
            raise ValueError(f"{name} is {value!r}, but {recipe} says what the run is: leave it out")
        run = run_of_file(recipe)
        dataset = _data_of(run, recipe, asked.data)
        warn_of_other_data(recipe, run, dataset.content_hash)
        run = replace(run, data=dataset.content_hash)
        if asked.precision != RunArguments.precision:
            run = replace(run, precision=asked.precision)
        seeds = (run.seed,) if self.seed is None else self.seed
        check_seeds(seeds)
        return [replace(run, seed=seed) for seed in seeds], dataset, {}

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


def _data_of(run: RunSpec, recipe: Path, data: Path | None) -> TokenDataset:
    """The data set that is given; by default the embedded corpus, where that is what the recipe was found on."""
    from nugpt.data import found_embedded, open_dataset
    from nugpt.spec.recipe import NO_DATA

    if data is not None:
        return open_dataset(data)
    embedded = found_embedded(f"bpe:{run.model.vocab_size}")
    if embedded is not None and embedded.content_hash == run.data:
        return embedded
    there = "no data set" if run.data == NO_DATA else f"the data set {run.data}"
    raise ValueError(
        f"data is not given, and {recipe} names {there}: --data is a directory made by `nugpt data prepare`"
    )


def _summary(spec: RunSpec, record: RunRecord, store: Path) -> str:
    what = f"{spec.table.name} η {number(spec.lr)} seed {spec.seed}"
    where = store / record.hash
    if record.status == "diverged":
        return f"{what}: diverged at step {record.diverged_at}   {where}"
    return (
        f"{what}: validation loss {number(record.val_loss)} (EMA {number(record.val_loss_ema)}) "
        f"after {record.steps} steps, {record.tokens:,} tokens, {record.wall_s:.1f} s   {where}"
    )
