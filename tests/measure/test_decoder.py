"""Our own decoders side by side with themselves at step 0, against the NumPy reference and against the probe."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.core import small
from tests.measure.test_alignment import by_numpy
from tests.paper import reference
from tests.paper.test_forward import GAINS, batch_of, random_parameters, shape_of

from nugpt.core.transformer import Gains
from nugpt.measure.decoder import DecoderAlignment
from nugpt.measure.probe import AlignmentProbe

QUANTITIES = ("alpha", "omega", "nu")


def inputs_of(params: reference.Params, config: Any, tokens: Any) -> dict[tuple[str, int], Any]:
    """What enters each matrix, by the reference's own intermediate values, as (tokens, d_in)."""
    shape = {name: getattr(config, name) for name in ("n_heads", "n_kv_heads", "head_dim", "rope_theta")}
    found = reference.forward(params, GAINS, tokens, **shape)
    entering = {}
    for i, block in enumerate(found["blocks"]):
        for name in ("W_q", "W_k", "W_v"):
            entering[name, i] = found["h"][2 * i]
        entering["W_O", i] = block["heads"].reshape(*tokens.shape, -1)
        for name in ("W_u", "W_nu"):
            entering[name, i] = found["h"][2 * i + 1]
        entering["W_oMLP", i] = reference.silu(block["nu"]) * block["u"]
    entering["E_out", 0] = found["h"][-1]
    return {key: value.reshape(-1, value.shape[-1]) for key, value in entering.items()}


def weight(params: reference.Params, matrix: str, layer: int) -> Any:
    if matrix == "E_out":
        return params["E_out.weight"]
    room = "attention" if matrix in ("W_q", "W_k", "W_v", "W_O") else "mlp"
    return params[f"blocks.{layer}.{room}.{matrix}.weight"]


@pytest.mark.parametrize("name", ["square", "grouped queries"])
def test_every_matrix_of_every_layer_is_what_the_reference_says(name: str) -> None:
    config = shape_of(name)
    now, start = (random_parameters(config, on_sphere=True, seed=seed) for seed in (3, 4))
    tokens, targets = batch_of(config)
    gains = Gains(*(torch.tensor(GAINS[field]) for field in Gains._fields))
    found = DecoderAlignment(config).measure(
        lambda name: torch.from_numpy(now[name]).float(),
        lambda name: torch.from_numpy(start[name]).float(),
        gains,
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
    )
    h, h_0 = inputs_of(now, config, tokens), inputs_of(start, config, tokens)
    assert set(found.joint["alpha"]) == {matrix for matrix, _ in h}
    for matrix, layer in h:
        W, W_0 = weight(now, matrix, layer), weight(start, matrix, layer)
        joint, per_token = by_numpy(W, W_0, h[matrix, layer], h_0[matrix, layer])
        mine = [found.joint[quantity][matrix][layer] for quantity in QUANTITIES]
        # A float32 pass through two or three blocks, whose small d_in make an exponent of a small error.
        assert mine == pytest.approx(joint, abs=2e-5), (matrix, layer)
        assert [found.per_token[q][matrix][layer] for q in QUANTITIES] == pytest.approx(per_token, abs=2e-5)
    shape = {key: getattr(config, key) for key in ("n_heads", "n_kv_heads", "head_dim", "rope_theta")}
    assert found.loss == pytest.approx(reference.loss(now, GAINS, tokens, targets, **shape), rel=1e-5)
    assert found.loss_0 == pytest.approx(reference.loss(start, GAINS, tokens, targets, **shape), rel=1e-5)


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_it_agrees_with_hooks_on_the_model_itself(architecture: str) -> None:
    config = small.config(architecture)
    model = small.model(config, seed=0, dtype=torch.float32)
    gains, tokens = small.gains(model, torch.float32), small.tokens()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    probe = AlignmentProbe(model, lambda: model(tokens, gains), layers=lambda name, _: name != "E_out")
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
    now = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = DecoderAlignment(config).measure(now.__getitem__, start.__getitem__, gains, tokens, tokens)
    for name, one in probe.measure().items():
        _, layer, _, matrix = name.split(".")
        mine = [found.joint[quantity][matrix][int(layer)] for quantity in QUANTITIES]
        assert mine == pytest.approx([float(value) for value in one.joint], abs=2e-6), name


def test_what_is_not_defined_has_no_number() -> None:
    config = small.config()
    model = small.model(config, dtype=torch.float32)
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gains, tokens = small.gains(model, torch.float32), small.tokens()
    found = DecoderAlignment(config).measure(params.__getitem__, params.__getitem__, gains, tokens, tokens)
    values = [v for q in QUANTITIES for layers in found.joint[q].values() for v in layers]
    assert len(values) == 3 * (7 * config.n_layers + 1)
    assert set(values) == {None}
    assert found.loss is not None
    assert found.loss == found.loss_0
    spoiled = params | {"E_out.weight": torch.full_like(params["E_out.weight"], math.nan)}
    broken = DecoderAlignment(config).measure(spoiled.__getitem__, params.__getitem__, gains, tokens, tokens)
    assert broken.loss is None
    assert broken.loss_0 == found.loss_0
    assert np.isfinite(broken.loss_0 or math.nan)
