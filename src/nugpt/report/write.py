"""The report on disk: figures in three formats, and the page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.report.answers import PlanAnswer, answer_plan
from nugpt.report.figures import Drawn, draw
from nugpt.report.figures.paper import STYLE
from nugpt.report.page import page
from nugpt.report.source import Source
from nugpt.store.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
PAGE = "report.html"
PRINT_DPI, STILL_DPI = 300, 130
STILL_COLOURS = 48  # a still is lines and letters: so few colours make it a quarter of the size
_SHOWS = {
    "loss": "loss against the learning rate",
    "best-lr": "best learning rate against size",
    "multipliers": "loss against multipliers",
    "alpha": "LERP coefficients against depth",
}


@dataclass(frozen=True)
class Written:
    """What was written, and what it says."""

    page: Path
    figures: tuple[Path, ...]
    answers: tuple[PlanAnswer, ...]


def write_report(source: Source, out: Path, formats: Sequence[str] = FORMATS) -> Written:
    """Fit, draw and write everything under `out`."""
    from nugpt import __version__

    if wrong := [name for name in formats if name not in FORMATS]:
        raise ValueError(f"format is {wrong[0]!r}, but must be one of {', '.join(FORMATS)}")
    answers = [answer_plan(plan) for plan in source.plans]
    figures: list[Path] = []
    stills: dict[str, list[tuple[str, bytes]]] = {}
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for found in answers:
        for drawn in draw(found):
            figures += _save(drawn, out / "figures", formats)
            shows = f"{found.title}: {_SHOWS.get(drawn.kind, drawn.kind)}"
            stills.setdefault(found.plan.name, []).append((shows, still(drawn.figure)))
    path = out / PAGE
    write_bytes(path, page(source, answers, stills, __version__).encode("utf-8", errors="xmlcharrefreplace"))
    return Written(path, tuple(figures), tuple(answers))


def _save(drawn: Drawn, folder: Path, formats: Sequence[str]) -> list[Path]:
    from matplotlib import rc_context

    made = []
    # Without a date the same records give the same file.
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": None}
    with rc_context(STYLE):
        for name in formats:
            path = folder / f"{drawn.name}.{name}"
            buffer = io.BytesIO()
            drawn.figure.savefig(buffer, format=name, dpi=PRINT_DPI, metadata=metadata[name])
            write_bytes(path, buffer.getvalue())
            made.append(path)
    return made


def still(figure: Figure) -> bytes:
    """The figure as a small PNG for readers without scripts."""
    from matplotlib import rc_context
    from PIL import Image

    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=STILL_DPI)
    small = io.BytesIO()
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(STILL_COLOURS).save(small, format="png", optimize=True)
    return small.getvalue()
