"""`against-llama`: νGPT and a plain pre-norm transformer, both tuned, at equal FLOPs and at equal wall-clock.

The baseline is tuned in learning rate and weight decay, and it warms up, as whoever trains one would have it. A νGPT
step takes longer, so at equal time the baseline takes more of them: how many more is known only once both have run, and
what they buy is read off runs a quarter longer.
"""

from __future__ import annotations

from dataclasses import replace

from nugpt.spec.parametrization import NUGPT, PRENORM_COMPLETEP
from nugpt.spec.plan import Curve, Label
from nugpt.spec.scales import Scale, scale_named
from nugpt.spec.schedule import Schedule
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, Size, curve, fixed_steps
from nugpt.studies.rules import not_worse

SHAPES = {
    "paper": ((12, 12), (12, 28)),
    "evidence": ((4, 8), (4, 16)),
    "lab": ((4, 4), (4, 8)),
    "tiny": ((2, 1), (2, 2)),
}
WEIGHT_DECAYS = {"paper": (0.03, 0.1, 0.3), "evidence": (0.03, 0.1, 0.3), "lab": (0.1, 0.3), "tiny": (0.1, 0.3)}
SEEDS = {"evidence": 2, "lab": 1}  # at the most, of the baseline, which has the more curves
LONGER = 1.25
WEIGHT_DECAY = 0.1  # where one must do: what more steps buy is read there
WARMUP = 20  # one step in so many


def baseline(
    at: Scale,
    setting: Setting,
    size: Size,
    label: Label,
    *,
    log2_lrs: tuple[float, ...] | None = None,
    weight_decay: float = WEIGHT_DECAY,
    warmup: int = WARMUP,
    grad_clip: float | None = None,
) -> Curve:
    """The plain transformer over learning rates, which warms up over one step in `warmup`."""
    made = curve(
        at,
        setting,
        PRENORM_COMPLETEP,
        size,
        log2_lrs=log2_lrs,
        weight_decay=weight_decay,
        schedule=Schedule(warmup=size.steps // warmup),
        grad_clip=grad_clip,
        label=label,
    )
    seeds = 1 if at.name == "evidence" and size.heads >= 16 else SEEDS.get(at.name)
    return replace(made, seeds=made.seeds[:seeds])


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """νGPT over learning rates; the baseline over learning rates and weight decays, and once a quarter longer."""
    at = scale_named(scale)
    steps = fixed_steps(at)
    made: list[Curve] = []
    for layers, heads in SHAPES[scale]:
        size, longer = Size(layers, heads, steps), Size(layers, heads, round(LONGER * steps))
        made.append(curve(at, setting, NUGPT, size, label={"weight_decay": 0.0, "horizon": 1.0}))
        made += [
            baseline(at, setting, size, {"weight_decay": decay, "horizon": 1.0}, weight_decay=decay)
            for decay in WEIGHT_DECAYS[scale]
        ]
        made.append(baseline(at, setting, longer, {"weight_decay": WEIGHT_DECAY, "horizon": LONGER}))
    return tuple(made)


STUDY = Study(
    id="against-llama",
    title="νGPT and the plain pre-norm baseline, both tuned",
    varies="architecture, heads, learning rate, weight decay of the baseline",
    claims=(
        Claim(
            "νGPT's best loss is no worse than the tuned baseline's at equal FLOPs.",
            not_worse("nugpt", "prenorm-completep", at="equal-flops"),
        ),
        Claim(
            "νGPT's best loss is no worse than the tuned baseline's at equal wall-clock.",
            not_worse("nugpt", "prenorm-completep", at="equal-time"),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "Two small shapes on one data set. A difference between architectures at this size says little about larger "
        "models and longer training."
    ),
)
