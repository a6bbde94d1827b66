"""Tables and words: what is written into a file is what rich would have written."""

from __future__ import annotations

import io
import math
import random

import pytest
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nugpt.cli.curve_rows import interval_text
from nugpt.cli.show import counted, plain_table


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
