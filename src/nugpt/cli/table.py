"""`nugpt table`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import tyro

from nugpt.cli.shape import BaseShape, Length, Shape
from nugpt.cli.show import number, print_json, print_table
from nugpt.spec.parametrization import EPS, PAPER_TABLES, Parametrization, Power, symbolic
from nugpt.spec.resolve import Resolved, resolve
from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.table_file import load_table, table_to_dict, table_to_toml

PRESET = "paper-l12h12"


@dataclass(frozen=True)
class Target(Shape):
    """The model: a preset, and what differs from it."""

    # Empty where none is asked for: a target that is asked for is never left out of what is printed.
    preset: Annotated[str, tyro.conf.arg(help_behavior_hint=f"(default: {PRESET})")] = ""
    """SCALE-lLAYERShHEADS, with SCALE one of paper, evidence, lab, tiny (`nugpt count --list` shows some)."""


@dataclass(frozen=True)
class Table:
    """Print the parametrizations: symbolic, or as numbers with --resolve or any option of the target or its base."""

    parametrization: tuple[str, ...] = PAPER_TABLES
    """Built-in tables by name (also prenorm-completep), or paths of TOML files of your own."""
    resolve: bool = False
    """Print numbers for the target of --preset, --steps, --batch over its base."""
    lr: Annotated[float | None, tyro.conf.arg(help_behavior_hint="(default: 1.0)")] = None
    """The global learning rate η; at 1 the learning rates printed are factors on it."""
    shape: Target = Target()
    length: Length = Length()
    base: BaseShape = BaseShape()
    toml: bool = False
    """Print one table as a TOML file, to start a table of your own from."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the tables side by side."""
        asked = (self.lr, self.shape, self.length, self.base) != (None, Target(), Length(), BaseShape())
        if self.toml and (self.json or self.resolve or asked):
            raise ValueError("--toml prints the table itself: it goes with neither --json nor numbers for a target")
        if not self.parametrization:
            raise ValueError("--parametrization is empty, but must name a table or the path of a TOML file")
        tables = [load_table(name) for name in self.parametrization]
        if self.toml:
            if len(tables) != 1:
                raise ValueError(
                    f"--toml prints one table, but {len(tables)} are asked for: name it with --parametrization"
                )
            print(table_to_toml(tables[0]), end="")
        elif self.resolve or asked:
            self._print_resolved(tables)
        elif self.json:
            print_json({table.name: table_to_dict(table) for table in tables})
        else:
            constant = {table.eps for table in tables} == {EPS} and not any(_varies(table) for table in tables)
            columns = [_symbolic_column(table, with_eps=not constant) for table in tables]
            _print_columns([table.name for table in tables], columns)
            print("c is 0.03 at the paper's base and (base width)^(-1/2) at any other, unless set.")
        return 0

    def _print_resolved(self, tables: list[Parametrization]) -> None:
        shape = replace(self.shape, preset=self.shape.preset or PRESET)
        scale = shape.scale()
        base = self.base.resolve(scale)
        resolved = []
        for table in tables:
            extent = self.length.extent(scale, shape.model(table))
            resolved.append(resolve(table, base, extent, 1.0 if self.lr is None else self.lr))
        if self.json:
            print_json({r.table: r.to_dict() for r in resolved})
            return
        m = resolved[0].ratios
        print(
            f"m_width {number(m.width)}  m_depth {number(m.depth)}  m_data {number(m.data)}  m_batch {number(m.batch)}"
        )
        constant = {row.eps for r in resolved for row in r.rows.values()} == {EPS}
        columns = [_resolved_column(r, with_eps=not constant) for r in resolved]
        _print_columns([r.table for r in resolved], columns)


def _varies(table: Parametrization) -> bool:
    """Whether Adam's ε is not the same for every role at every target."""
    return any(row.eps != Power() for row in table.rows.values())


def _symbolic_column(table: Parametrization, with_eps: bool) -> dict[str, str]:
    """Quantity → cell, in the paper's words."""

    def cell(power: Power | None, of: str = "") -> str:
        if power is None:
            return "–"
        text = symbolic(power)
        return text if not of else of if text == "1" else f"{of}·{text}"

    factor = symbolic(table.base, table.batch)
    column = {"η_base": "η" if factor == "1" else f"η·{factor}"}
    for role, row in table.rows.items():
        column[f"η of {role}"] = cell(row.lr, "η_base")
    for role, row in table.rows.items():
        if role in RESCALER_ROLES or table.family == "prenorm":
            column[f"{role} init"] = cell(row.init)
        if role in RESCALER_ROLES:
            column[f"{role} scale"] = cell(row.scale)
    for name, power in table.forward.items():
        column[f"{name} multiplier"] = cell(power)
    for role, row in table.rows.items():
        if role not in RESCALER_ROLES or row.multiplier_log2:
            column[f"tuned multiplier of η of {role}"] = (
                "1" if not row.multiplier_log2 else f"2^({row.multiplier_log2})"
            )
    for role, row in table.rows.items():
        if row.weight_decay is not None:
            column[f"λ of {role}"] = cell(row.weight_decay, f"{table.weight_decay:g}")
    if with_eps:
        column |= {f"ε of {role}": cell(row.eps, f"{table.eps:g}") for role, row in table.rows.items()}
    return column


def _resolved_column(resolved: Resolved, with_eps: bool) -> dict[str, str]:
    column = {"η_base": number(resolved.lr_base)}
    for role, row in resolved.rows.items():
        column[f"η of {role}"] = number(row.lr)
    for role, row in resolved.rows.items():
        if row.init is not None:
            column[f"{role} init"] = number(row.init)
        if row.scale is not None:
            column[f"{role} scale"] = number(row.scale)
    column |= {f"gain of {name}": number(gain) for name, gain in resolved.gains.items()}
    for role, row in resolved.rows.items():
        if role not in RESCALER_ROLES or row.multiplier != 1:
            column[f"tuned multiplier of η of {role}"] = number(row.multiplier)
    column |= {f"λ of {role}": number(row.weight_decay) for role, row in resolved.rows.items() if row.weight_decay}
    if with_eps:
        column |= {f"ε of {role}": number(row.eps) for role, row in resolved.rows.items()}
    return column


def _print_columns(names: list[str], columns: list[dict[str, Any]]) -> None:
    quantities = list(dict.fromkeys(quantity for column in columns for quantity in column))
    print_table(["", *names], [[q, *(column.get(q, "") for column in columns)] for q in quantities])
