"""Meshes that go with a run, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from nugpt.engines.titan.options import Mesh, TitanOptions, mesh_of
from nugpt.spec import preset
from nugpt.spec.parametrization import parametrization
from nugpt.spec.run import RunSpec

SCALE, MODEL = preset("paper-l12h40")
SPEC = RunSpec(MODEL, parametrization("nugpt"), SCALE.base, 2**-7, 80_000, SCALE.batch, "some data")


@pytest.mark.parametrize(
    ("world", "options", "mesh"),
    [
        (1, {}, Mesh(1, 1, 1, 1, 64, 64)),
        (8, {}, Mesh(8, 1, 8, 1, 8, 8)),
        (64, {"tp": 8, "micro_batch": 2}, Mesh(64, 1, 8, 8, 8, 2)),
        (512, {"tp": 8, "replicate": 8}, Mesh(512, 8, 8, 8, 1, 1)),
        (8, {"micro_batch": 100}, Mesh(8, 1, 8, 1, 8, 8)),
    ],
)
def test_a_mesh_covers_ranks_and_batch(world: int, options: dict[str, Any], mesh: Mesh) -> None:
    found = mesh_of(SPEC, TitanOptions(**options), world)
    assert found == mesh
    assert found.replicate * found.shard * found.tp == world
    assert found.local_batch * found.data == SPEC.batch


@pytest.mark.parametrize(
    ("world", "options", "words"),
    [
        (8, {"tp": 3}, "tp 3 × replicate 1 is 3, but must divide the 8 ranks"),
        (48, {"tp": 3}, "tp is 3, but must divide n_heads, which is 40"),
        (128, {}, "a step has 64 sequences, but the 128 data-parallel ranks must divide them"),
        (8, {"micro_batch": 3}, "micro_batch is 3, but must divide the 8 sequences that a rank has per step"),
    ],
)
def test_what_does_not_divide_is_refused(world: int, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mesh_of(SPEC, TitanOptions(**options), world)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"keep": 1}, "keep is 1, but must be at least 2"),
        ({"activations": "some"}, "activations is 'some', but must be one of none, selective, full"),
        ({"device": "cuda:1"}, "device is 'cuda:1'"),
        ({"reshard": "maybe"}, "reshard is 'maybe'"),
        ({"loss": "fast"}, "loss is 'fast'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TitanOptions(**options)
