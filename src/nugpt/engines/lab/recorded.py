"""Alignment of one replica after another as one recorded CUDA graph: buffers are filled, it is replayed, a tensor read.

A measurement is about a thousand small kernels. Launched one by one from Python they take 31 ms on an H200, however
small the model: thirty training steps of a width of 96.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from nugpt.engines.lab.device import captured
from nugpt.kernels.cross_entropy import CHUNK_LOGITS
from nugpt.measure.decoder import DecoderAlignment, Measurement, Parameters
from nugpt.spec.model import ModelConfig, parameter_shapes, total_parameters

SMALL_PART = 0.1  # of the device's free memory

Replay = Callable[[], None]
# From what makes a tensor on the device of fixed buffers, to what makes it again in place, and that tensor.
Record = Callable[[Callable[[], Tensor]], tuple[Replay, Tensor]]


class RecordedAlignment:
    """Measures models of one configuration on one batch; the first time eagerly, from the second on by the graph."""

    def __init__(
        self, decoder: DecoderAlignment, tokens_BT: Tensor, targets_BT: Tensor, record: Record | None = None
    ) -> None:
        self.decoder, self.device, self.batch = decoder, tokens_BT.device, (tokens_BT, targets_BT)
        shapes = parameter_shapes(decoder.config)
        self._now, self._start = (
            {name: torch.empty(shape, device=self.device) for name, shape in shapes.items()} for _ in range(2)
        )
        kind = decoder.model.gains_type
        self._gains = kind(*torch.empty(len(kind._fields), device=self.device).unbind())
        self._record = record or (recorded_graph if self.device.type == "cuda" else None)
        self._replay: Replay | None = None
        self._numbers: Tensor | None = None
        self._taken = 0

    @property
    def is_recorded(self) -> bool:
        """Whether measurements are replayed by now."""
        return self._replay is not None

    def measure(self, now: Parameters, start: Parameters, gains: Any) -> Measurement:
        """As `DecoderAlignment.measure`; the parameters may lie anywhere. An error of torch leaves nothing to use."""
        return self.decoder.read(self.numbers(now, start, gains))

    @torch.no_grad()
    def numbers(self, now: Parameters, start: Parameters, gains: Any) -> Tensor:
        """As `DecoderAlignment.numbers`; the next call overwrites them."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            _fill_([*self._now.values(), *self._gains], [*map(now, self._now), *gains])
            _fill_([*self._start.values()], [*map(start, self._start)])
            self._taken += 1
            if self._record is None or self._taken == 1:  # every library gets its workspace before anything is recorded
                return self._run()
            if self._replay is None or self._numbers is None:
                self._replay, self._numbers = self._record(self._run)
            self._replay()  # recording ran nothing
            return self._numbers

    def _run(self) -> Tensor:
        """What is recorded: a measurement of what the buffers hold."""
        return self.decoder.numbers(self._now.__getitem__, self._start.__getitem__, self._gains, *self.batch)


def is_worth_recording(config: ModelConfig, tokens: int, device: torch.device) -> bool:
    """Whether a graph helps on this device, and what it keeps there is a small part of what is free."""
    if device.type != "cuda" or tokens * config.vocab_size > CHUNK_LOGITS:
        return False  # a loss in chunks looks at the random state, which cannot be recorded; and it is no small model
    free, _ = torch.cuda.mem_get_info(device)
    return recorded_bytes(config, tokens) < SMALL_PART * free


def recorded_bytes(config: ModelConfig, tokens: int) -> int:
    """About what a recorded measurement keeps for itself: two copies of the parameters, and its largest moment."""
    block = tokens * (16 * config.d_model + 6 * config.d_mlp)  # inputs of its matrices now and at step 0, and products
    logits = 3 * tokens * config.vocab_size + 2 * config.vocab_size * config.d_model
    return 4 * (2 * total_parameters(config) + max(block, logits))


def recorded_graph(run: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
    """What `run` does as a CUDA graph of its own, and the tensor that every replay fills; nothing is run."""
    # Only what this thread does can spoil the capture, or be spoiled by it: a user's other threads are none of it.
    with captured("thread_local") as graph:
        numbers = run()
    return graph.replay, numbers


def _fill_(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into buffers: few operations where they lie on one device, else one for each."""
    if all(value.device == buffer.device for buffer, value in zip(buffers, values, strict=True)):
        torch._foreach_copy_([*buffers], [*values])
        return
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value, non_blocking=True)
