"""Adam with a learning rate per role, and retraction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.core import small
from tests.paper import reference
from torch import Tensor

from nugpt.core.decoder import Decoder
from nugpt.core.init import build, gains, initialize_
from nugpt.core.optim import adam_, adamw, param_groups, retract_, set_schedule_
from nugpt.core.schedule import multiplier
from nugpt.spec import RoleRule, Roles, Schedule

# Which axis of the stored matrix has d_model components (method: dim 1 for inputs of size d_model, dim 0 for outputs).
AXIS = {"E_in": 1, "E_out": 1, "W_q": 1, "W_k": 1, "W_v": 1, "W_u": 1, "W_nu": 1, "W_O": 0, "W_oMLP": 0}
OPTIMISER = {"betas": (0.9, 0.95)}


def axis_of(name: str) -> int | None:
    return AXIS.get(name.removesuffix(".weight").rpartition(".")[2])


def longest_error(model: Decoder) -> float:
    """The largest | ‖w‖ − 1 | over all vectors that must have unit length, measured in float64."""
    errors = [
        (parameter.detach().double().norm(dim=axis) - 1).abs().max().item()
        for name, parameter in model.named_parameters()
        if (axis := axis_of(name)) is not None
    ]
    assert len(errors) == 2 + 7 * model.config.n_layers
    return max(errors)


def test_unit_norm_after_every_step_of_real_training() -> None:
    config = small.config(n_layers=3)
    resolved = small.resolved(config, lr=0.05)
    model = build(config)
    initialize_(model, 0, resolved, config.roles)
    multipliers = gains(model, resolved)
    optimizer = adamw(model, resolved, config.roles)
    lengths: list[float] = []

    def measure(h: Tensor) -> None:
        lengths.append((h.detach().double().norm(dim=-1) - 1).abs().max().item())

    model.E_in.register_forward_hook(lambda module, args, out: measure(out))
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda module, args: measure(args[0]))  # type: ignore[union-attr]
        block.register_forward_hook(lambda module, args, out: measure(out))
    tokens, targets = small.tokens(batch=4), small.tokens(1, batch=4)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = []
    assert longest_error(model) < 1e-6
    for step in range(50):
        set_schedule_(optimizer, multiplier(Schedule(), step, 50))
        optimizer.zero_grad()
        loss = model(tokens, multipliers, targets)
        loss.backward()
        optimizer.step()
        moved_off = longest_error(model)
        retract_(model.named_parameters(), config.roles)
        assert longest_error(model) < 1e-6, step
        assert moved_off > 1e-5, "the step leaves the sphere, or this test shows nothing"
        losses.append(loss.item())
    assert len(lengths) == 50 * (1 + 2 * 3)
    assert max(lengths) < 1e-6
    assert losses[-1] < 0.7 * losses[0]
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, start[name]), f"{name} was never trained"
        axis = axis_of(name)
        if axis is not None:
            across = (parameter.detach().double().norm(dim=1 - axis) - 1).abs().max()
            assert across > 1e-2, f"{name} has unit vectors along the other axis as well: no test of the axis"


def test_retraction_leaves_rescalers_and_baselines_alone() -> None:
    for architecture in small.ARCHITECTURES:
        model = small.model(small.config(architecture))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        retract_(model.named_parameters(), model.config.roles)
        changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        matrices = {name for name in before if axis_of(name) is not None}
        assert changed == (matrices if architecture == "normalized" else set())


def gradients(shape: tuple[int, ...], step: int) -> Tensor:
    """A gradient of its own for each step, some of it exactly zero, spread over six orders of magnitude."""
    generator = torch.Generator().manual_seed(step)
    size = 10 ** (6 * torch.rand(shape, generator=generator, dtype=torch.float64) - 5)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * size
    return torch.where(torch.rand(shape, generator=generator) < 0.1, 0.0, drawn)


@pytest.mark.parametrize("eps", [1e-16, 1e-3])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_adam_is_torchs_adamw_plus_retraction(axis: int | None, weight_decay: float, eps: float) -> None:
    ours = torch.randn(6, 5, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.02, eps=eps, weight_decay=weight_decay, **OPTIMISER)  # type: ignore[arg-type]
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 31):
        lr = 0.02 / step
        gradient = gradients((6, 5), step)
        optimizer.param_groups[0]["lr"] = lr
        theirs.grad = gradient.clone()
        optimizer.step()
        adam_(ours, gradient, first, second, step, lr, eps=eps, weight_decay=weight_decay, **OPTIMISER)
        if axis is not None:
            ours.div_(ours.norm(dim=axis, keepdim=True))
            with torch.no_grad():
                theirs.div_(theirs.norm(dim=axis, keepdim=True))
        # float64: rounding of thirty steps
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-14)


def test_one_adam_step_by_hand() -> None:
    parameter, first, second = (torch.tensor([value], dtype=torch.float64) for value in (2.0, 0.0, 0.0))
    adam_(parameter, torch.tensor([4.0], dtype=torch.float64), first, second, 1, 0.1, (0.9, 0.95), 1.0, 0.5)
    # m = 0.4, v = 0.8, m̂ = 4, v̂ = 16; w = 2·(1 − 0.1·0.5) − 0.1·4/(4 + 1)
    assert [first.item(), second.item()] == pytest.approx([0.4, 0.8])
    assert parameter.item() == pytest.approx(1.9 - 0.08, rel=1e-14)


@pytest.mark.parametrize("tensor_step", [False, True])
def test_learning_rates_over_a_replica_axis_equal_runs_of_their_own(tensor_step: bool) -> None:
    replicas, shape = 3, (4, 5)
    lrs = [0.1, 0.01, 0.3]
    decays, epsilons = [0.0, 0.1, 0.2], [1e-16, 1e-3, 1e-8]
    start = torch.randn(replicas, *shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    together, alone = start.clone(), start.clone()
    moments = [torch.zeros_like(start) for _ in range(4)]

    def over_replicas(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).view(replicas, 1, 1)

    for step in range(1, 11):
        gradient = gradients((replicas, *shape), step)
        adam_(
            together,
            gradient,
            moments[0],
            moments[1],
            torch.tensor(step) if tensor_step else step,
            over_replicas(lrs),
            (0.9, 0.95),
            over_replicas(epsilons),
            over_replicas(decays),
        )
        for r in range(replicas):
            adam_(
                alone[r], gradient[r], moments[2][r], moments[3][r], step, lrs[r], (0.9, 0.95), epsilons[r], decays[r]
            )
    # a step as a float32 tensor power is right to 1e-7
    torch.testing.assert_close(
        together, alone, rtol=1e-5 if tensor_step else 1e-13, atol=1e-6 if tensor_step else 1e-15
    )


@pytest.mark.parametrize("table", ["nugpt", "completep"])
def test_training_follows_the_reference_trajectory(table: str) -> None:
    config = small.config()
    resolved = small.resolved(config, lr=0.02, table=table)
    model = build(config).double()
    initialize_(model, 0, resolved, config.roles)
    retract_(model.named_parameters(), config.roles)
    kind: Any = model.gains_type
    multipliers = kind(*(torch.tensor(resolved.gains[name], dtype=torch.float64) for name in kind._fields))
    tokens, targets = small.tokens(), small.tokens(1)
    probe = build(config).double()

    def grads(params: reference.Params, step: int) -> reference.Params:
        probe.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
        named = dict(probe.named_parameters())
        found = torch.autograd.grad(probe(tokens, multipliers, targets), list(named.values()))
        return {name: gradient.numpy() for name, gradient in zip(named, found, strict=True)}

    start = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    # the numbers of the table by hand: m_width 2, m_depth 2, m_data 8
    output = 0.5 * 2**-0.75 * 0.5 if table == "nugpt" else 2**-0.5 * 2**-1.5
    hidden = 0.5 * 2**-0.75 if table == "nugpt" else 0.5
    base = 0.5 if table == "nugpt" else 1.0
    factors = {"E_in.weight": base * 2**-0.5, "E_out.weight": output}
    lrs = {name: 0.02 * factors.get(name, hidden if name.endswith(".weight") else base) for name in start}
    truth = reference.adam_retract_trajectory(start, grads, lrs, 8, (0.9, 0.95), 1e-16)
    optimizer = adamw(model, resolved, config.roles)
    for step in range(8):
        optimizer.zero_grad()
        model(tokens, multipliers, targets).backward()
        optimizer.step()
        retract_(model.named_parameters(), config.roles)
        for name, parameter in model.named_parameters():
            # Adam divides by the gradient's size: a rounding of 1e-16 in a gradient of 1e-8 shows as 1e-10 of a step.
            np.testing.assert_allclose(
                parameter.detach().numpy(), truth[step + 1][name], rtol=0, atol=1e-9, err_msg=name
            )


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_every_parameter_is_in_one_group_with_the_numbers_of_its_role(architecture: str) -> None:
    model = small.model(small.config(architecture))
    resolved, roles = small.resolved(model.config), model.config.roles
    groups = param_groups(model.named_parameters(), resolved, roles)
    grouped = [
        (name, parameter) for group in groups for name, parameter in zip(group["names"], group["params"], strict=True)
    ]
    assert len(grouped) == len(list(model.parameters()))
    assert {name: id(parameter) for name, parameter in grouped} == {n: id(p) for n, p in model.named_parameters()}
    for group in groups:
        row = resolved[group["role"]]
        assert {roles(name).role for name in group["names"]} == {group["role"]}
        assert (group["lr"], group["weight_decay"], group["eps"]) == (row.lr, row.weight_decay, row.eps)
    optimizer = adamw(model, resolved, roles)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}
    assert [group["lr"] for group in optimizer.param_groups] == [group["lr"] for group in groups]


def test_the_schedule_multiplies_every_groups_peak_and_does_not_add_up() -> None:
    model = small.model(small.config())
    resolved = small.resolved(model.config)
    optimizer = adamw(model, resolved, model.config.roles)
    for factor in (0.5, 0.25, 1.0):
        set_schedule_(optimizer, factor)
        for group in optimizer.param_groups:
            assert group["lr"] == factor * resolved[group["role"]].lr


def test_a_group_without_its_peak_is_refused_before_any_is_changed() -> None:
    ours = {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5, "peak_lr": 0.5}
    optimizer = torch.optim.AdamW([ours, {"params": [torch.nn.Parameter(torch.ones(1))]}])
    with pytest.raises(ValueError, match="parameter group 1 has no 'peak_lr'"):
        set_schedule_(optimizer, 0.1)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_what_gives_no_named_parameters_is_refused() -> None:
    """An iterator that was used up would else leave a model off the sphere, in silence."""
    config = small.config()
    model, resolved, roles = build(config), small.resolved(config), config.roles
    used = model.named_parameters()
    param_groups(used, resolved, roles)
    wrong: dict[str, Any] = {"no parameter is given": used, "without names": model.parameters(), "a model": model}
    for words, given in wrong.items():
        with pytest.raises(ValueError, match=words):
            retract_(given, roles)
    with pytest.raises(ValueError, match="without names"):
        param_groups(model.parameters(), resolved, roles)  # type: ignore[arg-type]


def test_a_role_that_the_table_lacks_is_refused() -> None:
    model = small.model(small.config("prenorm"))
    with pytest.raises(ValueError, match="role 'norm' is not in table 'nugpt'") as refusal:
        param_groups(model.named_parameters(), small.resolved(small.config()), model.config.roles)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match=r"parameter 'blocks\.0\.norm_A\.weight' has no role"):
        retract_(model.named_parameters(), small.config().roles)


def test_a_sphere_axis_that_is_not_d_models_is_refused_by_name() -> None:
    """Rows of the wrong axis would have unit norm and another learning rate would be best, in silence."""
    config = small.config()
    model, resolved = small.model(config), small.resolved(config)
    wrong = {
        r"blocks\.\d+\.mlp\.W_oMLP\.weight": (
            1,
            rf"'blocks\.0\.mlp\.W_oMLP\.weight', .* is 1, but must be 0: .* {config.d_model}",
        ),
        r"E_in\.weight": (-2, r"'E_in\.weight', .* is -2, but must be 1"),
        r"s_z\.stored": (1, rf"'s_z\.stored' is 1, but must be one of its shape \({config.vocab_size},\)"),
    }
    for pattern, (axis, words) in wrong.items():
        roles = Roles(replace(rule, axis=axis) if rule.pattern == pattern else rule for rule in config.roles.rules)
        before = [parameter.clone() for parameter in model.parameters()]
        with pytest.raises(ValueError, match=words):
            param_groups(model.named_parameters(), resolved, roles)
        with pytest.raises(ValueError, match=words):
            retract_(model.named_parameters(), roles)
        with pytest.raises(ValueError, match=words):
            initialize_(model, seed=1, resolved=resolved, roles=roles)
        assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def test_a_matrix_without_an_axis_of_d_model_may_have_a_sphere() -> None:
    """A factorised embedding, or attention through a narrower space: nothing says which axis would be right."""
    roles = Roles((RoleRule(r"narrow|reads", "hidden", axis=1), RoleRule(r"writes", "hidden", axis=0)))
    parameters = {"reads": torch.randn(12, 8), "writes": torch.randn(8, 12), "narrow": torch.randn(7, 4)}
    retract_(parameters.items(), roles)
    torch.testing.assert_close(parameters["narrow"].norm(dim=1), torch.ones(7))
