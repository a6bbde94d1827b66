"""`role-sweeps`: the width exponent of each role, read off the loss itself.

One role's learning rate is scaled at a time, the others stay at νGPT's. If the table's exponent is right for that role,
its best multiplier is the same at every width; if not, the slope of the best multiplier is what is missing.
"""

from __future__ import annotations

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve, Label
from nugpt.spec.resolve import resolve
from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import DRIFT, Rule
from nugpt.studies.grids import AS_PLANNED, WIDTHS_LAYERS, Size, curve, expected, fixed_steps

GROUPS = {"hidden": ("hidden",), "input": ("input",), "output": ("output",), "rescalers": RESCALER_ROLES}
HEADS = {"paper": (8, 16, 40), "evidence": (4, 8, 16), "lab": (2, 4, 8), "tiny": (1, 2, 3)}
OCTAVES = {"paper": (-2, -1, 1, 2), "evidence": (-2, -1, 1, 2), "lab": (-2, -1, 1, 2), "tiny": (-1, 1)}
SEEDS = {"evidence": {4: (0, 1), 8: (0, 1)}}  # by heads; one elsewhere: here the multipliers are the grid


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """For each width the default multipliers once, then each group's scaled by so many octaves; one learning rate."""
    at = scale_named(scale)
    defaults = {role: row.multiplier for role, row in resolve(NUGPT, at.base, at.base.extent, 1.0).rows.items()}
    defaults |= setting.multipliers
    sweeps: list[tuple[Label, dict[str, float]]] = [({"role": "none", "octaves": 0}, defaults)]
    sweeps += [
        ({"role": group, "octaves": k}, {**defaults, **{role: defaults[role] * 2.0**k for role in roles}})
        for group, roles in GROUPS.items()
        for k in OCTAVES[scale]
    ]
    sizes = [Size(WIDTHS_LAYERS[scale], heads, fixed_steps(at)) for heads in HEADS[scale]]
    return tuple(
        curve(
            at,
            setting,
            NUGPT,
            size,
            log2_lrs=(expected(at, NUGPT, size),),
            seeds=SEEDS.get(scale, {}).get(size.heads, (0,)),
            multipliers=multipliers,
            label=label,
        )
        for size in sizes
        for label, multipliers in sweeps
    )


STUDY = Study(
    id="role-sweeps",
    title="Learning rates role by role: multipliers against width",
    varies="the multiplier of one role at a time, heads",
    claims=tuple(
        Claim(
            f"νGPT's width exponent is right for {group}: its best multiplier does not move with width.",
            Rule("multiplier-slope", table="nugpt", along="heads", of=group, low=-DRIFT, high=DRIFT),
        )
        for group in GROUPS
    ),
    curves=curves,
    policy=AS_PLANNED,
    limits=(
        "Each role is moved alone around one point, and each width has few seeds: how roles move together is not seen."
    ),
)
