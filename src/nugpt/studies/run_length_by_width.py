"""`run-length-by-width`: does the best width exponent fall from near 1 towards 3/4 and below as runs get longer?

The alignment figures suggest it: α and ν are high at first and settle lower, so a longer run spends a smaller share of
its steps where weights and activations are aligned.
"""

from __future__ import annotations

from fractions import Fraction as F

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import DRIFT, Rule
from nugpt.studies.grids import POINTS, POLICY, SEEDS, SPACING, Size, around, curve, expected, with_width_exponent

# η_hidden and η_output ∝ m_width^exponent; the middle one is νGPT itself, so that its runs are shared.
TABLES = (
    with_width_exponent(NUGPT, F(-1, 2), "nugpt-width-1-2"),
    NUGPT,
    with_width_exponent(NUGPT, F(-1), "nugpt-width-1"),
)
LAYERS = {"paper": 12, "evidence": 4, "lab": 4, "tiny": 2}
# Not the base's own width, where the three tables are one (but at `tiny`, where the next one costs too much).
HEADS = {"paper": (8, 16, 40), "evidence": (2, 3, 8), "lab": (2, 3, 8), "tiny": (1, 2, 3)}
STEPS = {"paper": (5_000, 20_000, 80_000), "evidence": (500, 2_000, 8_000), "lab": (100, 400), "tiny": (10, 20)}
FEWER = {"lab": 3}  # points of a curve, where the scale's own number would take too long


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Width exponents × run lengths × widths."""
    at = scale_named(scale)
    sizes = [Size(LAYERS[scale], heads, steps) for steps in STEPS[scale] for heads in HEADS[scale]]
    points = FEWER.get(scale, POINTS[scale])
    return tuple(
        curve(
            at,
            setting,
            table,
            size,
            log2_lrs=around(expected(at, table, size), points, SPACING[scale]),
            seeds=SEEDS[scale][:2],
            label={"width_exponent": float(table.rows["hidden"].lr.width)},
        )
        for table in TABLES
        for size in sizes
    )


STUDY = Study(
    id="run-length-by-width",
    title="The best width exponent against the length of the run",
    varies="width exponent of η_hidden and η_output, steps, heads",
    claims=(
        Claim(
            "The best width exponent falls as runs get longer: νGPT's drift over width rises with run length.",
            Rule("slope-change", table="nugpt", along="heads", by="steps", low=0.0),
        ),
        Claim(
            "νGPT's exponent of 3/4 transfers at every length.",
            Rule("no-drift", table="nugpt", along="heads", by="steps", low=-DRIFT, high=DRIFT),
        ),
        Claim(
            "Exponent 1/2: how far the best learning rate drifts at each length.",
            Rule("drift", table="nugpt-width-1-2", along="heads", by="steps"),
        ),
        Claim(
            "Exponent 1: how far the best learning rate drifts at each length.",
            Rule("drift", table="nugpt-width-1", along="heads", by="steps"),
        ),
    ),
    curves=curves,
    policy=POLICY,
)
