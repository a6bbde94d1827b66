"""`alignment_val`: alignment exponents over training, averaged over layers."""

from __future__ import annotations

from nugpt.spec.study import Study
from nugpt.studies.alignment import LIMITS, MEASURES, OVER_TRAINING, runs
from nugpt.studies.grids import AS_PLANNED

STUDY = Study(
    id="alignment_val",
    figure="fig:alignment_val",
    title="Alignment exponents over training",
    varies="the step of one run",
    claims=OVER_TRAINING,
    curves=runs,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=LIMITS,
)
