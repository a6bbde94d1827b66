"""A figure as SVG that is the same text for the same records: no date, no hash, no digit that nobody sees."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from nugpt.report.figures.paper import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_TAG = re.compile(r"<[^!>][^>]*>")  # not what stands between tags: the labels that are read


def svg(figure: Figure, transparent: bool = False) -> str:
    """The figure, its places to a hundredth of a point, its names numbered as they come."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(STYLE):
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=transparent)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", buffer.getvalue(), flags=re.S)
    text = _TAG.sub(lambda tag: _NUMBER.sub(_hundredths, tag[0]), text)
    names = dict.fromkeys(re.findall(r'id="([mp][0-9a-f]{6,})"', text))
    for i, name in enumerate(names):
        text = text.replace(name, f"n{i}")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _hundredths(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
