"""What is read on a second stream is not given back before the main stream has waited for it."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from nugpt.engines.lab.aside import Aside


class Stream:
    """Stands for a CUDA stream: what it was asked to wait for, in order."""

    def __init__(self, name: str) -> None:
        self.name, self.recorded = name, 0
        self.waited: list[tuple[str, int]] = []

    def record_event(self) -> tuple[str, int]:
        self.recorded += 1
        return self.name, self.recorded

    def wait_event(self, event: tuple[str, int]) -> None:
        self.waited.append(event)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[Aside, Stream, Stream]:
    main, second = Stream("main"), Stream("second")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    aside: Any = Aside(torch.device("cpu"))
    assert aside.stream is None  # without a GPU there is none
    aside.stream = second
    return aside, main, second


def test_operands_are_held_until_the_main_stream_has_waited(streams: tuple[Aside, Stream, Stream]) -> None:
    aside, main, second = streams
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    expected = torch.bmm(a, b)
    held = weakref.ref(a)
    assert torch.equal(aside.product(a, b), expected)
    assert second.waited == [("main", 1)]  # what the operands came from
    del a
    aside.turn()
    assert main.waited == []
    assert held() is not None  # a layer later the product may still be under way
    aside.turn()
    assert main.waited == [("second", 1)]  # the event after the product
    assert held() is None


def test_joining_waits_for_all_and_lets_go(streams: tuple[Aside, Stream, Stream]) -> None:
    aside, main, _ = streams
    a = torch.randn(1, 3, 4)
    held = weakref.ref(a)
    aside.product(a, torch.randn(1, 4, 5))
    del a
    assert aside.run(lambda: 7) == 7
    aside.join()
    assert main.waited == [("second", 1)]
    assert held() is None


def test_without_a_second_stream_all_is_done_at_once() -> None:
    aside = Aside(torch.device("cpu"))
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    assert torch.equal(aside.product(a, b), torch.bmm(a, b))
    assert aside.run(lambda: 7) == 7
    aside.turn()
    aside.join()
