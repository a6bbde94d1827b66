"""The loss to expect of a target at its best η: a law of size and of data through the swept sizes, with its error.

L = E + A·x + B·y + C·x·y, where x = width^(−a) · layers^(−b) and y = steps^(−c) · batch^(−d)

Sizes count in multiples of their geometric mean over the swept ones. An axis that was swept at one size has no
exponent: its factor is 1, as it is at the target then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats would take most of a second to import

from nugpt.fit.curve import Mask
from nugpt.fit.interval import Array, Interval, central

# CHOICE: size and data each have a term, and what one is worth may depend on the other.
TERMS = (("width", "layers"), ("steps", "batch"))
# CHOICE: what is believed before any loss is seen. Roots of exponents up to √1.6, each as likely as another; how far
# sizes lie off the law (nats, deviation), from next to nothing to far more than seeds do, each octave as likely as
# another; E, A and B half normal, of the largest loss as deviation; C normal.
EXPONENTS = np.linspace(math.sqrt(0.05), math.sqrt(1.6), 12) ** 2
MISFITS = np.geomspace(0.0025, 0.32, 8)
TOGETHER = 0.2  # nats, the deviation of C
FEWEST = 3  # sizes
DRAWS, ROUNDS = 4000, 50


@dataclass(frozen=True)
class Known:
    """A swept size and the expected loss at its best η."""

    sizes: Mapping[str, float]
    loss: float
    deviation: float  # standard, of that loss


@dataclass(frozen=True)
class Forecast:
    """The expected loss of a target at its best η; none where nothing can be said, for the reason given."""

    loss: float | None
    interval: Interval | None
    level: float
    sizes: int  # swept sizes that it rests on; 1 where it is the goal's own loss
    why_not: str | None = None


def forecast(known: Sequence[Known], goal: Mapping[str, float], level: float = 0.90) -> Forecast:
    """The median and central interval of the loss at the goal, over all laws in proportion to how well they fit.

    A goal that was swept has its own loss.
    """
    there = [one for one in known if all(one.sizes[axis] == size for axis, size in goal.items())]
    if there:  # what was measured needs no law; of several sweeps of one size the surest counts
        best = min(there, key=lambda one: one.deviation)
        reach = best.deviation * float(special.ndtri((1 + level) / 2))
        return Forecast(best.loss, Interval(best.loss - reach, best.loss + reach), level, 1)
    missing = _missing(known, goal)
    if missing is not None:
        return Forecast(None, None, level, len(known), missing)
    draws = _draws(known, goal)
    if len(draws) < DRAWS // 10:
        return Forecast(None, None, level, len(known), "the losses do not fall with size and length as a law has it")
    return Forecast(float(np.median(draws)), central(draws, level), level, len(known))


def _missing(known: Sequence[Known], goal: Mapping[str, float]) -> str | None:
    """What was not swept and would have to be."""
    swept = {axis: {one.sizes[axis] for one in known} for axis in goal}
    fixed = [axis for axis, target in goal.items() if len(swept[axis]) == 1 and target not in swept[axis]]
    if fixed:
        return " and ".join(f"{axis} was swept at {swept[axis].pop():.10g} only" for axis in fixed)
    places = {tuple(one.sizes[axis] for axis in goal) for one in known}
    if len(places) < FEWEST:
        return f"the optimum is enclosed at {len(places)} of the swept sizes, but {FEWEST} are needed"
    return None


def _draws(known: Sequence[Known], goal: Mapping[str, float]) -> Array:
    """Losses at the goal by laws drawn from their posterior; each falls in x and y, at every swept size and the goal.

    Given exponents and misfit, the law is linear in E, A, B and C with normal errors: the posterior is a sum over a
    grid of those, of normal distributions of these.
    """
    axes = [axis for axis in goal if len({one.sizes[axis] for one in known}) > 1]
    losses = np.array([one.loss for one in known])
    cells = np.array(list(itertools.product(*[EXPONENTS] * len(axes), MISFITS)))
    misfit = cells[:, -1]
    terms = _terms(known, goal, dict(zip(axes, cells.T, strict=False)))
    columns, believed = [np.ones((len(cells), len(known) + 1)), *terms], [losses.max()] * (1 + len(terms))
    if len(terms) == 2:
        columns.append(terms[0] * terms[1])
        believed.append(TOGETHER)
    features = np.stack(columns, axis=-1)
    at_known, at_goal = features[:, :-1], features[:, -1]
    variance = np.square([one.deviation for one in known]) + misfit[:, None] ** 2
    mean, covariance, log_chance = _posterior(at_known, losses, variance, 1 / np.square(believed))
    chance = np.exp(log_chance - log_chance.max())
    root = np.linalg.cholesky(covariance)
    rng = np.random.default_rng(31)  # fixed: the same losses give the same answer
    kept: list[Array] = []
    for _ in range(ROUNDS):
        cell = rng.choice(len(cells), DRAWS, p=chance / chance.sum())
        law = mean[cell] + np.einsum("cij,cj->ci", root[cell], rng.standard_normal((DRAWS, len(believed))))
        made = np.einsum("ci,ci->c", at_goal[cell], law) + misfit[cell] * rng.standard_normal(DRAWS)
        kept.append(made[_falls(law, [term[cell] for term in terms])])
        if sum(map(len, kept)) >= DRAWS:
            break
    return np.concatenate(kept)


def _posterior(features: Array, losses: Array, variance: Array, prior: Array) -> tuple[Array, Array, Array]:
    """Of each cell: mean and covariance of a linear law's coefficients, and how likely the losses are, as a log."""
    weighted = features / variance[:, :, None]
    covariance = np.linalg.inv(np.einsum("cni,cnj->cij", weighted, features) + np.diag(prior))
    mean = np.einsum("cij,cnj,n->ci", covariance, weighted, losses)
    off = losses - np.einsum("cni,ci->cn", features, mean)
    misfit = (off**2 / variance + np.log(variance)).sum(1) + (mean**2 * prior).sum(1)
    return mean, covariance, 0.5 * (np.linalg.slogdet(covariance)[1] - misfit)


def _falls(law: Array, terms: Sequence[Array]) -> Mask:
    """Which laws have no E, A or B below 0, and no loss that more size or more data raises, whatever the other is."""
    falls: Mask = np.all(law[:, : 1 + len(terms)] >= 0, axis=1)
    if len(terms) == 2:
        for own, other in ((1, terms[1]), (2, terms[0])):
            falls &= np.all(law[:, own, None] + law[:, 3, None] * other >= 0, axis=1)
    return falls


def _terms(known: Sequence[Known], goal: Mapping[str, float], exponents: Mapping[str, Array]) -> list[Array]:
    """x and y, those that vary, of every cell at every size and last at the goal; 1 in the middle of the sizes."""
    found = []
    for term in TERMS:
        factors = []
        for axis in term:
            if axis in exponents:
                octaves = np.log2([one.sizes[axis] for one in known] + [goal[axis]])
                factors.append(np.exp2(-exponents[axis][:, None] * (octaves - octaves[:-1].mean())))
        if factors:
            found.append(np.prod(factors, axis=0))
    return found
