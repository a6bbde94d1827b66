"""What the lab engine measures of a model's memory, asked in a process of its own."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from nugpt.spec.run import RunSpec


def wide(spec: RunSpec, heads: int) -> RunSpec:
    """The same run with so many heads."""
    return replace(spec, model=replace(spec.model, n_heads=heads, n_kv_heads=heads, d_mlp=0))


def measured_bytes(data: Path, heads: int) -> int:
    """Bytes that one step of one replica takes by the engine's own measure."""
    server = multiprocessing.get_context("forkserver")
    here, there = server.Pipe()
    process = server.Process(target=_measure, args=(data, heads, there))
    process.start()
    there.close()
    found = here.recv()
    process.join()
    return int(found)


def _measure(data: Path, heads: int, connection: Connection) -> None:
    import torch
    from tests.engines.small import make_spec

    from nugpt.data import open_dataset
    from nugpt.engines.lab import Options
    from nugpt.engines.lab.engine import LabEngine

    torch.set_num_threads(1)
    dataset = open_dataset(data)
    engine = LabEngine(dataset, Options(device="cpu", threads=1))
    connection.send(engine._measure(wide(make_spec(dataset), heads), torch.device("cpu")))
