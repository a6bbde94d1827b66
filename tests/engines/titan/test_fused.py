"""The fused kernels in TorchTitan's model: the plain functions' losses, with parameters sharded by FSDP2.

Triton interprets the kernels, which it decides when it is first imported: so ranks are fresh processes here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engines.small import train
from tests.engines.titan.ranks import Place, free_port, make_run, rows

from nugpt.data import TokenDataset

pytestmark = [pytest.mark.titan, pytest.mark.triton]

ROOT = Path(__file__).parents[3]  # where `tests` is found
STEPS = 2  # the second feels the first one's gradients
SAME = 1e-5  # as in test_parity.py, of losses near 6


def run_interpreted(arguments: list[str], ranks: int, log: Path) -> None:
    """Run so many ranks to their end."""
    common = os.environ | {"TRITON_INTERPRET": "1", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(ranks):
        with open(f"{log}.{rank}", "w", encoding="utf-8") as file:
            command = [sys.executable, "-m", "tests.engines.titan.interpreted", *arguments]
            environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT))
    try:
        statuses = [process.wait(200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert statuses == [0] * ranks, Path(f"{log}.0").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (1, ("--micro-batch", "2")),
        (2, ("--activations", "full", "--reshard", "always")),
        (2, ("--activations", "selective")),
    ],
    ids=["one rank, in pieces", "fsdp, recomputing", "fsdp, recomputing some"],
)
def test_same_losses_as_the_plain_functions(
    ranks: int, more: tuple[str, ...], place: Place, dataset: TokenDataset
) -> None:
    spec = replace(make_run(dataset), steps=STEPS, validations=1, val_windows=2)
    run_interpreted(place.arguments(spec, "runs", "--kernels", "fused", *more), ranks, place.root / "log")
    train([spec], place.root / "lab", dataset)
    ours, labs = place.directory(spec, "runs"), place.directory(spec, "lab")
    for kind, name in (("train", "loss"), ("train", "grad_norm"), ("validation", "val_loss")):
        mine, theirs = rows(ours, kind), rows(labs, kind)
        assert list(mine) == list(theirs)
        for step, row in theirs.items():
            assert mine[step][name] == pytest.approx(row[name], abs=SAME), (step, name)
    record = ours.record()
    assert record is not None
    assert (record.carried_by["kernels"], record.carried_by["loss"], record.carried_by["compile"]) == (
        "fused",
        "fused",
        False,
    )
    text = (place.root / "log.0").read_text(encoding="utf-8")
    assert "view tensor" not in text  # FSDP2 warns of outputs whose gathering could be lost


def test_products_in_bfloat16(place: Place, dataset: TokenDataset) -> None:
    spec = replace(make_run(dataset, precision="bfloat16"), steps=STEPS, validations=1, val_windows=2)
    run_interpreted(place.arguments(spec, "runs", "--kernels", "fused"), 1, place.root / "log")
    train([spec], place.root / "lab", dataset)
    ours, labs = (rows(place.directory(spec, store), "train") for store in ("runs", "lab"))
    for step, row in labs.items():  # as in test_parity.py: logits near 6 are off by about 0.01
        assert ours[step]["loss"] == pytest.approx(row["loss"], abs=5e-3)
    assert torch.tensor([row["norm_error"] for row in ours.values()]).max() < 1e-6
