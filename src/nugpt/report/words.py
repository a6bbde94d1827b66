"""Numbers as the page writes them: never more digits than their error allows, never a bound that is none."""

from __future__ import annotations

import math
import re

from nugpt.fit.interval import Interval
from nugpt.fit.regret import Cost

NONE, UNBOUNDED = "–", "unbounded"


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


def cost(paid: Cost) -> str:
    """Nats with their range; a learning rate like those that failed costs the run."""
    if paid.nats is None:
        return NONE
    if not math.isfinite(paid.nats):
        return "fails"
    high = "failure" if not math.isfinite(paid.interval.high) else number(paid.interval.high, 3)
    return f"{number(paid.nats, 3)} ({number(paid.interval.low, 3)} to {high})"


def counted(n: int, what: str, many: str | None = None) -> str:
    """So many of something."""
    return f"{n:,} {what if n == 1 else many or what + 's'}"


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
