"""How facts are printed: aligned tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One JSON document on standard output; not-a-number and infinity are refused, since JSON has neither."""
    narrow = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")  # then escaped, which loses nothing
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=narrow))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", right: Sequence[int] = ()
) -> None:
    """An aligned table; `right` names the columns to align right. Never wrapped when the output is not a terminal."""
    if not title and not sys.stdout.isatty() and not any("\n" in cell for row in rows for cell in row):
        print("\n".join(plain_table(columns, rows, right)))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))

    class OurConsole(Console):
        """Leaves a reader that has gone to `main`: rich itself would leave with status 1."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    OurConsole(width=None if sys.stdout.isatty() else 10_000).print(table, crop=False)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines that rich would print into a file; it takes a second for a thousand rows."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pads = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        placed = [pad + c if i in right else c + pad for i, (c, pad) in enumerate(zip(cells, pads, strict=True))]
        return f" {'   '.join(placed)} "

    width = sum(widths) + 3 * (len(widths) - 1)
    empty = " " * (width + 2)
    return [empty, line(columns), f" {'─' * width} ", *(line(row) for row in rows), empty]


def say(text: str) -> None:
    """What is being done, on standard error: beside the results, not among them."""
    print(text, file=sys.stderr, flush=True)


def quiet(text: str) -> None:
    """In its place where a program reads."""


def counted(count: int, what: str) -> str:
    """A number of things in words: 1 run, 2 runs."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def number(value: float | None) -> str:
    """A number with the digits that matter, `–` where there is none."""
    return "–" if value is None else f"{value:.6g}"
