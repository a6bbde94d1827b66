"""What a shell may put in place of a word that is begun: `complete -o default -C 'nugpt --complete' nugpt`."""

from __future__ import annotations

import contextlib
import io
import os
import re

from nugpt.cli.main import COMMANDS, _parse, _split


def completions(begun: str) -> list[str]:
    """Commands, or options of one, that begin so; the line up to there is in what bash sets, COMP_LINE and COMP_POINT.

    Where there are none, bash offers files, by `-o default`.
    """
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    before = line.removesuffix(begun).split()[1:]
    name, _ = _split(before or [""])
    if begun.startswith("-"):
        offered = _options(name) if name in COMMANDS else ["--help", "--version"]
    else:
        known = [command.split() for command in COMMANDS]
        offered = [words[len(before)] for words in known if len(words) > len(before) and words[: len(before)] == before]
    return sorted({word for word in offered if word.startswith(begun)})


def _options(name: str) -> list[str]:
    """The options that the command's help lists."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        _parse(name, ["--help"])
    return re.findall(r"^. (?:-\w.*?, )?(--[a-z][\w-]*)", shown.getvalue(), flags=re.MULTILINE)
