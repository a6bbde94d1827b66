"""`alignment_val_layer_dependence`: alignment exponents by layer, averaged over steps."""

from __future__ import annotations

from nugpt.spec.study import Study
from nugpt.studies.alignment import LIMITS, MEASURES, OVER_LAYERS, runs
from nugpt.studies.grids import AS_PLANNED

STUDY = Study(
    id="alignment_val_layer_dependence",
    figure="fig:alignment_val_layer_dependence",
    title="Alignment exponents over layers",
    varies="the layer within one run",
    claims=OVER_LAYERS,
    curves=runs,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=LIMITS,
)
