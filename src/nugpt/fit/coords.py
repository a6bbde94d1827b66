"""Coordinate checks: slopes of sizes over width and depth, a verdict for each, and the exponent at fault by name.

What should be flat is what the paper's desiderata ask for; where they leave a learning rate to the alignment of
weights and activations, that alignment is a number you give (3/4, the paper's, unless you measured another).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from nugpt.fit.interval import Interval, check_level
from nugpt.fit.regression import fit_line
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.roles import MATRIX_ROLES, RESCALER_ROLES

AXES = ("width", "depth")
FLAT, GROWS, FALLS, UNDECIDED = "flat", "grows", "falls", "not decided here"
# CHOICE: half of 1/4, the least by which two exponents of the paper's tables differ.
BOUND = 0.125
FEWEST_SIZES = 3
# CHOICE: a step of length t along a unit sphere ends t·(1 − 3t²/8) from where it began, so that a slope over width or
# depth reads 3t²/4 of itself too flat. At 0.3 that is 7 % of it, at 0.41 all of BOUND for a slope of 1.
LARGEST_SHARE = 0.3
MID_ALIGNMENT = 0.75
_MATRICES = {"input": "E_in", "hidden": "hidden matrices", "output": "E_out"}
STATES = ("h", "Δh", "logits", "Δlogits")  # what a model shows; the others say which role is at fault


@dataclass(frozen=True)
class Sized:
    """The sizes of one model: where it stands, at the start and after each step, by name."""

    width: int
    depth: int
    seed: int
    start: Mapping[str, float] = field(hash=False)
    steps: tuple[Mapping[str, float], ...] = field(hash=False)


@dataclass(frozen=True)
class SizeSlope:
    """How one size goes with width or depth, less how it should go."""

    quantity: str
    axis: str
    slope: float | None  # octaves of the size per octave of the axis, less what is wanted
    interval: Interval
    wanted: float
    slack: float  # how much more than that is still as it should be
    verdict: str
    sizes: tuple[tuple[int, float], ...]  # (width or depth, size), seeds and steps averaged, as measured


@dataclass(frozen=True)
class Mistake:
    """An exponent of a table that the sizes contradict."""

    role: str  # "base" where every learning rate is off alike
    cell: str  # lr, init or scale
    axis: str
    error: float  # how much higher the exponent is than what would be flat
    interval: Interval
    exponent: float  # what the table says
    wanted: float  # what would be flat, to the hundredth

    @property
    def text(self) -> str:
        """In words, on one line."""
        cell = "η_base" if self.role == "base" else f"{self.role}.{self.cell}"
        much = f"{abs(self.error):.2f} too {'high' if self.error > 0 else 'low'}"
        return f"{cell}: exponent of {self.axis} is {_written(self.exponent)}, {much}; {_written(self.wanted)} is flat"


@dataclass(frozen=True)
class TooLarge:
    """A role's matrices that moved so far around the sphere that no power law can be read from them."""

    role: str
    share: float  # of themselves, averaged over the steps as the sizes are: of the model where it is the most
    width: int
    depth: int

    @property
    def text(self) -> str:
        """In words, without the sentence around it."""
        return f"{_MATRICES[self.role]} by {self.share:.2f} at width {self.width}, depth {self.depth}"


@dataclass(frozen=True)
class CoordCheck:
    """Everything that a coordinate check says."""

    table: str
    alignment: float
    level: float
    slopes: tuple[SizeSlope, ...]
    mistakes: tuple[Mistake, ...]
    too_large: tuple[TooLarge, ...] = ()  # for each role whose steps were, in the order of MATRIX_ROLES

    @property
    def too_large_text(self) -> str:
        """Which matrices moved too far, on one line; nothing where none did."""
        if not self.too_large:
            return ""
        moved = "; ".join(one.text for one in self.too_large)
        return f"the steps are too large for a power law: moved by more than {LARGEST_SHARE} of themselves: {moved}"

    @property
    def passed(self) -> bool:
        """Whether every size is flat and no exponent is named."""
        return not self.mistakes and all(one.verdict == FLAT for one in self.slopes)

    @property
    def failed(self) -> bool:
        """Whether something is known to be wrong."""
        return bool(self.mistakes) or any(one.verdict in (GROWS, FALLS) for one in self.slopes)


def wanted_slope(quantity: str, axis: str, alignment: float) -> float:
    """What the desiderata ask of a size: 0 but for what a table makes go with width or depth."""
    kind, _, role = quantity.partition(" ")
    if axis == "width" and kind == "moved" and role in ("hidden", "output"):
        return 0.5 - alignment  # ‖ΔW‖_F/‖W‖_F · d^(alignment − 1/2) is what reaches W h, as a share of it
    if axis == "width" and quantity == "init s_z":
        return 0.5  # E_out h alone falls as width^(-1/2)
    if axis == "depth" and quantity in ("init alpha_A", "init alpha_M"):
        return -1.0  # so many blocks share one path
    return 0.0


def allowed_slack(quantity: str, axis: str, alignment: float) -> float:
    """How much faster than flat a change may grow: in the first steps weights and inputs are aligned up to 1."""
    # CHOICE: a table made for a lower alignment lets what the weights change grow so long by width^(1 − alignment).
    return 1.0 - alignment if axis == "width" and quantity in ("Δh", "Δlogits") else 0.0


def check_alignment(alignment: float) -> None:
    """Refuse what no alignment can be."""
    if not 0.5 <= alignment <= 1:
        raise ValueError(f"alignment is {alignment!r}, but must be a number from 0.5 to 1")


def check_coordinates(
    table: Parametrization, models: Sequence[Sized], alignment: float = MID_ALIGNMENT, level: float = 0.90
) -> CoordCheck:
    """Slopes over width among models of one depth, over depth among models of one width, and what they contradict."""
    check_level(level)
    check_alignment(alignment)
    if not models:
        raise ValueError("models is empty, but must hold the sizes of at least one model")
    slopes, far = [], []
    for axis in AXES:
        row = _along(models, axis)
        far += (found := _too_large(row))
        bent = {one.role for one in found}
        for quantity in _quantities(models[0]):
            slope = _size_slope(quantity, axis, row, alignment, level)
            slopes.append(replace(slope, verdict=UNDECIDED) if _bent(quantity, bent) else slope)
    most = {one.role: one for one in sorted(far, key=lambda one: one.share)}
    worst = tuple(most[role] for role in MATRIX_ROLES if role in most)
    return CoordCheck(table.name, alignment, level, tuple(slopes), _mistakes(table, slopes), worst)


def not_a_number(model: Sized) -> str | None:
    """A size of the model that is no finite number, in words; none where all are."""
    for step, sizes in enumerate((model.start, *model.steps)):
        wrong = next((name for name, size in sizes.items() if not math.isfinite(size)), None)
        if wrong is not None:
            when = f"after step {step}" if step else "before the first step"
            return f"width {model.width}, depth {model.depth}, seed {model.seed}: {wrong} is no number {when}"
    return None


def _too_large(row: Sequence[Sized]) -> list[TooLarge]:
    """Each role whose matrices moved too far in a model of the row, where they moved the furthest."""
    found = []
    for role in MATRIX_ROLES:
        moved = [(log2, model) for model in row if (log2 := _log_size(model, f"moved {role}")) is not None]
        if moved:
            log2, model = max(moved, key=lambda one: one[0])
            if 2**log2 > LARGEST_SHARE:
                found.append(TooLarge(role, 2**log2, model.width, model.depth))
    return found


def _bent(quantity: str, roles: Set[str]) -> bool:
    """Whether a size follows from how these roles' matrices moved: their own movement, and every state and logit."""
    kind, _, role = quantity.partition(" ")
    return bool(roles) if not role else kind == "moved" and role in roles


def _along(models: Sequence[Sized], axis: str) -> list[Sized]:
    """The models that differ along one axis alone: of the other's value that has the most of them."""
    other = AXES[1 - AXES.index(axis)]
    by_other: dict[int, list[Sized]] = {}
    for model in models:
        by_other.setdefault(getattr(model, other), []).append(model)
    return max(by_other.values(), key=lambda row: len({getattr(m, axis) for m in row}))


def _quantities(model: Sized) -> list[str]:
    return [*(name for name in model.start if " " in name), *model.steps[0]]


def _log_size(model: Sized, quantity: str) -> float | None:
    """log2 of a size: at the start, or averaged over the steps taken; none where it is zero or not finite."""
    sizes = [step[quantity] for step in model.steps] if quantity in model.steps[0] else [model.start[quantity]]
    if not all(math.isfinite(size) and size > 0 for size in sizes):
        return None
    return float(np.mean(np.log2(sizes)))


def _size_slope(quantity: str, axis: str, row: Sequence[Sized], alignment: float, level: float) -> SizeSlope:
    wanted = wanted_slope(quantity, axis, alignment)
    known = [(getattr(m, axis), m.seed, y) for m in row if (y := _log_size(m, quantity)) is not None]
    places = sorted({x for x, _, _ in known})
    shown = tuple((x, 2 ** float(np.mean([y for at, _, y in known if at == x]))) for x in places)
    slack = allowed_slack(quantity, axis, alignment)
    unknown = SizeSlope(quantity, axis, None, Interval(-math.inf, math.inf), wanted, slack, UNDECIDED, shown)
    if len(places) < FEWEST_SIZES or len(known) < len(row):
        return unknown
    # One slope, and a level of its own for each seed: its data are the same at every size.
    seeds = sorted({seed for _, seed, _ in known})
    levels = [[float(seed == own) for _, seed, _ in known] for own in seeds]
    line = fit_line(np.column_stack([np.log2([x for x, _, _ in known]), *levels]), np.array([y for _, _, y in known]))
    if line is None:
        return unknown
    low, high = line.interval(0, level)
    off = Interval(low - wanted, high - wanted)
    slope = float(line.coefficients[0]) - wanted
    return SizeSlope(quantity, axis, slope, off, wanted, slack, _verdict(off, slack), shown)


def _verdict(off: Interval, slack: float) -> str:
    if off.inside(Interval(-BOUND, BOUND + slack)):
        return FLAT
    if off.low > BOUND + slack:
        return GROWS
    return FALLS if off.high < -BOUND else UNDECIDED


def _mistakes(table: Parametrization, slopes: Sequence[SizeSlope]) -> tuple[Mistake, ...]:
    """The exponents that are off: each cell of each role has one size that it alone moves."""
    found: list[Mistake] = []
    for axis in AXES:
        of = {one.quantity: one for one in slopes if one.axis == axis}
        rates = {role: of[f"moved {role}" if role in MATRIX_ROLES else f"stored {role}"] for role in table.rows}
        if _all_alike(list(rates.values())):
            off = [one.slope or 0.0 for one in rates.values()]
            low, high = (
                min(one.interval.low for one in rates.values()),
                max(one.interval.high for one in rates.values()),
            )
            error, says = float(np.mean(off)), float(getattr(table.base, axis))
            found.append(Mistake("base", "lr", axis, error, Interval(low, high), says, _hundredth(says - error)))
        else:
            found += [_mistake(table, role, "lr", one) for role, one in rates.items() if one.verdict in (GROWS, FALLS)]
        for role in (r for r in table.rows if r in RESCALER_ROLES):
            for cell in ("init", "scale"):
                if (one := of[f"{cell} {role}"]).verdict in (GROWS, FALLS):
                    found.append(_mistake(table, role, cell, one))
    return tuple(found)


def _all_alike(rates: Sequence[SizeSlope]) -> bool:
    """Whether every learning rate is off, and by the same: then it is what they share."""
    off = [one.slope for one in rates if one.verdict in (GROWS, FALLS) and one.slope is not None]
    return len(off) == len(rates) and max(off) - min(off) < BOUND


def _mistake(table: Parametrization, role: str, cell: str, one: SizeSlope) -> Mistake:
    power = getattr(table.rows[role], cell)
    says = power.over_width if one.axis == "width" else power.depth
    if cell == "lr":
        says += getattr(table.base, one.axis)
    assert one.slope is not None
    return Mistake(role, cell, one.axis, one.slope, one.interval, float(says), _hundredth(float(says) - one.slope))


def _hundredth(value: float) -> float:
    return round(value, 2) + 0.0  # no minus zero


def _written(exponent: float) -> str:
    """As a fraction where it is one of small numbers."""
    near = Fraction(exponent).limit_denominator(12)
    return str(near) if abs(float(near) - exponent) < 1e-9 else f"{exponent:.2f}"
