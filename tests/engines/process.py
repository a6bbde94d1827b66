"""`nugpt` commands in processes of their own that start quickly and may be killed at any moment."""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# Forks of a process that has imported the engine and never used it: a start takes no time, and no thread is copied.
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ("nugpt.engines.lab", "nugpt.cli.train", "nugpt.cli.progress", "safetensors.torch", "torch._dynamo")


def start(
    arguments: list[str],
    log: Path,
    moment: int | None = None,
    saves: int | None = None,
    copies: tuple[Path, Path] | None = None,
) -> BaseProcess:
    """Start `nugpt ARGUMENTS` with its output in `log`.

    It kills itself at its `moment`-th touch of the store, or when it has saved so many checkpoints; or it copies the
    first of two folders into the second at every touch, as what a kill at that moment would leave.
    """
    _SERVER.set_forkserver_preload(list(_PRELOADED))  # here, not above: the last file that pytest imports would decide
    process = _SERVER.Process(target=_run, args=(arguments, str(log), moment, saves, copies))
    process.start()
    return process


def run(arguments: list[str], log: Path, moment: int | None = None, **how: Any) -> int:
    """Run `nugpt ARGUMENTS` to its end as `start` has it, and return the exit status, −9 when it was killed."""
    process = start(arguments, log, moment, **how)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def kill_when(process: BaseProcess, reached: Callable[[], bool], delay: float) -> bool:
    """SIGKILL the process `delay` seconds after `reached`; False if it came to its end before."""
    while process.is_alive() and not reached():
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _run(
    arguments: list[str], log: str, moment: int | None, saves: int | None, copies: tuple[Path, Path] | None
) -> None:
    import torch

    from nugpt.cli.main import main

    torch.set_num_threads(1)
    with open(log, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    if moment is not None:
        _at_every_touch(lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == moment else None)
    if copies is not None:
        store, folder = copies
        _at_every_touch(lambda count: shutil.copytree(store, folder / f"{count}"))
    if saves is not None:
        _die_after(saves)
    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _die_after(saves: int) -> None:
    """Die as soon as so many checkpoints have been saved."""
    from nugpt.engines.lab import loop

    save, left = loop.save_checkpoint, saves

    def counting(*args: Any, **kwargs: Any) -> Path:
        nonlocal left
        saved = save(*args, **kwargs)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return saved

    loop.save_checkpoint = counting


def _at_every_touch(act: Callable[[int], object]) -> None:
    """Count every touch of the store, before, half-way through and after it, and do this with its number."""
    import safetensors.torch

    count = 0

    def touch() -> None:
        nonlocal count
        act(count)
        count += 1

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            touch()
            result = function(*args, **kwargs)
            touch()
            return result

        return wrapped

    save_file = safetensors.torch.save_file

    def save_half_then_all(tensors: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        touch()
        save_file(tensors, path, *args, **kwargs)
        whole = Path(path).read_bytes()
        Path(path).write_bytes(whole[: len(whole) // 2])
        touch()
        Path(path).write_bytes(whole)
        touch()

    safetensors.torch.save_file = save_half_then_all
    os.replace = around(os.replace)
    Path.rename = around(Path.rename)  # type: ignore[method-assign]
    shutil.rmtree = around(shutil.rmtree)  # type: ignore[assignment]
