"""The model under torch.compile(fullgraph=True): eager's numbers, and one program for every value of the gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.core import small
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, stack_module_state, vmap

pytestmark = pytest.mark.usefixtures("fresh_compiler")

# Inductor of torch 2.11 hands the gradient of float64 attention on a CPU float32 numbers: even
# scaled_dot_product_attention alone fails. In float32 and bfloat16 it does not, and 2.13 has it right.
IN_FLOAT64 = "plain" if torch.__version__ >= (2, 13) else "folded"


def with_gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


@pytest.mark.skipif(" " in torch.__file__, reason="Inductor cannot link against a torch whose path has a space")
def test_inductor_equals_eager_and_other_gains_do_not_compile_again() -> None:
    model = small.model(small.config(n_layers=1), attention=IN_FLOAT64)
    parameters = list(model.parameters())
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
    tokens, targets = small.tokens(), small.tokens(1)
    compilations = []
    for factor in (1.0, 0.5, 3.0):
        gains = small.gains(model, factor=factor)
        ours = with_gradients(compiled(tokens, gains, targets), parameters)
        truth = with_gradients(model(tokens, gains, targets), parameters)
        # float64 with sums in another order
        for mine, theirs in zip(ours, truth, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
        compilations.append(counter.frame_count)
    # Not 1: with an empty cache inductor counts an empty frame of its own beside the model's.
    assert compilations[0] > 0
    assert len(set(compilations)) == 1


@pytest.mark.parametrize("attention", ["plain", "folded"])
@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_replicas_are_traced_whole_and_once(architecture: str, attention: str) -> None:
    # aot_eager: the same tracing of forward and backward without generating code, which takes long on a CPU
    models = [small.model(small.config(architecture, n_layers=1), seed, attention=attention) for seed in range(2)]
    stacked, _ = stack_module_state(models)
    tokens = torch.stack([small.tokens(0), small.tokens(1)])

    def hidden(params: dict[str, Tensor], gains: Any, tokens_RBT: Tensor) -> Tensor:
        return vmap(lambda p, g, t: functional_call(models[0], p, (t, g)))(params, gains, tokens_RBT)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(hidden, backend=counter, fullgraph=True, dynamic=False)
    reached = [p for name, p in stacked.items() if not name.startswith(("E_out.", "s_z."))]
    for factor in (1.0, 0.5):
        each = [small.gains(models[0], factor=factor * (r + 1)) for r in range(2)]
        gains = type(each[0])(*(torch.stack(values) for values in zip(*each, strict=True)))
        ours = with_gradients(compiled(stacked, gains, tokens).square().sum(-1).sin().sum(), reached)
        truth = with_gradients(hidden(stacked, gains, tokens).square().sum(-1).sin().sum(), reached)
        for mine, theirs in zip(ours, truth, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert counter.frame_count == 1
