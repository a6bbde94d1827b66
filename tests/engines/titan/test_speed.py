"""Timing beside others: every step has its own batch, and all engines have the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nugpt.data.zipf import Stream
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.engines.titan import speed
from nugpt.engines.titan.options import TitanOptions
from nugpt.spec import load_table
from nugpt.spec.model import ModelConfig
from nugpt.spec.recipe import NO_DATA
from nugpt.spec.resolve import Base, Extent
from nugpt.spec.run import RunSpec

CPU = torch.device("cpu")
MODEL = ModelConfig(1, 2, 8, 32, 16, d_mlp=24)
SPEC = RunSpec(MODEL, load_table("nugpt"), Base.of(Extent.of(MODEL, 100, 4)), 2**-9, 100, 4, NO_DATA)


def test_batches_are_those_of_zipfs_law() -> None:
    found = speed.drawn(SPEC, 3)
    for (tokens, targets), (mine, wanted) in zip(found, Stream(32, (1, 4, 16), CPU).draw(3), strict=True):
        assert torch.equal(tokens, mine[0])
        assert torch.equal(targets, wanted[0])


def test_pieces_of_batches_are_all_of_them_each_once() -> None:
    batches = speed.drawn(SPEC, 2)
    found = list(speed.pieces(batches, 2))
    assert len(found) == 4
    for which in (0, 1):
        assert torch.equal(torch.cat([piece[which] for piece in found]), torch.cat([pair[which] for pair in batches]))


def test_no_step_of_the_lab_engine_sees_a_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    step = Ensemble.train_step

    def noted(self: Ensemble, state: State, tokens: Tensor, *rest: Any) -> None:
        seen.append(tokens.clone())
        step(self, state, tokens, *rest)

    monkeypatch.setattr(Ensemble, "train_step", noted)
    steps, rounds = 2, 3
    batches = speed.drawn(SPEC, speed.WARM_UP + steps * rounds)
    bench = speed.Bench(SPEC, TitanOptions(device="cpu"), CPU, False, batches)
    found = speed.measure(bench, ["lab"], steps, rounds)
    assert len(found["lab"]["rounds"]) == rounds
    assert [tokens[0].tolist() for tokens in seen] == [tokens.tolist() for tokens, _ in batches]
    assert len({str(tokens.tolist()) for tokens in seen}) == speed.WARM_UP + steps * rounds
