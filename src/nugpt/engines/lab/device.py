"""The device in words, for the record; how far Python may run ahead of it; and what it does as one CUDA graph."""

from __future__ import annotations

import platform
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

# A GPU that has so many steps to do is never idle; what is queued beyond them holds memory and makes a signal wait.
STEPS_AHEAD = 4

# The allocator goes on asking a graph whose capture did not end whether memory is for it: such a one must not go.
_BROKEN: list[torch.cuda.CUDAGraph] = []


@contextmanager
def captured(error_mode: str = "global") -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of what is done within, which is not run; if that fails, the device is as before, and it is of no use."""
    graph = torch.cuda.CUDAGraph()
    short: torch.OutOfMemoryError | None = None
    try:
        # The outer one puts the stream back: a capture that could not end leaves its own the current one.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode=error_mode):
            try:
                yield graph
            except torch.OutOfMemoryError as error:
                short = error
                raise
    except RuntimeError as error:
        graph.reset()
        _BROKEN.append(graph)
        if short is not None and error is not short:  # why the capture could not end, which some handle
            raise short from None
        raise


class Ahead:
    """Keeps Python no more than STEPS_AHEAD steps ahead of a GPU; a CPU does each step as it is asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.queued = device, deque[torch.cuda.Event]()

    def step(self) -> None:
        """A step was queued: wait for the one so many before it."""
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        self.queued.append(event)
        if len(self.queued) > STEPS_AHEAD:
            self.queued.popleft().synchronize()


def device_name(device: torch.device) -> str:
    """A GPU as its driver calls it; a CPU by its model's name, or by its architecture where nobody says."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


@cache
def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model as Linux tells it, else as the platform does."""
    try:
        found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(\S.*)$", info.read_text(errors="replace"), re.M)
    except OSError:
        found = None
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()
