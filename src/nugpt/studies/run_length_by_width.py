"""`run-length-by-width`: does the best width exponent fall from near 1 towards 3/4 and below as runs get longer?

The alignment figures suggest it: α and ν are high at first and settle lower, so a longer run spends a smaller share of
its steps where weights and activations are aligned.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nugpt.spec.parametrization import COMPLETEP, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import DRIFT, Rule
from nugpt.studies.grids import POLICY, Size, curve
from nugpt.studies.rules import drift_rises

# Exponents 3/4 and 1 of η_hidden; runs at the shorter length are those of the width studies.
TABLES = (NUGPT, COMPLETEP)
LAYERS = {"paper": 12, "evidence": 4, "lab": 4, "tiny": 2}
# Three widths: a slope through two has no error of its own.
HEADS = {"paper": (8, 16, 40), "evidence": (4, 8, 16), "lab": (2, 4, 8), "tiny": (1, 2, 3)}
STEPS = {"paper": (5_000, 20_000, 80_000), "evidence": (2_000, 8_000), "lab": (200, 800), "tiny": (20, 40)}
SEEDS = {"lab": 1, "evidence": 2}  # at the most
LONG = {"evidence": (8, 8_000)}  # heads and steps from which on a curve has one


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Width exponents × run lengths × widths."""
    at = scale_named(scale)
    sizes = [Size(LAYERS[scale], heads, steps) for steps in STEPS[scale] for heads in HEADS[scale]]
    made = [
        curve(
            at,
            setting,
            table,
            size,
            label={"width_exponent": float(table.rows["hidden"].lr.width)},
        )
        for table in TABLES
        for size in sizes
    ]
    return tuple(affordable(scale, one) for one in made)


def affordable(scale: str, one: Curve) -> Curve:
    """With fewer seeds, and with one where long runs of a wide model are the dearest."""
    heads, steps = LONG.get(scale, (math.inf, math.inf))
    dear = one.spec.model.n_heads >= heads and one.spec.steps >= steps
    return replace(one, seeds=one.seeds[: 1 if dear else SEEDS.get(scale)])


STUDY = Study(
    id="run-length-by-width",
    title="The best width exponent against the length of the run",
    varies="width exponent of η_hidden (νGPT, CompleteP), steps, heads",
    claims=(
        Claim(
            "The best width exponent falls as runs get longer: νGPT's drift over width rises with run length.",
            drift_rises("nugpt", "heads", by="steps"),
        ),
        Claim(
            "νGPT's exponent of 3/4 transfers at every length.",
            Rule("no-drift", table="nugpt", along="heads", by="steps", low=-DRIFT, high=DRIFT),
        ),
        Claim(
            "CompleteP's drift over width rises with run length too.",
            drift_rises("completep", "heads", by="steps"),
        ),
        Claim(
            "CompleteP, exponent 1: how far the best learning rate drifts at each length.",
            Rule("drift", table="completep", along="heads", by="steps"),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "The paper shows width by itself at one length; where both width and length differ, they grow together. Two "
        "lengths show a direction, not a limit."
    ),
)
