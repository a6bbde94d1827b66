"""What carries a run without changing its result: recorded, but no part of the spec."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nugpt.kernels.attention import attention_named
from nugpt.kernels.cross_entropy import loss_named


@dataclass(frozen=True)
class Options:
    """Device, kernels, batching in pieces, and how often to save."""

    device: str = "auto"  # auto: cuda when there is one, else cpu
    compile: bool | None = None  # None: on a GPU only
    attention: str = "folded"
    loss: str = "chunked"
    micro_batch: int | None = None  # sequences per forward and backward; None: the whole batch at once
    checkpoint_every: int | None = None  # steps; None: ten times a run
    keep: int = 2  # checkpoints kept
    log_every: int | None = None  # steps; None: two hundred rows a run
    threads: int | None = None  # CPU threads; None: torch's own choice
    deterministic: bool = False  # refuse kernels whose result differs from run to run

    def __post_init__(self) -> None:
        attention_named(self.attention)
        loss_named(self.loss)
        for name in ("micro_batch", "checkpoint_every", "keep", "log_every", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of at least 1")

    def torch_device(self) -> torch.device:
        """The device these options name, checked to exist."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError:
            raise ValueError(f"device is {name!r}, but must be auto, cpu, cuda or cuda:N") from None
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device is {name!r}, but must be auto, cpu, cuda or cuda:N")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device is {name!r}, but {torch.cuda.device_count()} CUDA devices are visible")
        return device

    def compiles(self, device: torch.device) -> bool:
        """Whether to compile: as asked, else on a GPU only."""
        return device.type == "cuda" if self.compile is None else self.compile
