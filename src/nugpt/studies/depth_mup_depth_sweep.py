"""`depth-mup-depth-sweep`: would Depth-μP's correction of η_hidden break transfer over depth?"""

from __future__ import annotations

from nugpt.spec.parametrization import DEPTH_MUP, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, depth_curves
from nugpt.studies.rules import DECENT, drifts_right, transfers


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Layers grow at fixed heads and steps; νGPT's runs are those of `depth-sweeps`."""
    return depth_curves(scale, setting, (DEPTH_MUP, NUGPT))


STUDY = Study(
    id="depth-mup-depth-sweep",
    figure="fig:depth-mup-depth-sweep",
    title="Depth at a fixed number of iterations: Depth-μP and νGPT",
    varies="layers at fixed heads, fixed steps",
    claims=(
        Claim(
            "Depth-μP's best learning rate drifts strongly to the right over depth.",
            drifts_right("depth-mup", "layers", beyond=DECENT),
        ),
        Claim("νGPT's best learning rate transfers decently over depth.", transfers("nugpt", "layers", DECENT)),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "The paper goes to 128 layers. A drift that builds up with depth is seen here only as far as the deepest model."
    ),
)
