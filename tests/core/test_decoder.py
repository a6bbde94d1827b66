"""What holds for every decoder: causality, mask and positions, replicas, precision, names and state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.core import small
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from nugpt.core import init
from nugpt.core.baseline import Baseline, RMSNorm
from nugpt.core.decoder import Decoder
from nugpt.core.transformer import Transformer
from nugpt.spec import Base, Extent, load_table, parameter_shapes, resolve

# Two float64 orders of the same sums, values of order 1.
ROUNDING = 1e-12
each_architecture = pytest.mark.parametrize("architecture", small.ARCHITECTURES)
each_attention = pytest.mark.parametrize("attention", ["plain", "sdpa", "folded"])


def close(ours: Tensor, truth: Tensor, tolerance: float = ROUNDING) -> None:
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


@each_attention
@each_architecture
def test_no_gradient_from_the_future(architecture: str, attention: str) -> None:
    model = small.model(small.config(architecture), attention=attention)
    gains, tokens = small.gains(model), small.tokens(batch=1, time=6)
    embedded: list[Tensor] = []

    def keep(_: nn.Module, args: Any, out: Tensor) -> Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[0]

    model.E_in.register_forward_hook(keep)
    h = model(tokens, gains)
    for n in range(6):
        direction = torch.randn(h.shape[-1], generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        (gradient,) = torch.autograd.grad((h[0, n] * direction).sum(), embedded[0], retain_graph=True)
        reached = gradient[0].abs().amax(-1)
        assert not reached[n + 1 :].any(), f"token {n} sees the future"
        assert (reached[: n + 1] > 1e-8).all(), f"token {n} does not see all of its past"


@each_architecture
def test_sequences_of_a_batch_do_not_see_each_other(architecture: str) -> None:
    model = small.model(small.config(architecture))
    gains, tokens = small.gains(model), small.tokens(batch=3)
    together = model(tokens, gains)
    close(torch.cat([model(row[None], gains) for row in tokens]), together)


@each_attention
@each_architecture
def test_an_explicit_causal_mask_changes_nothing(architecture: str, attention: str) -> None:
    model = small.model(small.config(architecture), attention=attention)
    gains, tokens = small.gains(model), small.tokens()
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    close(model(tokens, gains, mask_TS=mask), model(tokens, gains))


@each_attention
@each_architecture
def test_packed_documents_under_mask_and_positions_are_those_documents_alone(architecture: str, attention: str) -> None:
    model = small.model(small.config(architecture), attention=attention)
    gains, tokens = small.gains(model), small.tokens(time=9)
    lengths = (4, 1, 3, 1)
    document = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    mask = (document[:, None] == document[None, :]) & torch.ones(9, 9, dtype=torch.bool).tril()
    positions = torch.cat([torch.arange(n) for n in lengths])
    packed = model(tokens, gains, positions_T=positions, mask_TS=mask)
    alone = torch.cat([model(part, gains) for part in tokens.split(lengths, dim=1)], dim=1)
    close(packed, alone)
    assert (packed - model(tokens, gains)).abs().max() > 1e-3  # the mask is no mere formality


@pytest.mark.parametrize("architecture", ["prenorm", "prenorm-qknorm"])
def test_the_baseline_feels_offsets_only(architecture: str) -> None:
    model = small.model(small.config(architecture))
    gains, tokens = small.gains(model), small.tokens()
    shifted = model(tokens, gains, positions_T=torch.arange(100, 107))
    close(shifted, model(tokens, gains))
    stretched = model(tokens, gains, positions_T=2 * torch.arange(7))
    assert (stretched - shifted).abs().max() > 1e-3


def test_the_normalized_transformer_feels_offsets_only_while_s_qk_is_one_number() -> None:
    # s_qk acts per component after the rotation, so that scores of trained models depend on positions themselves.
    model = small.model(small.config())
    gains, tokens = small.gains(model), small.tokens()
    far = torch.arange(100, 107)
    assert (model(tokens, gains, positions_T=far) - model(tokens, gains)).abs().max() > 1e-4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("s_qk.stored"):
                parameter.fill_(0.3)
    close(model(tokens, gains, positions_T=far), model(tokens, gains))


@each_architecture
def test_functional_call(architecture: str) -> None:
    model, other = small.model(small.config(architecture)), small.model(small.config(architecture), seed=5)
    gains, tokens = small.gains(model), small.tokens()
    ours = functional_call(model, dict(other.named_parameters()), (tokens, gains, tokens))
    assert ours.item() == other(tokens, gains, tokens).item() != model(tokens, gains, tokens).item()


def replicas(architecture: str, attention: str) -> tuple[list[Decoder], Any, list[Any]]:
    """Three models, their gains stacked, and their gains one by one."""
    models = [small.model(small.config(architecture), seed, attention=attention) for seed in range(3)]
    each = [small.gains(model, factor=1 + 0.5 * i) for i, model in enumerate(models)]
    kind: Any = models[0].gains_type
    return models, kind(*(torch.stack(values) for values in zip(*each, strict=True))), each


@each_attention
@each_architecture
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's SDPA on a CPU has no vmap rule: it loops
def test_vmap_over_stacked_parameters_and_gains_equals_the_loop(architecture: str, attention: str) -> None:
    models, stacked_gains, each = replicas(architecture, attention)
    stacked, buffers = stack_module_state(models)
    assert not buffers
    tokens = torch.stack([small.tokens(seed) for seed in range(3)])
    weights = torch.randn(3, 2, 7, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def one(params: dict[str, Tensor], gains: Any, tokens_BT: Tensor) -> Tensor:
        return functional_call(models[0], params, (tokens_BT, gains))

    together = vmap(one)(stacked, stacked_gains, tokens)
    (together * weights).sum().backward()
    for i, model in enumerate(models):
        alone = model(tokens[i], each[i])
        close(together[i], alone)
        (alone * weights[i]).sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:  # the unembedding, which hidden states do not reach
                assert name.startswith(("E_out.", "s_z."))
                continue
            assert stacked[name].grad is not None, name
            close(stacked[name].grad[i], parameter.grad)
    # one batch of tokens for all replicas, as a sweep over learning rates has it
    shared = vmap(one, in_dims=(0, 0, None))(stacked, stacked_gains, tokens[0])
    close(shared[2], models[2](tokens[0], each[2]))


def test_float32_gains_keep_float64_models_in_float64_also_under_vmap() -> None:
    models, _, _ = replicas("normalized", "folded")
    stacked, _ = stack_module_state(models)
    single = init.gains(models[0], small.resolved(models[0].config))
    several = type(single)(*(value.expand(3) for value in single))
    tokens = small.tokens()
    together = vmap(lambda p, g: functional_call(models[0], p, (tokens, g)))(stacked, several)
    assert together.dtype == torch.float64
    close(together[1], models[1](tokens, single))


@each_architecture
def test_logits_and_loss_follow_from_hidden_states_and_head(architecture: str) -> None:
    model = small.model(small.config(architecture))
    gains, tokens, targets = small.gains(model), small.tokens(), small.tokens(9)
    h = model(tokens, gains)
    weight, scale = model.head(gains)
    logits = model.logits(h, gains)
    close(logits, (h @ weight.mT) * scale)
    truth = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    close(model(tokens, gains, targets), truth)


@each_architecture
def test_names_and_shapes_are_those_the_spec_lists_in_order(architecture: str) -> None:
    for changes in ({}, {"n_kv_heads": 4}, {"n_layers": 1, "n_heads": 1, "n_kv_heads": 1}):
        shape = small.config(architecture, **changes)
        ours = [(name, tuple(p.shape)) for name, p in init.build(shape, device="meta").named_parameters()]
        assert ours == list(parameter_shapes(shape).items())


@each_architecture
def test_state_is_the_parameters_and_survives_a_round_trip(architecture: str) -> None:
    model, other = small.model(small.config(architecture)), small.model(small.config(architecture), seed=3)
    assert list(model.state_dict()) == list(parameter_shapes(model.config))
    other.load_state_dict(model.state_dict())
    gains, tokens = small.gains(model), small.tokens()
    assert torch.equal(other(tokens, gains), model(tokens, gains))


@each_architecture
def test_no_multiplier_hides_in_a_buffer_an_attribute_or_on_a_tensor(architecture: str) -> None:
    model = small.model(small.config(architecture))
    assert not list(model.buffers())
    for name, parameter in model.named_parameters():
        assert not vars(parameter), name
    torchs_own = vars(nn.Embedding(1, 1)).keys()
    for module in model.modules():
        own = {key: value for key, value in vars(module).items() if key not in torchs_own}
        assert not [key for key, value in own.items() if isinstance(value, (float, Tensor))], own


@each_architecture
def test_the_forward_pass_works_on_the_meta_device(architecture: str) -> None:
    shape = small.config(architecture)
    model = init.build(shape, attention="plain", device="meta")
    assert all(p.is_meta for p in model.parameters())
    gains = init.gains(model, small.resolved(shape), device="meta")
    tokens = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    assert model(tokens, gains).shape == (2, 5, shape.d_model)
    assert model(tokens, gains, tokens).shape == ()


@each_architecture
def test_bfloat16_matrices_with_float32_rescalers(architecture: str) -> None:
    shape = small.config(architecture)
    model = small.model(shape, dtype=torch.float32)
    gains, tokens = small.gains(model, torch.float32), small.tokens()
    low = {
        name: p.bfloat16() if p.ndim == 2 and name.endswith(".weight") else p for name, p in model.named_parameters()
    }
    h = functional_call(model, low, (tokens, gains))
    assert h.dtype == torch.float32  # the hidden state is float32 whatever the products are
    assert torch.isfinite(h).all()
    exact = model(tokens, gains)
    # About ten roundings of 2^-8 each on the way through two blocks, partly cancelling.
    error = (h.float() - exact).norm() / exact.norm()
    assert error < 10 * 2**-8
    loss = functional_call(model, low, (tokens, gains, tokens))
    assert loss.dtype == torch.float32
    # The loss is a mean over 14 tokens of numbers near 3 whose logits carry that error.
    assert loss.item() == pytest.approx(model(tokens, gains, tokens).item(), rel=10 * 2**-8)


@each_architecture
def test_float32_is_near_float64(architecture: str) -> None:
    shape = small.config(architecture)
    exact, single = small.model(shape), small.model(shape, dtype=torch.float32)
    tokens = small.tokens()
    h = single(tokens, small.gains(single, torch.float32))
    assert h.dtype == torch.float32
    # float32's 6e-8 through two blocks of some tens of operations, values of order 1
    close(h.double(), exact(tokens, small.gains(exact)), tolerance=1e-5)


def test_a_deep_model_keeps_what_its_blocks_do_in_bfloat16() -> None:
    """64 layers over a base of 2: α is 0.05/32, less than bfloat16 tells apart near the components of h."""
    config = small.config(n_layers=64)
    base = Base.of(Extent.of(replace(config, n_layers=2), 10, 2))
    resolved = resolve(load_table("nugpt"), base, Extent.of(config, 10, 2), 2**-7)
    model = init.build(config)
    init.initialize_(model, 0, resolved, config.roles)
    given, tokens = init.gains(model, resolved), small.tokens()
    low = {
        name: p.bfloat16() if p.ndim == 2 and name.endswith(".weight") else p for name, p in model.named_parameters()
    }
    with torch.no_grad():
        start, exact = model.E_in(tokens), model(tokens, given)
        rounded = functional_call(model, low, (tokens, given))
        start_low = model.E_in.weight.bfloat16().float()[tokens]
    moved = (exact - start).norm()
    lost = ((rounded - start_low) - (exact - start)).norm() / moved
    # bf16 products are off by 2^-9 each; what must not be lost is the sum of 128 small steps.
    assert lost < 0.05


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    module = RMSNorm(48)
    y = (30 * torch.randn(16, 48, generator=torch.Generator().manual_seed(0))).bfloat16()
    with torch.no_grad():
        module.weight.copy_(torch.linspace(0.5, 1.5, 48))
        ours = module(y)
    exact = y.double() / (y.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.weight.detach().double()
    assert ours.dtype == torch.bfloat16
    # one rounding to bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8 * 1.001, atol=0)


def test_a_model_of_another_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="architecture is 'prenorm', but this model is 'normalized'"):
        Transformer(small.config("prenorm"))
    with pytest.raises(ValueError, match="architecture is 'normalized', but this model is 'prenorm'"):
        Baseline(small.config())


@each_architecture
@pytest.mark.parametrize(("kernel", "names"), [("attention", "plain, sdpa, folded"), ("loss", "plain, chunked")])
def test_an_unknown_kernel_is_refused(architecture: str, kernel: str, names: str) -> None:
    with pytest.raises(ValueError, match=f"{kernel} is 'fast', but must be one of {names}"):
        init.build(small.config(architecture), **{kernel: "fast"})
