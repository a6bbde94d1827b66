"""Work beside the backward pass: products that nothing waits for until the step's end, on a second stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from nugpt.kernels.fused.product import product

T = TypeVar("T")

WANTED = False  # whether a GPU's second stream is used: not before it is measured to help

Held = list[tuple[Tensor, ...]]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Aside:
    """A second stream, or none: then everything is done where it is asked for, with the same results to the bit."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream(device) if WANTED and device.type == "cuda" else None
        # Operands still being read here: given back to the allocator earlier, the main stream would write over them.
        self._held: Held = []
        self._before: tuple[torch.cuda.Event, Held] | None = None

    def product(self, a_RIK: Tensor, b_RKJ: Tensor) -> Tensor:
        """a b, there after `join`; its memory belongs to the main stream."""
        if self.stream is None:
            return product(a_RIK, b_RKJ)
        out = a_RIK.new_empty(a_RIK.shape[0], a_RIK.shape[1], b_RKJ.shape[2])
        self.run(lambda: product(a_RIK, b_RKJ, out=out))
        self._held.append((a_RIK, b_RKJ))
        return out

    def run(self, work: Callable[[], T]) -> T:
        """What `work` makes from what is already known, there after `join`."""
        if self.stream is None:
            return work()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return work()

    def turn(self) -> None:
        """A layer ends: wait for what the layer before it began, whose operands are free then."""
        if self.stream is None:
            return
        if self._before is not None:
            torch.cuda.current_stream().wait_event(self._before[0])
        self._before, self._held = (self.stream.record_event(), self._held), []

    def join(self) -> None:
        """Wait for everything."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            self._before, self._held = None, []
