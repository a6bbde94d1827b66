"""The runs and claims that the six alignment figures share: three views of one run, and the same of a wider model."""

from __future__ import annotations

from collections.abc import Mapping

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import alignment_curves

MEASURES = ("alignment",)
LIMITS = (
    "An exponent is a power of width, read over a few narrow widths, where a constant factor still weighs; and "
    "training is short, so that what the paper calls the end comes early."
)
LARGER = "max(alpha, nu)"  # what the width exponents of η_hidden and η_output follow

# One width in the paper; below its scale several, since a power of width shows only across widths.
HEADS: Mapping[str, tuple[int, ...]] = {"paper": (12,), "evidence": (2, 4, 8, 16), "lab": (2, 4, 8), "tiny": (1, 2)}
WIDER: Mapping[str, tuple[int, ...]] = {"paper": (28,), "evidence": (32,), "lab": (16,), "tiny": (4,)}

OVER_TRAINING = (
    Claim("ω is one half at the end.", Rule("alignment", table="nugpt", of="omega", at="end", low=0.4, high=0.6)),
    Claim("α and ν are high at first and fall.", Rule("alignment-fall", table="nugpt", of=LARGER, low=0.1)),
    Claim(
        "At the end the larger of α and ν lies near 0.5 to 0.6.",
        Rule("alignment", table="nugpt", of=LARGER, at="end", low=0.45, high=0.65),
    ),
)
OVER_LOSS = (
    Claim(
        "Weighted by loss decrease, the larger of α and ν lies near 3/4.",
        Rule("alignment", table="nugpt", of=LARGER, at="loss-weighted", low=0.65, high=0.85),
    ),
)
OVER_LAYERS = (
    Claim("ω is one half in every layer.", Rule("alignment", table="nugpt", of="omega", by="layer", low=0.4, high=0.6)),
    Claim(
        "How the larger of α and ν depends on the layer: the paper shows it and claims nothing.",
        Rule("alignment", table="nugpt", of=LARGER, by="layer"),
    ),
)


def runs(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """One νGPT run for each width, at the expected best learning rate."""
    return alignment_curves(scale, setting, NUGPT, HEADS)


def wider_runs(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The same of a wider model."""
    return alignment_curves(scale, setting, NUGPT, WIDER)
