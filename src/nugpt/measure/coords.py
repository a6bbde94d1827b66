"""Coordinates of a model over its first steps: sizes of h, Δh, logits and Δlogits, and how far each role moved.

The model is trained here with `core` alone, one at a time, in float32, at a constant learning rate. Every size is a
root mean square, so that a slope over width or depth is the exponent of a typical component; `fit` takes the slopes.
Shapes: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nugpt.core.decoder import Decoder
from nugpt.core.init import build, gains, initialize_
from nugpt.core.optim import adamw, retract_
from nugpt.spec.model import ModelConfig
from nugpt.spec.resolve import Resolved
from nugpt.spec.roles import MATRIX_ROLES, RESCALER_ROLES

Batch = tuple[Tensor, Tensor]  # inputs and targets, (B, T) each


@dataclass(frozen=True)
class Coordinates:
    """Sizes by name at the start, and by name after each step."""

    start: Mapping[str, float]
    steps: tuple[Mapping[str, float], ...]


def coordinates(
    config: ModelConfig,
    resolved: Resolved,
    seed: int,
    batch: Callable[[int], Batch],
    watched: Tensor,
    steps: int,
    device: str = "cpu",
) -> Coordinates:
    """Train `steps` steps on batch(0), batch(1), … and take the sizes on the `watched` tokens (B, T)."""
    model = build(config, device=device)
    initialize_(model, seed, resolved, config.roles)
    factors, tokens = gains(model, resolved, device), watched.to(device)
    optimizer = adamw(model, resolved, config.roles)
    first = _states(model, factors, tokens)
    initial = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    start = {name: _size(state) for name, state in first.items()} | _initial_rescalers(initial, config, resolved)
    taken = []
    for step in range(steps):
        inputs, targets = (x.to(device) for x in batch(step))
        optimizer.zero_grad()
        model(inputs, factors, targets_BT=targets).backward()
        optimizer.step()
        retract_(model.named_parameters(), config.roles)
        states = _states(model, factors, tokens)
        sizes = {name: _size(state) for name, state in states.items()}
        sizes |= {f"Δ{name}": _size(states[name] - first[name]) for name in first}
        taken.append(sizes | _movements(model, initial, config))
    return Coordinates(start, tuple(taken))


@torch.no_grad()
def _states(model: Decoder, factors: Any, tokens_BT: Tensor) -> dict[str, Tensor]:
    """The hidden state as it enters the first block and as it leaves the last, each token's length; the logits."""
    h_in = model.E_in(tokens_BT)
    h = model(tokens_BT, factors)
    root = h.shape[-1] ** 0.5  # the length of a token's state, rather than the size of a component
    return {"h1": h_in * root, "h": h * root, "logits": model.logits(h, factors)}


def _initial_rescalers(initial: Mapping[str, Tensor], config: ModelConfig, resolved: Resolved) -> dict[str, float]:
    """The effective value that each rescaler starts at, and what its stored vector starts at."""
    found: dict[str, float] = {}
    for role, names in _names(config, RESCALER_ROLES, initial).items():
        stored = _size(torch.cat([initial[name].flatten() for name in names]))
        found |= {f"init {role}": resolved.gains[role] * stored, f"scale {role}": stored}
    return found


@torch.no_grad()
def _movements(model: Decoder, initial: Mapping[str, Tensor], config: ModelConfig) -> dict[str, float]:
    """How far each role's parameters have moved: a matrix as a share of its own size, a rescaler's stored vector as it
    is, and its effective value as a share of what it started at."""
    now = dict(model.named_parameters())
    found = {}
    for role, names in _names(config, MATRIX_ROLES + RESCALER_ROLES, initial).items():
        moved = _size(torch.cat([(now[name] - initial[name]).flatten() for name in names]))
        began = _size(torch.cat([initial[name].flatten() for name in names]))
        if role in RESCALER_ROLES:
            found[f"stored {role}"] = moved
        found[f"moved {role}"] = moved / began
    return found


def _names(config: ModelConfig, roles: Sequence[str], initial: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """The parameters of each role that the model has."""
    found: dict[str, list[str]] = {}
    for name in initial:
        found.setdefault(config.roles(name).role, []).append(name)
    return {role: found[role] for role in roles if role in found}


def _size(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())
