"""`depth-sweeps`: does the best learning rate hold as the model gets deeper?"""

from __future__ import annotations

from nugpt.spec.parametrization import NGPT, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, depth_curves
from nugpt.studies.rules import DECENT, NATS, not_worse, transfers


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Layers grow at fixed heads and steps."""
    return depth_curves(scale, setting, (NGPT, NUGPT))


STUDY = Study(
    id="depth-sweeps",
    figure="fig:depth-sweeps",
    title="Depth at a fixed number of iterations: nGPT and νGPT",
    varies="layers at fixed heads, fixed steps",
    claims=(
        Claim("nGPT's best learning rate transfers decently over depth.", transfers("ngpt", "layers", DECENT)),
        Claim("νGPT's best learning rate transfers decently over depth.", transfers("nugpt", "layers", DECENT)),
        Claim("νGPT's best loss is no worse than nGPT's at any depth.", not_worse("nugpt", "ngpt")),
        Claim(
            "νGPT is no more sensitive to the learning rate than nGPT at the largest depth.",
            Rule("sensitivity-not-worse", table="nugpt", against="ngpt", high=NATS),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits="The paper goes to 128 layers. How depth transfers beyond the deepest model here is not seen.",
)
