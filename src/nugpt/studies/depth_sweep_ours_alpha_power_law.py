"""`depth-sweep-ours-alpha-power-law`: the same with νGPT's initial values, which fall with depth."""

from __future__ import annotations

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, depth_curves


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """νGPT's runs of `depth-sweeps`; the coefficients are read at each depth's best learning rate."""
    return depth_curves(scale, setting, (NUGPT,))


STUDY = Study(
    id="depth-sweep-ours-alpha-power-law",
    figure="fig:depth-sweep-ours-alpha-power-law",
    title="Trained LERP coefficients over depth: νGPT",
    varies="layers at fixed heads, fixed steps",
    claims=(
        Claim(
            "As which power of depth the mean effective α̂_A falls: the paper fits it and claims nothing.",
            Rule("lerp-slope", table="nugpt", along="layers", of="alpha_A"),
        ),
        Claim(
            "As which power of depth the mean effective α̂_M falls: the paper fits it and claims nothing.",
            Rule("lerp-slope", table="nugpt", along="layers", of="alpha_M"),
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
