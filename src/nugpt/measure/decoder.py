"""Alignment exponents of our own decoders: the model of now and the model of step 0 run side by side, block by block.

Both passes are eager and in float32, whatever training uses; at any time the inputs of one block are held.
Shapes: B batch, T tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from nugpt.core.decoder import Decoder, Matrix, Tail
from nugpt.core.init import MODELS
from nugpt.core.rope import rope_angles
from nugpt.measure.alignment import Exponents, Norms, exponents_of, norms_of
from nugpt.measure.probe import captured_inputs
from nugpt.spec.model import ModelConfig

OUTPUT = "E_out"
DIGITS = 6  # of an exponent in a row; its error by rounding is below anything that is read from it
Parameters = Callable[[str], Tensor]  # name → value, on the device of the tokens


@dataclass(frozen=True)
class Measurement:
    """Exponents by matrix, a number for each layer (none where undefined), and the batch's loss now and at step 0."""

    loss: float | None
    loss_0: float | None
    joint: Mapping[str, Mapping[str, list[float | None]]]  # alpha, omega, nu → matrix → one for each layer
    per_token: Mapping[str, Mapping[str, list[float | None]]]

    def to_row(self) -> dict[str, Any]:
        """Plain values, as a row of metrics holds them."""
        return {"loss": self.loss, "loss_0": self.loss_0, **self.joint, "per_token": dict(self.per_token)}


class DecoderAlignment:
    """Measures models of one configuration; it holds no weights."""

    def __init__(self, config: ModelConfig) -> None:
        one_block = replace(config, n_layers=1)  # every block is run by this one, with its own parameters
        with torch.device("meta"):
            self.model: Decoder = MODELS[config.architecture](one_block, "sdpa", "chunked")
        self.config, self._tail = config, Tail(self.model)
        self._angles: dict[tuple[int, torch.device], Tensor] = {}
        self._matrices = {
            name.rpartition(".")[2]: (name, module)
            for name, module in self.model.blocks[0].named_modules()
            if isinstance(module, Matrix)
        }

    def measure(
        self, now: Parameters, start: Parameters, gains: Any, tokens_BT: Tensor, targets_BT: Tensor
    ) -> Measurement:
        """The exponents of every matrix of every block and of E_out; it waits for the device once, at the end."""
        return self.read(self.numbers(now, start, gains, tokens_BT, targets_BT))

    @torch.no_grad()
    def numbers(self, now: Parameters, start: Parameters, gains: Any, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """All that is measured as one flat tensor on the device; once called, a CUDA graph can hold every operation."""
        h, h_0 = (functional.embedding(tokens_BT, params("E_in.weight")).float() for params in (now, start))
        angles = self._angles_of(tokens_BT)
        found: dict[str, list[Norms]] = {name: [] for name in (*self._matrices, OUTPUT)}
        for i in range(self.config.n_layers):
            h, h_0, of_block = self._block(i, now, start, h, h_0, gains, angles)
            for name, one in of_block.items():
                found[name].append(one)
        (h, W, scale), (h_0, W_0, scale_0) = (
            self._finish(params, hidden, gains) for params, hidden in ((now, h), (start, h_0))
        )
        found[OUTPUT] += norms_of([W], [W_0], h, h_0)
        losses = [
            self.model.loss(x.flatten(0, 1), weight, s, targets_BT.flatten()).mean()
            for x, weight, s in ((h, W, scale), (h_0, W_0, scale_0))
        ]
        both = exponents_of([one for layers in found.values() for one in layers])
        return torch.cat([*(kind.flatten() for kind in both), torch.stack(losses).double()])

    def read(self, numbers: Tensor) -> Measurement:
        """What `numbers` made, by name: one transfer from the device."""
        *exponents, loss, loss_0 = numbers.tolist()
        values = iter(exponents)
        tables = []
        for _ in ("joint", "per_token"):
            table: dict[str, dict[str, list[float | None]]] = {}
            for matrix in (*self._matrices, OUTPUT):
                for _ in range(1 if matrix == OUTPUT else self.config.n_layers):
                    for quantity in Exponents._fields:
                        value = next(values)
                        shown = round(value, DIGITS) if math.isfinite(value) else None
                        table.setdefault(quantity, {}).setdefault(matrix, []).append(shown)
            tables.append(table)
        assert next(values, None) is None
        loss, loss_0 = (value if math.isfinite(value) else None for value in (loss, loss_0))
        return Measurement(loss, loss_0, *tables)

    def _angles_of(self, tokens_BT: Tensor) -> Tensor:
        """The rotations of these positions, made once."""
        key = tokens_BT.shape[-1], tokens_BT.device
        if key not in self._angles:
            positions = torch.arange(tokens_BT.shape[-1], device=tokens_BT.device)
            self._angles[key] = rope_angles(positions, self.config.head_dim, self.config.rope_theta, torch.float32)
        return self._angles[key]

    def _block(
        self, i: int, now: Parameters, start: Parameters, h: Tensor, h_0: Tensor, gains: Any, angles: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Norms]]:
        template = self.model.blocks[0]
        layers = {name: module for name, (_, module) in self._matrices.items()}
        outputs, inputs, weights = [], [], []
        for params, hidden in ((now, h), (start, h_0)):
            values = {name: params(f"blocks.{i}.{name}").float() for name, _ in template.named_parameters()}
            with captured_inputs(layers) as seen:
                outputs.append(functional_call(template, values, (hidden, gains, angles, None, None, 0)))
            inputs.append(seen)
            weights.append(values)
        shared: dict[tuple[int, ...], list[str]] = {}  # matrices by the inputs they are given, as W_q, W_k, W_v share
        for name in layers:
            shared.setdefault(tuple(seen[name].data_ptr() for seen in inputs), []).append(name)
        found: dict[str, Norms] = {}
        for names in shared.values():
            W, W_0 = ([values[f"{self._matrices[name][0]}.weight"] for name in names] for values in weights)
            found |= zip(names, norms_of(W, W_0, inputs[0][names[0]], inputs[1][names[0]]), strict=True)
        return outputs[0], outputs[1], found

    def _finish(self, params: Parameters, h: Tensor, gains: Any) -> tuple[Tensor, Tensor, Tensor]:
        names = [n for n, _ in self.model.named_parameters() if not n.startswith(("blocks.", "E_in."))]
        values = {f"model.{name}": params(name).float() for name in names}
        h, weight, scale = functional_call(self._tail, values, (h, gains))
        return h, weight, scale
