"""`against-llama-warmup`: does the clipped plain transformer gain by a longer warm-up, and by the time it saves?

From a warm-up of one step in twenty to one in five it gained more than by clipping. Here the warm-up is taken well
beyond, so that its best lies between; and the runs a quarter longer say what equal wall-clock is worth to it.
"""

from __future__ import annotations

from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.against_llama import LONGER, SHAPES
from nugpt.studies.against_llama_clipped import LIMITS, clipped, ours
from nugpt.studies.grids import COARSE, Size, fixed_steps
from nugpt.studies.rules import not_worse

WARMUPS = (5, 2)  # one step in so many
HIGHER = 0.5  # octaves: a longer warm-up bears a higher learning rate


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """νGPT, and the clipped baseline with a long and a very long warm-up, and once a quarter longer."""
    at = scale_named(scale)
    steps = fixed_steps(at)
    made: list[Curve] = []
    for layers, heads in SHAPES[scale]:
        size, longer = Size(layers, heads, steps), Size(layers, heads, round(LONGER * steps))
        as_long = {"horizon": 1.0}
        made.append(ours(at, setting, size, as_long))
        made += [clipped(at, setting, size, warmup, HIGHER, as_long) for warmup in WARMUPS]
        made.append(clipped(at, setting, longer, WARMUPS[0], HIGHER, {"horizon": LONGER}))
    return tuple(made)


STUDY = Study(
    id="against-llama-warmup",
    title="νGPT and the clipped baseline with a longer warm-up",
    varies="architecture, heads, learning rate, warm-up and length of the baseline",
    claims=(
        Claim(
            "νGPT's best loss is no worse than that of the baseline with clipped gradients and a long warm-up, at "
            "equal FLOPs.",
            not_worse("nugpt", "prenorm-completep", at="equal-flops"),
        ),
        Claim(
            "νGPT's best loss is no worse than that of the baseline with clipped gradients and a long warm-up, at "
            "equal wall-clock.",
            not_worse("nugpt", "prenorm-completep", at="equal-time"),
        ),
    ),
    curves=curves,
    policy=COARSE,
    limits=LIMITS,
)
