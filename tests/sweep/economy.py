"""What an optimum costs by how the grid goes from coarse to fine: `python -m tests.sweep.economy [CURVES]`.

Curves of six shapes, the first two of the forms that are fitted; three seeds, a table for each noise. The first grid is
centred up to an octave off the optimum. Each plan grows until it is settled, as a worker would have it; an optimum is
known when its 90 % interval is no wider than a quarter octave, ±1/8. Runs of a curve all cost the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tests.fit.synthetic import FAMILIES, Array, Shape
from tests.sweep.small import make_spec, record_of

from nugpt.spec.plan import Curve, Policy
from nugpt.sweep.grow import additions
from nugpt.sweep.state import CurveState, Place, plan_noise

SEEDS, NOISES, KNOWN = (0, 1, 2), (0.004, 0.009, 0.013), 0.25
PLANS: dict[str, tuple[tuple[float, ...], Policy]] = {
    "quarter octaves over four": (tuple(k / 4 for k in range(-8, 9)), Policy(extend=0)),
    "half octaves, then quarters": ((-1, -0.5, 0, 0.5, 1), Policy(extend=4, spacing=0.5, refine=(0.25,))),
    "five octaves, then halves and quarters": ((-2, -1, 0, 1, 2), Policy(extend=4, spacing=1.0, refine=(0.5, 0.25))),
    "three octaves, then halves and quarters": ((-1, 0, 1), Policy(extend=4, spacing=1.0, refine=(0.5, 0.25))),
    "three octaves, then quarters": ((-1, 0, 1), Policy(extend=4, spacing=1.0, refine=(0.25,))),
}

Loss = Callable[[float, int], float | None]


def planted(rng: np.random.Generator, shape: Shape, effects: Array, best: float, deviation: float) -> Loss:
    """A curve's losses, each drawn once however often it is asked for; none where the run diverges."""
    noise = np.random.default_rng(int(rng.integers(2**32)))
    known: dict[tuple[float, int], float | None] = {}

    def loss(log2_lr: float, seed: int) -> float | None:
        if (log2_lr, seed) not in known:
            height = float(shape(np.asarray(log2_lr - best)))
            value = 3.5 + height + effects[seed] + noise.normal() * math.hypot(deviation, 0.05 * height)
            known[log2_lr, seed] = None if height > 2.5 else value
        return known[log2_lr, seed]

    return loss


def settled(policy: Policy, curves: Sequence[tuple[Curve, Loss]]) -> list[CurveState]:
    """A plan's curves when nothing more is called for."""
    added: list[dict[float, str]] = [{} for _ in curves]
    while True:
        states = [_state(curve, loss, more) for (curve, loss), more in zip(curves, added, strict=True)]
        called = additions(states, policy)
        if not any(called):
            return states
        for more, points in zip(added, called, strict=True):
            more |= {point.log2_lr: point.reason for point in points}


def _state(curve: Curve, loss: Loss, added: Mapping[float, str]) -> CurveState:
    places = []
    for log2_lr in sorted({*curve.log2_lrs, *added}):
        for seed in curve.seeds:
            spec, value = curve.run(log2_lr, seed), loss(log2_lr, seed)
            status = "diverged" if value is None else "done"
            record = record_of(spec, value, status)
            places.append(Place(log2_lr, seed, spec, status, record, added.get(log2_lr)))
    return CurveState(curve, tuple(places), "val_loss")


@dataclass(frozen=True)
class Economy:
    """What a plan spent on so many curves, and what it found."""

    curves: int
    runs: int
    known: int  # optima known to ±1/8 octave
    error: float  # median, in octaves
    covered: float  # share of the 90 % intervals that hold the best learning rate; a grid that grew picked its points

    @property
    def per_known(self) -> float:
        """Runs per known optimum."""
        return self.runs / self.known if self.known else math.inf


def measure(curves: int, noise: float, plans: Iterable[str] = PLANS) -> dict[str, Economy]:
    """Each plan on the same curves, with noise of so many nats in every run."""
    found_by = {}
    for name in plans:
        grid, policy = PLANS[name]
        rng = np.random.default_rng(5)
        runs, known, errors, covered = 0, 0, [], []
        for i in range(curves):
            best = float(rng.uniform(-8, -6))
            centre = round(2 * (best + rng.uniform(-1, 1))) / 2
            shape = list(FAMILIES.values())[i % len(FAMILIES)](rng)
            loss = planted(rng, shape, rng.normal(0, 0.01, size=len(SEEDS)), best, noise)
            curve = Curve({}, make_spec(), tuple(centre + x for x in grid), SEEDS)
            (state,) = settled(policy, [(curve, loss)])
            found = state.optimum(plan_noise([state]), fine=True)
            runs += len(state.places)
            if found is not None and found.log2_lr is not None:
                known += found.interval.width <= KNOWN
                errors.append(abs(found.log2_lr - best))
                covered.append(found.interval.contains(best))
        found_by[name] = Economy(curves, runs, known, float(np.median(errors)), float(np.mean(covered)))
    return found_by


if __name__ == "__main__":
    from nugpt.cli.show import print_table

    columns = ["plan", "runs per curve", "optima known to ±1/8", "runs per known optimum", "median error", "covered"]
    for noise in NOISES:
        print(f"noise of {noise:g} nats")
        rows = [
            [
                *(name, f"{e.runs / e.curves:.1f}", f"{e.known / e.curves:.0%}", f"{e.per_known:.1f}"),
                *(f"{e.error:.3f}", f"{e.covered:.0%}"),
            ]
            for name, e in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 100, noise).items()
        ]
        print_table(columns, rows, right=range(1, 6))
