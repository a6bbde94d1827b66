"""`held-out`: predict the best learning rate of a larger size from smaller ones, then sweep it.

Each axis by itself is taken about four times beyond the base, then width, depth and length grow at once. What a table
predicts is fixed by its smaller sizes; the held-out sweep says what the prediction costs.
"""

from __future__ import annotations

from dataclasses import replace

from nugpt.spec.parametrization import COMPLETEP, NGPT, NUGPT, Parametrization
from nugpt.spec.plan import Curve
from nugpt.spec.scales import Scale, scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, SEEDS, Size, curve

TABLES = (NGPT, COMPLETEP, NUGPT)
BASE = {
    "paper": Size(layers=12, heads=12, steps=20_000),
    "evidence": Size(layers=4, heads=4, steps=2_000),
    "lab": Size(layers=2, heads=2, steps=400),
    "tiny": Size(layers=1, heads=1, steps=20),
}
# Each axis: its smaller values beside the base's, and the one held out.
AXES: dict[str, dict[str, tuple[tuple[int, ...], int]]] = {
    "paper": {"heads": ((8, 16), 40), "layers": ((8, 16), 48), "steps": ((5_000, 10_000), 80_000)},
    "evidence": {"heads": ((8,), 16), "layers": ((8,), 16), "steps": ((1_000,), 8_000)},
    "lab": {"heads": ((1,), 8), "layers": ((1,), 8), "steps": ((200,), 1_600)},
    "tiny": {"heads": ((2,), 4), "layers": ((2,), 4), "steps": ((40,), 80)},
}
AT_ONCE = {
    "paper": Size(layers=24, heads=28, steps=40_000),
    "evidence": Size(layers=8, heads=16, steps=4_000),
    "lab": Size(layers=4, heads=8, steps=800),
    "tiny": Size(layers=2, heads=2, steps=40),
}


def smaller_sizes(scale: str) -> list[tuple[str, Size]]:
    """(axis, size) of what the prediction is made from; the base belongs to every axis."""
    base = BASE[scale]
    beside = [(axis, replace(base, **{axis: n})) for axis, (smaller, _) in AXES[scale].items() for n in smaller]
    return [("base", base), *beside]


def held_out_sizes(scale: str) -> list[tuple[str, Size]]:
    """(axis, size) of what is predicted."""
    apart = [(axis, replace(BASE[scale], **{axis: larger})) for axis, (_, larger) in AXES[scale].items()]
    return [*apart, ("all", AT_ONCE[scale])]


def _held_out(at: Scale, setting: Setting, table: Parametrization, axis: str, size: Size) -> Curve:
    seeds = SEEDS[at.name][: 1 if axis == "all" else 2]  # the dearest runs of the study get one
    return curve(at, setting, table, size, seeds=seeds, label={"axis": axis, "held_out": 1})


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The smaller sizes first, then the held-out ones."""
    at = scale_named(scale)
    smaller = tuple(
        curve(at, setting, table, size, seeds=SEEDS[scale][:2], label={"axis": axis, "held_out": 0})
        for axis, size in smaller_sizes(scale)
        for table in TABLES
    )
    larger = (_held_out(at, setting, t, axis, size) for axis, size in held_out_sizes(scale) for t in TABLES)
    return (*smaller, *larger)


STUDY = Study(
    id="held-out",
    title="Predict a larger size from smaller ones, then sweep it",
    varies="heads, layers and steps apart, then at once",
    claims=(
        Claim(
            "νGPT's prediction lies within a quarter octave of the best learning rate found.",
            Rule("prediction", table="nugpt", by="axis", at="held-out", low=-0.25, high=0.25),
        ),
        Claim(
            "νGPT's predicted learning rate costs at most 0.02 nats at the held-out size.",
            Rule("regret", table="nugpt", by="axis", at="held-out", high=0.02),
        ),
        Claim("What nGPT's prediction costs.", Rule("regret", table="ngpt", by="axis", at="held-out")),
        Claim("What CompleteP's prediction costs.", Rule("regret", table="completep", by="axis", at="held-out")),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "A held-out size is only a few times beyond what the prediction is made from. Whoever tunes a small model for "
        "a large one goes much further."
    ),
)
