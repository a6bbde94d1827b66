"""`nugpt explain`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from nugpt.cli.shape import BaseShape, Length, Shape
from nugpt.cli.show import number, print_json, print_table
from nugpt.spec.model import ModelConfig, parameter_shapes
from nugpt.spec.parametrization import EPS
from nugpt.spec.resolve import Resolved, resolve
from nugpt.spec.table_file import load_table


@dataclass(frozen=True)
class Explain:
    """Print, for every tensor of a model, what the parametrization does to it."""

    lr: float
    """The global learning rate η, before every factor."""
    parametrization: str = "nugpt"
    """A built-in table by name, or the path of a TOML file."""
    multiplier: dict[str, float] = field(default_factory=dict)
    """Role and factor on its learning rate, instead of the table's default: --multiplier output 0.5."""
    weight_decay: float | None = None
    """λ, instead of the table's."""
    shape: Shape = Shape()
    length: Length = Length()
    base: BaseShape = BaseShape()
    all: bool = False
    """List each block's tensors instead of naming a range of blocks once."""
    json: bool = False
    """Print JSON: every parameter exactly once."""

    def run(self) -> int:
        """Print the tensors."""
        table = load_table(self.parametrization)
        scale = self.shape.scale()
        model = self.shape.model(table)
        extent = self.length.extent(scale, model)
        base = self.base.resolve(scale)
        resolved = resolve(table, base, extent, self.lr, self.multiplier, self.weight_decay)
        tensors = explain(model, resolved)
        if self.json:
            print_json({"model": model.to_dict(), "resolved": resolved.to_dict(), "parameters": tensors})
            return 0
        m = resolved.ratios
        print(
            f"{table.name}: η {number(self.lr)}, η_base {number(resolved.lr_base)}   "
            f"m_width {number(m.width)}  m_depth {number(m.depth)}  m_data {number(m.data)}  m_batch {number(m.batch)}"
        )
        columns = ["parameter", "shape", "role", "sphere axis", "multiplier", "learning rate", "init", "scale", "gain"]
        more = [] if {t["weight_decay"] for t in tensors} == {0.0} else ["weight_decay"]
        more += [] if {t["eps"] for t in tensors} == {EPS} else ["eps"]
        listed = tensors if self.all else _blocks_as_one(tensors)
        rows = [_cells(tensor) + [number(tensor[key]) for key in more] for tensor in listed]
        titles = {"weight_decay": "λ", "eps": "ε"}
        print_table(columns + [titles[key] for key in more], rows, right=range(4, 9 + len(more)))
        return 0


def explain(model: ModelConfig, resolved: Resolved) -> list[dict[str, Any]]:
    """Every parameter of the model once: role, sphere axis, multiplier, applied learning rate, initial value, scale."""
    tensors = []
    for name, shape in parameter_shapes(model).items():
        assignment = model.roles(name)
        row = resolved[assignment.role]
        tensors.append(
            {
                "name": name,
                "shape": list(shape),
                "numel": math.prod(shape),
                "role": assignment.role,
                "sphere_axis": assignment.axis,
                "multiplier": row.multiplier,
                "lr": row.lr,
                "init": row.init,
                "scale": row.scale,
                "gain": None if row.scale is None else resolved.gains[assignment.role],
                "weight_decay": row.weight_decay,
                "eps": row.eps,
            }
        )
    return tensors


def _blocks_as_one(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for the same tensor of all blocks: they differ in nothing but their number."""
    last = max((int(n) for t in tensors for n in re.findall(r"^blocks\.(\d+)\.", t["name"])), default=0)
    firsts = [t for t in tensors if not re.match(r"blocks\.(?!0\.)", t["name"])]
    return [
        t | {"name": re.sub(r"^blocks\.0\.", f"blocks.0…{last}." if last else "blocks.0.", t["name"])} for t in firsts
    ]


def _cells(tensor: dict[str, Any]) -> list[str]:
    on_sphere = tensor["sphere_axis"] is not None
    return [
        tensor["name"],
        "×".join(map(str, tensor["shape"])),
        tensor["role"],
        str(tensor["sphere_axis"]) if on_sphere else "–",
        number(tensor["multiplier"]),
        number(tensor["lr"]),
        "unit vectors" if on_sphere else number(tensor["init"]),
        number(tensor["scale"]),
        number(tensor["gain"]),
    ]
