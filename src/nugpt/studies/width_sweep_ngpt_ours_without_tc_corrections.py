"""`width-sweep-ngpt-ours-without-tc-corrections`: is the law in iterations the same when they grow with the model?"""

from __future__ import annotations

from fractions import Fraction as F

from nugpt.spec.parametrization import NUGPT, with_data_exponent
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, SPACING, WIDTHS_LAYERS, Size, around, curve, steps_per_parameter
from nugpt.studies.rules import inverse_cube_root

# The paper gives no number of layers; twelve, as in its other width sweeps.
HEADS = {"paper": (8, 12, 16, 20, 28, 40), "evidence": (2, 4, 6, 8), "lab": (2, 4, 8), "tiny": (1, 2, 4)}
TOKENS = {"paper": 20.0, "evidence": 5.0, "lab": 5.0, "tiny": 0.2}
# One grid for all sizes, as in `steps-sweep-ngpt-ours`.
CENTRE = {"paper": -9.0, "evidence": -6.5, "lab": -6.5, "tiny": -3.5}
POINTS = {"paper": 11, "evidence": 3, "lab": 7, "tiny": 3}
WITHOUT_M_DATA = with_data_exponent(NUGPT, F(0))


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Heads grow at fixed layers, steps in proportion to parameters."""
    at, layers = scale_named(scale), WIDTHS_LAYERS[scale]
    grid = around(CENTRE[scale], POINTS[scale], SPACING[scale])
    sizes = [Size(layers, heads, steps_per_parameter(at, layers, heads, TOKENS[scale])) for heads in HEADS[scale]]
    return tuple(curve(at, setting, WITHOUT_M_DATA, size, log2_lrs=grid) for size in sizes)


STUDY = Study(
    id="width-sweep-ngpt-ours-without-tc-corrections",
    figure="fig:width-sweep-ngpt-ours-without-tc-corrections",
    title="Width at fixed tokens per parameter: νGPT without the correction m_data",
    varies="heads at fixed layers, steps in proportion to parameters",
    claims=(Claim("The best learning rate falls as iterations to the power −1/3.", inverse_cube_root("nugpt")),),
    curves=curves,
    policy=POLICY,
    limits="The lengths are below the paper's, and width grows with them: the slope holds what width does too.",
)
