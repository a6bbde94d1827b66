"""`against-llama-clipped`: is νGPT's lower loss a matter of the plain transformer's rough start?

Unclipped, it is behind νGPT from its first steps on, and at the same learning rate seeds may end far apart. Whoever
trains one clips its gradients, and may warm it up longer: here it has both.
"""

from __future__ import annotations

from nugpt.spec.parametrization import NUGPT, PRENORM_COMPLETEP
from nugpt.spec.plan import Curve
from nugpt.spec.scales import Scale, scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.against_llama import SHAPES, WARMUP, baseline
from nugpt.studies.grids import COARSE, HALF, Size, around, curve, expected, fixed_steps
from nugpt.studies.rules import not_worse

POINTS = {"paper": 9, "evidence": 5, "lab": 5, "tiny": 3}
WARMUPS = (WARMUP, 5)  # one step in so many
CLIP = 1.0  # of the gradient's length, as TorchTitan and most others have it
LIMITS = (
    "One weight decay, two small shapes on one data set. Norms of queries and keys, and learning rates tuned for each "
    "role, may help a plain transformer too."
)


def ours(at: Scale, setting: Setting, size: Size) -> Curve:
    """νGPT over learning rates, without warm-up and clipping."""
    log2_lrs = around(expected(at, NUGPT, size), POINTS[at.name], HALF[at.name])
    return curve(at, setting, NUGPT, size, log2_lrs=log2_lrs, label={"warmup": 0, "clip": 0.0})


def clipped(at: Scale, setting: Setting, size: Size, warmup: int, higher: float = 0.0) -> Curve:
    """The plain transformer with clipped gradients over learning rates, so many octaves above those expected."""
    return baseline(
        at,
        setting,
        size,
        {"warmup": size.steps // warmup, "clip": CLIP},
        log2_lrs=around(expected(at, PRENORM_COMPLETEP, size) + higher, POINTS[at.name], HALF[at.name]),
        warmup=warmup,
        grad_clip=CLIP,
    )


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """νGPT, and the clipped baseline with a short and with a long warm-up."""
    at = scale_named(scale)
    made: list[Curve] = []
    for layers, heads in SHAPES[scale]:
        size = Size(layers, heads, fixed_steps(at))
        made += [ours(at, setting, size), *(clipped(at, setting, size, warmup) for warmup in WARMUPS)]
    return tuple(made)


STUDY = Study(
    id="against-llama-clipped",
    title="νGPT and the plain pre-norm baseline with clipped gradients",
    varies="architecture, heads, learning rate, warm-up of the baseline",
    claims=(
        Claim(
            "νGPT's best loss is no worse than that of the baseline with clipped gradients, at equal FLOPs.",
            not_worse("nugpt", "prenorm-completep", at="equal-flops"),
        ),
    ),
    curves=curves,
    policy=COARSE,
    limits=LIMITS,
)
