"""Launching kernels, and compiling all that a step will launch at once, in threads, before it does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import torch

try:  # Triton's own means for this; where a version has it not, kernels are compiled one after another
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:
    AsyncCompileMode = None

THREADS = min(16, os.cpu_count() or 1)

_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel on these arguments; within `compiling`, only have it compiled for them."""
    if _compiling.get():
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextlib.contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Within, a launch runs nothing and its kernel is compiled in a thread; at the end all are compiled and loaded.

    A kernel that does not compile is left to its first real launch, which says why.
    """
    token = _compiling.set(True)
    try:
        if AsyncCompileMode is None:
            yield
        else:
            with _Threads(device) as threads, AsyncCompileMode(threads, ignore_errors=True):
                yield
    finally:
        _compiling.reset(token)


class _Threads(ThreadPoolExecutor):
    """Threads that compile kernels and load them on the device: most of both happens outside of Python."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(THREADS)
        # A thread begins at the first GPU, whichever is current where the kernels will be launched.
        self.gpu = torch.cuda.current_device() if device.type == "cuda" else None

    def submit(self, compiled: Callable[[], Any], /, *_: Any, **__: Any) -> Future[Any]:
        """The kernel, ready to launch."""
        return super().submit(self._ready, compiled)

    def _ready(self, compiled: Callable[[], Any]) -> Any:
        kernel = compiled()
        if self.gpu is not None:
            with torch.cuda.device(self.gpu):
                kernel.run  # noqa: B018 - asking for it builds the launcher and loads the binary
        return kernel
