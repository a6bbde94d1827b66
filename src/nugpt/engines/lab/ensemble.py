"""R replicas of one model with stacked parameters: their forward pass, their loss, their step.

Shapes: R replicas, B batch, T tokens, D d_model, V vocabulary. Every parameter has a leading replica axis. Nothing here
waits for the device, and no operation mixes replicas, so that one that goes bad never touches another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional

from nugpt.core.decoder import Decoder, Tail
from nugpt.core.init import MODELS, gains, initial_value
from nugpt.core.optim import adam_
from nugpt.core.rope import rope_angles
from nugpt.core.sphere import guarded_length
from nugpt.data.cache import user_cache
from nugpt.spec.model import parameter_shapes
from nugpt.spec.roles import MATRIX_ROLES, Roles
from nugpt.spec.run import RunSpec

if TYPE_CHECKING:
    from nugpt.engines.lab.fused_step import FusedStep

# A replica has diverged when its loss or gradient is not finite, or when its loss stays this far above log V ...
DIVERGED_ABOVE = 1.0
# ... for this many steps in a row (or a tenth of the run, if that is less).
DIVERGED_FOR = 100

MOST_COMPILED = 4096  # variants of one function: a model has some ten kinds of tensors, a sweep many models

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class State:
    """What changes from step to step; every tensor has the replica axis in front."""

    params: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]
    alive: Tensor  # (R,) bool
    died_at: Tensor  # (R,) the step at which a replica diverged, −1 while it has not
    high: Tensor  # (R,) steps in a row with a loss above the bound
    loss_sum: Tensor  # (R,) float64, since the last logged row
    grad_norm: Tensor  # (R,) of the last step
    step: int = 0
    logged: int = 0  # steps in loss_sum


class Ensemble:
    """The program that runs R replicas: built once from their specs, applied to a State."""

    def __init__(
        self,
        specs: list[RunSpec],
        device: torch.device,
        attention: str,
        loss: str,
        compiled: bool,
        kernels: str = "plain",
    ) -> None:
        spec = specs[0]
        self._made_with = (attention, loss, compiled, kernels)
        self.specs, self.config, self.device, self.kernels = specs, spec.model, device, kernels
        self.roles = spec.model.roles
        self.names = list(parameter_shapes(spec.model))
        self.dtype = DTYPES[spec.precision]
        self.betas, self.grad_clip = spec.table.betas, spec.grad_clip
        self.bound = math.log(spec.model.vocab_size) + DIVERGED_ABOVE
        self.patience = max(1, min(DIVERGED_FOR, spec.steps // 10))
        with torch.device("meta"):
            self.model: Decoder = MODELS[spec.model.architecture](spec.model, attention, loss)
        resolved = [s.resolved() for s in specs]
        self.resolved = resolved
        per_replica = [gains(self.model, r, device) for r in resolved]
        self.gains = self.model.gains_type(*(torch.stack(g) for g in zip(*per_replica, strict=True)))

        def setting(role: str, key: str) -> Tensor:
            return torch.tensor([getattr(r.rows[role], key) for r in resolved], device=device)

        self.settings = {
            role: (setting(role, "lr"), setting(role, "eps"), setting(role, "weight_decay")) for role in spec.table.rows
        }
        if compiled or kernels == "fused":
            _keep_compiled()
        self.fused: FusedStep | None = None
        if kernels == "fused":
            from nugpt.engines.lab.fused_step import FusedStep  # needs Triton, which a CPU machine may lack

            self.fused = FusedStep(self)
        compile_: Callable[[Any], Any] = _compile if compiled else lambda f: f
        cast = partial(_cast, self.dtype, self.roles)
        # Functions that know nothing of the ensemble: with a reference back, memory would wait for the collector.
        self._block = compile_(_block_of(self.model, cast))
        self._ends = compile_(_tail_of(Tail(self.model), cast))
        self._loss = compile_(self.model.loss)
        self._update = compile_(_update_)

    def initial_state(self) -> State:
        """Every replica at its own initial weights."""
        params = {}
        for name, shape in parameter_shapes(self.config).items():
            made: dict[Any, Tensor] = {}
            values = []
            for spec, resolved in zip(self.specs, self.resolved, strict=True):
                row = resolved.rows[self.roles(name).role]
                key = (spec.seed, row.init, row.scale)
                if key not in made:
                    made[key] = initial_value(name, shape, spec.seed, resolved, self.roles)
                values.append(made[key])
            params[name] = torch.stack(values).to(self.device)
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return self.state(params, zeros, {name: torch.zeros_like(p) for name, p in params.items()})

    def state(self, params: dict[str, Tensor], first: dict[str, Tensor], second: dict[str, Tensor]) -> State:
        """A state with these tensors and fresh counters."""
        R, device = len(self.specs), self.device
        for p in params.values():
            p.requires_grad_()
        return State(
            params=params,
            first=first,
            second=second,
            alive=torch.ones(R, dtype=torch.bool, device=device),
            died_at=torch.full((R,), -1, device=device),
            high=torch.zeros(R, dtype=torch.int64, device=device),
            loss_sum=torch.zeros(R, dtype=torch.float64, device=device),
            grad_norm=torch.zeros(R, device=device),
        )

    def token_losses(self, params: dict[str, Tensor], tokens_RBT: Tensor, targets_RBT: Tensor) -> Tensor:
        """The loss of every token of every replica, (R, B·T)."""
        if self.fused is not None:
            return self.fused.losses(params, tokens_RBT, targets_RBT)
        T = tokens_RBT.shape[-1]
        h_RBTD = vmap(functional.embedding)(tokens_RBT, params["E_in.weight"])
        positions = torch.arange(T, device=self.device)
        angles = rope_angles(positions, self.config.head_dim, self.config.rope_theta, torch.float32)
        for i in range(self.config.n_layers):
            prefix = f"blocks.{i}."
            block = {name[len(prefix) :]: params[name] for name in self.names if name.startswith(prefix)}
            h_RBTD = self._block(block, h_RBTD, self.gains, angles)
        tail = {f"model.{n}": p for n, p in params.items() if not n.startswith(("blocks.", "E_in."))}
        h_RBTD, weight_RVD, scale_RV = self._ends(tail, h_RBTD, self.gains)
        return self._loss(h_RBTD.flatten(1, 2), weight_RVD, scale_RV, targets_RBT.flatten(1))

    def train_step(self, state: State, tokens_RBT: Tensor, targets_RBT: Tensor, multiplier: float, micro: int) -> None:
        """One optimizer step of every living replica on its batch, in place."""
        if self.fused is not None:
            self.fused.train_step(state, tokens_RBT, targets_RBT, multiplier, micro, self.judge_)
            return
        losses, grads = self._gradients(state.params, tokens_RBT, targets_RBT, micro)
        with torch.no_grad():
            self._apply(state, losses, grads, multiplier)

    def _gradients(
        self, params: dict[str, Tensor], tokens_RBT: Tensor, targets_RBT: Tensor, micro: int
    ) -> tuple[Tensor, list[Tensor]]:
        """Mean loss per replica and its gradient, accumulated over pieces of at most `micro` sequences."""
        R, B = tokens_RBT.shape[:2]
        losses = torch.zeros(R, device=self.device)
        grads: list[Tensor] = []
        leaves = [params[name] for name in self.names]
        for rows in torch.split(torch.arange(B), micro):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            piece = self.token_losses(params, tokens_RBT[:, part], targets_RBT[:, part]).mean(-1) * (len(rows) / B)
            piece_grads = torch.autograd.grad(piece.sum(), leaves)
            losses += piece.detach()
            if grads:
                for total, g in zip(grads, piece_grads, strict=True):
                    total += g
            else:
                grads = list(piece_grads)
        return losses, grads

    def _apply(self, state: State, losses: Tensor, grads: list[Tensor], multiplier: float) -> None:
        """Freeze what has diverged, then Adam and retraction for the rest."""
        # Replicas in front: a sum along the last axis has the same order, to the bit, whatever their number.
        lengths = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in grads], dim=1)
        grad_norm = torch.linalg.vector_norm(lengths, dim=1)
        # Filled in there: a number that is sent to the device by itself waits for all that is queued before it.
        clip = self.judge_(state, losses, grad_norm, torch.full((), state.step, device=self.device))
        state.logged += 1
        state.step += 1
        step = torch.tensor(float(state.step), dtype=torch.float64).to(self.device, non_blocking=True)
        course = torch.tensor(multiplier, dtype=torch.float32).to(self.device, non_blocking=True)
        for name, grad in zip(self.names, grads, strict=True):
            assignment = self.roles(name)
            lr, eps, decay = self.settings[assignment.role]
            axis = None if assignment.axis is None else assignment.axis + 1
            tensors = (state.params[name], grad, state.first[name], state.second[name])
            self._update(*tensors, state.alive, clip, step, course * lr, eps, decay, self.betas, axis)

    def judge_(self, state: State, losses: Tensor, grad_norm: Tensor, step: Tensor) -> Tensor:
        """Mark what diverged at this step, add the losses of the rest, and return what clips each gradient."""
        state.high.copy_(torch.where(losses > self.bound, state.high + 1, 0))
        healthy = losses.isfinite() & grad_norm.isfinite() & (state.high < self.patience)
        state.died_at.copy_(torch.where(state.alive & ~healthy, step, state.died_at))
        state.alive.logical_and_(healthy)
        state.grad_norm.copy_(torch.where(state.alive, grad_norm, state.grad_norm))
        state.loss_sum.add_(torch.where(state.alive, losses, 0.0))
        if self.grad_clip is None:
            return torch.ones_like(grad_norm)
        return (self.grad_clip / grad_norm.clamp_min(self.grad_clip)).nan_to_num(0.0)

    def subset(self, state: State, replicas: list[int]) -> tuple[Ensemble, State]:
        """The ensemble and state of these replicas alone."""
        smaller = Ensemble([self.specs[r] for r in replicas], self.device, *self._made_with)
        chosen = torch.tensor(replicas, device=self.device)

        def of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: x.detach()[chosen] for name, x in tensors.items()}

        kept = smaller.state(of(state.params), of(state.first), of(state.second))
        for name in ("alive", "died_at", "high", "loss_sum", "grad_norm"):
            setattr(kept, name, getattr(state, name)[chosen])
        kept.step, kept.logged = state.step, state.logged
        return smaller, kept

    @torch.no_grad()
    def norm_error(self, state: State) -> Tensor:
        """The largest distance of any vector's length from 1, per replica."""
        worst = torch.zeros(len(self.specs), device=self.device)
        for name in self.names:
            axis = self.roles(name).axis
            if axis is not None:
                lengths = torch.linalg.vector_norm(state.params[name], dim=axis + 1)
                worst = torch.maximum(worst, (lengths - 1).abs().flatten(1).amax(1))
        return worst


Cast = Callable[[dict[str, Tensor], str, str], dict[str, Tensor]]


def _cast(dtype: torch.dtype, roles: Roles, params: dict[str, Tensor], prefix: str, strip: str) -> dict[str, Tensor]:
    """Matrices in the dtype of matrix products; everything else stays float32."""
    # CHOICE: the masters are float32; what is multiplied is a copy, so that late, small updates are not lost.
    return {
        name: p.to(dtype) if roles(prefix + name.removeprefix(strip)).role in MATRIX_ROLES else p
        for name, p in params.items()
    }


def _block_of(model: Decoder, cast: Cast) -> Callable[..., Tensor]:
    """One block mapped over replicas: parameters, states, gains and angles to the next states."""
    template = model.blocks[0]

    def run(params: dict[str, Tensor], h_RBTD: Tensor, gains: Any, angles: Tensor) -> Tensor:
        def one(p: dict[str, Tensor], h: Tensor, g: Any) -> Tensor:
            return functional_call(template, p, (h, g, angles, None, None, 0))

        return vmap(one)(cast(params, "blocks.0.", ""), h_RBTD, gains)

    return run


def _tail_of(tail: Tail, cast: Cast) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """What follows the blocks mapped over replicas: last states, unembedding and its scale."""

    def run(params: dict[str, Tensor], h_RBTD: Tensor, gains: Any) -> tuple[Tensor, Tensor, Tensor]:
        def one(p: dict[str, Tensor], h: Tensor, g: Any) -> tuple[Tensor, Tensor, Tensor]:
            return functional_call(tail, p, (h, g))

        return vmap(one)(cast(params, "", "model."), h_RBTD, gains)

    return run


def _update_(
    parameter: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    alive: Tensor,
    clip: Tensor,
    step: Tensor,
    lr: Tensor,
    eps: Tensor,
    decay: Tensor,
    betas: tuple[float, float],
    axis: int | None,
) -> None:
    """Adam and retraction of one stacked tensor in place; a dead replica keeps its weights to the bit."""
    shape = (-1,) + (1,) * (parameter.dim() - 1)
    alive, clip, lr, eps, decay = (x.view(shape) for x in (alive, clip, lr, eps, decay))
    grad = torch.where(alive, grad * clip, 0.0)
    adam_(parameter, grad, first, second, step, torch.where(alive, lr, 0.0), betas, eps, decay)
    if axis is not None:
        parameter.div_(torch.where(alive, guarded_length(parameter, axis), 1.0))


def _keep_compiled() -> None:
    """Let compiled kernels stay in the user's cache, unless told otherwise, so that only a shape's first run waits."""
    for variable, name in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        os.environ.setdefault(variable, str(user_cache() / name))


def _compile(function: Any) -> Any:
    """`torch.compile` for fixed shapes; one function may see every kind of tensor of every model of a process."""
    # What is compiled is counted per function, whoever compiles it; beyond the limit it would run as it is written.
    config = torch._dynamo.config
    config.recompile_limit = max(MOST_COMPILED, config.recompile_limit)
    config.accumulated_recompile_limit = max(MOST_COMPILED, config.accumulated_recompile_limit)
    return torch.compile(function, dynamic=False)
