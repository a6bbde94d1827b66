"""`against-llama-warmup`: does the clipped plain transformer gain further by a warm-up of half the run?

Once clipped it gained more by a warm-up of one step in five, rather than one in twenty, than by clipping. Here the
warm-up is taken well beyond, so that its best may lie between.
"""

from __future__ import annotations

from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.against_llama import SHAPES
from nugpt.studies.against_llama_clipped import LIMITS, clipped, ours
from nugpt.studies.grids import COARSE, Size, fixed_steps
from nugpt.studies.rules import not_worse

WARMUPS = (5, 2)  # one step in so many
HIGHER = 0.5  # octaves: a longer warm-up bears a higher learning rate


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """νGPT, and the clipped baseline with a long and with a very long warm-up."""
    at = scale_named(scale)
    made: list[Curve] = []
    for layers, heads in SHAPES[scale]:
        size = Size(layers, heads, fixed_steps(at))
        made += [ours(at, setting, size), *(clipped(at, setting, size, warmup, HIGHER) for warmup in WARMUPS)]
    return tuple(made)


STUDY = Study(
    id="against-llama-warmup",
    title="νGPT and the clipped baseline with a longer warm-up",
    varies="architecture, heads, learning rate, warm-up of the baseline",
    claims=(
        Claim(
            "νGPT's best loss is no worse than that of the baseline with clipped gradients and a long warm-up, at "
            "equal FLOPs.",
            not_worse("nugpt", "prenorm-completep", at="equal-flops"),
        ),
    ),
    curves=curves,
    policy=COARSE,
    limits=f"{LIMITS} Equal wall-clock is not asked: `against-llama` says what a step's time is worth.",
)
