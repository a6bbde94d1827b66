"""What the studies share: sizes per scale, learning-rate grids around the expected optimum, and curves made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nugpt.spec.model import steps_at
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.plan import Curve, Label, Policy
from nugpt.spec.run import RunSpec, run_flops
from nugpt.spec.scales import Scale, scale_named
from nugpt.spec.schedule import Schedule
from nugpt.spec.study import Setting

# Heads and layers of the paper's sweeps; the ends are the paper's, what lies between is ours.
WIDTHS = {"paper": (8, 12, 16, 20, 28, 40), "evidence": (4, 8, 16, 32), "lab": (2, 4, 8), "tiny": (1, 2, 4)}
WIDTHS_LAYERS = {"paper": 12, "evidence": 4, "lab": 4, "tiny": 2}
DEPTHS = {"paper": (8, 16, 32, 64, 128), "evidence": (4, 8, 16, 32), "lab": (2, 4, 8), "tiny": (1, 2, 4)}
DEPTHS_HEADS = {"paper": 12, "evidence": 4, "lab": 4, "tiny": 2}
ASPECTS = {"paper": (8, 10, 16, 20), "evidence": (2, 3, 5, 8), "lab": (2, 4, 6), "tiny": (1, 2, 3)}

# Below the paper's scale 20 tokens per parameter cost too much: fewer, the same at every size of a study.
ASPECT_TOKENS = {"paper": 20.0, "evidence": 10.0, "lab": 5.0, "tiny": 0.15}

FIXED_STEPS = {"tiny": 40}  # a third of the scale's own, so that a study of three sizes ends in a minute or two
SEEDS = {"paper": (0,), "evidence": (0, 1, 2), "lab": (0, 1), "tiny": (0,)}
# At `evidence` octaves first, then quarter octaves around the optimum: see docs/sweeps.md for what that saves.
POINTS = {"paper": 9, "evidence": 3, "lab": 5, "tiny": 3}
SPACING = {"paper": 0.5, "evidence": 1.0, "lab": 0.5, "tiny": 1.0}

# log2 of the best η of the base model, as far as first looks tell; at the paper's scale a guess. A grid is only centred
# there: a curve whose best lies at the edge of its grid extends it.
EXPECTED = {"paper": -8.5, "evidence": -7.0, "lab": -7.0, "tiny": -3.5}
EXPECTED_PRENORM = {"paper": -9.0, "evidence": -8.0, "lab": -8.0, "tiny": -7.0}
# Octaves that a table's best η is expected to move per octave of width and of depth: the paper's claims, in numbers.
EXPECTED_DRIFT = {"ngpt": (-0.5, 0.0), "depth-mup": (0.0, 0.25)}
EXPECTED_HORIZON = -1 / 3  # the same per octave of iterations, for a table without m_data

# FLOPs of one run at `evidence` from which on a curve has two seeds, not three, and from which on it has one seed and
# five points, not seven: half a minute and a minute of an H200, about.
DEAR, DEAREST = 5e15, 1.2e16

POLICY: Mapping[str, Policy] = {
    "paper": Policy(),
    "evidence": Policy(extend=3, spacing=1.0, refine=(0.25,)),
    "lab": Policy(extend=2),
    "tiny": Policy(extend=1, spacing=1.0),
}
# For studies of what moves the best η little: half octaves, extended where it does, and not refined.
COARSE: Mapping[str, Policy] = {**POLICY, "evidence": Policy(extend=2)}
HALF = {**SPACING, "evidence": 0.5}
AS_PLANNED: Mapping[str, Policy] = {name: Policy(extend=0) for name in POLICY}  # for runs at one learning rate


@dataclass(frozen=True)
class Size:
    """Layers, heads and steps of a run."""

    layers: int
    heads: int
    steps: int


def fixed_steps(scale: Scale) -> int:
    """The length of a study at a fixed number of iterations."""
    return FIXED_STEPS.get(scale.name, scale.fixed_steps)


def steps_per_parameter(scale: Scale, layers: int, heads: int, tokens: float) -> int:
    """Steps at so many tokens per non-embedding parameter, rounded up as the scale does."""
    return steps_at(scale.model(layers, heads), tokens, scale.batch, scale.round_steps_to)


def around(centre: float, points: int, spacing: float) -> tuple[float, ...]:
    """An odd number of places of log2 η, evenly spaced, the middle one at `centre`."""
    assert points % 2 == 1
    return tuple(centre + spacing * k for k in range(-(points // 2), points // 2 + 1))


def expected(scale: Scale, table: Parametrization, size: Size) -> float:
    """Where the best log2 η is expected, to the half octave."""
    centre = (EXPECTED_PRENORM if table.family == "prenorm" else EXPECTED)[scale.name]
    per_width, per_depth = EXPECTED_DRIFT.get(table.name, (0.0, 0.0))
    centre += per_width * math.log2(size.heads / scale.base_heads)
    centre += per_depth * math.log2(size.layers / scale.base_layers)
    # The expectation at `tiny` is that of its fixed-step studies, at the other scales that of the base.
    length = fixed_steps(scale) if scale.name == "tiny" else scale.base_steps
    centre += EXPECTED_HORIZON * math.log2(size.steps / length) if table.base.data == 0 else 0.0
    return round(2 * centre) / 2


def default_grid(scale: Scale, table: Parametrization, size: Size) -> tuple[float, ...]:
    """The scale's number of points around the expected optimum."""
    return around(expected(scale, table, size), POINTS[scale.name], SPACING[scale.name])


def default_seeds(scale: Scale, spec: RunSpec) -> tuple[int, ...]:
    """The scale's seeds, fewer for the dearest runs at `evidence`."""
    flops = run_flops(spec) if scale.name == "evidence" else 0.0
    return SEEDS[scale.name][: 1 if flops > DEAREST else 2 if flops > DEAR else None]


def next_seeds(scale: str, most: int) -> tuple[int, ...]:
    """Up to so many seeds, as many as a scale has, that its other studies have not used."""
    used = len(SEEDS[scale])
    return tuple(range(used, used + min(used, most)))


def curve(
    scale: Scale,
    setting: Setting,
    table: Parametrization,
    size: Size,
    *,
    log2_lrs: tuple[float, ...] | None = None,
    seeds: tuple[int, ...] | None = None,
    batch: int | None = None,
    multipliers: Mapping[str, float] | None = None,  # the setting's by default
    weight_decay: float | None = None,
    schedule: Schedule | None = None,
    grad_clip: float | None = None,
    label: Label | None = None,
) -> Curve:
    """The runs of one table at one size; what is not given is the scale's. Seeds are the same for every curve."""
    model = replace(scale.model(size.layers, size.heads), vocab_size=setting.vocab_size, architecture=table.family)
    spec = RunSpec(
        model=model,
        table=table,
        base=scale.base,
        lr=1.0,  # replaced in every run
        steps=size.steps,
        batch=batch or scale.batch,
        data=setting.data,
        multipliers=_multipliers(setting, table) if multipliers is None else multipliers,
        weight_decay=weight_decay,
        schedule=schedule or Schedule(),
        precision=setting.precision,
        grad_clip=grad_clip,
        validations=scale.validations,
        val_windows=scale.val_windows,
    )
    return Curve(
        label={"table": table.name, "layers": size.layers, "heads": size.heads, "steps": size.steps, **(label or {})},
        spec=spec,
        log2_lrs=log2_lrs or default_grid(scale, table, size),
        seeds=seeds or default_seeds(scale, spec),
        fine=1 if scale.name == "evidence" and run_flops(spec) > DEAREST else 2,
    )


def _multipliers(setting: Setting, table: Parametrization) -> dict[str, float]:
    """What was tuned on the base, for the tables that it was tuned for: a plain transformer has a tuning of its own."""
    return dict(setting.multipliers) if table.family == "normalized" else {}


def width_curves(scale_name: str, setting: Setting, tables: Iterable[Parametrization]) -> tuple[Curve, ...]:
    """Heads grow, layers and steps stay."""
    scale = scale_named(scale_name)
    layers, steps = WIDTHS_LAYERS[scale.name], fixed_steps(scale)
    return tuple(curve(scale, setting, t, Size(layers, h, steps)) for t in tables for h in WIDTHS[scale.name])


def depth_curves(scale_name: str, setting: Setting, tables: Iterable[Parametrization]) -> tuple[Curve, ...]:
    """Layers grow, heads and steps stay; two seeds below the paper's scale, where the deepest runs take the time."""
    scale = scale_named(scale_name)
    heads, steps = DEPTHS_HEADS[scale.name], fixed_steps(scale)
    return tuple(
        curve(scale, setting, t, Size(layers, heads, steps), seeds=SEEDS[scale.name][:2])
        for t in tables
        for layers in DEPTHS[scale.name]
    )


def base_size(scale: Scale) -> Size:
    """The base's shape and length; at `tiny` the length that its other studies have."""
    return Size(scale.base_layers, scale.base_heads, fixed_steps(scale) if scale.name == "tiny" else scale.base_steps)


def aspect_sizes(scale: Scale, numbers: Iterable[int], tokens: float) -> tuple[Size, ...]:
    """As many layers as heads, steps at so many tokens per parameter."""
    return tuple(Size(n, n, steps_per_parameter(scale, n, n, tokens)) for n in numbers)


def alignment_curves(
    scale_name: str, setting: Setting, table: Parametrization, heads: Mapping[str, tuple[int, ...]]
) -> tuple[Curve, ...]:
    """One learning rate for each width: the runs in which alignment exponents are measured, the output's over seeds."""
    scale = scale_named(scale_name)
    sizes = [Size(WIDTHS_LAYERS[scale.name], h, fixed_steps(scale)) for h in heads[scale.name]]
    return tuple(curve(scale, setting, table, size, log2_lrs=(expected(scale, table, size),)) for size in sizes)
