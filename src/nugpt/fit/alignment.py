"""From measured alignment exponents to the width exponent that they imply, with its error.

A measured exponent holds a constant factor: at one width, a factor of 2 moves it by 1/log2 d_in. The slope of
exponent · log2 d_in over log2 width does not have it, so across three widths or more the slope is the estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.interval import Interval, check_level
from nugpt.fit.regression import fit_line
from nugpt.fit.verdict import Estimate
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.run import RunSpec

QUANTITIES = ("alpha", "omega", "nu")
PARTS = ("hidden", "output")
OUTPUT = "E_out"
LARGER = "max(alpha, nu)"  # what the width exponents of η_hidden and η_output follow
REGIMES = {0.5: "no alignment", 0.75: "mid alignment", 1.0: "full alignment"}  # paper, Definition 2
FEWEST_WIDTHS = 3
SLOPE = "slope over width"  # an exponent as a power of width, without the constant factor that one width holds
FIRST_STEPS = 4  # what "first steps" means: μP's own reasoning is about one or two
START, END = 0.1, 0.8  # shares of a run up to which, and from which on, a measurement is of its start or end
# CHOICE: measurements are log-spaced, so "uniform" gives each the steps since the one before, not one vote.
WEIGHTINGS = {
    "uniform": "every step of the run counts the same",
    "loss": "a measurement counts by how far the loss fell since the one before",
    "first": f"the first {FIRST_STEPS} steps alone",
}


@dataclass(frozen=True)
class AlignmentRun:
    """What was measured in one run."""

    id: str
    width: int  # d_model
    layers: int
    seed: int
    steps: int  # of the whole run
    d_in: Mapping[str, int] = field(hash=False)  # by matrix
    rows: tuple[Mapping[str, Any], ...] = field(hash=False, repr=False)  # of metrics, in the order of steps
    lr: float | None = None  # none where it does not matter
    began: str | None = None  # the kind of weights that it was given; with them, step 0 is another


def alignment_run(spec: RunSpec, rows: Sequence[Mapping[str, Any]]) -> AlignmentRun | None:
    """The alignment rows among a run's metrics; none where it was not measured."""
    found = {row["step"]: row for row in rows if row.get("kind") == "alignment"}
    if not found:
        return None
    kept = tuple(found[step] for step in sorted(found))
    model = spec.model
    d_in = {matrix: model.d_mlp if matrix == "W_oMLP" else model.d_model for matrix in kept[0]["alpha"]}
    return AlignmentRun(
        spec.hash, model.d_model, model.n_layers, spec.seed, spec.steps, d_in, kept, spec.lr, spec.began
    )


def at_one_rate(runs: Sequence[AlignmentRun]) -> list[AlignmentRun]:
    """Of runs of several learning rates, those of one: measured at the most widths and seeds, then of the lowest loss.

    An exponent depends on η, so runs of several are no repetitions of each other.
    """
    by_rate: dict[float | None, list[AlignmentRun]] = {}
    for run in runs:
        by_rate.setdefault(run.lr, []).append(run)

    def rank(members: list[AlignmentRun]) -> tuple[int, int, float]:
        losses = [loss for run in members if (loss := run.rows[-1].get("loss")) is not None]
        loss = float(np.mean(losses)) if len(losses) == len(members) else math.inf
        return -len({run.width for run in members}), -len(members), loss

    return min(by_rate.values(), key=rank, default=[])


def matrices(run: AlignmentRun, part: str) -> list[str]:
    """The matrices that "hidden" or "output" means."""
    if part not in PARTS:
        raise ValueError(f"part is {part!r}, but must be one of {', '.join(PARTS)}")
    return [matrix for matrix in run.d_in if (matrix == OUTPUT) == (part == "output")]


def weights(run: AlignmentRun, weighting: str) -> list[float]:
    """What each measurement counts: by one of WEIGHTINGS, or by its place, `start` or `end`."""
    steps = [row["step"] for row in run.rows]
    if weighting == "uniform":
        return [float(now - before) for before, now in zip([0, *steps], steps, strict=False)]
    if weighting == "loss":
        losses = [run.rows[0].get("loss_0"), *(row.get("loss") for row in run.rows)]
        pairs = pairwise(losses)
        return [max(0.0, b - a) if a is not None and b is not None else 0.0 for b, a in pairs]
    if weighting == "first":
        return [float(step <= FIRST_STEPS) for step in steps]
    if weighting == "start":
        return [float(step <= max(1.0, START * run.steps)) for step in steps]
    if weighting == "end":
        return [float(step >= END * run.steps) for step in steps]
    raise ValueError(f"weighting is {weighting!r}, but must be one of {', '.join(WEIGHTINGS)}, start or end")


def layer_means(
    run: AlignmentRun, quantity: str, part: str, weighting: str, scaled: bool = False, per_token: bool = False
) -> list[float | None]:
    """An exponent layer by layer: averaged over steps by the weighting, then over the part's matrices.

    `scaled`: times log2 d_in, which is what goes with log2 width in a straight line.
    """
    weight = weights(run, weighting)
    of = [row["per_token"][quantity] if per_token else row[quantity] for row in run.rows]
    found = []
    for layer in range(run.layers if part == "hidden" else 1):
        means = []
        for matrix in matrices(run, part):
            values = [row[matrix][layer] for row in of]
            pairs = [(v, w) for v, w in zip(values, weight, strict=True) if v is not None and w > 0]
            if pairs:
                mean = sum(v * w for v, w in pairs) / sum(w for _, w in pairs)
                means.append(mean * math.log2(run.d_in[matrix]) if scaled else mean)
        found.append(float(np.mean(means)) if means else None)
    return found


@dataclass(frozen=True)
class Implied:
    """The exponent of one part under one weighting: at each width as it is, and as a slope across widths."""

    part: str
    quantity: str  # alpha, omega or nu; for the larger of α and ν, which one that is
    weighting: str
    at_widths: tuple[tuple[int, Estimate], ...]
    slope: Estimate | None  # none below three widths
    per_token: Estimate | None  # the slope, or the value at the one width, with each token's own norms: a check
    runs: tuple[str, ...] = ()  # those that the slope is of: of seeds that were measured at every width of it

    @property
    def estimate(self) -> Estimate | None:
        """The slope, or the value at the widest model where there is none."""
        return self.slope or (self.at_widths[-1][1] if self.at_widths else None)

    @property
    def regimes(self) -> tuple[float, ...]:
        """Those of 1/2, 3/4 and 1 that the slope's interval contains."""
        return () if self.slope is None else tuple(r for r in REGIMES if self.slope.interval.contains(r))

    @property
    def reading(self) -> str:
        """What it says about the three regimes, in words."""
        if self.slope is None:
            return f"{self._too_few}: not decided here"
        if len(self.regimes) == 1:
            return f"{REGIMES[self.regimes[0]]} ({self.regimes[0]:g})"
        if not self.regimes:
            low, high = self.slope.interval
            below, above = [r for r in REGIMES if r < low], [r for r in REGIMES if r > high]
            if not below or not above:
                return f"{'below' if above else 'above'} all of 1/2, 3/4 and 1"
            return f"between {max(below):g} and {min(above):g}"
        which = "both" if len(self.regimes) == 2 else "all"
        return "not decided here: " + ", ".join(f"{r:g}" for r in self.regimes) + f" {which} lie in the interval"

    @property
    def _too_few(self) -> str:
        """Why there is no slope."""
        if len(self.at_widths) < FEWEST_WIDTHS:
            return f"{len(self.at_widths)} of the {FEWEST_WIDTHS} widths that a slope needs"
        return f"no seed was measured at the {FEWEST_WIDTHS} widths that a slope needs"

    @property
    def width_exponent(self) -> float:
        """The slope, where there is one to derive a table from."""
        if self.slope is None or self.slope.value is None:
            raise ValueError(
                f"{self.part}: {self._too_few}, and a table is derived from a slope: the exponent at one width holds "
                "an unknown factor"
            )
        return self.slope.value


def implied(
    runs: Sequence[AlignmentRun], part: str, weighting: str, quantity: str = LARGER, level: float = 0.90
) -> Implied:
    """What runs that differ in width and seed alone say about an exponent."""
    check_level(level)
    if not runs:
        raise ValueError("runs is empty, but must hold at least one measured run")
    (width, seed), n = Counter((run.width, run.seed) for run in runs).most_common(1)[0]
    if n > 1:  # of several learning rates, for instance: one would silently stand for the others
        raise ValueError(f"{n} runs are of width {width} and seed {seed}, but must differ in width or seed")
    if quantity == LARGER:
        both = [implied(runs, part, weighting, one, level) for one in _quantities(quantity)]
        # CHOICE: the larger of two averages, as the paper writes it; the average of the larger would lie higher.
        return max(both, key=lambda one: _value(one.estimate))
    widths = sorted({run.width for run in runs})
    at_widths = []
    for width in widths:
        units = [
            v
            for run in runs
            if run.width == width
            for v in layer_means(run, quantity, part, weighting)
            if v is not None
        ]
        if units:
            at_widths.append((width, mean_estimate(units, level, f"width {width}, {part}")))
    slope, used = _slope(runs, quantity, part, weighting, level, per_token=False)
    per_token, _ = _slope(runs, quantity, part, weighting, level, per_token=True)
    if per_token is None:
        widest = [run for run in runs if run.width == widths[-1]]
        units = [
            v for run in widest for v in layer_means(run, quantity, part, weighting, per_token=True) if v is not None
        ]
        per_token = mean_estimate(units, level, part) if units else None
    return Implied(part, quantity, weighting, tuple(at_widths), slope, per_token, used)


def left_out(runs: Sequence[AlignmentRun], found: Sequence[Implied]) -> list[AlignmentRun]:
    """Those that stand in the columns of their widths and in no slope, where there is one."""
    used = {id for one in found for id in one.runs}
    return [run for run in runs if run.id not in used] if used else []


def _value(estimate: Estimate | None) -> float:
    return -math.inf if estimate is None or estimate.value is None else estimate.value


def mean_estimate(values: Sequence[float], level: float, where: str = "") -> Estimate:
    """A mean with a Student-t interval over the values; unbounded for one value."""
    mean, half = float(np.mean(values)), math.inf
    if len(values) > 1:
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        half = float(special.stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return Estimate(mean, Interval(mean - half, mean + half), level, where)


def _slope(
    runs: Sequence[AlignmentRun], quantity: str, part: str, weighting: str, level: float, per_token: bool
) -> tuple[Estimate | None, tuple[str, ...]]:
    """The slope over log2 width, with the wider of two intervals: over layers and seeds, and about the line.

    Layers of one run are not independent, and few widths may bend: neither interval alone would be honest. And the
    runs that it is of: as many widths as some seed has in full, then as many seeds as have them.
    """
    values: dict[tuple[int, int], dict[int, float]] = {}  # (seed, layer) → width → value
    for run in runs:
        for layer, v in enumerate(layer_means(run, quantity, part, weighting, scaled=True, per_token=per_token)):
            if v is not None:
                values.setdefault((run.seed, layer), {})[run.width] = v
    sets: set[frozenset[int]] = {frozenset(by) for by in values.values() if len(by) >= FEWEST_WIDTHS}
    if not sets:
        return None, ()

    def rank(some: frozenset[int]) -> tuple[int, int, list[int]]:
        return len(some), sum(some <= by.keys() for by in values.values()), sorted(some)

    most = max(sets, key=rank)
    widths = sorted(most)
    whole = {unit: by for unit, by in values.items() if most <= by.keys()}
    rows = np.column_stack([np.ones(len(widths)), np.log2(widths)])
    table = np.array([[by[width] for width in widths] for by in whole.values()])
    slopes = np.linalg.lstsq(rows, table.T, rcond=None)[0][1]
    line = fit_line(rows, table.mean(0))
    assert line is not None
    over = mean_estimate([float(s) for s in slopes], level).interval
    about = line.interval(1, level)
    wider = about if over.width < about.width or not math.isfinite(over.width) else over
    seeds = {seed for seed, _ in whole}
    used = tuple(run.id for run in runs if run.seed in seeds and run.width in most)
    return Estimate(float(slopes.mean()), wider, level, part), used


# ── Views, as the paper's figures have them ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Place:
    """A point of a figure: where, and the exponent there averaged over layers (and over seeds), with its spread."""

    x: float
    mean: float
    low: float  # the lowest and highest layer
    high: float


def over_steps(runs: Sequence[AlignmentRun], quantity: str, part: str) -> list[Place]:
    """An exponent against the step, averaged over layers."""
    return _over(runs, quantity, part, lambda row: float(row["step"]))


def over_loss(runs: Sequence[AlignmentRun], quantity: str, part: str) -> list[Place]:
    """An exponent against how far the loss has fallen since step 0, averaged over layers."""

    def fallen(row: Mapping[str, Any]) -> float | None:
        loss, loss_0 = row.get("loss"), row.get("loss_0")
        return None if loss is None or loss_0 is None else loss_0 - loss

    return sorted(_over(runs, quantity, part, fallen), key=lambda place: place.x)


def _over(runs: Sequence[AlignmentRun], quantity: str, part: str, x_of: Any) -> list[Place]:
    by_step: dict[int, list[tuple[float, list[float]]]] = {}
    for run in runs:
        for row in run.rows:
            x = x_of(row)
            layers = _layers_of(run, row, quantity, part)
            if x is not None and layers:
                by_step.setdefault(row["step"], []).append((x, layers))
    places = []
    for seen in by_step.values():
        values = [v for _, layers in seen for v in layers]
        places.append(Place(float(np.mean([x for x, _ in seen])), float(np.mean(values)), min(values), max(values)))
    return places


def _layers_of(run: AlignmentRun, row: Mapping[str, Any], quantity: str, part: str) -> list[float]:
    """One value for each layer: the mean over its matrices."""
    by_layer: dict[int, list[float]] = {}
    for matrix in matrices(run, part):
        for layer, value in enumerate(row[quantity][matrix]):
            if value is not None:
                by_layer.setdefault(layer, []).append(value)
    return [float(np.mean(values)) for values in by_layer.values()]


def over_layers(runs: Sequence[AlignmentRun], quantity: str) -> list[Place]:
    """A hidden exponent against the layer's index from 1, averaged over the steps of the run."""
    by_layer: dict[int, list[float]] = {}
    for run in runs:
        for layer, value in enumerate(layer_means(run, quantity, "hidden", "uniform"), 1):
            if value is not None:
                by_layer.setdefault(layer, []).append(value)
    return [Place(float(x), float(np.mean(v)), min(v), max(v)) for x, v in sorted(by_layer.items())]


# ── What a claim's rule judges, and the table that a measurement suggests ────────────────────────────────────────────


def claim_estimates(
    runs: Sequence[AlignmentRun], of: str, at: str | None, by: str | None, level: float
) -> list[Estimate]:
    """What a claim on an exponent is judged by: the slope where there are widths enough, else each width's value."""
    weighting = _weighting(at)
    if not runs:
        return []
    if by == "layer":
        return _by_layer(runs, of, weighting, level)
    found: list[Estimate] = []
    if by == "steps":
        for steps in sorted({run.steps for run in runs}):
            alike = claim_estimates([run for run in runs if run.steps == steps], of, at, None, level)
            found += [replace(one, where=f"{steps:,} steps, {one.where}") for one in alike]
        return found
    for part in PARTS:
        answer = implied(runs, part, weighting, of, level)
        slope = [replace(answer.slope, where=f"{part}, {SLOPE}")] if answer.slope is not None else []
        found += slope or [one for _, one in answer.at_widths]
    return found


def _weighting(at: str | None) -> str:
    found = {"end": "end", "loss-weighted": "loss", None: "uniform"}.get(at)
    if found is None:
        raise ValueError(f"at is {at!r}, but must be end or loss-weighted, or none for the whole run")
    return found


def _by_layer(runs: Sequence[AlignmentRun], of: str, weighting: str, level: float) -> list[Estimate]:
    """Each layer of the hidden matrices; its interval is over widths, or at one width over matrices and seeds."""
    found = []
    widths = "width " + ", ".join(map(str, sorted({run.width for run in runs})))
    for layer in range(min(run.layers for run in runs)):
        single = [_one_layer(run, layer) for run in runs]
        answer = implied(single, "hidden", weighting, of, level)
        if answer.slope is not None:
            found.append(replace(answer.slope, where=f"layer {layer + 1}, {SLOPE}"))
            continue
        units = [
            v
            for run in single
            for matrix in matrices(run, "hidden")
            for v in layer_means(_one_matrix(run, matrix), answer.quantity, "hidden", weighting)
            if v is not None
        ]
        if units:
            found.append(mean_estimate(units, level, f"layer {layer + 1}, {widths}"))
    return found


def _one_layer(run: AlignmentRun, layer: int) -> AlignmentRun:
    def cut(of: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
        return {m: values if m == OUTPUT else [values[layer]] for m, values in of.items()}

    rows = tuple(
        {**row, **{q: cut(row[q]) for q in QUANTITIES}, "per_token": {q: cut(row["per_token"][q]) for q in QUANTITIES}}
        for row in run.rows
    )
    return replace(run, layers=1, rows=rows)


def _one_matrix(run: AlignmentRun, matrix: str) -> AlignmentRun:
    return replace(run, d_in={matrix: run.d_in[matrix]})


def fall_estimates(runs: Sequence[AlignmentRun], of: str, level: float) -> list[Estimate]:
    """The exponent at the start of the run less that at its end, layer by layer, at each width.

    The start is the first tenth, where log-spaced measurements have one vote each. A constant factor drops out.
    """

    def larger(run: AlignmentRun, part: str, weighting: str) -> list[float | None]:
        """Layer by layer, the larger of the quantities there."""
        layers = zip(*(layer_means(run, quantity, part, weighting) for quantity in _quantities(of)), strict=True)
        return [max((v for v in values if v is not None), default=None) for values in layers]

    found = []
    for width in sorted({run.width for run in runs}):
        for part in PARTS:
            falls = [
                a - b
                for run in runs
                if run.width == width
                for a, b in zip(larger(run, part, "start"), larger(run, part, "end"), strict=True)
                if a is not None and b is not None
            ]
            if falls:
                found.append(mean_estimate(falls, level, f"width {width}, {part}"))
    return found


def change_estimates(runs: Sequence[AlignmentRun], of: str, at: str | None, level: float) -> list[Estimate]:
    """How an exponent, averaged over layers, changes per octave of a run's length: one slope for each width and seed.

    A constant factor, which a width's exponent holds, is the same at every length and drops out.
    """
    found = []
    for part in PARTS:
        values: dict[tuple[int, int], dict[int, float]] = {}  # (width, seed) → steps → value
        for run in runs:
            means = [_mean(layer_means(run, quantity, part, _weighting(at))) for quantity in _quantities(of)]
            if (largest := max((mean for mean in means if mean is not None), default=None)) is not None:
                values.setdefault((run.width, run.seed), {})[run.steps] = largest
        several = [by for by in values.values() if len(by) > 1]
        slopes = [float(np.polyfit(np.log2([*by]), [*by.values()], 1)[0]) for by in several]
        if slopes:
            found.append(mean_estimate(slopes, level, part))
    return found


def _quantities(of: str) -> tuple[str, ...]:
    """The exponents whose larger is meant, or the one."""
    return ("alpha", "nu") if of == LARGER else (of,)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def suggested_table(table: Parametrization, hidden: Implied, output: Implied, name: str) -> Parametrization:
    """The table with η_hidden and η_output ∝ m_width to minus the measured exponents, to the hundredth."""
    rows = dict(table.rows)
    for role, found in (("hidden", hidden), ("output", output)):
        exponent, lr = Fraction(-round(found.width_exponent * 100), 100), rows[role].lr
        # What η_base has of width, and a power of d_model itself, count as well: the row has the rest.
        others = table.base.over_width + lr.d_model
        rows[role] = replace(rows[role], lr=replace(lr, width=exponent - others))
    return replace(table, name=name, rows=rows)
