"""How facts are printed: aligned tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"nugpt: warning: {text}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on standard output; not-a-number and infinity are refused, since JSON has neither."""
    narrow = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")  # then escaped, which loses nothing
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=narrow))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", right: Sequence[int] = ()
) -> None:
    """An aligned table; `right` names the columns to align right. Never wrapped when the output is not a terminal.

    In a terminal that is too narrow for it, it goes on below with its first column again: no number is cut in two.
    """
    if not title and not sys.stdout.isatty() and not any("\n" in cell for row in rows for cell in row):
        print("\n".join(plain_table(columns, rows, right)))
        return
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    class OurConsole(Console):
        """Leaves a reader that has gone to `main`: rich itself would leave with status 1."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = OurConsole(width=None if sys.stdout.isatty() else 10_000)
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    for piece in fitting(widths, console.width):
        table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
        for i in piece:
            whole = widths[i] <= _most(console.width)
            justify: Literal["left", "right"] = "right" if i in right else "left"
            table.add_column(columns[i], justify=justify, overflow="fold", no_wrap=whole)
        for row in rows:
            table.add_row(*(Text(row[i]) for i in piece))
        console.print(table, crop=False)
        title = ""


def fitting(widths: Sequence[int], room: int) -> list[list[int]]:
    """Which columns of a table go side by side into so many letters: pieces, the first column at the head of each."""
    if not widths:
        return [[]]
    needs = [min(width, _most(room)) for width in widths]
    pieces, used = [[0]], 2 + needs[0]
    for i, need in enumerate(needs[1:], 1):
        if used + 3 + need > room and len(pieces[-1]) > 1:
            pieces.append([0])
            used = 2 + needs[0]
        pieces[-1].append(i)
        used += 3 + need
    return pieces


def _most(room: int) -> int:
    """The width up to which a column is left whole: two such, with what lies between them, fit into the room."""
    return max(1, (room - 5) // 2)


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


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its name, one within another by both, with a dot between: config.lr."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def counted(count: int, what: str) -> str:
    """A number of things in words: 1 run, 2 runs."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def number(value: float | None) -> str:
    """A number with the digits that matter, `–` where there is none."""
    return "–" if value is None else f"{value:.6g}"
