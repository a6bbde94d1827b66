"""`width-fixed-steps`: does the best learning rate hold as the model gets wider?"""

from __future__ import annotations

from nugpt.spec.parametrization import NGPT, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, width_curves
from nugpt.studies.rules import drifts_left, not_worse, transfers


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Heads grow at fixed layers and steps."""
    return width_curves(scale, setting, (NGPT, NUGPT))


STUDY = Study(
    id="width-fixed-steps",
    figure="fig:width-fixed-steps",
    title="Width at a fixed number of iterations: nGPT and νGPT",
    varies="heads at fixed layers, fixed steps",
    claims=(
        Claim("nGPT's best learning rate does not transfer over width: it falls.", drifts_left("ngpt", "heads")),
        Claim("νGPT's best learning rate transfers over width.", transfers("nugpt", "heads")),
        Claim("νGPT's best loss is no worse than nGPT's at any width.", not_worse("nugpt", "ngpt")),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "The exponent of three quarters rests on alignment over runs as long as the paper's. Runs as short as these "
        "spend much of their length in the first phase of training, where other exponents may fit better."
    ),
)
