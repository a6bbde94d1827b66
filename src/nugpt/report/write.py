"""The report on disk: figures in three formats, and the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.report.answers import PlanAnswer, answer_plan
from nugpt.report.coords import COORDS
from nugpt.report.figures import Drawn, draw
from nugpt.report.figures.coords import draw_coords
from nugpt.report.figures.paper import STYLE
from nugpt.report.loose import LOOSE, loose_answers, loose_figures
from nugpt.report.page import CREDIT, page
from nugpt.report.source import Source
from nugpt.report.words import AXES
from nugpt.store.atomic import check_writable, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
PAGE = "report.html"
PRINT_DPI = 300
STILL_DPI = (120, 80)  # the second where the page would be too large with the first; any less could not be read
STILL_COLOURS = 32  # a still is lines and letters: so few colours make it a quarter of the size
SHARP_UP_TO = 3_000_000  # bytes of a page whose stills are of the first
SHOWS = {
    "alignment": "alignment exponents",
    "alpha-course": "LERP coefficients during training",
    "loss": "loss against the learning rate",
    "best-lr": "best learning rate against size",
    "multipliers": "loss against multipliers",
    "alpha": "LERP coefficients against depth",
}


def shown_in(drawn: Drawn) -> str:
    """What a figure shows, in words."""
    words = SHOWS.get(drawn.kind, drawn.kind)
    return words.replace("size", AXES.get(drawn.of, "size")) if drawn.kind == "best-lr" else words


@dataclass(frozen=True)
class Written:
    """What was written, and what it says."""

    page: Path
    figures: tuple[Path, ...]
    answers: tuple[PlanAnswer, ...]


def write_report(
    source: Source,
    out: Path,
    formats: Sequence[str] = FORMATS,
    level: float = 0.90,
    say: Callable[[str], None] = lambda text: None,
) -> Written:
    """Fit, draw and write everything under `out`, and say what is being done."""
    check_formats(formats)
    check_page(out)
    answers: list[PlanAnswer] = []
    figures: list[Path] = []
    stills: dict[str, list[tuple[str, Figure]]] = {}
    (out / "figures").mkdir(parents=True, exist_ok=True)
    if source.coords:
        checks = {f"coords-{check['name']}": draw_coords(check["name"], check["slopes"]) for check in source.coords}
        figures += save_figures(checks, out / "figures", formats)
        stills[COORDS] = [(f"{name}: sizes over width and depth", figure) for name, figure in checks.items()]
    for i, plan in enumerate(source.plans, 1):
        say(f"plan {i} of {len(source.plans)}: {plan.name}")
        found = answer_plan(plan, level)
        answers.append(found)
        for drawn in draw(found):
            settle(drawn.figure)
            figures += _save(drawn, out / "figures", formats)
            shows = f"{found.title}: {shown_in(drawn)}"
            stills.setdefault(found.plan.name, []).append((shows, drawn.figure))
    loose = loose_answers(source.loose, level)
    views = loose_figures(loose)
    figures += save_figures({name: figure for name, (_, figure) in views.items()}, out / "figures", formats)
    stills[LOOSE] = list(views.values())
    path = out / PAGE
    say("the page")
    write_bytes(path, _page(source, answers, stills, loose))
    return Written(path, tuple(figures), tuple(answers))


def _page(
    source: Source,
    answers: Sequence[PlanAnswer],
    figures: dict[str, list[tuple[str, Figure]]],
    loose: Sequence[PlanAnswer],
) -> bytes:
    """The page with stills as sharp as its size allows; with the coarser ones it is as large as what it says."""
    from nugpt import __version__

    content = b""
    for dpi in STILL_DPI:
        stills = {plan: [(shows, still(figure, dpi)) for shows, figure in some] for plan, some in figures.items()}
        content = page(source, answers, stills, __version__, loose).encode("utf-8", errors="xmlcharrefreplace")
        if len(content) <= SHARP_UP_TO:
            break
    return content


def check_page(out: Path) -> None:
    """Refuse a folder that cannot be written, and to replace a page of that name that is not ours."""
    path = out / PAGE
    if path.exists() and CREDIT.encode() not in path.read_bytes():
        raise FileExistsError(f"{path} was not written by nugpt: move it away, or name another folder")
    check_writable(out, "out")
    check_writable(out / "figures", "out")


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that figures are not written in."""
    if wrong := [name for name in formats if name not in FORMATS]:
        raise ValueError(f"format is {wrong[0]!r}, but must be one of {', '.join(FORMATS)}")


def save_figures(figures: Mapping[str, Figure], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write figures under these names."""
    check_formats(formats)
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for name, figure in figures.items():
        settle(figure)
        made += _save(Drawn(name, "", "", figure), folder, formats)
    return made


def settle(figure: Figure) -> None:
    """Lay the figure out once, for all formats."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


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


def still(figure: Figure, dpi: int) -> bytes:
    """The figure as a small PNG for readers without scripts."""
    from matplotlib import rc_context
    from PIL import Image

    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=dpi)
    small = io.BytesIO()
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(STILL_COLOURS).save(small, format="png", optimize=True)
    return small.getvalue()
