"""The interactive prompt on a terminal: Ctrl-C stops a text or drops a line, Ctrl-D leaves."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest
from tests.export.small import bytes_run


class Terminal:
    """A command whose terminal is ours to type on; the test's own timeout ends what never comes."""

    def __init__(self, *words: str) -> None:
        self.process, self.file = pty.fork()
        if self.process == 0:
            known = os.environ | {"TERM": "xterm"}  # what runs the tests may have none: lines are edited otherwise then
            os.execve(sys.executable, [sys.executable, "-m", "nugpt", *words], known)

    def until(self, pattern: str) -> str:
        """What is shown up to the first place where the pattern matches."""
        shown = ""
        while not re.search(pattern, shown):
            try:
                shown += os.read(self.file, 1).decode(errors="replace")
            except OSError:  # how a terminal says that the command has left
                pytest.fail(f"it left after {shown!r}")
        return shown

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def status(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@pytest.mark.slow
def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    run = bytes_run(tmp_path)
    words = ["generate", str(run.directory.path), "--interactive", "--max-tokens", "20000", "--temperature", "0"]
    terminal = Terminal(*words)
    assert "Ctrl-D leaves" in terminal.until("> $")
    terminal.type("half a line\x03")  # dropped
    terminal.until("\r\n.*> $")
    terminal.type("7 the \n")
    terminal.until(r"7 the \r\n7 the .{20}")  # endless but for
    terminal.type("\x03")
    terminal.until("\r\n> $")
    terminal.type("\x04")
    assert terminal.status() == 0
