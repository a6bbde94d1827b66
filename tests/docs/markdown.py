"""Reading the documentation as data: fenced blocks, tables, links and anchors of a Markdown file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = "<!-- run -->"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of text, `run` whether the mark stands on the line before it."""

    language: str
    text: str
    line: int
    run: bool


def documents() -> list[Path]:
    """Every page that a reader of the repository meets."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            match[1],
            match[2],
            text.count("\n", 0, match.start(2)) + 1,
            text[: match.start()].rstrip("\n").endswith(RUN),
        )
        for match in _FENCE.finditer(text)
    ]


def prose(path: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def sections(path: Path) -> dict[str, str]:
    """The prose below each heading of the second level, by heading."""
    _, *parts = re.split(r"^## (.+)$", prose(path), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """The cells of every table row in the text, without the heads of the tables."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found.pop()  # the row above the rule is the head
        else:
            found.append(cells)
    return found


def entries(text: str) -> list[str]:
    """The places in the code that the text names: `path::qualname` in backticks."""
    return re.findall(r"`([\w./-]+\.py::[\w.]+)`", text)


def links(path: Path) -> list[str]:
    """The targets of the page's links."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(path))


def anchors(path: Path) -> set[str]:
    """What a link into the page may name: explicit anchors, and headings as GitHub makes anchors of them."""
    text = prose(path)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"></a>', text))
