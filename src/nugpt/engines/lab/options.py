"""What carries a run without changing its result: recorded, but no part of the spec."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from nugpt.kernels.attention import attention_named
from nugpt.kernels.cross_entropy import loss_named

KERNELS = ("auto", "plain", "fused")
FUSED_ARCHITECTURES = ("normalized", "prenorm")
MEASURES = ("alignment", "lerp")
FOLDED, CHUNKED = "folded", "chunked"


@dataclass(frozen=True)
class Options:
    """Device, kernels, batching in pieces, and how often to save."""

    device: str = "auto"  # auto: cuda when there is one, else cpu
    kernels: str = "auto"  # auto: fused on a GPU that Triton can compile for, else plain
    compile: bool | None = None  # of the plain functions; None: on a GPU only
    attention: str = FOLDED  # of the plain functions
    loss: str = CHUNKED  # of the plain functions
    micro_batch: int | None = None  # sequences per forward and backward; None: the whole batch at once
    checkpoint_every: int | None = None  # steps; None: ten times a run, a minute and 30 savings apart
    keep: int = 2  # checkpoints kept
    last_checkpoint: bool = True  # of a run that is done or diverged; without, one killed before its record goes back
    log_every: int | None = None  # steps; None: two hundred rows a run
    threads: int | None = None  # CPU threads; None: torch's own choice
    deterministic: bool = False  # refuse kernels whose result differs from run to run
    measure: tuple[str, ...] = ("lerp",)  # what is measured beside the loss, of MEASURES; it changes no result
    measure_points: int | None = None  # measurements a run, log-spaced; None: as many as cost little
    measure_windows: int | None = None  # validation windows of the fixed batch; None: as many as cost little

    def __post_init__(self) -> None:
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels is {self.kernels!r}, but must be one of {', '.join(KERNELS)}")
        object.__setattr__(self, "measure", tuple(dict.fromkeys(self.measure)))  # a list where it comes from JSON
        if unknown := [name for name in self.measure if name not in MEASURES]:
            raise ValueError(f"measure is {unknown[0]!r}, but must be of {', '.join(MEASURES)}")
        attention_named(self.attention)
        loss_named(self.loss)
        check_fused(self.kernels, asks_for_plain(self.attention, self.loss, self.compile))
        for name in (
            "micro_batch",
            "checkpoint_every",
            "keep",
            "log_every",
            "threads",
            "measure_points",
            "measure_windows",
        ):
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

    def kernels_on(self, device: torch.device, architecture: str) -> str:
        """`fused` or `plain`: as asked, else fused where there is a GPU, Triton and a kernel for the architecture.

        Under `auto`, whoever asks for something of the plain functions gets them.
        """
        if self.kernels == "plain" or (self.kernels == "auto" and (device.type != "cuda" or self.compile is not None)):
            return "plain"
        reason = asks_for_plain(self.attention, self.loss, self.compile) or why_not_fused(architecture, device)
        check_fused(self.kernels, reason)
        return "plain" if reason else "fused"

    def compiles(self, device: torch.device, kernels: str = "plain") -> bool:
        """Whether to compile: as asked, else on a GPU only; fused kernels need it not."""
        return kernels == "plain" and (device.type == "cuda" if self.compile is None else self.compile)


def check_fused(kernels: str, reason: str | None) -> None:
    """Refuse fused kernels that are asked for by name where something stands in their way."""
    if kernels == "fused" and reason:
        raise ValueError(f"kernels is 'fused', but {reason}: take auto or plain")


def asks_for_plain(attention: str, loss: str, compile: bool | None) -> str | None:
    """What is asked for that is for the plain functions only, in words, or None: fused kernels bring their own."""
    if compile:
        return "compile is asked for, and they are not compiled"
    for name, value, usual in (("attention", attention, FOLDED), ("loss", loss, CHUNKED)):
        if value != usual:
            return f"{name} {value!r} is one of the plain functions"
    return None


def why_not_fused(architecture: str, device: torch.device) -> str | None:
    """What stands in the way of the fused kernels, or None."""
    if architecture not in FUSED_ARCHITECTURES:
        return f"there are no fused kernels for {architecture!r}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the device is {device.type}, and they need a GPU"
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is too old for them: it has no bfloat16 products"
    return None
