"""Colours that the colour-blind tell apart, on a light and on a dark ground."""

from __future__ import annotations

from collections.abc import Sequence

# Sizes are ordered, so their colours are: from dark to light on a light ground, short of what pales on either.
_ORDERED_LIGHT = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 171, 60), (190, 160, 10))
_ORDERED_DARK = ((150, 120, 230), (90, 160, 235), (70, 200, 190), (140, 220, 100), (253, 231, 37))
# Tables and roles are not: the palette of Okabe and Ito, less its yellow on light and its black on dark.
NAMED_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#000000", "#b58900", "#56b4e9", "#882255")
NAMED_DARK = ("#56b4e9", "#e69f00", "#2ec4a0", "#e08cc0", "#f0e442", "#f0f0f0", "#7aa6ff", "#ff8a65")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")  # colour is never the only difference


def ordered(n: int, dark: bool = False) -> list[str]:
    """So many colours along a ramp of rising lightness."""
    stops = _ORDERED_DARK if dark else _ORDERED_LIGHT
    return [_at(stops, i / (n - 1) if n > 1 else 0.35) for i in range(n)]


def named(n: int, dark: bool = False) -> list[str]:
    """So many colours without an order; they repeat once there are no more."""
    palette = NAMED_DARK if dark else NAMED_LIGHT
    return [palette[i % len(palette)] for i in range(n)]


def _at(stops: Sequence[tuple[int, int, int]], share: float) -> str:
    place = share * (len(stops) - 1)
    i = min(int(place), len(stops) - 2)
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(stops[i], stops[i + 1], strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)
