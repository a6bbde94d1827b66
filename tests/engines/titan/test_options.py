"""Meshes that go with a run, and those that do not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from nugpt.engines.titan import options as options_module
from nugpt.engines.titan.__main__ import read_arguments
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
        ({"kernels": "fast"}, "kernels is 'fast', but must be one of auto, plain, fused"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TitanOptions(**options)


@pytest.mark.parametrize(
    ("device_type", "options", "kernels"),
    [
        ("cuda", {}, "fused"),
        ("cpu", {}, "plain"),
        ("cuda", {"kernels": "plain"}, "plain"),
        ("cuda", {"tp": 2}, "plain"),
        ("cuda", {"compile": True}, "plain"),
        ("cuda", {"compile": False}, "plain"),
        ("cuda", {"attention": "sdpa"}, "plain"),
        ("cuda", {"loss": "plain"}, "plain"),
        ("cuda", {"kernels": "fused", "compile": False}, "fused"),
    ],
)
def test_fused_kernels_where_they_apply(
    device_type: str, options: dict[str, Any], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "why_not_fused", lambda *_: None)  # a GPU and Triton
    assert TitanOptions(**options).kernels_for(SPEC, device_type) == kernels


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("normalized", {"tp": 4}, "kernels is 'fused', but tp is 4, and they need whole matrices: take auto or plain"),
        ("normalized", {"compile": True}, "compile is asked for, and they are not compiled"),
        ("normalized", {"attention": "sdpa"}, "attention 'sdpa' is one of the plain functions"),
        ("normalized", {"loss": "plain"}, "loss 'plain' is one of the plain functions"),
        ("prenorm", {}, "here there are no fused kernels for 'prenorm'"),
    ],
)
def test_fused_kernels_asked_for_where_they_do_not_apply(
    architecture: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "why_not_fused", lambda *_: None)
    table = parametrization("nugpt" if architecture == "normalized" else "prenorm-completep")
    spec = replace(SPEC, model=replace(MODEL, architecture=architecture), table=table, multipliers={})
    with pytest.raises(ValueError, match=words):
        TitanOptions(kernels="fused", **options).kernels_for(spec, "cuda")


# A value other than the default for every option.
OTHER: dict[str, Any] = {
    "device": "cpu",
    "tp": 2,
    "replicate": 2,
    "micro_batch": 4,
    "activations": "full",
    "kernels": "plain",
    "compile": False,
    "reshard": "never",
    "attention": "sdpa",
    "loss": "plain",
    "checkpoint_every": 7,
    "keep": 3,
    "log_every": 5,
    "measure": ("alignment", "lerp"),
    "measure_points": 6,
    "measure_windows": 2,
    "timeout": 30,
}


@pytest.mark.parametrize("changes", [{}, OTHER, {"compile": True}, {"measure": ()}])
def test_ranks_read_the_options_they_are_told(changes: dict[str, Any]) -> None:
    assert set(OTHER) == {field.name for field in fields(TitanOptions)}
    options = TitanOptions(**changes)
    request, _ = read_arguments(["--recipe", "r", "--data", "d", *options.arguments(), "--store", "s"])
    assert request.options == options
    assert len(options.arguments()) >= len(changes)
