"""The fused training step with what it needs around it: fixed buffers, weight copies kept in step, one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nugpt.engines.lab.fused import PROGRAMS, Gradients, Updates
from nugpt.kernels.fused.adam import Course

if TYPE_CHECKING:
    from nugpt.engines.lab.ensemble import Ensemble, State

Judge = Callable[[Any, Tensor, Tensor, Tensor], Tensor]

EAGER_STEPS = 2  # real steps before the capture: every kernel is compiled and every library has its workspace


class FusedStep:
    """Training steps of an ensemble's state, and losses without one."""

    def __init__(self, ensemble: Ensemble) -> None:
        # No reference to the ensemble: the two would keep each other, and the device's memory, until Python looks.
        config, device = ensemble.config, ensemble.device
        self.device, self.betas = device, ensemble.betas
        self.replicas = len(ensemble.specs)
        self.program = PROGRAMS[config.architecture](config, ensemble.gains, self.replicas, ensemble.dtype, device)
        self.updates = Updates(self.program, ensemble.names, ensemble.roles, ensemble.settings)
        self._state: State | None = None
        self._params: dict[str, Tensor] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._taken = 0
        self._micro = 0

    def losses(self, params: dict[str, Tensor], tokens_RBT: Tensor, targets_RBT: Tensor) -> Tensor:
        """The loss of every token of every replica, (R, B·T)."""
        self._follow(params)
        if not self.program.attention:
            self.program.choose_attention(self.replicas, tokens_RBT.shape[1])
        with torch.no_grad():
            return self.program.losses(params, *(x.flatten(1).contiguous() for x in (tokens_RBT, targets_RBT)))

    def train_step(
        self, state: State, tokens_RBT: Tensor, targets_RBT: Tensor, multiplier: float, micro: int, judge: Judge
    ) -> None:
        """One optimizer step of every living replica on its batch, in place; `judge` as `Ensemble.judge_`."""
        if self._state is not state or self._micro != micro or self._tokens.shape != tokens_RBT.shape:
            self._bind(state, tokens_RBT, micro)
        self._tokens.copy_(tokens_RBT)
        self._targets.copy_(targets_RBT)
        self._step.fill_(state.step)
        beta1, beta2 = self.betas
        t = state.step + 1
        for place, value in enumerate((multiplier, 1 - beta1**t, 1 - beta2**t)):
            self._scalars[place].fill_(value)
        if self._graph is not None:
            self._graph.replay()
        elif self.device.type != "cuda" or self._taken < EAGER_STEPS:
            self._run(state, judge)
        else:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._run(state, judge)
            self._graph.replay()  # capturing ran nothing
        self._taken += 1
        state.step += 1
        state.logged += 1

    def _bind(self, state: State, tokens_RBT: Tensor, micro: int) -> None:
        """Begin with this state: fresh copies, buffers of the batch's shape, no graph yet."""
        self._state, self._micro, self._graph, self._taken = state, micro, None, 0
        self._tokens, self._targets = (torch.empty_like(tokens_RBT, device=self.device) for _ in range(2))
        self._scalars = torch.empty(3, device=self.device)
        self._step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.program.choose_attention(self.replicas, micro)
        self._params = None
        self._follow(state.params)

    def _follow(self, params: dict[str, Tensor]) -> None:
        """Make the copies those of these parameters; the updates keep them so."""
        if self._params is not params:
            with torch.no_grad():
                self.program.refresh_(params)
            self._params = params

    @torch.no_grad()
    def _run(self, state: State, judge: Judge) -> None:
        """The step on what the buffers hold; nothing waits for the device."""
        losses, grads = self._gradients(state.params)
        norm = self.updates.grad_norm(grads)
        clip = judge(state, losses, norm, self._step)
        course = Course(state.alive.to(torch.int32), clip, self._scalars, self.betas)
        self.updates.apply_(state.params, state.first, state.second, grads, course)

    def _gradients(self, params: dict[str, Tensor]) -> tuple[Tensor, Gradients]:
        """Mean loss per replica and its gradient, accumulated over pieces of at most `micro` sequences."""
        R, B, T = self._tokens.shape
        total: Gradients | None = None
        mean = torch.zeros(R, device=self.device)
        for start in range(0, B, self._micro):
            piece = slice(start, start + self._micro)
            tokens, targets = (x[:, piece].flatten(1).contiguous() for x in (self._tokens, self._targets))
            losses, grads = self.program.gradients(params, tokens, targets, 1.0 / (B * T))
            mean += losses.sum(1) / (B * T)
            if total is None:
                total = grads
            else:
                total.add_(grads)
        assert total is not None
        return mean, total
