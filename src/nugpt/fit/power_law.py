"""Power laws: of η* in iterations and batch, of the mean LERP α in depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nugpt.fit.interval import Interval, check_level
from nugpt.fit.regression import Line, fit_line


@dataclass(frozen=True)
class Observed:
    """One value of a law, log2 of it, where it was taken, and its own standard deviation if it has one."""

    at: Mapping[str, float] = field(hash=False)  # such as {"steps": 2000, "batch": 32}
    log2_value: float
    deviation: float | None = None
    independent: bool = False  # of the others' errors, as Optimum.independent

    def __post_init__(self) -> None:
        for name, value in self.at.items():
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} is {value!r}, but must be a finite number above 0")
        if not math.isfinite(self.log2_value):
            raise ValueError(f"log2_value is {self.log2_value!r}, but must be a finite number")


@dataclass(frozen=True)
class PowerLaw:
    """value = 2^constant · Π variable^exponent, each exponent with its interval."""

    exponents: Mapping[str, float] = field(hash=False)  # empty where the values do not determine them
    intervals: Mapping[str, Interval] = field(hash=False)
    constant: float | None
    values: int
    level: float
    notes: tuple[str, ...] = ()
    line: Line | None = field(default=None, repr=False, compare=False)

    def log2_at(self, at: Mapping[str, float]) -> tuple[float, Interval] | None:
        """log2 of the law's value at a place, with the interval of the law itself; none where there is no law."""
        if self.line is None:
            return None
        row = np.array([1.0, *(math.log2(at[name]) for name in self.exponents)])
        return self.line.at(row), self.line.interval_at(row, self.level)


def power_law(observed: Sequence[Observed], level: float = 0.90) -> PowerLaw:
    """The exponents of all variables jointly; a variable that does not vary is left out and named."""
    check_level(level)
    if not observed:
        raise ValueError("observed is empty, but must hold at least one value")
    names = sorted(observed[0].at)
    for one in observed:
        if sorted(one.at) != names:
            raise ValueError(f"a value is given at {sorted(one.at)}, but others at {names}: all must name the same")
    notes = [f"{name} does not vary" for name in names if len({one.at[name] for one in observed}) < 2]
    varies = [name for name in names if len({one.at[name] for one in observed}) > 1]
    rows = np.column_stack([np.ones(len(observed)), *(np.log2([one.at[name] for one in observed]) for name in varies)])
    own = [one.deviation for one in observed]
    deviations = np.array([d or 0.0 for d in own]) if all(d is not None for d in own) else None
    values = np.array([one.log2_value for one in observed])
    line = fit_line(rows, values, deviations, any(one.independent for one in observed)) if varies else None
    if line is None:
        notes.append(f"{len(observed)} values do not determine the exponents of {', '.join(varies) or 'anything'}")
        return PowerLaw({}, {}, None, len(observed), level, tuple(notes))
    return PowerLaw(
        exponents={name: float(line.coefficients[1 + i]) for i, name in enumerate(varies)},
        intervals={name: line.interval(1 + i, level) for i, name in enumerate(varies)},
        constant=float(line.coefficients[0]),
        values=len(observed),
        level=level,
        notes=tuple(notes),
        line=line,
    )


def lerp_power_law(alpha_by_depth: Mapping[int, Sequence[float]], level: float = 0.90) -> PowerLaw:
    """The exponent of the mean effective α in depth; each depth's seeds are averaged first, being paired."""
    observed = []
    for depth, alphas in sorted(alpha_by_depth.items()):
        usable = [alpha for alpha in alphas if math.isfinite(alpha) and alpha > 0]
        if usable:
            observed.append(Observed({"depth": float(depth)}, float(np.mean(np.log2(usable)))))
    if not observed:
        raise ValueError(f"alpha_by_depth is {dict(alpha_by_depth)!r}, but must hold a mean above 0")
    return power_law(observed, level)
