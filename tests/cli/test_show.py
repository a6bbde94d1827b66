"""Tables and words: what is written into a file is what rich would have written."""

from __future__ import annotations

import io
import math
import random
import re
import sys

import pytest
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nugpt.cli.curve_rows import interval_text
from nugpt.cli.show import counted, fitting, plain_table, print_table


def test_a_plain_table_is_the_one_that_rich_prints() -> None:
    rng = random.Random(3)
    words = ["", "x", "log2 η", "−0.5 … 1.25", "表", "a longer cell", "–"]
    for _ in range(50):
        columns = ["first", *(rng.choice(words) for _ in range(rng.randint(0, 5)))]
        rows = [[rng.choice(words) for _ in columns] for _ in range(rng.randint(0, 5))]
        right = rng.sample(range(len(columns)), rng.randint(0, len(columns)))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        file = io.StringIO()
        Console(file=file, width=10_000).print(table, crop=False)
        assert "\n".join(plain_table(columns, rows, right)) + "\n" == file.getvalue()


@pytest.mark.parametrize("room", [30, 40, 60, 80, 200])
def test_a_narrow_terminal_cuts_no_number_and_loses_no_column(
    room: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(room))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    columns = ["curve", "runs", "log2 η*", "interval", "loss", "-1", "+1", "because"]
    prose = "two sizes alone have an optimum that is enclosed"
    rows = [["all", str(n), f"-{n}.97", f"-{n}.10", "3.01901", "0.0182", f"0.{n}350", prose] for n in (14, 15)]
    print_table(columns, rows, right=(1, 2, 4, 5, 6))
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    words = shown.split()
    for text in (*columns[:2], *columns[3:], *(cell for row in rows for cell in row[:-1]), *prose.split()):
        assert text in words
    assert max(map(len, shown.splitlines())) <= room


def test_columns_go_on_below_with_the_first_again() -> None:
    assert fitting([5, 5, 5], 80) == [[0, 1, 2]]
    assert fitting([5, 5, 5], 22) == [[0, 1], [0, 2]]
    assert fitting([5, 5, 5], 23) == [[0, 1, 2]]  # a letter at either end, three between columns
    assert fitting([5, 300, 5], 40) == [[0, 1, 2]]  # prose is folded to half of the room


@pytest.mark.parametrize(("count", "words"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1500, "1,500 runs")])
def test_one_of_a_thing_is_not_many(count: int, words: str) -> None:
    assert counted(count, "run") == words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-7.0, -6.5, "-7.00 … -6.50"),
        (-7.0, math.inf, "at least -7.00"),
        (-math.inf, -6.5, "at most -6.50"),
        (-math.inf, math.inf, "not bounded"),
    ],
)
def test_an_end_without_a_bound_is_said_in_words(low: float, high: float, words: str) -> None:
    assert interval_text(low, high) == words
