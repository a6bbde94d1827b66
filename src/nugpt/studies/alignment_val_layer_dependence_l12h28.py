"""`alignment_val_layer_dependence_l12h28`: alignment exponents by layer, in a wider model."""

from __future__ import annotations

from nugpt.spec.study import Study
from nugpt.studies.alignment import LIMITS, MEASURES, OVER_LAYERS, wider_runs
from nugpt.studies.grids import AS_PLANNED

STUDY = Study(
    id="alignment_val_layer_dependence_l12h28",
    figure="fig:alignment_val_layer_dependence_l12h28",
    title="Alignment exponents over layers, wider model",
    varies="the layer within one run",
    claims=OVER_LAYERS,
    curves=wider_runs,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=LIMITS,
)
