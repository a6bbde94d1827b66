"""`width-sweep-ngpt-mup-vs-muppr-tuned`: the two scalings of the logits again, η_output tuned for each."""

from __future__ import annotations

from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY
from nugpt.studies.logit_scalings import TABLES, logit_curves
from nugpt.studies.rules import matches

# log2 of η_output's multiplier. CompleteP's is the paper's; νGPT (full align)'s is not in its sources and is taken from
# νGPT, which scales its logits the same way.
TUNED_LOG2 = {"completep": -1.5, "nugpt-full-align": -1.0}


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Both scalings over size, each with its own multiplier of η_output."""
    return logit_curves(scale, setting, [(table, TUNED_LOG2[table.name]) for table in TABLES])


STUDY = Study(
    id="width-sweep-ngpt-mup-vs-muppr-tuned",
    figure="fig:width-sweep-ngpt-mup-vs-muppr-tuned",
    title="Two scalings of the logits, η_output tuned: CompleteP and νGPT (full align)",
    varies="layers = heads, steps in proportion to parameters",
    claims=(Claim("The two scalings' best losses match, tuned.", matches("nugpt-full-align", "completep")),),
    curves=curves,
    policy=POLICY,
    limits=(
        "How logits start matters most for large vocabularies, and less the longer a run is: here the vocabulary is "
        "small and training short."
    ),
)
