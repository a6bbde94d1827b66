"""Completion in a real bash, set up by the line of the README."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nugpt.cli.completion import _options
from nugpt.cli.main import COMMANDS

README = Path(__file__).parents[2] / "README.md"
BASH = """
PS1='ready: '
PATH={bin}:$PATH
{line}
bind -x '"\\C-g": printf "<%s>" "$READLINE_LINE"'
"""


@pytest.mark.parametrize(
    ("typed", "then"),
    [
        ("nugpt transf", "nugpt transfer-test "),
        ("nugpt data insp", "nugpt data inspect "),
        ("nugpt count --pres", "nugpt count --preset "),
        ("nugpt measure lerp --runs a --js", "nugpt measure lerp --runs a --json "),
        ("nugpt report --o", "nugpt report --out "),  # behind -o, in the help
        ("nugpt fit --debug", "nugpt fit --debug"),
        ("nugpt --vers", "nugpt --version "),
        ("nugpt fit my-st", "nugpt fit my-store/"),
        ("nugpt report --out=my-st", "nugpt report --out=my-store/"),
    ],
)
def test_a_word_that_is_begun_is_completed(typed: str, then: str, tmp_path: Path) -> None:
    assert completed(typed, tmp_path) == then


def completed(typed: str, folder: Path) -> str:
    """The line that an interactive bash has once Tab is pressed behind what is typed."""
    if (bash := shutil.which("bash")) is None:
        pytest.skip("no bash")
    (line,) = re.findall(r"^complete .* nugpt$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (folder / "my-store").mkdir()
    nugpt = folder / "bin" / "nugpt"
    nugpt.parent.mkdir()
    nugpt.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nugpt "$@"\n', encoding="utf-8")
    nugpt.chmod(0o755)
    settings = folder / "settings"
    settings.write_text(BASH.format(bin=nugpt.parent, line=line), encoding="utf-8")
    ours, theirs = pty.openpty()
    words = [bash, "--noprofile", "--rcfile", str(settings), "-i"]
    known = os.environ | {"TERM": "xterm", "INPUTRC": os.devnull}
    with subprocess.Popen(words, cwd=folder, env=known, stdin=theirs, stdout=theirs, stderr=theirs) as shell:
        try:
            until("ready: ", ours)
            os.write(ours, f"{typed}\t\x07".encode())
            return until("<(.*)>", ours)[1]
        finally:
            shell.kill()
            os.close(ours)
            os.close(theirs)


def until(pattern: str, file: int) -> re.Match[str]:
    """What a terminal shows, up to where the pattern matches: the test's own timeout ends what never comes."""
    shown = ""
    while (found := re.search(pattern, shown)) is None:
        shown += os.read(file, 1024).decode(errors="replace")
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_options_to_complete(command: str) -> None:
    assert "--help" in _options(command)
