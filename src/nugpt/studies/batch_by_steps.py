"""`batch-by-steps`: what happens to the tables when the launch uses another batch?

The tables count iterations at the base's batch and know no exponent for another, so `resolve` refuses one. Here both
exponents are given as 0: η is then the learning rate itself, and the joint slopes of its best value are the exponents
that a table should have.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F

from nugpt.spec.parametrization import NUGPT, with_data_exponent
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import DRIFT, Rule
from nugpt.studies.grids import POLICY, SEEDS, SPACING, Size, around, curve
from nugpt.studies.rules import THIRD

TABLE = replace(with_data_exponent(NUGPT, F(0)), batch=F(0))
SHAPE = {"paper": (10, 10), "evidence": (4, 4), "lab": (4, 4), "tiny": (2, 1)}
BATCHES = {"paper": (32, 64, 128, 256), "evidence": (16, 32, 64, 128), "lab": (16, 32, 64), "tiny": (8, 16, 32)}
# Sequences in all: each batch runs as many steps as use them up, so that steps and batch vary apart.
BUDGETS = {"paper": (640_000, 2_560_000), "evidence": (32_000, 128_000), "lab": (12_800, 51_200), "tiny": (640, 1_920)}

# One grid for all, as in `steps-sweep-ngpt-ours`.
CENTRE = {"paper": -8.5, "evidence": -6.5, "lab": -6.5, "tiny": -3.5}
POINTS = {"paper": 11, "evidence": 3, "lab": 5, "tiny": 3}


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Batches × token budgets, one model, one grid."""
    at = scale_named(scale)
    grid = around(CENTRE[scale], POINTS[scale], SPACING[scale])
    return tuple(
        curve(
            at,
            setting,
            TABLE,
            Size(*SHAPE[scale], budget // batch),
            log2_lrs=grid,
            batch=batch,
            seeds=SEEDS[scale][:2],
            label={"batch": batch},
        )
        for budget in BUDGETS[scale]
        for batch in BATCHES[scale]
    )


STUDY = Study(
    id="batch-by-steps",
    title="The best learning rate over batch size and iterations",
    varies="sequences per step, steps",
    claims=(
        Claim("As which power of the batch the best learning rate grows.", Rule("joint-slope", along="batch")),
        Claim(
            "At a given batch the best learning rate falls as iterations to the power −1/3.",
            Rule("joint-slope", along="steps", low=-THIRD - DRIFT, high=-THIRD + DRIFT),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits="One shape and small batches: nothing here reaches the batch beyond which a larger one stops paying.",
)
