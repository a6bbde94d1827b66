"""The tables: how learning rates, initial values and scales depend on width, depth, iterations and batch.

What the paper decided is data. Each table is a literal, one row per role, exponents as exact fractions. No other line
of the project knows an exponent, and only `resolve` raises a ratio to a power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction as F
from typing import Any

from nugpt.spec.checks import exponent, nonnegative, shown, two_betas
from nugpt.spec.roles import MATRIX_ROLES, RESCALER_ROLES

FAMILIES: dict[str, tuple[str, ...]] = {
    "normalized": MATRIX_ROLES + RESCALER_ROLES,
    "prenorm": (*MATRIX_ROLES, "norm"),
}
FORWARD: dict[str, tuple[str, ...]] = {"normalized": (), "prenorm": ("residual", "logit")}
EPS = 1e-16  # Adam's ε in the paper


@dataclass(frozen=True)
class Power:
    """coefficient · m_width^width · m_depth^depth · m_data^data · d_model^d_model · c^rescaler_scale."""

    coefficient: float = 1.0
    width: F = F(0)
    depth: F = F(0)
    data: F = F(0)
    d_model: F = F(0)
    rescaler_scale: F = F(0)  # exponent of the base's constant c: 0.03 at the paper's base

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficient", nonnegative(self.coefficient, "coefficient"))
        for name in (f.name for f in fields(self) if f.name != "coefficient"):
            object.__setattr__(self, name, exponent(getattr(self, name), f"exponent of {name}"))

    @property
    def over_width(self) -> F:
        """All that goes with width: a power of d_model itself goes as m_width does."""
        return self.width + self.d_model


@dataclass(frozen=True)
class Row:
    """One role: factors on η_base, on λ and on ε, and the initial value and scale of what it names."""

    lr: Power = Power()
    init: Power | None = (
        None  # a rescaler's value at the start; a pre-norm matrix's standard deviation; None: arbitrary
    )
    scale: Power | None = None  # rescalers only: what the stored vector starts at, so how fast it moves
    multiplier_log2: F = F(0)  # default of the tuned constant factor on the learning rate
    weight_decay: Power | None = None  # factor on λ; None: never decayed
    eps: Power = Power()  # factor on Adam's ε

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier_log2", exponent(self.multiplier_log2, "multiplier_log2"))
        for name in ("lr", "init", "scale", "weight_decay", "eps"):
            cell = getattr(self, name)
            if not isinstance(cell, Power) and (cell is not None or name in ("lr", "eps")):
                raise ValueError(f"{name} of a row is {shown(cell)}, but must be a Power")


@dataclass(frozen=True)
class Parametrization:
    """A table: a row per role of its family, and what multiplies the one global learning rate."""

    name: str
    family: str
    rows: Mapping[str, Row] = field(hash=False)
    base: Power = Power()  # η_base = η · base
    batch: F | None = None  # exponent of m_batch in η_base; None: unknown, so another batch than the base's is refused
    forward: Mapping[str, Power] = field(default_factory=dict, hash=False)  # constant multipliers in the forward pass
    weight_decay: float = 0.0  # λ
    eps: float = EPS
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        where = f"table {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name of a table is {shown(self.name)}, but must be a string")
        if not isinstance(self.family, str) or self.family not in FAMILIES:
            raise ValueError(f"{where}: family is {shown(self.family)}, but must be one of {', '.join(FAMILIES)}")
        for name, kind, cells in (("rows", Row, self.rows), ("forward", Power, self.forward)):
            if not isinstance(cells, Mapping):
                raise ValueError(f"{where}: {name} is {shown(cells)}, but must be a {kind.__name__} for each name")
            for key, cell in cells.items():
                if not isinstance(cell, kind):
                    raise ValueError(f"{where}: {name}.{key} is {shown(cell)}, but must be a {kind.__name__}")
        if not isinstance(self.base, Power):
            raise ValueError(f"{where}: base is {shown(self.base)}, but must be a Power")
        if self.batch is not None:
            object.__setattr__(self, "batch", exponent(self.batch, f"{where}: batch"))
        for name in ("weight_decay", "eps"):
            object.__setattr__(self, name, nonnegative(getattr(self, name), f"{where}: {name}"))
        object.__setattr__(self, "betas", two_betas(self.betas, f"{where}: betas"))
        self._check_rows(where)
        self._check_forward(where)

    def _check_rows(self, where: str) -> None:
        wanted = FAMILIES[self.family]
        for role in self.rows:
            if role not in wanted:
                raise ValueError(f"{where}: unknown role {role!r}, known are {', '.join(wanted)}")
        for role in wanted:
            if role not in self.rows:
                raise ValueError(f"{where}: the row of role {role!r} is missing")
            row = self.rows[role]
            rescaler = role in RESCALER_ROLES
            if rescaler and (row.init is None or row.scale is None):
                raise ValueError(f"{where}: role {role!r} is a rescaler and needs both init and scale")
            if row.scale is not None and row.scale.coefficient == 0:
                raise ValueError(f"{where}: scale of role {role!r} is 0, but a stored vector is divided by it")
            if not rescaler and row.scale is not None:
                raise ValueError(f"{where}: role {role!r} is no rescaler and has no scale")
            if self.family == "prenorm" and row.init is None:
                raise ValueError(f"{where}: role {role!r} needs init, its initial standard deviation or value")

    def _check_forward(self, where: str) -> None:
        wanted = FORWARD[self.family]
        for name in self.forward:
            if name not in wanted:
                hint = f"known are {', '.join(wanted)}" if wanted else f"the family {self.family!r} has none"
                raise ValueError(f"{where}: unknown forward multiplier {name!r}, {hint}")
        for name in wanted:
            if name not in self.forward:
                raise ValueError(f"{where}: the forward multiplier {name!r} is missing")

    def fits(self, architecture: str) -> bool:
        """Whether this table's rows are those of the architecture's roles."""
        return architecture.split("-")[0] == self.family


def with_data_exponent(table: Parametrization, exponent: F) -> Parametrization:
    """The same table with η_base = η·m_data^exponent: the knob of the token-horizon studies."""
    return replace(table, base=replace(table.base, data=exponent))


def untuned(table: Parametrization) -> Parametrization:
    """The same table with every default multiplier forced to 1."""
    return replace(table, rows={role: replace(row, multiplier_log2=F(0)) for role, row in table.rows.items()})


ONE = Power()
D_MODEL = Power(d_model=F(-1, 2))  # d_model^(-1/2), nGPT's own scale
CONSTANT = Power(rescaler_scale=F(1))  # the paper's 0.03
ALPHA = 0.05


def _rescaler(init: Power, scale: Power) -> Row:
    return Row(lr=ONE, init=init, scale=scale)


def _rescalers(alpha_init: Power, scale: Power, s_z_init: Power = ONE) -> dict[str, Row]:
    """The six rescaler rows, whose learning rate is η_base in every table of the paper."""
    return {
        "alpha_A": _rescaler(alpha_init, scale),
        "alpha_M": _rescaler(alpha_init, scale),
        "s_qk": _rescaler(ONE, scale),
        "s_u": _rescaler(ONE, ONE),
        "s_nu": _rescaler(ONE, ONE),
        "s_z": _rescaler(s_z_init, scale),
    }


# Table 1, column nGPT. The multiplier of η_output is our assumption (docs/choices.md).
NGPT = Parametrization(
    name="ngpt",
    family="normalized",
    rows={"input": Row(), "hidden": Row(), "output": Row(), **_rescalers(Power(ALPHA), D_MODEL)},
)

# Table 1, column "Depth-μP".
DEPTH_MUP = Parametrization(
    name="depth-mup",
    family="normalized",
    rows={
        "input": Row(lr=Power(width=F(-1, 2))),
        "hidden": Row(lr=Power(width=F(-1), depth=F(-1, 2))),
        "output": Row(lr=Power(width=F(-1, 2)), multiplier_log2=F(-3, 2)),
        **_rescalers(Power(ALPHA, depth=F(-1, 2)), CONSTANT),
    },
)

# Table 1, column "CompleteP".
COMPLETEP = Parametrization(
    name="completep",
    family="normalized",
    rows={
        "input": Row(lr=Power(width=F(-1, 2))),
        "hidden": Row(lr=Power(width=F(-1))),
        "output": Row(lr=Power(width=F(-1, 2)), multiplier_log2=F(-3, 2)),
        **_rescalers(Power(ALPHA, depth=F(-1)), CONSTANT),
    },
)

# Table 1, column νGPT: mid alignment, max(α, ν) = 3/4.
NUGPT = Parametrization(
    name="nugpt",
    family="normalized",
    base=Power(data=F(-1, 3)),
    rows={
        "input": Row(lr=Power(width=F(-1, 2))),
        "hidden": Row(lr=Power(width=F(-3, 4))),
        "output": Row(lr=Power(width=F(-3, 4)), multiplier_log2=F(-1)),
        **_rescalers(Power(ALPHA, depth=F(-1)), CONSTANT, s_z_init=Power(width=F(1, 2))),
    },
)

# Table 2, column νGPT (full align): max(α, ν) = 1.
NUGPT_FULL_ALIGN = Parametrization(
    name="nugpt-full-align",
    family="normalized",
    base=Power(data=F(-1, 3)),
    rows={
        "input": Row(lr=Power(width=F(-1, 2))),
        "hidden": Row(lr=Power(width=F(-1))),
        "output": Row(lr=Power(width=F(-1))),
        **_rescalers(Power(ALPHA, depth=F(-1)), CONSTANT, s_z_init=Power(width=F(1, 2))),
    },
)

# CompleteP for pre-norm transformers (Dey et al. 2025, their Table 1 with depth exponent 1), for core/baseline.py.
SIGMA = 0.02  # CHOICE: initial standard deviation of every matrix at the base
PRENORM_COMPLETEP = Parametrization(
    name="prenorm-completep",
    family="prenorm",
    weight_decay=0.1,
    rows={
        "input": Row(init=Power(SIGMA), weight_decay=ONE, eps=Power(width=F(-1))),
        "hidden": Row(
            lr=Power(width=F(-1)),
            init=Power(SIGMA, width=F(-1, 2)),
            weight_decay=Power(width=F(1)),
            eps=Power(width=F(-1), depth=F(-1)),
        ),
        "output": Row(init=Power(SIGMA), weight_decay=ONE, eps=Power(width=F(-1))),
        "norm": Row(init=ONE, eps=Power(width=F(-1), depth=F(-1))),  # CHOICE: the last norm as those of the blocks
    },
    forward={"residual": Power(depth=F(-1)), "logit": Power(width=F(-1))},
)

TABLES: dict[str, Parametrization] = {
    table.name: table for table in (NGPT, DEPTH_MUP, COMPLETEP, NUGPT, NUGPT_FULL_ALIGN, PRENORM_COMPLETEP)
}
PAPER_TABLES = ("ngpt", "depth-mup", "completep", "nugpt", "nugpt-full-align")


def parametrization(name: str) -> Parametrization:
    """The table of this name."""
    if not isinstance(name, str) or name not in TABLES:
        raise ValueError(f"unknown parametrization {name!r}, known are {', '.join(TABLES)}, or a path ending in .toml")
    return TABLES[name]


def symbolic(power: Power, batch: F | None = None) -> str:
    """A cell as the paper prints it, such as `0.05·m_depth^(-1)`."""
    factors = [] if power.coefficient == 1 else [f"{power.coefficient:g}"]
    exponents: dict[str, Any] = {
        "m_width": power.width,
        "m_depth": power.depth,
        "m_data": power.data,
        "m_batch": batch or F(0),
        "d_model": power.d_model,
        "c": power.rescaler_scale,
    }
    for symbol, to in exponents.items():
        if to:
            factors.append(symbol if to == 1 else f"{symbol}^({to})")
    return "·".join(factors) or "1"
