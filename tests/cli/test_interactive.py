"""The interactive prompt on a terminal: Ctrl-C stops a text or drops a line, Ctrl-D leaves."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.export.small import bytes_run


class Terminal:
    """A command whose terminal is ours to type on."""

    def __init__(self, *words: str) -> None:
        self.process, self.file = pty.fork()
        if self.process == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job, as the tests may be, ignores it
            known = os.environ | {"TERM": "xterm"}  # what runs the tests may have none: lines are edited otherwise then
            os.execve(sys.executable, [sys.executable, "-m", "nugpt", *words], known)

    def shown(self, pattern: str, seconds: float) -> str | None:
        """What is shown up to the first place where the pattern matches; None if it has not come by then."""
        found, give_up = "", time.monotonic() + seconds
        while not re.search(pattern, found):
            ready, _, _ = select.select([self.file], [], [], max(0.0, give_up - time.monotonic()))
            if not ready:
                return None
            try:
                found += os.read(self.file, 1).decode(errors="replace")
            except OSError:  # how a terminal says that the command has left
                pytest.fail(f"it left after {found!r}")
        return found

    def until(self, pattern: str) -> str:
        """The same, however long it takes: the test's own timeout ends what never comes."""
        found = self.shown(pattern, 200.0)
        assert found is not None
        return found

    def type(self, text: str, pattern: str) -> None:
        """Type until it shows: a terminal drops what is typed in the moment in which its settings change."""
        for _ in range(12):
            os.write(self.file, text.encode())
            if self.shown(pattern, 5.0) is not None:
                return
        pytest.fail(f"{text!r} had no effect")

    def leave(self) -> int:
        """Ctrl-D until it has left: its status."""
        while True:
            os.write(self.file, b"\x04")
            with contextlib.suppress(OSError):
                while select.select([self.file], [], [], 1.0)[0]:
                    os.read(self.file, 4096)
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                return os.waitstatus_to_exitcode(status)


@pytest.mark.slow
def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    run = bytes_run(tmp_path)
    words = ["generate", str(run.directory.path), "--interactive", "--max-tokens", "20000", "--temperature", "0"]
    terminal = Terminal(*words)
    assert "Ctrl-D leaves" in terminal.until("> $")
    terminal.type("half a line\x03", "\r\n.*> $")  # dropped
    terminal.type("7 the \n", r"7 the \r\n7 the .{20}")  # endless but for
    terminal.type("\x03", "\r\n> $")
    assert terminal.leave() == 0
