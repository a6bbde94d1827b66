"""`alignment_val_loss_weighted_l12h28`: alignment exponents as a function of the loss decrease, in a wider model."""

from __future__ import annotations

from nugpt.spec.study import Study
from nugpt.studies.alignment import LIMITS, MEASURES, OVER_LOSS, wider_runs
from nugpt.studies.grids import AS_PLANNED

STUDY = Study(
    id="alignment_val_loss_weighted_l12h28",
    figure="fig:alignment_val_loss_weighted_l12h28",
    title="Alignment exponents over loss decrease, wider model",
    varies="the loss of one run",
    claims=OVER_LOSS,
    curves=wider_runs,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=LIMITS,
)
