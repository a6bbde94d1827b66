"""The titan engine's ranks as processes that start quickly, and small runs for them."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.engines.small import make_spec

from nugpt.data import TokenDataset
from nugpt.spec.recipe import recipe_of
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory

_SERVER = multiprocessing.get_context("forkserver")

# Two octaves below the best rate of these 20 steps, which is near 2^-2: above it rounding errors grow with the steps.
LR = 2**-4
STEPS = 20


def make_run(dataset: TokenDataset, table: str = "nugpt", architecture: str | None = None, **changes: Any) -> RunSpec:
    """20 steps of 4 sequences; 4 query heads, 2 key-value heads and 2 layers, so that 2 ranks can share each."""
    spec = make_spec(dataset, table=table, lr=LR, steps=STEPS, **changes)
    model = replace(spec.model, n_heads=4, n_kv_heads=2, n_layers=2, d_mlp=0)
    return replace(spec, model=replace(model, architecture=architecture or model.architecture))


@dataclass(frozen=True)
class Place:
    """Where a test's recipe, data and store are."""

    root: Path
    data: Path

    def recipe(self, spec: RunSpec) -> Path:
        """The run's recipe as a file."""
        path = self.root / f"{spec.hash}.json"
        path.write_text(json.dumps(recipe_of(spec)), encoding="utf-8")
        return path

    def arguments(self, spec: RunSpec, store: str, *more: str) -> list[str]:
        """The command line of a rank."""
        names = {"recipe": self.recipe(spec), "data": self.data, "store": self.root / store, "device": "cpu"}
        words = [word for name, value in names.items() for word in (f"--{name}", str(value))]
        return [*words, "--log-every", "1", "--checkpoint-every", "8", "--timeout", "60", *more]

    def directory(self, spec: RunSpec, store: str) -> RunDirectory:
        """The run's directory."""
        return RunDirectory(self.root / store / spec.hash)


def start(arguments: list[str], ranks: int, log: Path) -> list[BaseProcess]:
    """Start so many ranks; each writes to a log of its own, LOG.RANK."""
    port = free_port()
    return [start_rank(arguments, rank, ranks, port, log) for rank in range(ranks)]


def start_rank(arguments: list[str], rank: int, ranks: int, port: int, log: Path) -> BaseProcess:
    """Start one rank of a run."""
    return fork(_run, arguments, rank, ranks, port, f"{log}.{rank}")


def fork(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that has imported the engine already."""
    # Said here and not at the top: pytest imports this file also where torchtitan is not installed.
    _SERVER.set_forkserver_preload(["tests.engines.titan.preloaded"])
    process = _SERVER.Process(target=target, args=arguments)
    process.start()
    return process


def run(arguments: list[str], ranks: int, log: Path) -> list[int]:
    """Run so many ranks to their end and return their exit statuses."""
    processes = start(arguments, ranks, log)
    for process in processes:
        process.join(120)
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
    assert not hung, f"ranks that did not end: {said(log, ranks)}"
    return [process.exitcode for process in processes if process.exitcode is not None]


def command(arguments: list[str], log: Path) -> tuple[int, str, str]:
    """`nugpt ARGUMENTS` in a process of its own: exit status, standard output, standard error."""
    process = fork(_command, arguments, str(log))
    process.join(240)
    assert process.exitcode is not None
    return process.exitcode, *(Path(f"{log}.{name}").read_text(encoding="utf-8") for name in ("out", "err"))


def said(log: Path, ranks: int) -> list[str]:
    """What each rank printed."""
    return [Path(f"{log}.{rank}").read_text(encoding="utf-8") for rank in range(ranks)]


def rows(directory: RunDirectory, kind: str) -> dict[int, dict[str, Any]]:
    """The metrics of one kind by step, each step once."""
    found = [row for row in directory.read_metrics() if row["kind"] == kind]
    by_step = {row["step"]: row for row in found}
    assert len(by_step) == len(found), "a step was written twice"
    return by_step


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(arguments: list[str], log: str) -> None:
    from nugpt.cli.main import main

    for number, name in ((1, "out"), (2, "err")):
        with open(f"{log}.{name}", "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(arguments: list[str], rank: int, ranks: int, port: int, log: str) -> None:
    import torch

    with open(log, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    from nugpt.engines.titan.__main__ import main

    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
