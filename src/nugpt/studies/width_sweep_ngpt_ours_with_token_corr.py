"""`width-sweep-ngpt-ours-with-token-corr`: does the best learning rate hold as width, depth and length grow at once?"""

from __future__ import annotations

from nugpt.spec.parametrization import NGPT, NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import ASPECT_TOKENS, ASPECTS, POLICY, aspect_sizes, curve
from nugpt.studies.rules import drifts_left, not_worse, transfers

SEEDS = {"paper": (0, 1, 2)}  # the paper averages three here; elsewhere the scale's own


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """As many layers as heads, steps in proportion to parameters."""
    at = scale_named(scale)
    sizes = aspect_sizes(at, ASPECTS[scale], ASPECT_TOKENS[scale])
    return tuple(curve(at, setting, t, size, seeds=SEEDS.get(scale)) for t in (NGPT, NUGPT) for size in sizes)


STUDY = Study(
    id="width-sweep-ngpt-ours-with-token-corr",
    figure="fig:width-sweep-ngpt-ours-with-token-corr",
    title="Fixed aspect ratio at fixed tokens per parameter: nGPT and νGPT",
    varies="layers = heads, steps in proportion to parameters",
    claims=(
        Claim("nGPT's best learning rate does not transfer over size: it falls.", drifts_left("ngpt", "heads")),
        Claim("νGPT's best learning rate transfers over size.", transfers("nugpt", "heads")),
        Claim("νGPT's best loss is no worse than nGPT's at any size.", not_worse("nugpt", "ngpt")),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "Sizes and lengths grow together from very short runs on, with fewer tokens per parameter than the paper's: a "
        "power that bends with length would show as drift."
    ),
)
