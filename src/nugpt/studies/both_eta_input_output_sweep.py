"""`both-eta-input-output-sweep`: which constant factors on η_input and η_output are best, and is it so at two sizes?"""

from __future__ import annotations

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import COARSE, HALF, Size, around, aspect_sizes, curve, expected

SIZES = {"paper": (10, 16), "evidence": (4, 6), "lab": (2, 4), "tiny": (1, 2)}
TOKENS = {"paper": 20.0, "evidence": 5.0, "lab": 5.0}  # the paper gives no length: its 20 tokens per parameter
TINY_STEPS = 40  # at `tiny` a fixed length, since tokens per parameter would leave the smaller size no steps
INPUT_LOG2 = {"paper": (-1, 0, 1), "evidence": (-1, 0, 1), "lab": (-1, 0, 1), "tiny": (0, 1)}
OUTPUT_LOG2 = {
    "paper": (-3, -2, -1, 0, 1),
    "evidence": (-2, -1, 0, 1),
    "lab": (-3, -2, -1, 0, 1),
    "tiny": (-2, -1, 0),
}
SEEDS = {"evidence": (0,)}
POINTS = 3  # a multiplier moves the best η little, and the grid extends where it does


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """A curve for each pair of multipliers; they replace the table's defaults."""
    at = scale_named(scale)
    if scale in TOKENS:
        sizes = aspect_sizes(at, SIZES[scale], TOKENS[scale])
    else:
        sizes = tuple(Size(n, n, TINY_STEPS) for n in SIZES[scale])
    return tuple(
        curve(
            at,
            setting,
            NUGPT,
            size,
            log2_lrs=around(expected(at, NUGPT, size), POINTS, HALF[scale]),
            seeds=SEEDS.get(scale),
            multipliers={"input": 2.0**i, "output": 2.0**o},
            label={"input_log2": i, "output_log2": o},
        )
        for size in sizes
        for i in INPUT_LOG2[scale]
        for o in OUTPUT_LOG2[scale]
    )


STUDY = Study(
    id="both-eta-input-output-sweep",
    figure="fig:both-eta-input-output-sweep",
    title="Multipliers of η_input and η_output",
    varies="both multipliers, at two sizes with as many layers as heads",
    claims=(
        Claim(
            "η_output wants a multiplier of about 2^−1, at either size.",
            Rule("multiplier", table="nugpt", of="output", by="heads", low=-1.5, high=-0.5),
        ),
        Claim(
            "Which multiplier η_input wants: the paper leaves it at 1.",
            Rule("multiplier", table="nugpt", of="input", by="heads"),
        ),
    ),
    curves=curves,
    policy=COARSE,
    limits=(
        "The smaller of the paper's models is larger than the larger one here, and the multiplier that a model wants "
        "may move with the vocabulary."
    ),
)
