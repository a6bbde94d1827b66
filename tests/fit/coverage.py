"""How often intervals hold the truth, over synthetic sweeps; `python -m tests.fit.coverage 500` prints the table."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tests.fit.synthetic import FAMILIES, SPACINGS, study, sweep

from nugpt.fit import (
    Observed,
    compare,
    drift,
    optimum,
    power_law,
    regret,
    sensitivity,
    study_noise,
)
from nugpt.fit.optimum import Optimum

SLOPES = (0.0, -0.3)  # octaves of η* per octave of size
OFFSETS = (-1.0, -0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Trial:
    """One interval and whether it holds the truth."""

    hit: bool
    width: float
    verdict: str
    family: str = ""
    spacing: float = 0.0


def share(trials: Iterable[Trial]) -> float:
    """Of the trials, how many hit."""
    return float(np.mean([trial.hit for trial in trials]))


def optimum_trials(n: int, seeds: int, *, jitter: float = 0.0, pooled_from: int = 0, salt: int = 0) -> list[Trial]:
    """Sweeps of every family and spacing in turn; `pooled_from` other curves of three seeds give the noise."""
    rng = np.random.default_rng([1, seeds, salt])
    trials = []
    for _, family, spacing in zip(range(n), *_cells(), strict=False):
        one = sweep(rng, family, seeds, spacing, jitter=jitter)
        others = [sweep(rng, family, 3, spacing, one.noise).points for _ in range(pooled_from)]
        found = optimum(one.points, pooled=study_noise(others) if others else None)
        hit = found.interval.contains(one.log2_lr)
        trials.append(Trial(hit, found.interval.width, found.verdict, family, spacing))
    return trials


def _cells() -> tuple[itertools.cycle[str], Iterable[float]]:
    return itertools.cycle(FAMILIES), (s for s in itertools.cycle(SPACINGS) for _ in FAMILIES)


def study_trials(n: int, seeds: int, salt: int = 0) -> dict[str, list[Trial]]:
    """Studies of 3 and 5 sizes with and without drift: slope, regret at the largest size, loss, sensitivity."""
    rng = np.random.default_rng([2, seeds, salt])
    trials: dict[str, list[Trial]] = defaultdict(list)
    for i, family in zip(range(n), itertools.cycle(FAMILIES), strict=False):
        sizes, slope = (3, 5)[i % 2], SLOPES[i // 2 % 2]
        spacing = float(rng.choice([0.25, 0.5, 0.5, 1.0]))
        planted = np.asarray(rng.uniform(-7.5, -6.5) + slope * np.arange(sizes), dtype=np.float64)
        sweeps = study(rng, family, seeds, planted, same_shape=bool(i // 4 % 2), spacing=spacing)
        pooled = study_noise([one.points for one in sweeps])
        found = [optimum(one.points, pooled=pooled) for one in sweeps]
        answer = drift([(2.0**k, at) for k, at in enumerate(found)])
        if answer.slope is not None:
            kind = f"drift over {sizes} sizes"
            trials[kind].append(Trial(answer.interval.contains(slope), answer.interval.width, answer.no_drift))
            verdict = "no drift" if slope == 0 else "drift of -0.3"
            trials[verdict].append(Trial(answer.no_drift == "holds", 0.0, answer.no_drift))
        first, last = found[0], found[-1]
        if first.verdict == last.verdict == "enclosed":
            truth = float(sweeps[-1].shape(np.asarray(planted[0] - planted[-1])))
            cost = regret(first, last)
            name = "regret, drift" if slope else "regret, none"
            trials[name].append(Trial(cost.interval.contains(truth), cost.interval.high, last.verdict))
            trials["loss"].append(_loss_trial(last, sweeps[-1].loss))
            costs = sensitivity(last)
            for octaves in OFFSETS:
                interval = costs.at(octaves).interval
                truth = float(sweeps[-1].shape(np.asarray(octaves)))
                trials[f"sensitivity {octaves:+g}"].append(Trial(interval.contains(truth), interval.width, ""))
    return dict(trials)


def _loss_trial(found: Optimum, truth: float) -> Trial:
    assert found.loss_interval is not None
    return Trial(found.loss_interval.contains(truth), found.loss_interval.width, found.verdict)


def comparison_trials(n: int, seeds: int, unshared: float, salt: int = 0) -> list[Trial]:
    """Two sides whose best losses differ by 0.02 nats, at two sizes; seeds change both sides alike, but for a part."""
    rng = np.random.default_rng([3, seeds, int(1e4 * unshared), salt])
    trials = []
    for _, family in zip(range(n), itertools.cycle(FAMILIES), strict=False):
        other = str(rng.choice(list(FAMILIES)))
        noise = float(np.exp(rng.uniform(np.log(0.002), np.log(0.02))))
        pairs = []
        for _ in range(2):
            effects = rng.normal(0, 0.01, size=seeds)
            apart = [effects + rng.normal(0, unshared / np.sqrt(2), size=seeds) for _ in range(2)]
            a = sweep(rng, family, seeds, 0.5, noise, seed_effects=apart[0], loss=3.5)
            b = sweep(rng, other, seeds, 0.5, noise, seed_effects=apart[1], loss=3.48)
            pairs.append((a.points, b.points))
        pooled = study_noise([side for pair in pairs for side in pair])
        for difference in compare(pairs, pooled=pooled):
            if difference.nats is not None:
                trials.append(Trial(difference.interval.contains(0.02), difference.interval.width, ""))
    return trials


def power_law_trials(n: int, seeds: int, salt: int = 0) -> dict[str, list[Trial]]:
    """η* ∝ batch^0.5 · steps^(−1/3) over 3 batches × 2 budgets, read off sweeps."""
    rng = np.random.default_rng([4, seeds, salt])
    truth = {"batch": 0.5, "steps": -1 / 3}
    places = [{"batch": b, "steps": t / b} for b in (16.0, 32.0, 64.0) for t in (32_000.0, 128_000.0)]
    planted = np.array([sum(truth[name] * np.log2(at[name]) for name in truth) for at in places])
    trials: dict[str, list[Trial]] = defaultdict(list)
    for i, family in zip(range(n), itertools.cycle(FAMILIES), strict=False):
        sweeps = study(rng, family, seeds, planted - 6.0, same_shape=bool(i // 5 % 2), spacing=0.5)
        pooled = study_noise([one.points for one in sweeps])
        found = [optimum(one.points, pooled=pooled) for one in sweeps]
        observed = [
            Observed(at, one.log2_lr, one.deviation)
            for at, one in zip(places, found, strict=True)
            if one.log2_lr is not None
        ]
        law = power_law(observed)
        for name, interval in law.intervals.items():
            trials[name].append(Trial(interval.contains(truth[name]), interval.width, ""))
    return dict(trials)


def row(name: str, trials: Sequence[Trial]) -> str:
    """One line of the table."""
    width = np.nanmedian([trial.width for trial in trials])
    return f"{name:<36} {share(trials):6.1%} of {len(trials):4d}   median width {width:.3g}"


def main(n: int, seed_counts: Sequence[int] = (1, 2, 3, 5)) -> None:
    """Every estimator at so many seeds."""
    for seeds in seed_counts:
        for name, settings in {
            "optimum": {},
            "optimum, optimum moves with seed": {"jitter": 0.07},
            "optimum, pooled noise": {"pooled_from": 4},
        }.items():
            trials = optimum_trials(n, seeds, salt=2025, **settings)  # type: ignore[arg-type]
            enclosed = [trial for trial in trials if trial.verdict == "enclosed"]
            print(row(f"{seeds} {name}", enclosed), f"  all verdicts {share(trials):.1%}")
            if name == "optimum":
                for family in FAMILIES:
                    print(row(f"    {family}", [t for t in enclosed if t.family == family]))
                for spacing in SPACINGS:
                    print(row(f"    spacing {spacing:g}", [t for t in enclosed if t.spacing == spacing]), flush=True)
        for name, trials in study_trials(n, seeds, salt=2026).items():
            print(row(f"{seeds} {name}", trials), flush=True)
        for unshared in (0.0, 0.005):
            print(row(f"{seeds} comparison, unshared {unshared}", comparison_trials(n // 4, seeds, unshared, 2026)))
        for name, trials in power_law_trials(n // 5, seeds, salt=2026).items():
            print(row(f"{seeds} power law, {name}", trials), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]] or (1, 2, 3, 5))
