"""Groups, retraction and initial values of models that torch has wrapped: compiled, replicated, sharded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.core import small
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from nugpt.core.decoder import Decoder
from nugpt.core.init import build, gains, initialize_
from nugpt.core.names import own_name
from nugpt.core.optim import param_groups, retract_
from nugpt.spec import RoleRule, Roles

CONFIG = small.config()
STEPS = 3


def begun() -> Decoder:
    """A model at its initial values, in float64."""
    model = build(CONFIG).double()
    begin_(model)
    return model


def begin_(model: nn.Module) -> None:
    initialize_(model, 0, small.resolved(CONFIG), CONFIG.roles)


class Holder(nn.Module):
    """What DistributedDataParallel does to names, without processes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Whole(nn.Module):
    """What the first FSDP does to names, where its parameters are whole."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module


def by_block(wrap: Callable[[nn.Module], Any]) -> Callable[[Any], nn.Module]:
    """What wraps each block of a model by itself."""

    def wrapped(model: Any) -> nn.Module:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = wrap(block)
        return model  # type: ignore[no-any-return]

    return wrapped


WRAPPERS = {
    "compiled": torch.compile,
    "replicated": Holder,
    "compiled, replicated": lambda model: Holder(torch.compile(model)),
    "replicated, compiled": lambda model: torch.compile(Holder(model)),
    "blocks compiled and recomputed": by_block(lambda block: torch.compile(checkpoint_wrapper(block))),
    "blocks sharded and made whole": by_block(Whole),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_has_the_groups_values_and_lengths_of_the_model_inside(wrapper: str) -> None:
    resolved, roles = small.resolved(CONFIG), CONFIG.roles
    inside = begun()
    groups = param_groups(inside.named_parameters(), resolved, roles)
    names = [name for name, _ in inside.named_parameters()]
    values = [parameter.detach().clone() for parameter in inside.parameters()]
    wrapped: Any = WRAPPERS[wrapper](inside)
    assert [name for name, _ in wrapped.named_parameters()] != names
    found = param_groups(wrapped.named_parameters(), resolved, roles)
    assert [{**group, "params": list(map(id, group["params"]))} for group in found] == [
        {**group, "params": list(map(id, group["params"]))} for group in groups
    ]
    for parameter in wrapped.parameters():
        parameter.data.fill_(3)
    initialize_(wrapped, 0, resolved, roles)
    assert all(map(torch.equal, wrapped.parameters(), values))
    for parameter in wrapped.parameters():
        parameter.data.mul_(3)
    retract_(wrapped.named_parameters(), roles)
    torch.testing.assert_close(inside.E_in.weight, values[0])
    torch.testing.assert_close(inside.s_z.stored, 3 * values[-1])  # no sphere


def test_rules_that_have_a_wrappers_words_are_kept_and_a_refusal_has_the_name_as_given() -> None:
    roles = Roles([RoleRule(r"module\.weight", "hidden", axis=1), RoleRule(r"weight", "input", axis=1)])
    assert own_name("module.weight", roles) == "module.weight"
    assert own_name("_orig_mod.weight", roles) == "weight"
    assert own_name("module.module.weight", roles) == "module.weight"
    with pytest.raises(ValueError, match=r"parameter '_orig_mod\.bias' has no role"):
        retract_([("_orig_mod.bias", torch.ones(2))], roles)


def test_a_rule_for_any_name_gives_a_wrapped_model_the_values_of_the_model_inside() -> None:
    roles = Roles([RoleRule(r".*weight", "hidden", axis=1)])
    resolved = small.resolved(CONFIG)
    values = []
    for wrap in (lambda model: model, torch.compile):
        model: Any = wrap(nn.Linear(3, 4, bias=False))
        initialize_(model, 0, resolved, roles)
        (group,) = param_groups(model.named_parameters(), resolved, roles)
        assert group["names"] == ["weight"]
        values.append(group["params"][0].detach().clone())
    assert torch.equal(*values)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_parameter_that_was_flattened_is_not_taken_for_one_vector(axis: int) -> None:
    roles = Roles([RoleRule(r"weight", "hidden", axis=axis)])
    part = torch.full((6,), 3.0)
    with pytest.raises(ValueError, match=r"'_fsdp_wrapped_module\.weight' is sharded .*summon_full_params"):
        retract_([("_fsdp_wrapped_module.weight", part)], roles)
    assert torch.equal(part, torch.full((6,), 3.0))


def test_a_model_without_memory_is_not_initialised_in_silence() -> None:
    with pytest.raises(ValueError, match=r"parameter 'E_in\.weight' has no memory .*to_empty"):
        initialize_(build(CONFIG, device="meta"), 0, small.resolved(CONFIG), CONFIG.roles)


# --- two processes


Gathered = Callable[[Any], AbstractContextManager[Any]]


def trained(wrapped: Any, model: Any, rank: int, world: int, whole: Gathered = nullcontext) -> dict[str, Tensor]:
    """The parameters after a few steps, as anybody would train them; this rank has its share of each batch.

    Within `whole` the parameters have their rows and columns.
    """
    resolved, roles = small.resolved(CONFIG, lr=0.05), CONFIG.roles
    optimizer = torch.optim.AdamW(param_groups(wrapped.named_parameters(), resolved, roles), betas=resolved.betas)
    multipliers = gains(model, resolved)
    for step in range(STEPS):
        tokens, targets = small.tokens(2 * step, batch=4), small.tokens(2 * step + 1, batch=4)
        wrapped(tokens[rank::world], multipliers, targets[rank::world]).backward()
        optimizer.step()
        optimizer.zero_grad()
        with whole(wrapped):
            retract_(wrapped.named_parameters(), roles)
    with whole(wrapped):
        return {
            own_name(name, roles): (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
            for name, p in wrapped.named_parameters()
        }


def sharded(model: Any) -> nn.Module:
    """FSDP2 over both processes, from no memory to initial values, as large models are begun."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    model.to_empty(device="cpu")
    initialize_(model, 0, small.resolved(CONFIG, lr=0.05), CONFIG.roles)
    return model  # type: ignore[no-any-return]


def train_on_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = begun()
    found = {"ddp": trained(DistributedDataParallel(model), model, rank, 2)}
    model = build(CONFIG, device="meta").double()
    found["fsdp2"] = trained(sharded(model), model, rank, 2)
    model = begun()
    flat = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    for refused in (lambda: retract_(flat.named_parameters(), CONFIG.roles), lambda: begin_(flat)):
        with pytest.raises(ValueError, match="summon_full_params"):
            refused()
    found["fsdp"] = trained(flat, model, rank, 2, FullyShardedDataParallel.summon_full_params)
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    model = begun()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    truth = trained(model, model, 0, 1)
    mp.spawn(train_on_two, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    assert set(found) == {"ddp", "fsdp2", "fsdp"}
    for way, parameters in found.items():
        assert set(parameters) == set(truth)
        for name, value in parameters.items():
            # float64, whose sums over two ranks have another order; Adam's first steps blow up what that changes.
            torch.testing.assert_close(value, truth[name], rtol=0, atol=1e-8, msg=f"{way} {name}")
            assert (truth[name] - start[name]).abs().max() > 1e-3, name
            if (axis := CONFIG.roles(name).axis) is not None:
                assert (value.norm(dim=axis) - 1).abs().max() < 1e-12, f"{way} {name}"
