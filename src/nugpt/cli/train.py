"""`nugpt train`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.cli.shape import BaseShape, Length, Shape
from nugpt.cli.show import number, print_json
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.run import RunSpec, Start
from nugpt.spec.scales import Scale
from nugpt.spec.schedule import Schedule
from nugpt.spec.table_file import load_table

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.engines.lab.options import Options
    from nugpt.spec.record import RunRecord
    from nugpt.store import Checkpoint


@dataclass(frozen=True)
class Course:
    """The learning rate's course over the run."""

    schedule: str = "cosine"
    """cosine, linear, constant or wsd (warm-up, stable, decay)."""
    final: float = 0.1
    """The learning rate at the end, as a share of the peak."""
    warmup: int = 0
    """Steps of linear warm-up."""
    decay: float = 0.2
    """wsd: the share of the run that decays."""


@dataclass(frozen=True)
class Carrier:
    """What carries the run without changing its result."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    compile: bool | None = None
    """True or False; by default on a GPU only."""
    attention: str = "folded"
    """folded, sdpa or plain."""
    loss: str = "chunked"
    """chunked or plain."""
    micro_batch: int | None = None
    """Sequences per forward and backward pass; gradients are accumulated. The whole batch by default."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; ten per run by default."""
    keep: int = 2
    """Checkpoints kept."""
    log_every: int | None = None
    """Steps between rows of metrics; two hundred rows by default."""
    threads: int | None = None
    """CPU threads."""
    deterministic: bool = False
    """Refuse kernels whose result differs from run to run."""

    def options(self) -> Options:
        """As the engine takes them."""
        from nugpt.engines.lab.options import Options

        return Options(**self.__dict__)


@dataclass(frozen=True)
class Train:
    """Train a model on one device. The same command again goes on where it was, or shows the result when it is done."""

    shape: Shape = Shape()
    parametrization: str = "nugpt"
    """A built-in table by name, or the path of a TOML file."""
    lr: tuple[float, ...] = ()
    """The global learning rate η; several train as one ensemble. By default the scale's."""
    seed: tuple[int, ...] = (0,)
    """Of initial weights and data order; several train as one ensemble."""
    multiplier: dict[str, float] = field(default_factory=dict)
    """Role and factor on its learning rate, instead of the table's default: --multiplier output 0.5."""
    weight_decay: float | None = None
    """λ, instead of the table's."""
    length: Length = Length()
    base: BaseShape = BaseShape()
    course: Course = Course()
    data: Path | None = None
    """A directory made by `nugpt data prepare`; by default the embedded corpus, prepared once."""
    precision: str = "auto"
    """Of matrix products: float32 or bfloat16; auto: bfloat16 on a GPU, float32 on a CPU."""
    grad_clip: float | None = None
    """Clip each replica's gradient norm to this; off by default."""
    validations: int | None = None
    """How often the validation loss is taken; the scale's number by default."""
    val_windows: int | None = None
    """Sequences of the fixed validation set; the scale's number by default."""
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
        from nugpt.engines.lab import Interrupted, execute
        from nugpt.store import Store

        table = load_table(self.parametrization)
        scale = self.shape.scale()
        options = self.carrier.options()
        dataset = self._dataset(scale)
        starts = self._starts()
        specs = self._specs(scale, table, dataset, options, next(iter(starts.values()), None))
        store = Store(self.store)
        with training_progress(specs, self.tensorboard, self.wandb, quiet=self.json) as progress:
            try:
                records = execute(specs, store, dataset, options, progress, starts)
            except Interrupted as stopped:
                progress.say(str(stopped))
                return 128 + stopped.signal_number
        if self.json:
            print_json([record.to_dict() for record in records])
        else:
            for spec, record in zip(specs, records, strict=True):
                print(_summary(spec, record, self.store))
        return 0 if all(record.status == "done" for record in records) else 1

    def _dataset(self, scale: Scale) -> TokenDataset:
        from nugpt.data import cached_embedded, open_dataset

        if self.data is not None:
            return open_dataset(self.data)
        if scale.name == "paper":
            raise ValueError(f"preset {self.shape.preset!r} needs --data: the embedded corpus is for smaller scales")
        return cached_embedded(f"bpe:{self.shape.vocab_size or scale.vocab_size}")

    def _specs(
        self, scale: Scale, table: Parametrization, dataset: TokenDataset, options: Options, given: Checkpoint | None
    ) -> list[RunSpec]:
        shape = self.shape if self.shape.vocab_size is not None else replace(self.shape, vocab_size=dataset.vocab_size)
        model = shape.model(table)
        extent = self.length.extent(scale, model)
        lrs = self.lr or ((scale.default_lr,) if scale.default_lr else ())
        if not lrs:
            raise ValueError(f"--lr is needed: scale {scale.name!r} has no learning rate that was tuned here")
        precision = self.precision
        if precision == "auto":
            precision = "bfloat16" if options.torch_device().type == "cuda" else "float32"
        common: dict[str, Any] = {
            "model": model,
            "table": table,
            "base": self.base.resolve(scale),
            "steps": extent.steps,
            "batch": extent.batch_tokens // model.seq_len,
            "data": dataset.content_hash,
            "multipliers": self.multiplier,
            "weight_decay": self.weight_decay,
            "schedule": Schedule(self.course.schedule, self.course.final, self.course.warmup, self.course.decay),
            "precision": precision,
            "grad_clip": self.grad_clip,
            "validations": self.validations or scale.validations,
            "val_windows": self.val_windows or scale.val_windows,
            "start": self._start(given),
        }
        return [RunSpec(lr=lr, seed=seed, **common) for lr in dict.fromkeys(lrs) for seed in dict.fromkeys(self.seed)]

    def _start(self, given: Checkpoint | None) -> Start | None:
        if given is None:
            return None
        return Start("weights", given.hash) if self.start_from else Start("extend", given.hash, given.step)

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
        if (Path(name) / "state.json").is_file():
            found: Checkpoint | None = load_checkpoint(Path(name))
        else:
            found = latest_checkpoint(Store(self.store).find(name).checkpoints)
        if found is None:
            raise ValueError(f"run {name!r} has no checkpoint to start from")
        return {found.hash: found}


def _summary(spec: RunSpec, record: RunRecord, store: Path) -> str:
    what = f"{spec.table.name} η {number(spec.lr)} seed {spec.seed}"
    where = store / record.hash
    if record.status == "diverged":
        return f"{what}: diverged at step {record.diverged_at}   {where}"
    return (
        f"{what}: validation loss {number(record.val_loss)} (EMA {number(record.val_loss_ema)}) "
        f"after {record.steps} steps, {record.tokens:,} tokens, {record.wall_s:.1f} s   {where}"
    )
