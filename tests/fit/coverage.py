"""How often intervals hold the truth, over synthetic studies; `python -m tests.fit.coverage 500` prints the table,
with the word `fine` that of the effort which verdicts are read with.

A study is six curves, at three lengths and two batches, with the same seeds: the same fits show the coverage of
optimum, drift, regret, loss, sensitivity, law and comparison.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from tests.fit.synthetic import FAMILIES, MULTIPLIERS, SPACINGS, UNLIKELY, Array, Sweep, study
from tests.fit.test_recommend import make_spec

import nugpt.fit.comparison
import nugpt.fit.curves
from nugpt.fit import (
    Budgeted,
    EdgeRule,
    NoiseModel,
    Observed,
    Point,
    compare,
    compare_at_cost,
    drift,
    optimum,
    power_law,
    regret,
    role_exponents,
    sensitivity,
    stability_edge,
    study_noise,
)
from nugpt.fit.curve import FINE, QUICK, Effort
from nugpt.fit.curves import answer
from nugpt.fit.forecast import Known, forecast
from nugpt.fit.measured import Measured, group_key, sizes_of
from nugpt.fit.optimum import Optimum
from nugpt.fit.recommend import recommend, retarget
from nugpt.fit.roles import profile

STEPS, BATCHES = (1.0, 2.0, 4.0), (1.0, 4.0)
SLOPES = (0.0, -0.3)  # octaves of η* per octave of steps
BATCH_EXPONENT = 0.5
LOWER = -0.06  # nats of loss for each octave of steps
BETTER = 0.02  # nats by which the second batch's losses are lower
OFFSETS = (-1.0, -0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Trial:
    """One interval and whether it holds the truth."""

    hit: bool
    width: float
    verdict: str = ""
    spacing: float = 0.0


Trials = dict[str, list[Trial]]


def share(trials: Iterable[Trial]) -> float:
    """Of the trials, how many hit."""
    return float(np.mean([trial.hit for trial in trials]))


def half_width(trials: Iterable[Trial]) -> float:
    """Median of half the intervals' widths."""
    widths = [trial.width for trial in trials if np.isfinite(trial.width)]  # beyond a failure a cost is infinite
    return float(np.median(widths)) / 2 if widths else float("inf")


def study_trials(
    n: int,
    seeds: int,
    families: Sequence[str] = tuple(FAMILIES),
    salt: int = 0,
    effort: Effort = QUICK,
    uneven: bool = False,
    **given: float,
) -> Trials:
    """`n` sweeps of each family, six to a study, on each grid in turn; `given` goes to the studies.

    Where they are `uneven`, curves of a study scatter by different amounts, and in every other study the longest runs
    have one seed.
    """
    rng = np.random.default_rng([2, seeds, salt])
    trials: Trials = defaultdict(list)
    for i, family in itertools.product(range(-(-n // 6)), families):
        slope, spacing = SLOPES[i % 2], SPACINGS[i // 2 % 3]
        places = [{"steps": t, "batch": b} for b in BATCHES for t in STEPS]
        planted = [slope * np.log2(p["steps"]) + BATCH_EXPONENT * np.log2(p["batch"]) for p in places]
        losses = [3.5 + LOWER * np.log2(p["steps"]) - BETTER * (p["batch"] > 1) for p in places]
        sweeps = study(
            rng,
            family,
            seeds,
            rng.uniform(-8.0, -7.0) + np.array(planted),
            same_shape=bool(i // 6 % 2),
            spacing=spacing,
            losses=losses,
            unshared=given.get("unshared", (0.0, 0.004)[i % 2]),
            jitter=given.get("jitter", 0.0),
            scatter=_uneven(rng, [p["steps"] for p in places]) if uneven else None,
        )
        if uneven and i // 12 % 2:
            sweeps = [_alone(one) if p["steps"] == STEPS[-1] else one for p, one in zip(places, sweeps, strict=True)]
        pooled = study_noise([one.points for one in sweeps])
        found = [optimum(one.points, pooled=pooled, effort=effort) for one in sweeps]
        for one, at in zip(sweeps, found, strict=True):
            _curve_trials(trials, family, one, at)
        if uneven:
            _uneven_trials(trials, sweeps, found)
        for row in (slice(0, 3), slice(3, 6)):
            _path_trials(trials, sweeps[row], found[row], slope)
        _law_trials(trials, places, found, slope)
        with _fitted(sweeps, found, pooled, effort):
            _comparison_trials(trials, sweeps, pooled)
            for row in (slice(0, 3), slice(3, 6)):
                _recommendation_trials(trials, sweeps[row], slope)
    return dict(trials)


def _uneven(rng: np.random.Generator, steps: Sequence[float]) -> Array:
    """Times the study's noise: half for twice the steps, give or take a factor of 1.65; about as in real sweeps."""
    return 2.0 / np.asarray(steps) * np.exp(rng.normal(0, 0.5, size=len(steps)))


def _alone(one: Sweep) -> Sweep:
    """The same with its first seed alone."""
    return replace(one, points=tuple(point for point in one.points if point.seed == 0))


def _uneven_trials(trials: Trials, sweeps: Sequence[Sweep], found: Sequence[Optimum]) -> None:
    """Optima of curves that scatter more than twice as much as is usual in their study, of those less than half as
    much, and of those with one seed beside others."""
    usual = float(np.median([one.noise for one in sweeps]))
    several = max(at.seeds for at in found)
    for one, at in zip(sweeps, found, strict=True):
        if at.verdict != "enclosed":
            continue
        kinds = {"loud": one.noise > 2 * usual, "quiet": one.noise < usual / 2, "one seed": at.seeds < several}
        for kind in [kind for kind, is_so in kinds.items() if is_so]:
            trials[f"optimum, {kind}"].append(Trial(at.interval.contains(one.log2_lr), at.interval.width))


def _curve_trials(trials: Trials, family: str, one: Sweep, at: Optimum) -> None:
    hit = at.interval.contains(one.log2_lr)
    trials["optimum, any verdict"].append(Trial(hit, at.interval.width, at.verdict, one.spacing))
    if at.verdict != "enclosed":
        return
    for name in ("optimum", family):
        trials[name].append(Trial(hit, at.interval.width, at.verdict, one.spacing))
    assert at.loss_interval is not None
    trials["loss"].append(Trial(at.loss_interval.contains(one.loss), at.loss_interval.width))
    costs = sensitivity(at)
    for octaves in OFFSETS:
        interval = costs.at(octaves).interval
        truth = float(one.shape(np.asarray(octaves)))
        trials[f"sensitivity {octaves:+g}"].append(Trial(interval.contains(truth), interval.width))


def _path_trials(trials: Trials, sweeps: Sequence[Sweep], found: Sequence[Optimum], slope: float) -> None:
    answer = drift([(size, at) for size, at in zip(STEPS, found, strict=True)])
    if answer.slope is not None:
        trials["drift"].append(Trial(answer.interval.contains(slope), answer.interval.width))
        name = "drift of -0.3, no drift said to hold" if slope else "no drift, said to hold"
        trials[name].append(Trial(answer.no_drift == "holds", 0.0))
    if found[0].verdict == found[-1].verdict == "enclosed":
        truth = float(sweeps[-1].shape(np.asarray(sweeps[0].log2_lr - sweeps[-1].log2_lr)))
        cost = regret(found[0], found[-1])
        trials["regret, drift" if slope else "regret, none"].append(
            Trial(cost.interval.contains(truth), cost.interval.width)
        )


def _law_trials(trials: Trials, places: Sequence[dict[str, float]], found: Sequence[Optimum], slope: float) -> None:
    observed = [
        Observed(place, at.log2_lr, at.deviation, at.independent)
        for place, at in zip(places, found, strict=True)
        if at.log2_lr is not None
    ]
    law = power_law(observed) if observed else None
    truth = {"steps": slope, "batch": BATCH_EXPONENT}
    for name, interval in law.intervals.items() if law else ():
        trials[f"law, {name}"].append(Trial(interval.contains(truth[name]), interval.width))


def _comparison_trials(trials: Trials, sweeps: Sequence[Sweep], pooled: NoiseModel) -> None:
    """The two batches as two sides, at each length; and at the first's second cost, between two of the second's."""
    pairs = [(a.points, b.points) for a, b in zip(sweeps[:3], sweeps[3:], strict=True)]
    found = list(compare(pairs, pooled=pooled))
    truths = [BETTER] * 3
    first = [Budgeted(2.0, sweeps[1].points)]
    second = [Budgeted(2.0 ** (k + 0.5), one.points) for k, one in enumerate(sweeps[3:])]
    at_cost = compare_at_cost(first, second, 2.0, pooled=pooled)
    for name, differences, wanted in (
        ("comparison", found, truths),
        ("comparison at a cost", [at_cost], [BETTER + LOWER / 2]),
    ):
        for difference, truth in zip(differences, wanted, strict=True):
            if difference.nats is not None:
                trials[name].append(Trial(difference.interval.contains(truth), difference.interval.width))


def _recommendation_trials(trials: Trials, sweeps: Sequence[Sweep], slope: float) -> None:
    """Three lengths as three widths; the target is one octave wider, and its optimum as far on as theirs."""
    specs = [make_spec(heads) for heads in (1, 2, 4)]
    curves = [
        Measured({}, group_key(spec), sizes_of(spec.extent), one.points, spec=spec)
        for spec, one in zip(specs, sweeps, strict=True)
    ]
    answers = answer(curves)
    if not any(one.optimum.log2_lr is not None for one in answers.curves):
        return
    target = retarget(make_spec(), 100, n_heads=8)
    found = recommend(answers, curves[0].group, target)
    truth = 2 * sweeps[-1].log2_lr - sweeps[-2].log2_lr
    assert found.interval is not None
    name = "recommendation, drift" if slope else "recommendation"
    trials[name].append(Trial(found.interval.contains(truth), found.interval.width))


@contextmanager
def _fitted(sweeps: Sequence[Sweep], found: Sequence[Optimum], pooled: NoiseModel, effort: Effort) -> Iterator[None]:
    """Comparisons and recommendations fit the curves that were fitted just now: hand them what came out.

    Whatever effort they ask for: it is the trials' own that is tried.
    """
    known = {one.points: at for one, at in zip(sweeps, found, strict=True)}
    modules, real = (nugpt.fit.comparison, nugpt.fit.curves), optimum

    def remembered(
        points: Sequence[Point], level: float = 0.90, pooled: NoiseModel | None = pooled, **asked: Effort
    ) -> Optimum:
        return known.get(tuple(points)) or real(points, level, pooled, effort=effort)

    for module in modules:
        module.optimum = remembered  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.optimum = real  # type: ignore[attr-defined]


def role_trials(n: int, seeds: int, salt: int = 0, effort: Effort = QUICK) -> Trials:
    """Curves over a multiplier, `n` of each kind, three widths to a study: the optimum, and the role's exponent."""
    rng = np.random.default_rng([5, seeds, salt])
    trials: Trials = defaultdict(list)
    for i, family in itertools.product(range(-(-n // 3)), MULTIPLIERS):
        slope, spacing = SLOPES[i % 2], SPACINGS[i // 2 % 3]
        planted = rng.uniform(-1.0, 0.0) + slope * np.arange(3.0)
        sweeps = study(rng, family, seeds, planted, same_shape=bool(i // 6 % 2), spacing=spacing)
        pooled = study_noise([one.points for one in sweeps])
        found = [optimum(one.points, pooled=pooled, cliff="either", effort=effort) for one in sweeps]
        for one, at in zip(sweeps, found, strict=True):
            if at.verdict == "enclosed":
                hit = at.interval.contains(one.log2_lr)
                trials[family].append(Trial(hit, at.interval.width, at.verdict, spacing))
        (role,) = role_exponents({"hidden": [(2.0**k, at) for k, at in enumerate(found)]}, {"hidden": -0.75})
        if role.exponent is not None:
            trials["exponent"].append(Trial(role.interval.contains(slope - 0.75), role.interval.width))
    return dict(trials)


TRIED = np.arange(-3.0, 2.0)  # octaves of a multiplier
PLANTED = -1.0  # octaves, of the best multiplier


def profile_trials(n: int, seeds: int, salt: int = 0, effort: Effort = QUICK) -> list[Trial]:
    """The best multiplier, each tried at its own best η: five of them in a study of one shape."""
    rng = np.random.default_rng([9, seeds, salt])
    trials = []
    for _ in range(n):
        losses = list(3.5 + 0.03 * (TRIED - PLANTED) ** 2)
        sweeps = study(rng, "exponential", seeds, -7 + 0.3 * TRIED, same_shape=True, spacing=0.5, losses=losses)
        curves = [(float(octaves), one.points) for octaves, one in zip(TRIED, sweeps, strict=True)]
        points = profile(curves, study_noise([runs for _, runs in curves]))
        at = optimum(points, cliff="either", effort=effort)
        if at.verdict == "enclosed":
            trials.append(Trial(at.interval.contains(PLANTED), at.interval.width))
    return trials


def edge_trials(n: int, seeds: int, salt: int = 0) -> list[Trial]:
    """Drift of a stability edge, anywhere on grids of half an octave, at five sizes."""
    rng = np.random.default_rng([6, seeds, salt])
    trials = []
    for i in range(n):
        slope, start = SLOPES[i % 2], rng.uniform(-6.0, -5.0)
        edges = []
        for k in range(5):
            grid = np.arange(start - 4 + rng.uniform(0, 0.5), start + 2, 0.5)
            points = [
                Point(float(x), 3.5 + 0.05 * abs(x + 8) + rng.normal(0, 0.01), seed)
                if x < start + slope * k
                else Point(float(x), None, seed, "diverged")
                for x in grid
                for seed in range(seeds)
            ]
            edges.append((2.0**k, stability_edge(points, EdgeRule())))
        answer = drift(edges)
        trials.append(Trial(answer.interval.contains(slope), answer.interval.width))
    return trials


SMALL = {"width": 192.0, "layers": 4.0, "steps": 2000.0, "batch": 16384.0}
# Octaves above the smallest of (width, a second axis) at which a law of loss is seen.
DESIGNS = (
    tuple((k, 0) for k in range(3)),
    tuple((k, 0) for k in range(5)),
    tuple((0, k) for k in range(4)),
    ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2)),
    ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)),
    ((0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (1, 1), (2, 1)),
)
LAWS: dict[str, Callable[[float, float, float], float]] = {  # of floor and what size and data leave over
    "two terms": lambda floor, x, y: floor + x + y,
    "each worth more with the other": lambda floor, x, y: floor + float(np.hypot(x, y)),
    "one power, no floor": lambda floor, x, y: floor * (x * y) ** (1 / 6),
    "one term": lambda floor, x, y: floor + x * y,
}
WITH_STEPS = ("two terms", "each worth more with the other", "one power, no floor")
WITH_LAYERS = ("one term", "two terms", "one power, no floor")
FARTHER = (1, 2, 4)  # octaves beyond the largest, along every axis seen


def place(width: float, more: float, second: str = "steps") -> dict[str, float]:
    """Sizes so many octaves above the smallest."""
    return SMALL | {"width": SMALL["width"] * 2.0**width, second: SMALL[second] * 2.0**more}


def forecast_trials(n: int, laws: Sequence[str] = WITH_STEPS, salt: int = 0, second: str = "steps") -> Trials:
    """`n` planted laws of each kind, 3 to 8 sizes of each seen with an error of 0.005 to 0.015 nats.

    Over width and steps, each alone or both; over width and layers always both, of which the forecast makes one term.
    """
    rng = np.random.default_rng([7, salt])
    trials: Trials = defaultdict(list)
    designs = DESIGNS if second == "steps" else [one for one in DESIGNS if np.ptp(one, axis=0).all()]
    for i, name in itertools.product(range(n), laws):
        design, noise = designs[i % len(designs)], rng.uniform(0.005, 0.015)
        (a, c), floor = rng.choice((0.1, 0.25, 0.5, 0.8, 1.2), 2), rng.uniform(1.2, 3.2)
        shares = (1.0, 1.0) if name == "one power, no floor" else rng.uniform(0.2, 1.5, 2)

        def loss(width: float, more: float) -> float:
            return LAWS[name](floor, shares[0] * 2.0 ** (-a * width), shares[1] * 2.0 ** (-c * more))  # noqa: B023

        known = [Known(place(*at, second), loss(*at) + rng.normal(0, noise), noise) for at in design]
        largest = np.max(design, axis=0)
        for octaves in FARTHER:
            goal = np.where(largest > 0, largest + octaves, 0)
            found = forecast(known, place(*goal, second))
            assert found.interval is not None
            trials[f"loss over width and {second}, {name}, {2**octaves} times"].append(
                Trial(found.interval.contains(loss(*goal)), found.interval.width)
            )
    return dict(trials)


def row(name: str, trials: Sequence[Trial]) -> str:
    """One line of the table."""
    return f"{name:<62} {share(trials):6.1%} of {len(trials):5d}   median half-width {half_width(trials):.3g}"


def table(trials: Trials) -> Iterator[str]:
    """Every estimator's line, and for optima a line for each grid."""
    for name, some in trials.items():
        yield row(name, some)
        for spacing in SPACINGS if name == "optimum" or name in FAMILIES or name in MULTIPLIERS else ():
            yield row(f"    grid {spacing:g}", [trial for trial in some if trial.spacing == spacing])


def main(n: int, seed_counts: Sequence[int], effort: Effort) -> None:
    """Every estimator at so many seeds; forecasts of loss, which know of none, first."""
    for trials in (forecast_trials(n, salt=2025), forecast_trials(n, WITH_LAYERS, 2025, "layers")):
        for line in table(trials):
            print(line, flush=True)
    for seeds in seed_counts:
        print(f"{seeds} seeds")
        for line in table(study_trials(n, seeds, salt=2025, effort=effort)):
            print(line, flush=True)
        for line in table(role_trials(n, seeds, salt=2025, effort=effort)):
            print(line, flush=True)
        print(row("drift of the edge", edge_trials(n, seeds)), flush=True)
        print(row("multiplier, profiled", profile_trials(n, seeds, salt=1, effort=effort)), flush=True)
        print("  curves that scatter by different amounts")
        for line in table(study_trials(n // 2, seeds, salt=2027, effort=effort, uneven=True)):
            print(line, flush=True)
        moving = study_trials(n // 5, seeds, salt=2026, effort=effort, jitter=0.07)
        print(row("optimum that moves with the seed", moving["optimum"]), flush=True)
        late = study_trials(n // 2, seeds, tuple(UNLIKELY), salt=2028, effort=effort)
        for name in ("optimum", "drift"):
            print(row(f"{name}, a parabola whose cliff comes late", late[name]), flush=True)


if __name__ == "__main__":
    words = sys.argv[2:]
    counts = [int(word) for word in words if word != "fine"]
    main(int(sys.argv[1]), counts or (1, 2, 3, 5), FINE if "fine" in words else QUICK)
