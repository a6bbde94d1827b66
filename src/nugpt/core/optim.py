"""Adam with a learning rate per role, and retraction onto the sphere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nugpt.core.names import check_axes, check_whole, own_name
from nugpt.core.sphere import retract_tensor_
from nugpt.spec.resolve import Resolved
from nugpt.spec.roles import Roles

NamedParameters = Iterable[tuple[str, Tensor]]


def param_groups(named_parameters: NamedParameters, resolved: Resolved, roles: Roles) -> list[dict[str, Any]]:
    """One group per role for `torch.optim.AdamW`, with its applied learning rate, weight decay and ε."""
    members: dict[str, list[tuple[str, Tensor]]] = {}
    pairs = _pairs(named_parameters)
    check_axes(pairs, roles)
    for name, parameter in pairs:
        own = own_name(name, roles)
        members.setdefault(roles(own).role, []).append((own, parameter))
    for role in members:
        _ = resolved[role]  # raises for a role that the table lacks
    return [
        {
            "params": [parameter for _, parameter in members[role]],
            "names": [name for name, _ in members[role]],
            "role": role,
            "lr": row.lr,
            "peak_lr": row.lr,
            "weight_decay": row.weight_decay,
            "eps": row.eps,
        }
        for role, row in resolved.rows.items()
        if role in members
    ]


@torch.no_grad()
def retract_(named_parameters: NamedParameters, roles: Roles) -> None:
    """Put every parameter that lives on a sphere back onto it, in place; the others are left alone."""
    pairs = _pairs(named_parameters)
    check_axes(pairs, roles)
    for name, parameter in pairs:
        axis = roles(own_name(name, roles)).axis
        if axis is not None:
            check_whole(name, parameter)
            retract_tensor_(parameter, axis)


def _pairs(named_parameters: NamedParameters) -> list[tuple[str, Tensor]]:
    """Names and parameters; none at all would leave a model without its retraction, and nobody would see it."""
    if isinstance(named_parameters, nn.Module):
        raise ValueError("a model is given, but must be its names and parameters: model.named_parameters()")
    pairs = list(named_parameters)
    if not pairs:
        raise ValueError("no parameter is given: model.named_parameters() gives them once, so call it each time")
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ValueError(
            "parameters without names are given, but must be names and parameters: model.named_parameters()"
        )
    return pairs


def adamw(model: nn.Module, resolved: Resolved, roles: Roles, **options: Any) -> torch.optim.AdamW:
    """`torch.optim.AdamW` over the model's groups; call `retract_` after each step."""
    return torch.optim.AdamW(param_groups(model.named_parameters(), resolved, roles), betas=resolved.betas, **options)


def set_schedule_(optimizer: torch.optim.Optimizer, multiplier: float) -> None:
    """Set each group's learning rate to its peak times the schedule's multiplier."""
    for number, group in enumerate(optimizer.param_groups):  # all of them before any is changed
        if "peak_lr" not in group:
            raise ValueError(f"parameter group {number} has no 'peak_lr', which nugpt.param_groups gives: set it there")
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * multiplier


def adam_(
    parameter: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step: int | Tensor,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float | Tensor,
    weight_decay: float | Tensor = 0.0,
) -> None:
    """One AdamW step (counted from 1) in place; lr, ε and decay may be tensors that broadcast over replicas."""
    beta1, beta2 = betas
    first.lerp_(grad, 1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    denominator = (second / correction2).sqrt_().add_(eps)
    parameter.mul_(1 - lr * weight_decay)
    parameter.sub_(lr / correction1 * first / denominator)
