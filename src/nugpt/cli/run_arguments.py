"""The arguments that make a run's spec, shared by `train` and `sweep`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from nugpt.cli.shape import BaseShape, Length, Shape
from nugpt.cli.show import warn
from nugpt.spec.recipe import NO_DATA
from nugpt.spec.run import RunSpec, Start
from nugpt.spec.schedule import Schedule
from nugpt.spec.table_file import load_table

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.engines.lab.options import Options


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
    kernels: str = "auto"
    """auto (fused on a GPU, else plain), plain (the definitions) or fused."""
    compile: tyro.conf.FlagConversionOff[bool | None] = None
    """True or False; by default on a GPU only."""
    attention: str = "folded"
    """Of the plain functions: folded, sdpa or plain; any but folded means --kernels plain."""
    loss: str = "chunked"
    """Of the plain functions: chunked or plain; any but chunked means --kernels plain."""
    micro_batch: int | None = None
    """Sequences per forward and backward pass; gradients are accumulated. The whole batch by default."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; by default ten per run, at least a minute and thirty times their saving apart."""
    keep: int = 2
    """Checkpoints kept."""
    log_every: int | None = None
    """Steps between rows of metrics; two hundred rows by default."""
    threads: int | None = None
    """CPU threads; as many as torch chooses by default."""
    deterministic: bool = False
    """Refuse kernels whose result differs from run to run."""
    measure: tuple[str, ...] = ("lerp",)
    """What to measure beside the loss, at log-spaced steps: alignment, lerp. It changes no result."""
    measure_points: int | None = None
    """Measurements a run; by default as many as cost little."""
    measure_windows: int | None = None
    """Validation windows of the fixed batch that alignment is measured on; by default as many as cost little."""

    def options(self) -> Options:
        """As the engine takes them."""
        from nugpt.engines.lab.options import Options

        return Options(**self.__dict__)


@dataclass(frozen=True)
class RunArguments:
    """Everything about a run but its learning rate and seed."""

    shape: Shape = Shape()
    parametrization: str = "nugpt"
    """A built-in table by name, or the path of a TOML file."""
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

    def default_lr(self) -> float:
        """The scale's learning rate, where one was tuned."""
        scale = self.shape.scale()
        if scale.default_lr is None:
            raise ValueError(f"--lr is needed: scale {scale.name!r} has no learning rate that was tuned here")
        return scale.default_lr

    def dataset(self) -> TokenDataset:
        """The data set asked for, or the embedded corpus with a tokenizer of the preset's vocabulary."""
        scale = self.shape.scale()
        return open_data(self.data, scale.name, self.shape.vocab_size or scale.vocab_size)

    def spec(
        self, dataset: TokenDataset, device_type: str, lr: float, seed: int, start: Start | None = None
    ) -> RunSpec:
        """The run that these arguments describe."""
        table, scale = load_table(self.parametrization), self.shape.scale()
        shape = self.shape if self.shape.vocab_size is not None else replace(self.shape, vocab_size=dataset.vocab_size)
        model = shape.model(table)
        extent = self.length.extent(scale, model)
        schedule = Schedule(self.course.schedule, self.course.final, self.course.warmup, self.course.decay)
        schedule.check_heeded()
        schedule.check_reaches_peak(extent.steps)
        return RunSpec(
            model=model,
            table=table,
            base=self.base.resolve(scale),
            lr=lr,
            steps=extent.steps,
            batch=extent.batch_tokens // model.seq_len,
            data=dataset.content_hash,
            seed=seed,
            multipliers=self.multiplier,
            weight_decay=self.weight_decay,
            schedule=schedule,
            precision=precision_for(self.precision, device_type),
            grad_clip=self.grad_clip,
            validations=scale.validations if self.validations is None else self.validations,
            val_windows=scale.val_windows if self.val_windows is None else self.val_windows,
            start=start,
        )


def differing(one: Any, other: Any) -> Iterator[tuple[str, Any]]:
    """The fields in which two values of one class differ, wherever they stand."""
    for place in fields(one):
        here, there = getattr(one, place.name), getattr(other, place.name)
        if is_dataclass(here):
            yield from differing(here, there)
        elif here != there:
            yield place.name, str(here) if isinstance(here, Path) else here


def warn_of_other_data(recipe: Path, run: RunSpec, data: str) -> None:
    """An η is carried over sizes, not over data: say when a recipe's run is of other data than is given."""
    if run.data not in (NO_DATA, data):
        warn(f"{recipe} is of the data set {run.data}, and {data} is given: the best η may be another there")


def check_seeds(seeds: tuple[int, ...]) -> None:
    """Refuse no seed at all, and one that is named twice: it is one run."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seed is {seeds!r}, but must be whole numbers, each named once")


def check_lrs(lrs: tuple[float, ...]) -> None:
    """Refuse a learning rate that is named twice: it is one run, and another was likely meant."""
    if len(set(lrs)) != len(lrs):
        raise ValueError(f"lr is {lrs!r}, but must be numbers, each named once")


def precision_for(asked: str, device_type: str) -> str:
    """`auto` as the device has it: bfloat16 on a GPU, float32 on a CPU."""
    if asked != "auto":
        return asked
    return "bfloat16" if device_type == "cuda" else "float32"


def open_data(path: Path | None, scale: str, vocab_size: int) -> TokenDataset:
    """The data set of this directory, or the embedded corpus for the smaller scales."""
    from nugpt.data import cached_embedded, open_dataset

    if path is not None:
        return open_dataset(path)
    if scale == "paper":
        raise ValueError("scale 'paper' needs --data: the embedded corpus is for smaller scales")
    return cached_embedded(f"bpe:{vocab_size}")
