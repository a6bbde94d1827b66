"""A plan: curves of runs that differ in learning rate and seed, and how their grid may grow."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nugpt.spec.checks import check_format, make_plain, plain, whole
from nugpt.spec.run import RunSpec

FORMAT = 1
Label = Mapping[str, str | int | float]
# `runs`: the hashes that follow from the rest, which a plan printed as JSON has beside it.
_FIELDS = frozenset({"format", "name", "study", "scale", "policy", "curves", "runs"})
_CURVE_FIELDS = frozenset({"label", "spec", "log2_lrs", "seeds", "fine"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def lr_at(log2_lr: float) -> float:
    """η at a place of the grid, rounded to 12 digits so that no platform's power function changes a run's hash."""
    if not math.isfinite(log2_lr) or abs(log2_lr) > 60:
        raise ValueError(f"log2 of a learning rate is {log2_lr!r}, but must be between -60 and 60")
    return float(f"{2.0**log2_lr:.12g}")


@dataclass(frozen=True)
class Curve:
    """Runs that differ in learning rate and seed only: what an optimum is read from."""

    label: Label = field(hash=False)  # what tells it from the plan's other curves, such as table and heads
    spec: RunSpec  # of every run, but for lr and seed
    log2_lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    fine: int = 2  # points of a refinement on either side of the optimum; fewer where runs are dear

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", {name: plain(value) for name, value in self.label.items()})
        if self.log2_lrs is not None:
            object.__setattr__(self, "log2_lrs", tuple(float(x) for x in self.log2_lrs))
        if self.seeds is not None:
            object.__setattr__(self, "seeds", tuple(plain(seed) for seed in self.seeds))
        for name in ("log2_lrs", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(
                    f"{name} of curve {dict(self.label)} is {values!r}, but must be values each named once"
                )
        object.__setattr__(self, "fine", whole(self.fine, f"fine of curve {dict(self.label)}", least=0))
        object.__setattr__(self, "log2_lrs", tuple(sorted(self.log2_lrs)))

    def run(self, log2_lr: float, seed: int) -> RunSpec:
        """The run of this curve at one learning rate and seed."""
        return self.spec.at(lr_at(log2_lr), seed)

    def runs(self, log2_lrs: Iterable[float] | None = None) -> dict[tuple[float, int], RunSpec]:
        """(log2 η, seed) → run, over the curve's grid or the one given."""
        grid = self.log2_lrs if log2_lrs is None else log2_lrs
        return {(x, seed): self.run(x, seed) for x in grid for seed in self.seeds}

    @property
    def key(self) -> str:
        """The hash of what its runs share."""
        return self.spec.at(1.0, 0).hash


@dataclass(frozen=True)
class StopRule:
    """When a run is hopeless: at `times` validations in a row, late enough, above the curve's best by a margin."""

    after: float = 0.3
    margin: float = 0.7  # nats above the best validation loss of the same curve and seed at the same step
    times: int = 2

    def __post_init__(self) -> None:
        make_plain(self, "times")
        if not 0 < self.after < 1 or not self.margin > 0 or self.times < 1:
            raise ValueError(f"stop rule {asdict(self)} needs 0 < after < 1, margin > 0, times of at least 1")


@dataclass(frozen=True)
class Policy:
    """How a plan goes on from what its runs show."""

    extend: int = 4  # points added at the most on each side of a curve whose best lies at the edge; 0: none
    spacing: float = 0.5  # octaves between points that are added there
    refine: tuple[float, ...] = ()  # then these spacings around the optimum, one after the other
    stop: StopRule | None = None

    def __post_init__(self) -> None:
        make_plain(self, "extend")
        if not isinstance(self.extend, int) or self.extend < 0:
            raise ValueError(f"extend is {self.extend!r}, but must be a whole number of at least 0")
        for name, octaves in (("spacing", self.spacing), *(("refine", octaves) for octaves in self.refine)):
            if not 0 < octaves <= 4:
                raise ValueError(f"{name} is {octaves!r} octaves, but must be above 0 and at most 4")


@dataclass(frozen=True)
class Plan:
    """What is to be run, under a name."""

    name: str
    curves: tuple[Curve, ...]
    policy: Policy = Policy()
    study: str | None = None
    scale: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"plan name {self.name!r} must be letters, digits, '.', '_' and '-', at most 100")
        keys = [curve.key for curve in self.curves]
        if len(set(keys)) != len(keys):
            twice = next(c for c in self.curves if keys.count(c.key) > 1)
            raise ValueError(f"plan {self.name!r} has the curve {dict(twice.label)} twice")

    def specs(self) -> list[RunSpec]:
        """Every run of the grid as first planned."""
        return [spec for curve in self.curves for spec in curve.runs().values()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` turns back into an equal plan."""
        return {
            "format": FORMAT,
            "name": self.name,
            "study": self.study,
            "scale": self.scale,
            "policy": asdict(self.policy),
            "curves": [
                {
                    "label": dict(curve.label),
                    "spec": curve.spec.to_dict(),
                    "log2_lrs": list(curve.log2_lrs),
                    "seeds": list(curve.seeds),
                    "fine": curve.fine,
                }
                for curve in self.curves
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that these values describe, refused when of another format."""
        if not isinstance(values, Mapping):
            raise ValueError("plan is not of the form of a plan")
        check_format("plan", values.get("format"), FORMAT)
        for there, known in [(values, _FIELDS), *((curve, _CURVE_FIELDS) for curve in _listed(values.get("curves")))]:
            if unknown := sorted(set(there) - known):
                raise ValueError(f"plan has an unknown field {unknown[0]!r}")
        try:
            policy = dict(values["policy"])
            stop = policy.pop("stop")
            curves = [
                Curve(
                    c["label"], RunSpec.from_dict(c["spec"]), tuple(c["log2_lrs"]), tuple(c["seeds"]), c.get("fine", 2)
                )
                for c in values["curves"]
            ]
            return cls(
                name=values["name"],
                curves=tuple(curves),
                policy=Policy(
                    **{**policy, "refine": tuple(policy["refine"])}, stop=None if stop is None else StopRule(**stop)
                ),
                study=values["study"],
                scale=values["scale"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"plan has a field of the wrong form: {error}") from None

    @property
    def hash(self) -> str:
        """16 digits that name the plan's content."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _listed(curves: Any) -> list[Mapping[str, Any]]:
    """Those of a plan's curves that are of the form of one; the others are refused where they are read."""
    return [curve for curve in curves if isinstance(curve, Mapping)] if isinstance(curves, list) else []
