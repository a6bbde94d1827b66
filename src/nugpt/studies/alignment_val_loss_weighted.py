"""`alignment_val_loss_weighted`: alignment exponents as a function of the loss decrease."""

from __future__ import annotations

from nugpt.spec.study import Study
from nugpt.studies.alignment import LIMITS, MEASURES, OVER_LOSS, runs
from nugpt.studies.grids import AS_PLANNED

STUDY = Study(
    id="alignment_val_loss_weighted",
    figure="fig:alignment_val_loss_weighted",
    title="Alignment exponents over loss decrease",
    varies="the loss of one run",
    claims=OVER_LOSS,
    curves=runs,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=LIMITS,
)
