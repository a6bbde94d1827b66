"""From a table, a base and a target to numbers: the only code that raises a ratio m to a power."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from nugpt.spec.checks import nonnegative, of_class, whole
from nugpt.spec.model import ModelConfig
from nugpt.spec.parametrization import Parametrization, Power, symbolic

# How one is had, for whoever gives something else.
A_TABLE = "nugpt.parametrization(NAME) or nugpt.load_table(PATH) has it"
AN_EXTENT = "nugpt.Extent.of(MODEL, STEPS, BATCH) makes one"


@dataclass(frozen=True)
class Extent:
    """What the ratios compare: width, depth, iterations and tokens per step."""

    d_model: int
    head_dim: int
    n_layers: int
    steps: int
    batch_tokens: int

    def __post_init__(self) -> None:
        for name in ("d_model", "head_dim", "n_layers", "steps", "batch_tokens"):
            object.__setattr__(self, name, whole(getattr(self, name), name))

    @classmethod
    def of(cls, model: ModelConfig, steps: int, batch: int) -> Extent:
        """The extent of training this model for `steps` steps of `batch` sequences."""
        return cls(model.d_model, model.head_dim, model.n_layers, steps, whole(batch, "batch") * model.seq_len)


@dataclass(frozen=True)
class Base:
    """The model and run that everything was tuned on, and the constant c of the rescalers' scale there."""

    extent: Extent
    rescaler_scale: float

    def __post_init__(self) -> None:
        of_class("extent", self.extent, Extent, AN_EXTENT)
        _positive("rescaler_scale", self.rescaler_scale)

    @classmethod
    def of(cls, extent: Extent, rescaler_scale: float | None = None) -> Base:
        """The base at this extent; c is its width to the power −1/2 unless given (the paper's 0.03 ≈ 1020^(−1/2))."""
        # CHOICE: below the paper's scale the constant follows the base width, or the base model itself would change.
        return cls(extent, extent.d_model**-0.5 if rescaler_scale is None else rescaler_scale)


@dataclass(frozen=True)
class Ratios:
    """m_width, m_depth, m_data and m_batch of a target over its base."""

    width: float
    depth: float
    data: float
    batch: float


@dataclass(frozen=True)
class ResolvedRow:
    """The numbers of one role; a rescaler's gain is init/scale, what its stored vector is multiplied by."""

    lr: float
    multiplier: float
    init: float | None
    scale: float | None
    weight_decay: float
    eps: float


@dataclass(frozen=True)
class Resolved:
    """Every learning rate, initial value, scale and forward multiplier of one run."""

    table: str
    family: str
    lr: float  # η, the global learning rate, before every factor
    lr_base: float  # η_base
    ratios: Ratios
    betas: tuple[float, float]
    rows: Mapping[str, ResolvedRow]
    gains: Mapping[str, float]

    def __getitem__(self, role: str) -> ResolvedRow:
        if role not in self.rows:
            raise ValueError(f"role {role!r} is not in table {self.table!r}, which has {', '.join(self.rows)}")
        return self.rows[role]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for records and `--json`."""
        return asdict(self)


class NoBatchExponent(ValueError):
    """A target has another batch than its base, and its table does not say what that does to η_base."""


class OtherHeads(ValueError):
    """A target's heads have another dimension than its base's."""


def ratios(base: Extent, target: Extent) -> Ratios:
    """m_width, m_depth, m_data, m_batch; a base of another head dimension is refused."""
    if base.head_dim != target.head_dim:
        raise OtherHeads(
            f"head_dim is {target.head_dim} in the target but {base.head_dim} in the base: "
            "width grows by heads, so both must have the same head dimension"
        )
    return Ratios(
        width=target.d_model / base.d_model,
        depth=target.n_layers / base.n_layers,
        data=target.steps / base.steps,
        batch=target.batch_tokens / base.batch_tokens,
    )


def resolve(
    table: Parametrization,
    base: Base,
    target: Extent,
    lr: float,
    multipliers: Mapping[str, float] | None = None,
    weight_decay: float | None = None,
) -> Resolved:
    """Every number of a run; `multipliers` (role → factor on its learning rate) replace the table's defaults."""
    of_class("table", table, Parametrization, A_TABLE)
    of_class("base", base, Base, "nugpt.Base.of(EXTENT) makes one, and a scale has its own")
    of_class("target", target, Extent, AN_EXTENT)
    _positive("lr", lr)
    multipliers = dict(multipliers or {})
    for role, factor in multipliers.items():
        if role not in table.rows:
            raise ValueError(f"multiplier for an unknown role {role!r}, known are {', '.join(table.rows)}")
        _positive(f"multiplier of {role}", factor)
    decay = nonnegative(table.weight_decay if weight_decay is None else weight_decay, "weight_decay")
    m = ratios(base.extent, target)
    if m.batch != 1 and table.batch is None:
        raise NoBatchExponent(
            f"a step has {target.batch_tokens} tokens in the target but {base.extent.batch_tokens} in the base, "
            f"and table {table.name!r} has no batch exponent: use the base's batch, or give the exponent of m_batch"
        )

    def value(power: Power) -> float:
        d_model, c = target.d_model, base.rescaler_scale
        return (
            power.coefficient
            * _raised(m.width, power.width)
            * _raised(m.depth, power.depth)
            * _raised(m.data, power.data)
            * _raised(d_model, power.d_model)
            * _raised(c, power.rescaler_scale)
        )

    def finite(cell: str, number: float, power: Power, above_zero: bool = False) -> float:
        if not math.isfinite(number) or (above_zero and number <= 0):
            wanted = "a finite number above 0" if above_zero else "a finite number"
            what = f"{cell} ({symbolic(power)}) is {number!r} at this target"
            raise ValueError(f"table {table.name!r}: {what}, but must be {wanted}")
        return number

    lr_base = finite("η_base", lr * value(table.base) * _raised(m.batch, table.batch or Fraction(0)), table.base)
    rows, gains = {}, {}
    for role, row in table.rows.items():
        multiplier = multipliers.get(role, _raised(2, row.multiplier_log2))
        init, scale, fading = row.init, row.scale, row.weight_decay
        ours = rows[role] = ResolvedRow(
            lr=finite(f"lr of {role}", lr_base * value(row.lr) * multiplier, row.lr),
            multiplier=multiplier,
            init=None if init is None else finite(f"init of {role}", value(init), init),
            scale=None if scale is None else finite(f"scale of {role}", value(scale), scale, above_zero=True),
            weight_decay=0.0 if fading is None else finite(f"weight_decay of {role}", decay * value(fading), fading),
            eps=finite(f"eps of {role}", table.eps * value(row.eps), row.eps),
        )
        if init is not None and ours.init is not None and ours.scale is not None:
            gains[role] = finite(f"gain of {role}", ours.init / ours.scale, init)
    gains |= {name: finite(f"gain of {name}", value(power), power) for name, power in table.forward.items()}
    return Resolved(table.name, table.family, lr, lr_base, m, table.betas, rows, gains)


def _raised(ratio: float, exponent: Fraction) -> float:
    try:
        return float(ratio) ** float(exponent)
    except OverflowError:
        return math.inf


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}, but must be a finite number above 0")
