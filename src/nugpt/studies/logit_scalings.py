"""The runs that both studies of the logits' scaling share (paper, Table 2)."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction as F

from nugpt.spec.parametrization import COMPLETEP, NUGPT_FULL_ALIGN, Parametrization, with_data_exponent
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Setting
from nugpt.studies.grids import ASPECT_TOKENS, aspect_sizes, curve

TABLES = (with_data_exponent(COMPLETEP, F(-1, 3)), NUGPT_FULL_ALIGN)
SIZES = {"paper": (8, 10, 16, 20), "evidence": (2, 3, 5), "lab": (2, 4, 6), "tiny": (1, 2, 3)}


def logit_curves(scale: str, setting: Setting, tables: Iterable[tuple[Parametrization, float]]) -> tuple[Curve, ...]:
    """Tables with log2 of their multiplier of η_output, over sizes with as many layers as heads."""
    at = scale_named(scale)
    sizes = aspect_sizes(at, SIZES[scale], ASPECT_TOKENS[scale])
    return tuple(
        curve(at, setting, table, size, multipliers={"output": 2.0**log2}, label={"output_log2": log2})
        for table, log2 in tables
        for size in sizes
    )
