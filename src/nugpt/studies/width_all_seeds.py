"""`width-all-seeds`: νGPT's halves of `width-fixed-steps` and `width-fresh-seeds` as one, every run shared.

It was made after both had been seen, so it asks and has no rule.
"""

from __future__ import annotations

from dataclasses import replace

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, width_curves
from nugpt.studies.width_fresh_seeds import LIMITS, fresh_curves


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The same widths and learning rates, on the seeds of both."""
    first, fresh = width_curves(scale, setting, (NUGPT,)), fresh_curves(NUGPT, scale, setting)
    return tuple(replace(one, seeds=one.seeds + more.seeds) for one, more in zip(first, fresh, strict=True))


STUDY = Study(
    id="width-all-seeds",
    title="Width at a fixed number of iterations: νGPT by all seeds together",
    varies="heads at fixed layers, fixed steps, seeds",
    claims=(
        Claim(
            "How far νGPT's best learning rate moves over width, by all seeds.",
            Rule("drift", table="nugpt", along="heads"),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits=LIMITS,
)
