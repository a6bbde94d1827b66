"""`rescaler-rate`: do rescalers want to move faster than νGPT's table lets them?

`role-sweeps` found, at one learning rate, lower losses where the learning rates of all rescalers were doubled. Here
the learning rate is swept as well, so that the rescalers' share of η is told from η itself, on seeds that it did not
have. (With νGPT's own table `width-fresh-seeds` has runs of these seeds too.) A lower constant in the scales of α, s_qk
and s_z, as the paper's is on a smaller base than its own, does nearly the same to these three alone. Our constant
(docs/choices.md) is there to avoid that; what it would do is shown beside it.
"""

from __future__ import annotations

from dataclasses import replace

from nugpt.spec.parametrization import NUGPT, Parametrization, Power
from nugpt.spec.plan import Curve
from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import (
    COARSE,
    HALF,
    POINTS,
    WIDTHS_LAYERS,
    Size,
    around,
    curve,
    expected,
    fixed_steps,
    next_seeds,
)
from nugpt.studies.role_sweeps import HEADS
from nugpt.studies.rules import matches

# The paper's constant, taken literally. At the paper's scale it is the base's own: there, half of it is the lower one.
LOWER = {"paper": 0.015, "evidence": 0.03, "lab": 0.03, "tiny": 0.03}


def doubled() -> Parametrization:
    """νGPT with twice its learning rate for every rescaler."""
    rows = {
        role: replace(row, multiplier_log2=row.multiplier_log2 + 1) if role in RESCALER_ROLES else row
        for role, row in NUGPT.rows.items()
    }
    return replace(NUGPT, name="nugpt-rescalers-doubled", rows=rows)


def with_constant(constant: float) -> Parametrization:
    """νGPT with a number in place of c in the scales of rescalers."""
    rows = {
        role: replace(row, scale=Power(constant)) if row.scale is not None and row.scale.rescaler_scale else row
        for role, row in NUGPT.rows.items()
    }
    return replace(NUGPT, name="nugpt-lower-constant", rows=rows)


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The tables at the widths of `role-sweeps`, the lower constant at the ends alone; the scale's next two seeds."""
    at = scale_named(scale)
    seeds = next_seeds(scale, 2)
    widths = HEADS[scale]
    ends = (widths[0], widths[-1])
    # What was tuned on the base replaces a table's own multipliers, so that it is doubled where the table is.
    tables = ((NUGPT, widths, 1.0), (doubled(), widths, 2.0), (with_constant(LOWER[scale]), ends, 1.0))
    return tuple(
        curve(
            at,
            setting,
            table,
            size,
            log2_lrs=around(expected(at, NUGPT, size), POINTS[scale], HALF[scale]),
            seeds=seeds,
            multipliers={r: x * (times if r in RESCALER_ROLES else 1.0) for r, x in setting.multipliers.items()},
        )
        for table, heads, times in tables
        for size in (Size(WIDTHS_LAYERS[scale], h, fixed_steps(at)) for h in heads)
    )


STUDY = Study(
    id="rescaler-rate",
    title="The rescalers' learning rates doubled, and a lower constant in their scales",
    varies="the learning rates of all rescalers, the constant in their scales, heads",
    claims=(
        Claim(
            "Twice the learning rate for every rescaler lowers νGPT's best loss, at every width.",
            Rule("loss-not-worse", table="nugpt-rescalers-doubled", against="nugpt", high=0.0),
        ),
        Claim(
            "How νGPT's best learning rate moves over width with rescalers twice as fast.",
            Rule("drift", table="nugpt-rescalers-doubled", along="heads"),
        ),
        Claim(
            "A lower constant than the base's own in the rescalers' scales leaves νGPT's best loss as it is.",
            matches("nugpt-lower-constant", "nugpt"),
        ),
    ),
    curves=curves,
    policy=COARSE,
    limits="All rescalers are moved together, by one factor; which of them gains is not seen.",
)
