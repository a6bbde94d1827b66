"""`nugpt table`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nugpt.cli.shape import BaseShape, Length, Shape
from nugpt.cli.show import number, print_json, print_table
from nugpt.spec.parametrization import PAPER_TABLES, Parametrization, Power, symbolic
from nugpt.spec.resolve import Resolved, resolve
from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.table_file import load_table, table_to_dict, table_to_toml


@dataclass(frozen=True)
class Table:
    """Print the parametrizations: symbolic, or with --resolve as numbers for a base and a target."""

    parametrization: tuple[str, ...] = PAPER_TABLES
    """Built-in tables by name (also prenorm-completep), or paths of TOML files of your own."""
    resolve: bool = False
    """Print numbers for the target of --preset, --steps, --batch over its base."""
    lr: float = 1.0
    """The global learning rate η; at 1 the learning rates printed are factors on it."""
    shape: Shape = field(default_factory=lambda: Shape(preset="paper-l12h12"))
    length: Length = Length()
    base: BaseShape = BaseShape()
    toml: bool = False
    """Print one table as a TOML file, to start a table of your own from."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the tables side by side."""
        tables = [load_table(name) for name in self.parametrization]
        if self.toml:
            if len(tables) != 1:
                raise ValueError(
                    f"--toml prints one table, but {len(tables)} are asked for: name it with --parametrization"
                )
            print(table_to_toml(tables[0]), end="")
        elif self.resolve:
            self._print_resolved(tables)
        elif self.json:
            print_json({table.name: table_to_dict(table) for table in tables})
        else:
            columns = [_symbolic_column(table) for table in tables]
            _print_columns([table.name for table in tables], columns)
            print("c is 0.03 at the paper's base and (base width)^(-1/2) at any other, unless set.")
        return 0

    def _print_resolved(self, tables: list[Parametrization]) -> None:
        scale = self.shape.scale()
        base = self.base.resolve(scale)
        resolved = []
        for table in tables:
            extent = self.length.extent(scale, self.shape.model(table))
            resolved.append(resolve(table, base, extent, self.lr))
        if self.json:
            print_json({r.table: r.to_dict() for r in resolved})
            return
        m = resolved[0].ratios
        print(
            f"m_width {number(m.width)}  m_depth {number(m.depth)}  m_data {number(m.data)}  m_batch {number(m.batch)}"
        )
        _print_columns([r.table for r in resolved], [_resolved_column(r) for r in resolved])


def _symbolic_column(table: Parametrization) -> dict[str, str]:
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
        if role not in RESCALER_ROLES:
            column[f"tuned multiplier of η of {role}"] = (
                "1" if not row.multiplier_log2 else f"2^({row.multiplier_log2})"
            )
        if row.weight_decay is not None:
            column[f"λ of {role}"] = cell(row.weight_decay, f"{table.weight_decay:g}")
    return column


def _resolved_column(resolved: Resolved) -> dict[str, str]:
    column = {"η_base": number(resolved.lr_base)}
    for role, row in resolved.rows.items():
        column[f"η of {role}"] = number(row.lr)
    for role, row in resolved.rows.items():
        if row.init is not None:
            column[f"{role} init"] = number(row.init)
        if row.scale is not None:
            column[f"{role} scale"] = number(row.scale)
    column |= {f"gain of {name}": number(gain) for name, gain in resolved.gains.items()}
    return column


def _print_columns(names: list[str], columns: list[dict[str, Any]]) -> None:
    quantities = list(dict.fromkeys(quantity for column in columns for quantity in column))
    print_table(["", *names], [[q, *(column.get(q, "") for column in columns)] for q in quantities])
