"""`alignment-by-length`: do the exponents at the end of a run fall further as runs get longer?

Short runs end with exponents above those that the paper reads at the end of its own. Either training is too short for
them to settle, or these models settle higher: the same measurement at several lengths tells the two apart.
"""

from __future__ import annotations

from dataclasses import replace

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies import run_length_by_width
from nugpt.studies.alignment import LARGER, MEASURES
from nugpt.studies.grids import AS_PLANNED


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The νGPT runs of `run-length-by-width` at the middle of its grid, the expected best learning rate."""
    every = run_length_by_width.curves(scale, setting)
    return tuple(
        replace(
            one,
            label={key: value for key, value in one.label.items() if key != "width_exponent"},
            log2_lrs=(one.log2_lrs[len(one.log2_lrs) // 2],),
        )
        for one in every
        if one.spec.table.name == NUGPT.name
    )


STUDY = Study(
    id="alignment-by-length",
    title="Alignment exponents against the length of the run",
    varies="steps, heads",
    claims=(
        Claim(
            "The larger of α and ν at the end is lower in longer runs.",
            Rule("alignment-change", table="nugpt", of=LARGER, at="end", by="steps", high=0.0),
        ),
        Claim(
            "The larger of α and ν at the end, at each length.",
            Rule("alignment", table="nugpt", of=LARGER, at="end", by="steps"),
        ),
        Claim(
            "The larger of α and ν weighted by loss decrease, at each length.",
            Rule("alignment", table="nugpt", of=LARGER, at="loss-weighted", by="steps"),
        ),
    ),
    curves=curves,
    measures=MEASURES,
    policy=AS_PLANNED,
    limits=(
        "A fall from one length to the next is a direction. How far it goes on, over the tens of thousands of steps of "
        "large runs, these lengths do not show."
    ),
)
