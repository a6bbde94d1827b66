"""A run is its spec: frozen, complete and hashed. The hash names the run's directory."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from nugpt.spec.checks import check_format, make_plain, of_class
from nugpt.spec.model import ModelConfig, flops_per_token
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.resolve import A_TABLE, Base, Extent, Resolved, resolve
from nugpt.spec.schedule import Schedule
from nugpt.spec.table_file import table_from_dict, table_to_dict

FORMAT = 1
PRECISIONS = ("float32", "bfloat16")
START_KINDS = ("weights", "extend")


@dataclass(frozen=True)
class Start:
    """Where a run begins if not at its own initial weights: a checkpoint's hash, and what is taken of it."""

    kind: str  # weights: the parameters alone, from step 0; extend: parameters, optimizer state and step
    hash: str
    step: int = 0  # extend: the step it goes on from

    def __post_init__(self) -> None:
        if self.kind not in START_KINDS:
            raise ValueError(f"start is {self.kind!r}, but must be one of {', '.join(START_KINDS)}")
        if not isinstance(self.hash, str) or not self.hash:
            raise ValueError(f"start's hash is {self.hash!r}, but must be the hash of a checkpoint")
        make_plain(self, "step")
        if not isinstance(self.step, int) or isinstance(self.step, bool) or self.step < 0:
            raise ValueError(f"start's step is {self.step!r}, but must be a whole number of at least 0")
        if self.kind == "weights" and self.step:
            raise ValueError(f"start's step is {self.step}, but must be 0 where the weights alone are taken")


@dataclass(frozen=True)
class RunSpec:
    """Everything that changes a run's result, and nothing that only carries it (device, packing, kernels, compile)."""

    model: ModelConfig
    table: Parametrization
    base: Base
    lr: float
    steps: int
    batch: int
    data: str  # the data set's content hash
    seed: int = 0  # of the initial weights and of the data order
    multipliers: Mapping[str, float] = field(default_factory=dict, hash=False)  # every role's, defaults filled in
    weight_decay: float | None = None  # λ; the table's by default
    schedule: Schedule = Schedule()
    precision: str = "float32"  # of matrix products; master weights and optimizer state are float32 always
    grad_clip: float | None = None  # CHOICE: off, the paper's list of optimizer settings has none
    validations: int = 100  # how often the validation loss is taken, evenly spaced, the last at the end
    val_windows: int = 64  # sequences of the fixed validation set
    start: Start | None = None

    def __post_init__(self) -> None:
        make_plain(self, "steps", "batch", "validations", "val_windows", "seed")
        for name in ("steps", "batch", "validations", "val_windows"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of at least 1")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed!r}, but must be a whole number from 0 to 2^63 - 1")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}, but must be one of {', '.join(PRECISIONS)}")
        if self.grad_clip is not None and not (_is_number(self.grad_clip) and self.grad_clip > 0):
            raise ValueError(f"grad_clip is {self.grad_clip!r}, but must be a number above 0, or none")
        if self.weight_decay is not None and not (_is_number(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay is {self.weight_decay!r}, but must be a number of at least 0, or none")
        if not isinstance(self.multipliers, Mapping):
            raise ValueError(f"multipliers is {self.multipliers!r}, but must be a factor for each role")
        if not isinstance(self.data, str) or not self.data:
            raise ValueError(f"data is {self.data!r}, but must be the content hash of a data set")
        of_class("model", self.model, ModelConfig, "nugpt.ModelConfig(…) makes one, and nugpt.preset(NAME) has one")
        of_class("table", self.table, Parametrization, A_TABLE)
        if not self.table.fits(self.model.architecture):
            raise ValueError(
                f"architecture is {self.model.architecture!r}, "
                f"but table {self.table.name!r} is for {self.table.family!r}"
            )
        if self.start is not None and self.start.step >= self.steps:
            raise ValueError(f"steps is {self.steps}, but must be more than the {self.start.step} the run starts from")
        resolved = resolve(self.table, self.base, self.extent, self.lr, self.multipliers, self.weight_decay)
        filled = {role: row.multiplier for role, row in resolved.rows.items()}
        object.__setattr__(self, "multipliers", filled)
        object.__setattr__(self, "lr", float(self.lr))
        for name in ("weight_decay", "grad_clip"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", float(self.table.weight_decay))

    @property
    def extent(self) -> Extent:
        """The run's place in width, depth, iterations and batch."""
        return Extent.of(self.model, self.steps, self.batch)

    @property
    def began(self) -> str | None:
        """The kind of weights that it was given to begin with; none where they are its own."""
        return None if self.start is None else self.start.kind

    def resolved(self) -> Resolved:
        """Every number that the table gives this run."""
        return resolve(self.table, self.base, self.extent, self.lr, self.multipliers, self.weight_decay)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` turns back into an equal spec."""
        plain = ("lr", "steps", "batch", "data", "seed", "weight_decay", "precision", "grad_clip", "validations")
        return {
            "format": FORMAT,
            "model": self.model.to_dict(),
            "table": table_to_dict(self.table),
            "base": asdict(self.base),
            "multipliers": dict(self.multipliers),
            "schedule": asdict(self.schedule),
            "start": None if self.start is None else asdict(self.start),
            "val_windows": self.val_windows,
            **{name: getattr(self, name) for name in plain},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSpec:
        """The spec that these plain values describe; a newer format, an unknown or a missing field is refused."""
        check_format("run spec", values.get("format"), FORMAT)
        rest = {key: value for key, value in values.items() if key != "format"}
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(rest) - known):
            raise ValueError(f"run spec has an unknown field {unknown[0]!r}")
        if missing := sorted(known - set(rest)):
            raise ValueError(f"run spec lacks the field {missing[0]!r}")
        for name, read in _READERS.items():
            try:
                rest[name] = read(rest[name])
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"run spec's {name} is of the wrong form: {error}") from None
        return cls(**rest)

    def at(self, lr: float, seed: int) -> RunSpec:
        """The same run at another learning rate and seed; what neither changes is not checked and spelled out again."""
        plain = type(lr) is float and type(seed) is int and lr > 0 and 0 <= seed < 2**63
        if not plain or not math.isfinite(lr * self._largest_factor):
            return replace(self, lr=lr, seed=seed)  # which says what is wrong
        _ = self._canonical  # worked out here once, it goes along
        made = object.__new__(RunSpec)
        kept = {name: value for name, value in self.__dict__.items() if name != "hash"}
        made.__dict__.update(kept, lr=lr, seed=seed)
        return made

    @cached_property
    def _largest_factor(self) -> float:
        """The largest ratio of a learning rate of the run to η."""
        found = self.resolved()
        return max(found.lr_base, *(row.lr for row in found.rows.values())) / self.lr

    @cached_property
    def _canonical(self) -> dict[str, Any]:
        """The one spelling of everything but learning rate and seed."""
        return {name: value for name, value in _spelled(self.to_dict()).items() if name not in ("lr", "seed")}

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits: other with every field, the same for any field order, number spelling or platform."""
        values = self._canonical | {"lr": _spelled(self.lr), "seed": self.seed}
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]


def _base(values: Any) -> Base:
    return Base(**{**values, "extent": Extent(**values["extent"])})


@lru_cache(maxsize=64)  # a store of a thousand runs names a handful of tables
def _table(text: str) -> Parametrization:
    return table_from_dict(json.loads(text))


_READERS: dict[str, Callable[[Any], Any]] = {
    "model": ModelConfig.from_dict,
    "table": lambda values: _table(json.dumps(values)),
    "base": _base,
    "schedule": lambda values: Schedule(**values),
    "start": lambda values: None if values is None else Start(**values),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _spelled(value: Any) -> Any:
    """The same values with every whole number written as an integer, so that equal specs have one spelling."""
    if isinstance(value, dict):
        return {key: _spelled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spelled(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def run_flops(spec: RunSpec) -> float:
    """Training FLOPs of a run."""
    return float(flops_per_token(spec.model)) * spec.batch * spec.model.seq_len * spec.steps


Shape = tuple[Any, ...]


def shape_of(spec: RunSpec) -> Shape:
    """All that runs must share to be one ensemble: all but table, learning rate, multipliers, decay and seed."""
    return (
        spec.model,
        spec.steps,
        spec.batch,
        spec.data,
        spec.schedule,
        spec.precision,
        spec.grad_clip,
        spec.validations,
        spec.val_windows,
        spec.table.betas,
        spec.start.step if spec.start and spec.start.kind == "extend" else 0,
    )


def packable(specs: list[RunSpec]) -> bool:
    """Whether these runs can share one ensemble: only table, learning rate, multipliers, decay, seed differ."""
    return len({shape_of(spec) for spec in specs}) <= 1
