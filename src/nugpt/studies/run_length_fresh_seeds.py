"""`run-length-fresh-seeds`: does νGPT's drift over width rise with run length, on seeds that have not been seen?

In `run-length-by-width`, which has two lengths, it is not decided. `held-out-steps` has a third and shorter one, and by
its runs the drift rises; but it asks and has no rule. Here its shorter and its longest runs are run again, under the
rule of the former. The middle length, which says least of a change, would be that of `width-fresh-seeds`.
"""

from __future__ import annotations

from dataclasses import replace

from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies import held_out_steps
from nugpt.studies.grids import POLICY, next_seeds
from nugpt.studies.held_out import BASE
from nugpt.studies.rules import drift_rises


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Those of `held-out-steps` but for the base's length, none of them held out; the scale's next seeds, up to two."""
    made = [one for one in held_out_steps.curves(scale, setting) if one.spec.steps != BASE[scale].steps]
    return tuple(
        replace(
            one,
            label={name: value for name, value in one.label.items() if name != "held_out"},
            seeds=next_seeds(scale, 2),
        )
        for one in made
    )


STUDY = Study(
    id="run-length-fresh-seeds",
    title="The best width exponent against the length of the run: νGPT at other lengths, on fresh seeds",
    varies="steps, heads, seeds",
    claims=(
        Claim(
            "νGPT's drift over width rises with run length, on fresh seeds.",
            drift_rises("nugpt", "heads", by="steps"),
        ),
        Claim(
            "How far νGPT's best learning rate moves over width at each length, on fresh seeds.",
            Rule("drift", table="nugpt", along="heads", by="steps"),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "Fresh seeds change initial weights and the order of data, not the data, the shapes or the lengths. Short and "
        "long runs differ in more than in how long weights and activations are aligned."
    ),
)
