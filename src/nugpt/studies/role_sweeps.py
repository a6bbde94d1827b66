"""`role-sweeps`: the width exponent of each role, read off the loss itself.

One role's learning rate is scaled at a time, the others stay at νGPT's. If the table's exponent is right for that role,
its best multiplier is the same at every width; if not, the slope of the best multiplier is what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nugpt.spec.parametrization import NUGPT, Parametrization
from nugpt.spec.plan import Curve, Label
from nugpt.spec.resolve import resolve
from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.scales import Scale, scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import DRIFT, Rule
from nugpt.studies.grids import AS_PLANNED, WIDTHS_LAYERS, Size, curve, expected, fixed_steps

GROUPS = {"hidden": ("hidden",), "input": ("input",), "output": ("output",), "rescalers": RESCALER_ROLES}
HEADS = {"paper": (8, 16, 40), "evidence": (4, 8, 16), "lab": (2, 4, 8), "tiny": (1, 2, 3)}
OCTAVES = {"paper": (-2, -1, 1, 2), "evidence": (-2, -1, 1, 2), "lab": (-2, -1, 1, 2), "tiny": (-1, 1)}
SEEDS = {"evidence": {4: (0, 1), 8: (0, 1)}}  # by heads; one elsewhere: here the multipliers are the grid


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Every group at three widths, at the learning rate that is expected to be best."""
    at = scale_named(scale)
    sizes = [Size(WIDTHS_LAYERS[scale], heads, fixed_steps(at)) for heads in HEADS[scale]]
    seeds = SEEDS.get(scale, {})
    return tuple(
        one
        for size in sizes
        for one in scaled_roles(
            at, setting, NUGPT, size, expected(at, NUGPT, size), GROUPS, OCTAVES[scale], seeds.get(size.heads, (0,))
        )
    )


def scaled_roles(
    at: Scale,
    setting: Setting,
    table: Parametrization,
    size: Size,
    log2_lr: float,
    groups: Mapping[str, Sequence[str]],
    octaves: Sequence[int],
    seeds: tuple[int, ...],
) -> list[Curve]:
    """At one learning rate the table's own multipliers once, then each group's scaled by so many octaves."""
    defaults = {role: row.multiplier for role, row in resolve(table, at.base, at.base.extent, 1.0).rows.items()}
    defaults |= setting.multipliers
    sweeps: list[tuple[Label, dict[str, float]]] = [({"role": "none", "octaves": 0}, defaults)]
    sweeps += [
        ({"role": group, "octaves": k}, {**defaults, **{role: defaults[role] * 2.0**k for role in roles}})
        for group, roles in groups.items()
        for k in octaves
    ]
    return [
        curve(at, setting, table, size, log2_lrs=(log2_lr,), seeds=seeds, multipliers=multipliers, label=label)
        for label, multipliers in sweeps
    ]


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
