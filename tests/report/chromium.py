"""A real browser, spoken to through a pair of pipes: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # a container's root user cannot have one; the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
PATIENCE = 240.0  # seconds; only so that a browser that hangs does not hang the tests


# The browser reads from descriptor 3 and writes to 4; ours are first moved out of the way of those two.
_START = """
import fcntl, os, sys
for descriptor, wanted in [(fcntl.fcntl(int(n), fcntl.F_DUPFD, 10), i) for i, n in enumerate(sys.argv[1:3], 3)]:
    os.dup2(descriptor, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Commands out, answers and events in, each a JSON object that ends with a NUL."""

    def __init__(self, out: int, back: int) -> None:
        self._out, self._back, self._rest, self._number = out, back, b"", 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._back, 1 << 20)
            assert more, "the browser has gone"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        read: dict[str, Any] = json.loads(message)
        return read

    def open_tab(self) -> None:
        """A tab whose console, errors, requests and loading are watched."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def show(
        self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Load a page from its file and wait until its charts are drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        ready = "document.readyState === 'complete'"
        if scripts:
            ready += " && (!document.getElementById('charts') || document.documentElement.hasAttribute('data-drawn'))"
        deadline = time.monotonic() + PATIENCE
        while not self.value(ready):
            assert time.monotonic() < deadline, "the page was never drawn"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """The mouse to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """A click at a place of the window."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, most: int = 12_000) -> None:
        """The page, as far down as `most` pixels, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Whatever the page logged, threw, or had refused since it was opened."""
        kept = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in kept]

    def requests(self) -> list[str]:
        """The addresses that the page asked for; what it carries in itself is none."""
        asked = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        urls = [str(event["params"]["request"]["url"]) for event in asked]
        return [url for url in urls if not url.startswith("data:")]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with one tab and a profile of its own."""
    program = next(found for name in PROGRAMS if (found := shutil.which(name)))
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    command = [program, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(in_read), str(out_write), *command],
        pass_fds=(in_read, out_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(in_read)
    os.close(out_write)
    try:
        tab = Browser(in_write, out_read)
        tab.open_tab()
        yield tab
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(in_write)
        os.close(out_read)
