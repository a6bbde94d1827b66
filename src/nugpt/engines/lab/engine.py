"""The lab engine as a plan's worker takes it: how many replicas fit, by measurement, and their execution."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nugpt.data import TokenDataset
from nugpt.engines.lab.ensemble import Ensemble
from nugpt.engines.lab.loop import Hooks, Progress, execute, prepare_torch
from nugpt.engines.lab.options import Options
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import Store

USABLE = 0.8  # of what is free: allocators fragment, and validation comes on top
MOST_ON_CPU = 8  # replicas of a CPU's ensemble: more save nothing and show results later


class LabEngine:
    """One device and one data set."""

    def __init__(self, dataset: TokenDataset, options: Options, progress: Progress | None = None) -> None:
        self.dataset, self.options, self.progress = dataset, options, progress
        self._bytes: dict[tuple[object, ...], int] = {}

    def capacity(self, spec: RunSpec, wanted: int) -> int:
        """How many replicas fit: the memory that one step of one replica takes on the device, against what is free."""
        device = self.options.torch_device()
        most = wanted if device.type == "cuda" else min(wanted, MOST_ON_CPU)
        if most <= 1:
            return 1
        key = (spec.model, spec.batch, spec.precision, self.options.micro_batch)
        if key not in self._bytes:
            try:
                self._bytes[key] = self._measure(spec, device)
            except torch.OutOfMemoryError:  # not even one fits: training it says so, and that is recorded
                return 1
        free = _free_device_memory(device) if device.type == "cuda" else _free_host_memory()
        return max(1, min(most, int(USABLE * free) // max(1, self._bytes[key])))

    def execute(
        self,
        specs: list[RunSpec],
        store: Store,
        guard: Callable[[], None],
        stop: Callable[[int, Sequence[float | None]], list[bool]] | None,
    ) -> list[RunRecord]:
        """Train these runs as one ensemble."""
        hooks = Hooks(guard, stop)
        try:
            return execute(specs, store, self.dataset, self.options, self.progress, hooks=hooks)
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _measure(self, spec: RunSpec, device: torch.device) -> int:
        """Bytes that one uncompiled step of one replica adds at its peak; a compiled one needs no more."""
        prepare_torch(self.options)  # the first product decides for good whether cuBLAS can be deterministic
        micro = min(self.options.micro_batch or spec.batch, spec.batch)
        before = _start_measuring(device)
        kernels = self.options.kernels_on(device, spec.model.architecture)
        ensemble = Ensemble([spec], device, self.options.attention, self.options.loss, compiled=False, kernels=kernels)
        state = ensemble.initial_state()
        tokens = torch.zeros(1, spec.batch, spec.model.seq_len, dtype=torch.int64, device=device)
        ensemble.train_step(state, tokens, tokens, 1.0, micro)
        used = _peak(device) - before
        del state, ensemble
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return used


def _start_measuring(device: torch.device) -> int:
    """Reset the peak and return what is in use now."""
    if device.type == "cuda":
        torch.zeros(1, device=device)  # there are no statistics before the first allocation
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with contextlib.suppress(OSError):  # Linux alone can reset the peak; elsewhere the measure is an upper bound
        Path("/proc/self/clear_refs").write_text("5")
    return _proc_status("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _proc_status("VmHWM")


def _proc_status(field: str) -> int:
    """A size in bytes from this process's status, 0 where the system has none."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    match = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else 0


def _free_device_memory(device: torch.device) -> int:
    """Memory that nobody uses; what torch keeps of an earlier ensemble for later is given back first."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _free_host_memory() -> int:
    """Memory that can be had without swapping; 4 GiB where the system does not say."""
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
        if match:
            return int(match[1]) * 1024
    return 4 << 30
