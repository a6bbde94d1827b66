"""`mup-drifts-ours-not`: do μP's width corrections, made for full alignment, hold as well as νGPT's?"""

from __future__ import annotations

from nugpt.spec.parametrization import COMPLETEP, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, width_curves
from nugpt.studies.rules import drifts_right, transfers


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Heads grow at fixed layers and steps; νGPT's runs are those of `width-fixed-steps`."""
    return width_curves(scale, setting, (COMPLETEP, NUGPT))


STUDY = Study(
    id="mup-drifts-ours-not",
    figure="fig:mup-drifts-ours-not",
    title="Width at a fixed number of iterations: CompleteP and νGPT",
    varies="heads at fixed layers, fixed steps",
    claims=(
        Claim("CompleteP's best learning rate drifts to the right over width.", drifts_right("completep", "heads")),
        Claim("νGPT's best learning rate transfers over width.", transfers("nugpt", "heads")),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "Full alignment describes the first steps of training better than its end, so over short runs CompleteP may "
        "drift less than it would over long ones."
    ),
)
