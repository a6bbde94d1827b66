"""What the record calls the device, and how far Python runs ahead of it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nugpt.engines.lab import device
from nugpt.engines.lab.device import STEPS_AHEAD, Ahead, cpu_name, device_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vendor_id\t: X\nmodel\t\t: 85\nmodel name\t: Some  CPU @ 2.0GHz\nflags\t: a\n", "Some CPU @ 2.0GHz"),
        ("processor\t: 0\nModel\t\t: Board of some maker\n", "Board of some maker"),
        ("processor\t: 0\nmodel name\t:\n", platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
)  # fmt: skip
def test_a_cpu_is_called_by_its_model(tmp_path: Path, text: str | None, name: str) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_name(tmp_path / "cpuinfo") == name


def test_the_device_of_this_machine_has_a_name() -> None:
    assert device_name(torch.device("cpu"))


def test_python_waits_for_the_step_so_many_before(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[object] = []
    waited: list[int] = []

    class Event:
        def __init__(self, blocking: bool) -> None:
            pass

        def record(self, stream: object) -> None:
            queued.append(self)

        def synchronize(self) -> None:
            waited.append(queued.index(self))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    ahead = Ahead(torch.device("cuda"))
    for _ in range(STEPS_AHEAD + 3):
        ahead.step()
    assert waited == [0, 1, 2]
    Ahead(torch.device("cpu")).step()
    assert len(queued) == STEPS_AHEAD + 3


class Stream:
    """The current stream, as torch keeps it, with a capture that ends well or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
        self.current, self.ends = "the user's", ends
        self.modes: list[str] = []
        self.reset: list[object] = []
        stream = self

        class Graph:
            def reset(self) -> None:
                stream.reset.append(self)

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "graph", self.capture)
        monkeypatch.setattr(device, "_BROKEN", [])

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        before, self.current = self.current, name
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def capture(self, graph: object, capture_error_mode: str) -> Iterator[None]:
        self.modes.append(capture_error_mode)
        before, self.current = self.current, "the capture's"
        try:
            yield
        finally:
            if not self.ends:  # as torch.cuda.graph leaves it
                raise RuntimeError("operation failed due to a previous error during capture")
            self.current = before


def test_a_capture_that_ends_gives_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, ends=True)
    with device.captured("thread_local") as graph:
        assert stream.current == "the capture's"
    assert (stream.current, stream.modes, stream.reset) == ("the user's", ["thread_local"], [])
    assert isinstance(graph, torch.cuda.CUDAGraph)


def test_a_capture_that_fails_leaves_the_stream_that_was_current(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, ends=False)
    with pytest.raises(RuntimeError, match="previous error"), device.captured() as graph:
        raise RuntimeError("not permitted when stream is capturing")
    assert stream.current == "the user's"
    assert stream.reset == device._BROKEN == [graph]


@pytest.mark.parametrize("ends", [False, True])
def test_a_capture_that_has_too_little_memory_says_so(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, ends)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"), device.captured() as graph:
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert stream.current == "the user's"
    assert stream.reset == device._BROKEN == [graph]
