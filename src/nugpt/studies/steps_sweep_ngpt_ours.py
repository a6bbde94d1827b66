"""`steps-sweep-ngpt-ours`: how does the best learning rate of one model fall with the number of iterations?"""

from __future__ import annotations

from fractions import Fraction as F

from nugpt.spec.parametrization import NUGPT, with_data_exponent
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, SPACING, Size, around, curve
from nugpt.studies.rules import inverse_cube_root

SHAPE = {"paper": (12, 12), "evidence": (4, 8), "lab": (4, 4), "tiny": (2, 1)}
STEPS = {
    "paper": (5_000, 10_000, 20_000, 40_000, 80_000),
    "evidence": (400, 800, 1_600, 3_200, 6_400),  # the longest still sees each token once
    "lab": (200, 400, 800, 1_600),
    "tiny": (20, 40, 80, 160),
}
# One grid for all lengths, wide enough for the law and for none: moving it along the law would favour the law.
CENTRE = {"paper": -9.0, "evidence": -7.0, "lab": -7.0, "tiny": -3.5}
POINTS = {"paper": 11, "evidence": 3, "lab": 7, "tiny": 5}
WITHOUT_M_DATA = with_data_exponent(NUGPT, F(0))


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """One model, one grid, steps doubling."""
    at = scale_named(scale)
    grid = around(CENTRE[scale], POINTS[scale], SPACING[scale])
    sizes = [Size(*SHAPE[scale], steps) for steps in STEPS[scale]]
    return tuple(curve(at, setting, WITHOUT_M_DATA, size, log2_lrs=grid) for size in sizes)


STUDY = Study(
    id="steps-sweep-ngpt-ours",
    figure="fig:steps-sweep-ngpt-ours",
    title="Iterations of one νGPT model without the correction m_data",
    varies="steps of one model",
    claims=(Claim("The best learning rate falls as iterations to the power −1/3.", inverse_cube_root("nugpt")),),
    curves=curves,
    policy=POLICY,
    limits=(
        "The longest run here is a small part of the paper's. A power law over these lengths need not be the one over "
        "longer ones."
    ),
)
