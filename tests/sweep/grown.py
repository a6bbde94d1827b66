"""How often intervals hold the truth where a study's grids grew by themselves: `python -m tests.sweep.grown [STUDIES]`.

Studies of four sizes as `evidence` has them: an octave apart first, then quarters around the optimum, the noise of all
curves together. Half of them keep one shape at all sizes; curves scatter by different amounts, and seeds differ a
little between them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from tests.fit.synthetic import FAMILIES
from tests.sweep.economy import planted, settled
from tests.sweep.small import make_spec

from nugpt.fit.drift import drift
from nugpt.spec.plan import Curve
from nugpt.studies.grids import POLICY
from nugpt.sweep.state import plan_noise

NOISES = (0.006, 0.0125)  # usual of a study's curves, in nats
GRID = (-8.0, -7.0, -6.0)
# Seeds of each size, and points on either side of the optimum.
DESIGNS = {
    "3 seeds": ((3, 2),) * 4,
    "2 seeds": ((2, 2),) * 4,
    "3, 3, 2 and 1 seeds": ((3, 2), (3, 2), (2, 2), (1, 1)),
}
SLOPES = (0.0, -0.1, -0.3, 0.1)  # octaves of the best η per octave of size


@dataclass(frozen=True)
class Grown:
    """What a study says of itself, and whether it is so."""

    optima: tuple[bool, ...]  # of those that are enclosed, whether the interval holds the truth
    drift: bool | None  # whether that of the slope does; none where there is no slope
    width: float  # of the slope's interval
    still: bool  # whether nothing moves
    verdict: str


def grown(studies: int, noise: float, design: str) -> Iterator[Grown]:
    """Studies of planted curves, grown until nothing more is called for, read as verdicts are."""
    for i in range(studies):
        rng = np.random.default_rng((7, i))
        family = list(FAMILIES.values())[i % len(FAMILIES)]
        slope, base = float(rng.choice(SLOPES)), float(rng.uniform(-7.6, -6.0))
        one_shape = family(rng) if rng.random() < 0.5 else None
        effects = rng.normal(0, 0.01, size=3)
        best = [base + slope * k for k in range(len(DESIGNS[design]))]
        curves = []
        for at, (seeds, fine) in zip(best, DESIGNS[design], strict=True):
            mine = effects + rng.normal(0, 0.004, size=3)
            loss = planted(rng, one_shape or family(rng), mine, at, noise * float(np.exp(rng.normal(0, 0.5))))
            curves.append((Curve({}, make_spec(), GRID, tuple(range(seeds)), fine=fine), loss))
        states = settled(POLICY["evidence"], curves)
        pooled = plan_noise(states)
        optima = [found for state in states if (found := state.optimum(pooled, fine=True)) is not None]
        line = drift([(2.0**k, found) for k, found in enumerate(optima)])
        yield Grown(
            tuple(o.interval.contains(at) for o, at in zip(optima, best, strict=True) if o.log2_lr is not None),
            None if line.slope is None else line.interval.contains(slope),
            line.interval.width,
            slope == 0,
            line.no_drift,
        )


def covered(found: Iterable[Grown]) -> dict[str, float]:
    """Shares of all, and the median width of a slope's interval."""
    found = list(found)
    slopes = [one for one in found if one.drift is not None]
    return {
        "optimum": float(np.mean([hit for one in found for hit in one.optima])),
        "drift": float(np.mean([one.drift for one in slopes])),
        "its width": float(np.median([one.width for one in slopes])),
        "holds where nothing moves": float(np.mean([one.verdict == "holds" for one in found if one.still])),
        "fails there": float(np.mean([one.verdict == "does not hold" for one in found if one.still])),
    }


if __name__ == "__main__":
    from nugpt.cli.show import print_table

    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rows = [
        [design, f"{noise:g}", *(f"{share:.3f}" for share in covered(grown(studies, noise, design)).values())]
        for design in DESIGNS
        for noise in NOISES
    ]
    print_table(
        ["seeds of four sizes", "noise", "optimum", "drift", "its width", "holds where nothing moves", "fails there"],
        rows,
        right=range(1, 7),
    )
