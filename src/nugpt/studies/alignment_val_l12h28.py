"""`alignment_val_l12h28`: alignment exponents over training, in a wider model."""

from __future__ import annotations

from nugpt.spec.study import Study
from nugpt.studies.alignment import LIMITS, MEASURES, OVER_TRAINING, wider_runs
from nugpt.studies.grids import AS_PLANNED

STUDY = Study(
    id="alignment_val_l12h28",
    figure="fig:alignment_val_l12h28",
    title="Alignment exponents over training, wider model",
    varies="the step of one run",
    claims=OVER_TRAINING,
    curves=wider_runs,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=LIMITS,
)
