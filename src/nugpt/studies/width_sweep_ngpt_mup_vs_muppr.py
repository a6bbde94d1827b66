"""`width-sweep-ngpt-mup-vs-muppr`: does it matter whether logits start small, as in μP, or at order one? Untuned."""

from __future__ import annotations

from nugpt.spec.parametrization import untuned
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY
from nugpt.studies.logit_scalings import TABLES, logit_curves
from nugpt.studies.rules import matches


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Both scalings over size, every multiplier 1."""
    return logit_curves(scale, setting, [(untuned(table), 0.0) for table in TABLES])


STUDY = Study(
    id="width-sweep-ngpt-mup-vs-muppr",
    figure="fig:width-sweep-ngpt-mup-vs-muppr",
    title="Two scalings of the logits, η_output untuned: CompleteP and νGPT (full align)",
    varies="layers = heads, steps in proportion to parameters",
    claims=(Claim("The two scalings' best losses match, untuned.", matches("nugpt-full-align", "completep")),),
    curves=curves,
    policy=POLICY,
    limits=(
        "How logits start matters most for large vocabularies, and less the longer a run is: here the vocabulary is "
        "small and training short."
    ),
)
