"""Numbers as the page writes them: never more digits than their error allows, never a bound that is none."""

from __future__ import annotations

import math
import re

from nugpt.fit.interval import Interval
from nugpt.fit.regret import Cost

NONE, UNBOUNDED = "–", "unbounded"
# Tables as the paper writes them.
NAMES = {
    "nugpt-rescalers-doubled": "νGPT (rescalers doubled)",
    "nugpt-lower-constant": "νGPT (lower constant)",
    "nugpt-full-align": "νGPT (full align)",
    "prenorm-completep": "plain transformer",
    "depth-mup": "Depth-μP",
    "completep": "CompleteP",
    "nugpt": "νGPT",
    "ngpt": "nGPT",
}
AXES = {"width": "width", "layers": "depth", "steps": "length", "batch": "batch"}  # sizes as a reader calls them
# How labels are written where they are printed: what is found, and what stands there instead, in this order.
_PRINTED: tuple[tuple[str, str], ...] = (
    *((rf"(?<![\w-]){name}(?![\w-])", shown) for name, shown in NAMES.items()),
    (r",? ?\baxis \w+", ""),  # which the sizes tell
    (r",? ?\bheld out 0\b", ""),
    (r"\bheld out 1\b", "held out"),
    (r"\bwidth[ =](\d+)", r"d_model \1"),
    (r"\b(layers|steps)[ =](\d+)", r"\2 \1"),
    (r"(\d|layers) (?=\d+ (layers|steps)\b)", r"\1, "),
    (r"\bwidth_exponent=", "width exponent "),
    (r"(?<![\w.])-(?=\d)", "−"),
)


def printed(label: str) -> str:
    """A label with tables, sizes and signs as a figure writes them."""
    for found, shown in _PRINTED:
        label = re.sub(found, shown, label)
    return label.removeprefix(", ")  # of what was dropped before it


def without_links(markdown: str) -> str:
    """With the words of each link in its place: where a text is shown elsewhere, its links lead nowhere."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)


def number(value: float | None, digits: int = 2) -> str:
    """With a true minus, and a word for what is not finite."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return UNBOUNDED
    shown = f"{value:.{digits}f}"
    return shown.replace("-", "−") if float(shown) != 0 else shown.lstrip("-")


def short(value: float | None) -> str:
    """Three digits that matter."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.3g}".replace("-", "−")


def size(value: float) -> str:
    """A number of heads, layers, steps or tokens."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def between(interval: Interval | None, digits: int = 2) -> str:
    """A range; an end that the data do not bound is said to be so."""
    if interval is None:
        return NONE
    low, high = interval
    if not math.isfinite(low) and not math.isfinite(high):
        return UNBOUNDED
    if not math.isfinite(low):
        return f"at most {number(high, digits)}"
    if not math.isfinite(high):
        return f"at least {number(low, digits)}"
    return f"{number(low, digits)} to {number(high, digits)}"


def paid(nats: float | None) -> str:
    """Nats; a learning rate like those that failed costs the run."""
    return "fails" if nats is not None and math.isinf(nats) else number(nats, 3)


def cost(found: Cost) -> str:
    """Nats with their range."""
    if found.nats is None or not math.isfinite(found.nats):
        return paid(found.nats)
    high = "failure" if not math.isfinite(found.interval.high) else number(found.interval.high, 3)
    return f"{paid(found.nats)} ({number(found.interval.low, 3)} to {high})"


def counted(n: int, what: str, many: str | None = None) -> str:
    """So many of something."""
    return f"{n:,} {what if n == 1 else many or what + 's'}"


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
