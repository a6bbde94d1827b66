"""`multipliers-at-base`: which constant factors on η_input and η_output do the transfer studies start from?

On the base all ratios are 1 and every table of the normalized family is the same model but for its default multipliers.
So one sweep tunes them for all tables. What it gives is handed to the other studies: `--multiplier output 0.5`.
"""

from __future__ import annotations

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import COARSE, HALF, SEEDS, around, base_size, curve, expected

INPUT_LOG2 = {"paper": (-1, 0, 1), "evidence": (-1, 0, 1), "lab": (-1, 0, 1), "tiny": (0, 1)}
OUTPUT_LOG2 = {"paper": (-3, -2, -1, 0, 1), "evidence": (-2, -1, 0, 1), "lab": (-2, -1, 0), "tiny": (-2, -1, 0)}
POINTS = 3  # a multiplier moves the best η little, and the grid extends where it does


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """A curve for each pair of multipliers at the base's shape and length."""
    at = scale_named(scale)
    size = base_size(at)
    return tuple(
        curve(
            at,
            setting,
            NUGPT,
            size,
            log2_lrs=around(expected(at, NUGPT, size), POINTS, HALF[scale]),
            seeds=SEEDS[scale][:2],
            multipliers={"input": 2.0**i, "output": 2.0**o},
            label={"input_log2": i, "output_log2": o},
        )
        for i in INPUT_LOG2[scale]
        for o in OUTPUT_LOG2[scale]
    )


STUDY = Study(
    id="multipliers-at-base",
    title="Multipliers of η_input and η_output, tuned on the base for every table",
    varies="both multipliers, at the base",
    claims=(
        Claim("Which multiplier η_output wants on the base.", Rule("multiplier", table="nugpt", of="output")),
        Claim("Which multiplier η_input wants on the base.", Rule("multiplier", table="nugpt", of="input")),
    ),
    curves=curves,
    policy=COARSE,
    limits="Tuned on one small shape, data set and vocabulary, for use at the same: not a recommendation for others.",
)
