"""`depth-mup-roles`: does η_hidden want Depth-μP's correction, whatever the one learning rate of all roles does?

A correction of η_hidden alone need not move the best learning rate of all roles together: the others may hold it where
it is. So η_hidden is moved by itself. Depth-μP lowers it as the square root of depth; if depth asks for nothing, its
best multiplier rises as fast.
"""

from __future__ import annotations

from nugpt.spec.parametrization import DEPTH_MUP
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import AS_PLANNED, DEPTHS_HEADS, Size, expected, fixed_steps
from nugpt.studies.role_sweeps import scaled_roles
from nugpt.studies.rules import DECENT

LAYERS = {"paper": (8, 32, 128), "evidence": (4, 16, 32), "lab": (2, 4, 8), "tiny": (1, 2, 4)}
OCTAVES = {"paper": (-1, 1, 2, 3), "evidence": (-1, 1, 2, 3), "lab": (-1, 1, 2), "tiny": (-1, 1, 2)}
SEEDS = {"evidence": (0, 1), "lab": (0, 1)}  # one elsewhere
# One for all depths, where all roles together do best: at `evidence` as `depth-mup-depth-sweep` has it.
LOG2_LR = {"evidence": -6.25}


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """η_hidden under Depth-μP at three depths, all else as the table has it."""
    at = scale_named(scale)
    base = Size(at.base_layers, DEPTHS_HEADS[scale], fixed_steps(at))
    log2_lr, seeds = LOG2_LR.get(scale, expected(at, DEPTH_MUP, base)), SEEDS.get(scale, (0,))
    return tuple(
        one
        for layers in LAYERS[scale]
        for one in scaled_roles(
            at,
            setting,
            DEPTH_MUP,
            Size(layers, base.heads, base.steps),
            log2_lr,
            {"hidden": ("hidden",)},
            OCTAVES[scale],
            seeds,
        )
    )


STUDY = Study(
    id="depth-mup-roles",
    title="η_hidden by itself against depth under Depth-μP",
    varies="the multiplier of η_hidden, layers",
    claims=(
        Claim(
            "η_hidden should not fall with depth: under Depth-μP its best multiplier rises.",
            Rule("multiplier-slope", table="depth-mup", along="layers", of="hidden", low=DECENT),
        ),
    ),
    curves=curves,
    policy=AS_PLANNED,
    limits="η_hidden moves around one learning rate, at three depths of one width: how roles move together is unseen.",
)
