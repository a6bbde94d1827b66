"""Plans in a store: the plan itself, how it was launched, and what was added to its grid."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nugpt.spec.plan import Curve, Plan
from nugpt.spec.run import RunSpec
from nugpt.store.atomic import read_json, write_json
from nugpt.store.run_directory import Store


@dataclass(frozen=True)
class Addition:
    """A learning rate that a curve's results called for."""

    curve: str  # the curve's key
    log2_lr: float
    reason: str


class OtherPlan(ValueError):
    """A store has another plan of the same name."""


class PlanDirectory:
    """`plans/NAME` of a store."""

    def __init__(self, path: Path, store: Store | None = None) -> None:
        self.path = path
        self.store = store or Store(path.parent.parent)  # given where it knows more than its folder, as of an archive

    @classmethod
    def of(cls, store: Store, plan: Plan) -> PlanDirectory:
        """The directory of this plan, made if it is new; another plan of the same name is refused."""
        store.check_runs_here()
        check_name_free(store, plan)
        directory = cls(store.root / "plans" / plan.name, store)
        directory.path.mkdir(parents=True, exist_ok=True)
        if not (directory.path / "plan.json").is_file():
            write_json(directory.path / "plan.json", plan.to_dict())
        return directory

    def plan(self) -> Plan:
        """The plan as it was first made."""
        path = self.path / "plan.json"
        if not path.is_file():
            why = "it has no plan.json" if self.path.is_dir() else "there is no such directory"
            raise ValueError(f"{self.path} is no plan: {why}, give STORE/plans/NAME")
        values = read_json(path)
        try:
            return Plan.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def additions(self) -> list[Addition]:
        """What was added to the grid, in the order of curves and learning rates."""
        paths = sorted((self.path / "added").glob("*.json"))
        found = {a for path in paths for a in additions_of(path, read_json(path))}
        return sorted(found, key=lambda a: (a.curve, a.log2_lr, a.reason))

    def add(self, additions: Sequence[Addition]) -> None:
        """Record what one curve calls for, all of it or nothing; several workers may come to the same."""
        if not additions:
            return
        (self.path / "added").mkdir(exist_ok=True)
        path = self.path / "added" / f"{additions[0].curve}_{additions[0].log2_lr:+.6f}.json"
        if not path.exists():
            write_json(path, [asdict(addition) for addition in additions])

    def settle(self, points: int) -> None:
        """Record that all runs of a grid of so many points have ended and that they called for nothing more.

        The caller says how many it has looked at: another worker may have added some since.
        """
        path = self._settled(points)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_json(path, [])

    def settled(self) -> bool:
        """Whether that was so once: another way of fitting, or another machine's rounding, does not reopen a plan."""
        return self._settled(sum(len(grid) for _, grid in self._grids())).is_file()

    def _settled(self, points: int) -> Path:
        """Named by the size of the grid, so that points which come from elsewhere are looked at again."""
        return self.path / "added" / f"nothing-after-{points}.json"

    def _grids(self) -> list[tuple[Curve, list[float]]]:
        """The learning rates of every curve, added ones included."""
        plan, added = self.plan(), self.additions()
        return [
            (curve, sorted({*curve.log2_lrs, *(a.log2_lr for a in added if a.curve == curve.key)}))
            for curve in plan.curves
        ]

    def specs(self) -> list[RunSpec]:
        """Every run of the plan, added ones included."""
        return [spec for curve, grid in self._grids() for spec in curve.runs(grid).values()]

    def write_launch(self, values: dict[str, Any]) -> None:
        """Keep how the plan is run: where the data lies, device and kernels."""
        write_json(self.path / "launch.json", values)

    def launch(self) -> dict[str, Any]:
        """How the plan is run."""
        path = self.path / "launch.json"
        if not path.is_file():
            raise ValueError(f"plan {self.path} was never launched: it has no launch.json")
        values = read_json(path)
        if not isinstance(values, dict) or not {"data", "options"} <= set(values):
            raise ValueError(f"{path}: not how a plan is launched: it has no data and options")
        if not isinstance(values["data"], str) or not isinstance(values["options"], dict):
            raise ValueError(f"{path}: not how a plan is launched: data or options is of the wrong form")
        return values


def additions_of(where: Path | str, values: Any) -> list[Addition]:
    """The additions of one file, refused with its name when they are not of that form."""
    try:
        found = [Addition(**value) for value in values]
        if not all(isinstance(a.curve, str) and isinstance(a.reason, str) and math.isfinite(a.log2_lr) for a in found):
            raise TypeError("a field has the wrong type")
    except TypeError as error:
        raise ValueError(f"{where}: not additions to a grid: {error}") from None
    return found


def check_name_free(store: Store, plan: Plan) -> None:
    """Refuse a plan whose name another one has in this store."""
    there = PlanDirectory(store.root / "plans" / plan.name, store)
    if (there.path / "plan.json").is_file() and (found := there.plan()).hash != plan.hash:
        differs = _first_difference(found.to_dict(), plan.to_dict())
        raise OtherPlan(
            f"plan {plan.name!r} in {store.root} is not the one asked for ({differs}): choose another name or store"
        )


def plans(store: Store) -> list[PlanDirectory]:
    """The store's plans by name."""
    root = store.root / "plans"
    if not root.is_dir():
        return []
    names = [name for name in sorted(os.listdir(root)) if (root / name / "plan.json").is_file()]
    return [PlanDirectory(root / name, store) for name in names]


def _first_difference(there: Any, asked: Any, name: str = "plan") -> str:
    """Where two trees of plain values part, in words."""
    if isinstance(there, dict) and isinstance(asked, dict):
        pairs = [(there.get(key), asked.get(key), key) for key in dict.fromkeys((*there, *asked))]
    elif isinstance(there, list) and isinstance(asked, list) and any(isinstance(x, dict) for x in there + asked):
        if len(there) != len(asked):
            return f"{len(there)} {name} there, {len(asked)} here"
        pairs = [(*pair, name) for pair in zip(there, asked, strict=True)]
    else:
        return f"{name} is {there} there and {asked} here"
    return next((_first_difference(*pair) for pair in pairs if pair[0] != pair[1]), f"{name} is written otherwise")
