"""Alignment exponents of any PyTorch model with linear layers: hooks read their inputs, the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nugpt.measure.alignment import Alignment, alignment_exponents


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers whose output is a matrix times their input, by name: `nn.Linear` and the Conv1D of `transformers`."""
    return {
        _uncompiled(name): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or _is_conv1d(module)
    }


def _uncompiled(name: str) -> str:
    """The name that a module has in the model as it was before `torch.compile` put it into another."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _is_conv1d(module: nn.Module) -> bool:
    """GPT-2's linear layer, by its form, since `transformers` is no requirement: a weight stored as (in, out)."""
    weight, features = getattr(module, "weight", None), getattr(module, "nf", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and features == weight.shape[1]


def weight_of(module: nn.Module) -> Tensor:
    """The layer's matrix as (out, in)."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach().T if _is_conv1d(module) else weight.detach()


@contextmanager
def captured_inputs(layers: Mapping[str, nn.Module], copied: bool = False) -> Iterator[dict[str, Tensor]]:
    """A dictionary that a forward pass fills with each layer's input; one called twice keeps all it was given.

    `copied`: as they were when the layer was called, whatever the model does in place to them afterwards.
    """
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            given = (arguments[0] if arguments else next(iter(named.values()))).detach()
            rows = given.clone().reshape(-1, given.shape[-1]) if copied else given.reshape(-1, given.shape[-1])
            inputs[name] = torch.cat([inputs[name], rows]) if name in inputs else rows

        return hook

    handles = [layer.register_forward_pre_hook(keep(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


class AlignmentProbe:
    """Measures a model against what it was when the probe was made, on one fixed batch.

    `forward` runs the model on that batch, as in `lambda: model(batch)`. The probe runs it in evaluation mode, without
    gradients, without moving the random generators, and uncompiled, since what `torch.compile` made of it would not
    call the hooks; these are there only while it does. It keeps a copy of the layers' weights; with `initial`, a
    function from a layer's name to its weight at step 0 as the model stores it, it keeps none of them. The layers'
    inputs at step 0 are kept: tokens × d_in numbers for each layer.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[], Any],
        layers: Callable[[str, nn.Module], bool] | None = None,
        initial: Callable[[str], Tensor] | None = None,
    ) -> None:
        if layers is not None and not callable(layers):
            raise ValueError(f"layers is {layers!r}, but must be a function of a layer's name and the layer")
        self.model, self.forward = model, forward
        found = linear_layers(model)
        self.layers = {name: m for name, m in found.items() if layers is None or layers(name, m)}
        if not self.layers:
            raise ValueError(f"model {type(model).__name__} has no linear layer to measure among {len(found)} found")
        for name, layer in self.layers.items():
            if weight_of(layer).shape[1] < 2:
                raise ValueError(
                    f"layer {name!r} has 1 input, but an exponent to base d_in needs 2 or more: "
                    "leave it out with `layers`"
                )
        self._initial = initial
        self._weights_0 = {} if initial else {name: weight_of(m).clone() for name, m in self.layers.items()}
        self._inputs_0 = self._inputs()
        silent = sorted(set(self.layers) - set(self._inputs_0))
        if silent:
            raise ValueError(f"layer {silent[0]!r} was not called by the forward pass: leave it out with `layers`")

    def measure(self) -> dict[str, Alignment]:
        """Each layer's exponents now, as tensors on its device."""
        inputs = self._inputs()
        found = {}
        for name, layer in self.layers.items():
            if inputs[name].shape != self._inputs_0[name].shape:
                raise ValueError(f"layer {name!r} was given other tokens than at step 0: the batch must stay the same")
            found[name] = alignment_exponents(
                weight_of(layer), self._weight_0(name), inputs[name], self._inputs_0[name]
            )
        return found

    def _weight_0(self, name: str) -> Tensor:
        if self._initial is None:
            return self._weights_0[name]
        made, now = self._initial(name), weight_of(self.layers[name])
        return (made.T if _is_conv1d(self.layers[name]) else made).to(now.device)

    def _inputs(self) -> dict[str, Tensor]:
        training = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with (
                torch.no_grad(),
                torch.random.fork_rng(),
                torch.compiler.set_stance("force_eager"),
                captured_inputs(self.layers, copied=True) as inputs,
            ):
                self.forward()
        finally:
            for module, mode in training.items():
                module.training = mode
        return inputs
