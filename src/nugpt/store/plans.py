"""Plans in a store: the plan itself, how it was launched, and what was added to its grid."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nugpt.spec.plan import Plan
from nugpt.store.atomic import read_json, write_json
from nugpt.store.run_directory import Store


@dataclass(frozen=True)
class Addition:
    """A learning rate that a curve's results called for."""

    curve: str  # the curve's key
    log2_lr: float
    reason: str


class PlanDirectory:
    """`plans/NAME` of a store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, store: Store, plan: Plan) -> PlanDirectory:
        """The directory of this plan, made if it is new; another plan of the same name is refused."""
        directory = cls(store.root / "plans" / plan.name)
        directory.path.mkdir(parents=True, exist_ok=True)
        if not (directory.path / "plan.json").is_file():
            write_json(directory.path / "plan.json", plan.to_dict())
        elif directory.plan().hash != plan.hash:
            raise ValueError(
                f"plan {plan.name!r} in {store.root} is another one than asked for: choose another name or store"
            )
        return directory

    @property
    def store(self) -> Store:
        """The store the plan lies in."""
        return Store(self.path.parent.parent)

    def plan(self) -> Plan:
        """The plan as it was first made."""
        path = self.path / "plan.json"
        if not path.is_file():
            raise ValueError(f"{self.path} is no plan: it has no plan.json")
        return Plan.from_dict(read_json(path))

    def additions(self) -> list[Addition]:
        """What was added to the grid, in the order of curves and learning rates."""
        found = [Addition(**read_json(path)) for path in sorted((self.path / "added").glob("*.json"))]
        return sorted(found, key=lambda a: (a.curve, a.log2_lr))

    def add(self, addition: Addition) -> None:
        """Record an addition once; several workers may come to the same one."""
        (self.path / "added").mkdir(exist_ok=True)
        path = self.path / "added" / f"{addition.curve}_{addition.log2_lr:+.6f}.json"
        if not path.exists():
            write_json(path, asdict(addition))

    def write_launch(self, values: dict[str, Any]) -> None:
        """Keep how the plan is run: where the data lies, device and kernels."""
        write_json(self.path / "launch.json", values)

    def launch(self) -> dict[str, Any]:
        """How the plan is run."""
        path = self.path / "launch.json"
        if not path.is_file():
            raise ValueError(f"plan {self.path} was never launched: it has no launch.json")
        values = read_json(path)
        assert isinstance(values, dict)
        return values


def plans(store: Store) -> list[PlanDirectory]:
    """The store's plans by name."""
    root = store.root / "plans"
    if not root.is_dir():
        return []
    return [PlanDirectory(root / name) for name in sorted(os.listdir(root)) if (root / name / "plan.json").is_file()]
