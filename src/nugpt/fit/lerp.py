"""The power of depth that the mean effective LERP coefficients follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nugpt.fit.measured import group_key
from nugpt.fit.power_law import PowerLaw, lerp_power_law
from nugpt.spec.run import RunSpec


@dataclass(frozen=True)
class LerpLaw:
    """A coefficient's power law among runs that differ in depth and seed alone."""

    name: str  # of the runs
    role: str
    spread: float  # standard deviation over mean of the components, averaged over the runs
    depths: tuple[int, ...]
    law: PowerLaw

    @property
    def exponent(self) -> float | None:
        """None where the depths do not determine it."""
        return self.law.exponents.get("depth")

    @property
    def text(self) -> str:
        """In words, on one line."""
        depths = ", ".join(map(str, self.depths))
        start = f"{self.name}, {self.role}, depths {depths}: spread over components {self.spread:.0%} of the mean; "
        if self.exponent is None:
            return start + "no power law: it needs three depths or more"
        low, high = self.law.intervals["depth"]
        return start + f"mean ∝ depth^{self.exponent:.2f} ({low:.2f} to {high:.2f}, {self.law.level:.0%} interval)"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        interval = self.law.intervals.get("depth")
        bounded = interval is not None and all(map(math.isfinite, interval))
        return {
            "runs": self.name,
            "role": self.role,
            "depths": list(self.depths),
            "spread": self.spread,
            "exponent": self.exponent,
            "interval": list(interval) if interval is not None and bounded else None,
            "level": self.law.level,
        }


def lerp_laws(runs: Sequence[tuple[RunSpec, Mapping[str, Any]]], level: float = 0.90) -> list[LerpLaw]:
    """One law for each coefficient of each set of runs of one table, width, length and learning rate."""
    groups: dict[tuple[Any, ...], list[tuple[RunSpec, Mapping[str, Any]]]] = {}
    for spec, lerp in runs:
        key = (group_key(spec), spec.model.d_model, spec.steps, spec.batch, spec.lr)
        groups.setdefault(key, []).append((spec, lerp))
    found = []
    for members in groups.values():
        spec = members[0][0]
        name = f"{spec.table.name}, width {spec.model.d_model}, {spec.steps} steps, η {spec.lr:.6g}"
        for role in members[0][1]:
            means: dict[int, list[float]] = {}
            for one, lerp in members:
                means.setdefault(one.model.n_layers, []).append(lerp[role]["mean"])
            spread = sum(lerp[role]["std"] / lerp[role]["mean"] for _, lerp in members) / len(members)
            found.append(LerpLaw(name, role, spread, tuple(sorted(means)), lerp_power_law(means, level)))
    return found
