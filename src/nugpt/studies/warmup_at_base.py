"""`warmup-at-base`: is the best learning rate an optimum, or only the last one before a cliff that warm-up would move?

A run that goes wrong in its first steps has its best learning rate where it just survives them. Warm-up moves that
place and leaves a true optimum alone. So the base is swept with and without, before anything is said about transfer.
"""

from __future__ import annotations

from nugpt.spec.parametrization import NGPT, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.schedule import Schedule
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, SPACING, around, base_size, curve, expected

TABLES = (NGPT, NUGPT)
SHARES = (0.0, 0.05)  # of the run
POINTS = {"paper": 9, "evidence": 5, "lab": 7, "tiny": 3}  # wide enough to meet the cliff
QUARTER = 0.25  # octaves: a shift that would not be noticed in use


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The base's shape, under nGPT and νGPT, without and with warm-up."""
    at = scale_named(scale)
    size = base_size(at)
    return tuple(
        curve(
            at,
            setting,
            table,
            size,
            log2_lrs=around(expected(at, table, size), POINTS[scale], SPACING[scale]),
            schedule=Schedule(warmup=round(share * size.steps)),
            label={"warmup": share},
        )
        for table in TABLES
        for share in SHARES
    )


STUDY = Study(
    id="warmup-at-base",
    title="The base with and without warm-up: is it the optimum or the cliff?",
    varies="warm-up, learning rate, table, at the base",
    claims=(
        *(
            Claim(
                f"{name}'s best learning rate is an optimum: warm-up moves it by less than a quarter octave.",
                Rule("shift", table=table, by="warmup", low=-QUARTER, high=QUARTER),
            )
            for name, table in (("nGPT", "ngpt"), ("νGPT", "nugpt"))
        ),
        *(
            Claim(
                f"How far warm-up moves {name}'s stability edge.",
                Rule("edge-shift", table=table, by="warmup"),
            )
            for name, table in (("nGPT", "ngpt"), ("νGPT", "nugpt"))
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits="One shape and one length: what warm-up does to larger models and longer runs is not seen.",
)
