"""Synthetic sweeps that look like the real ones: a gentle slope, then a cliff; paired seeds; missing, diverged points.

Each family is a way for the loss to depend on u = log2 η − log2 η*, with its minimum at u = 0. `exponential` and
`two_powers` are of kinds that the estimator fits, the others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from nugpt.fit.points import Point

Array = NDArray[np.float64]
Shape = Callable[[Array], Array]


def exponential(rng: np.random.Generator) -> Shape:
    """A straight slope that grows slowly, and an exponential cliff."""
    s, k, q = rng.uniform(0.03, 0.1), rng.uniform(2.2, 4.0), rng.uniform(0.003, 0.03)
    return lambda u: s * (np.expm1(k * u) / k - u) + q * u**2


def two_powers(rng: np.random.Generator) -> Shape:
    """Different powers on either side; the left is never a straight line."""
    a, p = rng.uniform(0.04, 0.1), rng.uniform(1.3, 2.0)
    b, r = rng.uniform(0.2, 0.6), rng.uniform(2.0, 3.2)
    return lambda u: np.where(u < 0, a * np.abs(u) ** p, b * np.abs(u) ** r)


def two_exponentials(rng: np.random.Generator) -> Shape:
    """Too little training on the left, too much noise on the right: powers of η on both sides."""
    alpha, beta, curvature = rng.uniform(0.4, 1.2), rng.uniform(1.8, 3.5), rng.uniform(0.08, 0.3)
    b = curvature / (alpha * (alpha + beta))
    c = b * alpha / beta
    return lambda u: b * np.expm1(-alpha * u) + c * np.expm1(beta * u)


def parabola_and_wall(rng: np.random.Generator) -> Shape:
    """A shallow parabola and a wall that saturates, its foot a little to the right of the parabola's minimum."""
    a, foot = rng.uniform(0.03, 0.08), rng.uniform(0.2, 0.8)
    height, width = rng.uniform(1.5, 4.0), rng.uniform(0.12, 0.25)

    def raw(u: Array) -> Array:
        return a * u**2 + height / (1 + np.exp(-(u - foot - 2.5 * width) / width))

    at = float(minimize_scalar(lambda u: float(raw(np.asarray(u))), bounds=(-2, 1), method="bounded").x)
    return lambda u: raw(u + at) - raw(np.asarray(at))


def slope_and_hinge(rng: np.random.Generator) -> Shape:
    """A logarithm-like left that steepens away from the optimum, and a soft hinge on the right."""
    a, curve = rng.uniform(0.03, 0.09), rng.uniform(0.1, 0.5)
    steep, soft, foot = rng.uniform(0.8, 1.8), rng.uniform(0.1, 0.25), rng.uniform(0.1, 0.5)

    def raw(u: Array) -> Array:
        return a * (np.exp(-curve * u) - 1) / curve + steep * soft * np.logaddexp(0.0, (u - foot) / soft)

    at = float(minimize_scalar(lambda u: float(raw(np.asarray(u))), bounds=(-3, 2), method="bounded").x)
    return lambda u: raw(u + at) - raw(np.asarray(at))


def steep(rng: np.random.Generator) -> Shape:
    """Two exponentials that are much higher than usual: an octave off costs nats."""
    usual, times = two_exponentials(rng), rng.uniform(3.0, 20.0)
    return lambda u: times * usual(u)


def parabola(rng: np.random.Generator) -> Shape:
    """Both sides alike."""
    q = float(np.exp(rng.uniform(np.log(0.02), np.log(0.3))))
    return lambda u: q * np.asarray(u) ** 2


def left_exponential(rng: np.random.Generator) -> Shape:
    """The first family with its cliff on the left."""
    right = exponential(rng)
    return lambda u: right(-np.asarray(u))


def left_powers(rng: np.random.Generator) -> Shape:
    """Two powers with the cliff on the left."""
    right = two_powers(rng)
    return lambda u: right(-np.asarray(u))


def late_cliff(rng: np.random.Generator) -> Shape:
    """The same on both sides of the minimum, and a cliff that begins some way beyond it."""
    q, rise = (float(np.exp(rng.uniform(*np.log(ends)))) for ends in ((0.012, 0.08), (0.3, 3.0)))
    foot = rng.uniform(0.3, 1.3)
    return lambda u: q * np.asarray(u) ** 2 + rise * np.maximum(np.asarray(u) - foot, 0.0) ** 2


FAMILIES: dict[str, Callable[[np.random.Generator], Shape]] = {
    f.__name__: f for f in (exponential, two_powers, two_exponentials, parabola_and_wall, slope_and_hinge, steep)
}
MULTIPLIERS = {f.__name__: f for f in (parabola, left_exponential, left_powers)}  # what a multiplier's curve may be
UNLIKELY = {late_cliff.__name__: late_cliff}  # what the fit thinks unlikely before it sees a point
EVERY = FAMILIES | MULTIPLIERS | UNLIKELY
SPACINGS = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Sweep:
    """A sweep and the truth behind it."""

    points: tuple[Point, ...]
    log2_lr: float  # of the minimum of the expected curve
    shape: Shape
    loss: float  # expected at the minimum
    noise: float
    spacing: float


def sweep(
    rng: np.random.Generator,
    family: str,
    seeds: int,
    spacing: float,
    noise: float | None = None,
    *,
    optimum: float | None = None,
    shape: Shape | None = None,
    jitter: float = 0.0,
    missing: float = 0.04,
    seed_effects: Array | None = None,
    loss: float = 3.5,
) -> Sweep:
    """One sweep: the grid lies anywhere relative to the optimum; seeds shift whole curves; the cliff scatters more."""
    shape = EVERY[family](rng) if shape is None else shape
    noise = float(np.exp(rng.uniform(np.log(0.002), np.log(0.02)))) if noise is None else noise
    at = rng.uniform(-8.0, -6.0) if optimum is None else optimum
    left, right = rng.uniform(1.5, 3.0), rng.uniform(1.2, 2.2)
    first = np.floor((at - left) / spacing) * spacing + rng.uniform(0, spacing)
    grid = np.arange(first, at + max(right, spacing) + 1e-9, spacing)
    effects = rng.normal(0, 0.01, size=seeds) if seed_effects is None else seed_effects
    points = []
    for seed in range(seeds):
        moved = grid - at - (rng.normal(0, jitter) if jitter else 0.0)
        height = shape(moved)
        losses = loss + height + effects[seed] + rng.normal(size=len(grid)) * np.hypot(noise, 0.05 * height)
        for x, y, h in zip(grid, losses, height, strict=True):
            if rng.uniform() < missing:
                continue
            diverged = h > 2.5 or (h > 1.0 and rng.uniform() < 0.5)
            points.append(Point(float(x), None if diverged else float(y), seed, "diverged" if diverged else "done"))
    return Sweep(tuple(points), at, shape, loss, noise, spacing)


def study(
    rng: np.random.Generator,
    family: str,
    seeds: int,
    optima: Array,
    *,
    same_shape: bool,
    spacing: float,
    jitter: float = 0.0,
    unshared: float = 0.0,
    losses: Sequence[float] | None = None,
    scatter: Array | None = None,
) -> list[Sweep]:
    """One sweep per size, with the same seeds, the optima as planted; seeds differ a little between sizes.

    All scatter alike, or each by `scatter` times the study's noise.
    """
    effects = rng.normal(0, 0.01, size=seeds)
    noise = float(np.exp(rng.uniform(np.log(0.002), np.log(0.02))))
    loud = np.ones(len(optima)) if scatter is None else scatter
    shape = EVERY[family](rng) if same_shape else None
    return [
        sweep(
            rng,
            family,
            seeds,
            spacing,
            noise * float(times),
            optimum=float(at),
            shape=shape,
            jitter=jitter,
            seed_effects=effects + rng.normal(0, unshared, size=seeds),
            loss=loss,
        )
        for at, loss, times in zip(optima, losses or [3.5] * len(optima), loud, strict=True)
    ]
