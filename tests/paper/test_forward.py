"""Equations (1) to (9): the torch model against the NumPy reference in float64, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.paper import reference, reference_baseline
from tests.paper.reference import Array, Params
from torch import Tensor

from nugpt.core.decoder import Decoder
from nugpt.core.init import build
from nugpt.kernels import cross_entropy
from nugpt.spec import ModelConfig, parameter_shapes

# The contract: two float64 computations of the same equations, whose values are of order 1.
CONTRACT = 1e-10
# A central difference with this step errs by about step² (curvature) + 1e-16/step (rounding of the loss): near 1e-10,
# and the largest sampled gradients are 0.01 to 1. A wrong factor anywhere moves them by far more.
STEP, DIFFERENCE = 1e-5, 2e-8

SHAPES: dict[str, dict[str, int | float]] = {
    "square": {"n_layers": 2, "n_heads": 3, "head_dim": 4, "vocab_size": 19, "seq_len": 8, "d_mlp": 32},
    "one layer, one head": {"n_layers": 1, "n_heads": 1, "head_dim": 6, "vocab_size": 11, "seq_len": 8, "d_mlp": 16},
    "grouped queries": {
        "n_layers": 2,
        "n_heads": 6,
        "n_kv_heads": 2,
        "head_dim": 2,
        "vocab_size": 23,
        "seq_len": 8,
        "d_mlp": 7,
        "rope_theta": 50.0,
    },
    "one key-value head": {
        "n_layers": 3,
        "n_heads": 3,
        "n_kv_heads": 1,
        "head_dim": 10,
        "vocab_size": 5,
        "seq_len": 8,
        "d_mlp": 1,
    },
}
ATTENTIONS = ("plain", "sdpa", "folded")
GAINS = {"alpha_A": 1.7, "alpha_M": 0.6, "s_qk": 1.3, "s_u": 0.8, "s_nu": 1.1, "s_z": 4.0}
BASELINE_GAINS = {"residual": 0.7, "logit": 1.9}


def shape_of(name: str, architecture: str = "normalized") -> ModelConfig:
    return ModelConfig(**SHAPES[name], architecture=architecture)  # type: ignore[arg-type]


def random_parameters(config: ModelConfig, *, on_sphere: bool, seed: int = 0) -> Params:
    """Gaussian matrices, on or off the sphere; vectors of either sign, away from zero where abs() has its kink."""
    rng = np.random.default_rng(seed)
    params: Params = {}
    for name, shape in parameter_shapes(config).items():
        if name.endswith(".stored") or len(shape) == 1:
            params[name] = rng.uniform(0.2, 0.9, shape) * rng.choice([1.0, 1.0, -1.0], shape)
        else:
            params[name] = rng.standard_normal(shape)
    return reference.retract(params) if on_sphere else params


def batch_of(config: ModelConfig, seed: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, (2, config.seq_len))
    return tokens[:, :-1], tokens[:, 1:]


def torch_model(config: ModelConfig, params: Params, attention: str = "sdpa", loss: str = "chunked") -> Decoder:
    model = build(config, attention, loss).double()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
    return model


def gains_for(model: Decoder, gains: dict[str, float]) -> Any:
    kind: Any = model.gains_type
    return kind(**{name: torch.tensor(value, dtype=torch.float64) for name, value in gains.items()})


def numpy_shape(config: ModelConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("n_heads", "n_kv_heads", "head_dim", "rope_theta")}


def agree(ours: Tensor, truth: Array) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), truth, rtol=CONTRACT, atol=CONTRACT)


class Spy:
    """What passes through a model's modules, by a name of our own."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Any]] = {}

    def keep(self, name: str, value: Any) -> None:
        self.seen.setdefault(name, []).append(value)

    def on(self, model: Decoder) -> Spy:
        for block in model.blocks:
            block.register_forward_pre_hook(lambda _, args: self.keep("h", args[0]))
            block.attention.register_forward_hook(lambda _, args, out: self.keep("attention", out))  # type: ignore[union-attr]
            block.mlp.register_forward_hook(lambda _, args, out: self.keep("mlp", out))  # type: ignore[union-attr]
            block.register_forward_hook(lambda _, args, out: self.keep("end", out))
            block.attention.attention = self._around(block.attention.attention)  # type: ignore[union-attr, arg-type]
        return self

    def _around(self, attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def spied(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
            for name, value in (("q", q), ("k", k), ("v", v), ("scale", scale)):
                self.keep(name, value)
            self.keep("heads", out := attention(q, k, v, scale, mask))
            return out

        return spied


@pytest.mark.parametrize("on_sphere", [True, False], ids=["on the sphere", "off the sphere"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_state_of_the_normalized_transformer(name: str, attention: str, on_sphere: bool) -> None:
    config = shape_of(name)
    params = random_parameters(config, on_sphere=on_sphere)
    tokens, _ = batch_of(config)
    truth = reference.forward(params, GAINS, tokens, **numpy_shape(config))
    model = torch_model(config, params, attention)
    spy = Spy().on(model)
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda _, args: spy.keep("half-way", args[0]))  # type: ignore[union-attr]
    gains = gains_for(model, GAINS)
    h = model(torch.from_numpy(tokens), gains)
    for i, block_truth in enumerate(truth["blocks"]):
        for key in ("q", "k", "v", "heads", "attention", "mlp"):
            agree(spy.seen[key][i], block_truth[key])
        assert spy.seen["scale"][i] == pytest.approx(config.head_dim**0.5, rel=1e-15)
        agree(spy.seen["h"][i], truth["h"][2 * i])
        agree(spy.seen["half-way"][i], truth["h"][2 * i + 1])
        agree(spy.seen["end"][i], truth["h"][2 * i + 2])
    agree(h, truth["h"][-1])
    agree(model.logits(h, gains), truth["logits"])


@pytest.mark.parametrize("architecture", ["prenorm", "prenorm-qknorm"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_state_of_the_baseline(name: str, attention: str, architecture: str) -> None:
    config = shape_of(name, architecture)
    params = random_parameters(config, on_sphere=False)
    tokens, _ = batch_of(config)
    truth = reference_baseline.forward(params, BASELINE_GAINS, tokens, **numpy_shape(config))
    model = torch_model(config, params, attention)
    spy = Spy().on(model)
    for block in model.blocks:
        block.norm_M.register_forward_pre_hook(lambda _, args: spy.keep("half-way", args[0]))  # type: ignore[union-attr]
    gains = gains_for(model, BASELINE_GAINS)
    h = model(torch.from_numpy(tokens), gains)
    for i in range(config.n_layers):
        agree(spy.seen["attention"][i], truth["attention"][i])
        agree(spy.seen["mlp"][i], truth["mlp"][i])
        agree(spy.seen["h"][i], truth["h"][2 * i])
        agree(spy.seen["half-way"][i], truth["h"][2 * i + 1])
        agree(spy.seen["end"][i], truth["h"][2 * i + 2])
    agree(h, reference_baseline.rms_norm(truth["h"][-1], params["norm_out.weight"]))
    agree(model.logits(h, gains), truth["logits"])


@pytest.mark.parametrize("architecture", ["normalized", "prenorm", "prenorm-qknorm"])
@pytest.mark.parametrize("chunk", [None, 1, 40, 100], ids=["plain", "a token a chunk", "40", "100"])
@pytest.mark.parametrize("name", SHAPES)
def test_loss(name: str, chunk: int | None, architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = shape_of(name, architecture)
    params = random_parameters(config, on_sphere=False)
    tokens, targets = batch_of(config)
    module, numbers = (reference, GAINS) if architecture == "normalized" else (reference_baseline, BASELINE_GAINS)
    truth = module.loss(params, numbers, tokens, targets, **numpy_shape(config))
    if chunk is not None:
        monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", chunk)
    model = torch_model(config, params, loss="plain" if chunk is None else "chunked")
    ours = model(torch.from_numpy(tokens), gains_for(model, numbers), torch.from_numpy(targets))
    assert ours.shape == ()
    assert ours.item() == pytest.approx(truth, rel=CONTRACT)


@pytest.mark.parametrize("architecture", ["normalized", "prenorm-qknorm"])
def test_positions_of_the_callers_own(architecture: str) -> None:
    config = shape_of("grouped queries", architecture)
    params = random_parameters(config, on_sphere=False)
    tokens, _ = batch_of(config)
    positions = np.array([5, 3, 11, 0, 0, 40, 2])
    module, numbers = (reference, GAINS) if architecture == "normalized" else (reference_baseline, BASELINE_GAINS)
    truth = module.forward(params, numbers, tokens, positions=positions, **numpy_shape(config))
    model = torch_model(config, params)
    gains = gains_for(model, numbers)
    h = model(torch.from_numpy(tokens), gains, positions_T=torch.from_numpy(positions))
    agree(model.logits(h, gains), truth["logits"])


def sampled_entries(gradient: Array, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """The entry where a mistake shows most, and two others."""
    largest = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)
    others = [tuple(int(rng.integers(n)) for n in gradient.shape) for _ in range(2)]
    return [tuple(int(i) for i in largest), *others]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("architecture", ["normalized", "prenorm", "prenorm-qknorm"])
def test_gradients_by_central_differences(architecture: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 60)
    config = shape_of("grouped queries", architecture)
    params = random_parameters(config, on_sphere=architecture == "normalized")
    tokens, targets = batch_of(config)
    module, numbers = (reference, GAINS) if architecture == "normalized" else (reference_baseline, BASELINE_GAINS)
    model = torch_model(config, params, attention)
    model(torch.from_numpy(tokens), gains_for(model, numbers), torch.from_numpy(targets)).backward()

    def loss_at(shifted: Params) -> float:
        return float(module.loss(shifted, numbers, tokens, targets, **numpy_shape(config)))

    rng = np.random.default_rng(3)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradient = parameter.grad.numpy()
        assert np.abs(gradient).max() > 1e-4, f"{name}: too small a gradient to tell right from wrong"
        for index in sampled_entries(gradient, rng):
            truth = reference.gradient_by_differences(loss_at, params, name, index, STEP)
            assert gradient[index] == pytest.approx(truth, abs=DIFFERENCE, rel=1e-6), (name, index)
