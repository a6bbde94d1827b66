"""`depth-sweep-baseline-alpha-power-law`: how do nGPT's trained LERP coefficients shrink with depth?"""

from __future__ import annotations

from nugpt.spec.parametrization import NGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, depth_curves


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """nGPT's runs of `depth-sweeps`; the coefficients are read at each depth's best learning rate."""
    return depth_curves(scale, setting, (NGPT,))


STUDY = Study(
    id="depth-sweep-baseline-alpha-power-law",
    figure="fig:depth-sweep-baseline-alpha-power-law",
    title="Trained LERP coefficients over depth: nGPT",
    varies="layers at fixed heads, fixed steps",
    claims=(
        Claim(
            "The mean effective α̂_A falls about as depth to the power −1/2.",
            Rule("lerp-slope", table="ngpt", along="layers", of="alpha_A", low=-0.7, high=-0.3),
        ),
        Claim(
            "The mean effective α̂_M falls about as depth to the power −1/2.",
            Rule("lerp-slope", table="ngpt", along="layers", of="alpha_M", low=-0.7, high=-0.3),
        ),
        Claim(
            "Its variance over components and layers is very high.",
            Rule("lerp-spread", table="ngpt", low=0.5),
        ),
    ),
    curves=curves,
    measures=("lerp",),
    policy=POLICY,
    limits=(
        "The law is one of trained models. After runs this short the coefficients still move, and the deepest model "
        "here is shallower than the paper's."
    ),
)
