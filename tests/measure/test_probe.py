"""The probe on a model of anyone's: what it measures, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.docs.markdown import ROOT, blocks
from torch import Tensor, nn

from nugpt.measure import AlignmentProbe, alignment_exponents
from nugpt.measure.probe import captured_inputs, linear_layers


class Conv1D(nn.Module):
    """A linear layer that stores its weight as (in, out), as GPT-2 of `transformers` has it."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.1)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def make_model(seed: int = 0, conv: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    middle: nn.Module = Conv1D(24, 16) if conv else nn.Linear(16, 24)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), middle, nn.BatchNorm1d(24), nn.Linear(24, 4))


def batch(seed: int = 9) -> Tensor:
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, steps: int, between: Callable[[], Any] = lambda: None) -> list[float]:
    torch.manual_seed(5)  # dropout draws from the global generator
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        loss = (model(batch(step)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        between()
    return losses


@pytest.mark.parametrize("conv", [False, True])
def test_it_measures_every_linear_layer_on_its_inputs(conv: bool) -> None:
    model, fixed = make_model(conv=conv), batch()
    probe = AlignmentProbe(model, lambda: model(fixed))
    assert list(probe.layers) == ["0", "3", "5"]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, 4)
    found = probe.measure()
    layer = model[3]
    W, W_0 = (x.T if conv else x for x in (layer.weight.detach(), before["3.weight"]))
    model.eval()
    with torch.no_grad():
        h = torch.tanh(model[0](fixed))
        h_0 = torch.tanh(fixed @ before["0.weight"].T + before["0.bias"])
    expected = alignment_exponents(W, W_0, h, h_0)
    for kind, other in zip(found["3"], expected, strict=True):
        torch.testing.assert_close(torch.stack([*kind]), torch.stack([*other]), atol=1e-6, rtol=0)


def test_training_is_the_same_to_the_bit_with_and_without_it() -> None:
    plain = make_model()
    losses = train(plain, 12)
    watched, fixed = make_model(), batch()
    probe = AlignmentProbe(watched, lambda: watched(fixed))
    watched[2].eval()  # a part that its owner keeps from training must stay so
    watched[2].train()
    assert train(watched, 12, lambda: probe.measure()) == losses
    assert all(module.training for module in watched.modules())
    for one, other in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)  # the running statistics of BatchNorm too
    assert not any(module._forward_pre_hooks for module in watched.modules())


def test_the_weights_of_step_0_can_be_made_again_instead_of_kept() -> None:
    model, fixed = make_model(), batch()
    start = {name: layer.weight.detach().clone() for name, layer in linear_layers(model).items()}
    kept = AlignmentProbe(model, lambda: model(fixed))
    made = AlignmentProbe(model, lambda: model(fixed), initial=start.__getitem__)
    assert not made._weights_0
    train(model, 3)
    for name, found in kept.measure().items():
        other = made.measure()[name]
        # The first layer's inputs never move, so that ω and ν are not there.
        assert torch.equal(torch.stack([*found.joint]).nan_to_num(-1), torch.stack([*other.joint]).nan_to_num(-1))


def test_layers_can_be_chosen() -> None:
    model, fixed = make_model(), batch()
    probe = AlignmentProbe(model, lambda: model(fixed), layers=lambda name, layer: layer.in_features == 24)
    assert list(probe.layers) == ["5"]


def test_a_layer_called_twice_is_measured_on_all_it_was_given() -> None:
    layer = nn.Linear(8, 8)
    with captured_inputs({"layer": layer}) as inputs:
        layer(layer(torch.ones(3, 8)))
    assert inputs["layer"].shape == (6, 8)


class InPlace(nn.Module):
    """A residual stream that is added to in place, and a layer called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += self.first(x)
        x += self.second(input=x)
        return x.mul_(0.0)


def test_an_input_is_kept_as_the_layer_was_given_it() -> None:
    model, fixed = InPlace(), batch()
    probe = AlignmentProbe(model, lambda: model(fixed))
    start = {name: layer.weight.detach().clone() for name, layer in linear_layers(model).items()}
    bias = model.first.bias.detach()
    with torch.no_grad():
        for i, layer in enumerate((model.first, model.second)):
            layer.weight += gaussian_like(layer.weight, i)
    found = probe.measure()
    h, h_0 = (fixed + fixed @ W.T + bias for W in (model.first.weight.detach(), start["first"]))
    expected = alignment_exponents(model.second.weight.detach(), start["second"], h, h_0)
    torch.testing.assert_close(torch.stack([*found["second"].joint]), torch.stack([*expected.joint]), atol=1e-6, rtol=0)
    alone = alignment_exponents(model.first.weight.detach(), start["first"], fixed, fixed).joint.alpha
    assert float(found["first"].joint.alpha) == pytest.approx(float(alone), abs=1e-6)


def gaussian_like(x: Tensor, seed: int) -> Tensor:
    return 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def test_a_single_vector_is_one_token() -> None:
    layer = nn.Linear(8, 4)
    with captured_inputs({"layer": layer}) as inputs:
        layer(torch.ones(8))
    assert inputs["layer"].shape == (1, 8)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"layers is \['0'\], but must be a function of a layer's name and the layer"):
        AlignmentProbe(make_model(), lambda: None, layers=["0"])  # type: ignore[arg-type]
    fixed = batch()
    with pytest.raises(ValueError, match="has no linear layer to measure among 0"):
        AlignmentProbe(nn.Tanh(), lambda: None)
    model = make_model()
    with pytest.raises(ValueError, match="layer '5' was not called"):
        AlignmentProbe(model, lambda: model[:4](fixed))
    sizes = iter([32, 16])
    probe = AlignmentProbe(model, lambda: model(fixed[: next(sizes)]))
    with pytest.raises(ValueError, match="layer '0' was given other tokens"):
        probe.measure()


@pytest.mark.parametrize("compiled", ["whole", "in place", "one layer"])
def test_a_compiled_model_that_has_run_is_measured_as_what_it_was(compiled: str) -> None:
    """Whatever was compiled: the numbers and names of the model as it was, and its compiled form afterwards."""
    plain, model, fixed = make_model(), make_model(), batch()
    run: Any = model
    if compiled == "whole":
        run = torch.compile(model, backend="eager")
    elif compiled == "in place":
        model.compile(backend="eager")
    else:
        model[3] = torch.compile(model[3], backend="eager")
    model.eval()
    with torch.no_grad():
        run(fixed)  # as it is for an evaluation: what was compiled then knows of no hooks
    model.train()
    probe, other = AlignmentProbe(run, lambda: run(fixed)), AlignmentProbe(plain, lambda: plain(fixed))
    assert train(run, 3) == train(plain, 3)
    found, expected = probe.measure(), other.measure()
    assert list(found) == list(expected) == ["0", "3", "5"]
    for name, one in found.items():
        assert torch.equal(
            torch.stack([*one.joint]).nan_to_num(-1), torch.stack([*expected[name].joint]).nan_to_num(-1)
        )
    assert train(run, 2) == train(plain, 2)
    assert not any(module._forward_pre_hooks for module in run.modules())


def test_a_layer_of_one_input_is_named_before_anything_runs() -> None:
    model = nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 4))
    with pytest.raises(ValueError, match="layer '1' has 1 input, but an exponent to base d_in needs 2 or more"):
        AlignmentProbe(model, lambda: pytest.fail("the model was run"))
    with pytest.raises(ValueError, match="layer '' has 1 input"):
        AlignmentProbe(nn.Linear(1, 4), lambda: pytest.fail("the model was run"))
    fixed = batch()
    probe = AlignmentProbe(model, lambda: model(fixed), layers=lambda name, layer: name == "0")
    assert list(probe.layers) == ["0"]


def test_a_forward_pass_that_fails_leaves_no_hook_behind() -> None:
    model, fixed = make_model(), batch()

    def fails() -> None:
        model(fixed)
        raise RuntimeError("after the pass")

    with pytest.raises(RuntimeError, match="after the pass"):
        AlignmentProbe(model, fails)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.training


@pytest.mark.hf
def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in blocks(ROOT / "docs" / "measure.md") if block.language == "py"]
    exec(compile(block.text, "docs/measure.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith("lm_head")


@pytest.mark.hf
def test_it_works_on_gpt2_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(1))
    block = model.transformer.h[1]

    def attention_input() -> Tensor:
        model.eval()
        with torch.no_grad():
            states = model(tokens, output_hidden_states=True).hidden_states
            model.train()
            return block.ln_1(states[1])

    before, weight_0 = attention_input(), block.attn.c_attn.weight.detach().T.clone()
    probe = AlignmentProbe(model, lambda: model(tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    found = probe.measure()
    assert len(found) == 2 * 4 + 1  # c_attn, c_proj, c_fc, c_proj in two blocks, and lm_head
    for one in found.values():
        assert all(0 < float(value) <= 1 + 1e-6 for value in one.joint)
    by_hand = alignment_exponents(block.attn.c_attn.weight.detach().T, weight_0, attention_input(), before)
    mine = found["transformer.h.1.attn.c_attn"]
    torch.testing.assert_close(torch.stack([*mine.joint]), torch.stack([*by_hand.joint]), atol=1e-5, rtol=0)
