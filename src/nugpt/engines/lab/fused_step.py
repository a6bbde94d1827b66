"""The fused training step with what it needs around it: fixed buffers, weight copies kept in step, one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nugpt.engines.lab.device import captured
from nugpt.engines.lab.fused import PROGRAMS, Gradients, Updates
from nugpt.kernels.fused.adam import Course
from nugpt.kernels.fused.launch import compiling

if TYPE_CHECKING:
    from nugpt.engines.lab.ensemble import Ensemble, State

Judge = Callable[[Any, Tensor, Tensor, Tensor], Tensor]

# Of tokens and targets within a step. Sorting takes half the passes of 64 bits, and comparing with every logit's number
# half the instructions.
TOKENS = torch.int32
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
        self._copied: list[Tensor] = []  # what the copies are of: held, so that no other tensor gets its address
        self._stamps: list[tuple[int, int]] = []
        self._places: list[int] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._taken = 0
        self._micro = 0
        # Done once in a thread while kernels are compiled, or read from their cache: what else a run will need loaded.
        # It must not hold the ensemble either, and what fails in it is met again where it is needed.
        self.meanwhile: Callable[[], object] | None = None
        self.waited_s = 0.0  # for it, once there was nothing left to compile

    def losses(self, params: dict[str, Tensor], tokens_RBT: Tensor, targets_RBT: Tensor) -> Tensor:
        """The loss of every token of every replica, (R, B·T)."""
        assert tokens_RBT.shape[2] == self.program.heads.tokens  # a row's position is its number modulo that
        with self._on_device(), torch.no_grad():
            self._follow(params)
            if not self.program.attention:
                self.program.choose_attention(self.replicas, tokens_RBT.shape[1])
            pieces = (x.flatten(1).to(TOKENS).contiguous() for x in (tokens_RBT, targets_RBT))
            return self.program.losses(params, *pieces)

    def train_step(
        self, state: State, tokens_RBT: Tensor, targets_RBT: Tensor, multiplier: float, micro: int, judge: Judge
    ) -> None:
        """One optimizer step of every living replica on its batch, in place; `judge` as `Ensemble.judge_`."""
        assert tokens_RBT.shape[2] == self.program.heads.tokens
        with self._on_device():
            micro = min(micro, tokens_RBT.shape[1])
            bound = self._state is state and self._micro == micro and self._tokens.shape == tokens_RBT.shape
            if not bound or self._places != _places(state):  # a graph knows only the tensors it was captured with
                self._bind(state, tokens_RBT, micro)
            self._follow(state.params)
            self._step_once(state, tokens_RBT, targets_RBT, multiplier, judge)
            self._stamps = _stamps(self._copied)  # what the update itself did is no news
        self._taken += 1
        state.step += 1
        state.logged += 1

    def _step_once(
        self, state: State, tokens_RBT: Tensor, targets_RBT: Tensor, multiplier: float, judge: Judge
    ) -> None:
        """Fill the buffers and run the step, captured or not."""
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
            with captured() as graph:
                self._run(state, judge)
            self._graph = graph  # only now: one whose capture failed must never be replayed
            self._graph.replay()  # capturing ran nothing

    def _bind(self, state: State, tokens_RBT: Tensor, micro: int) -> None:
        """Begin with this state: fresh copies, buffers of the batch's shape, no graph yet."""
        self._state, self._micro, self._graph, self._taken = state, micro, None, 0
        self._tokens, self._targets = (torch.empty_like(tokens_RBT, dtype=TOKENS, device=self.device) for _ in range(2))
        self._scalars = torch.empty(3, device=self.device)
        self._step = torch.zeros((), dtype=torch.int64, device=self.device)
        self._places = _places(state)
        self.program.choose_kept(micro)
        self._compile(state)
        self.program.choose_attention(self.replicas, micro)

    @torch.no_grad()
    def _compile(self, state: State) -> None:
        """Compile all kernels of a step and of a validation at once: both are gone through without running any.

        What is not a kernel of ours is run, on whatever the buffers hold: so every library is loaded meanwhile.
        """
        self._tokens.zero_()
        self._targets.zero_()
        pieces = (x[:, : self._micro].flatten(1) for x in (self._tokens, self._targets))
        meanwhile, self.meanwhile = self.meanwhile, None
        # Only a saving of time: what fails here, the step itself meets where it can be handled. The thread has ended
        # before anything is captured: a capture must not meet another thread's allocations.
        with ThreadPoolExecutor(1) as beside:
            if meanwhile is not None:
                beside.submit(_beside, meanwhile, torch.cuda.current_device() if self.device.type == "cuda" else None)
            with suppress(Exception), compiling(self.device):
                for name in self.program.attention_names():
                    self.program.attention = name  # each lays out its gradients in its own way
                    with suppress(RuntimeError):  # a kernel that this build, chip or shape has not
                        self._run(state, _unjudged)
                self.program.losses(state.params, *pieces)
            begun = time.perf_counter()
        if meanwhile is not None:
            self.waited_s += time.perf_counter() - begun

    def _follow(self, params: dict[str, Tensor]) -> None:
        """Make the copies those of these parameters, unless they are; the updates keep them so."""
        tensors = list(params.values())
        if (stamps := _stamps(tensors)) != self._stamps:
            with torch.no_grad():
                self.program.refresh_(params)
            self._copied, self._stamps = tensors, stamps

    def _on_device(self) -> AbstractContextManager[Any]:
        """Triton and CUDA graphs use the current device, whichever the tensors are on."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

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


def _beside(work: Callable[[], object], gpu: int | None) -> None:
    """In another thread, which begins at the first GPU, and with gradients, whatever holds where it was begun."""
    with torch.no_grad(), torch.cuda.device(gpu) if gpu is not None else nullcontext():
        work()


def _unjudged(state: State, losses: Tensor, norm: Tensor, step: Tensor) -> Tensor:
    """Nothing has diverged and nothing is clipped."""
    return torch.ones_like(norm)


def _stamps(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Address and version of each: torch counts a version up at every write of its own, fused kernels do not."""
    return [(x.data_ptr(), x._version) for x in tensors]


def _places(state: State) -> list[int]:
    """The addresses of all that a step reads and writes."""
    tensors = [x for group in (state.params, state.first, state.second) for x in group.values()]
    tensors += [state.alive, state.died_at, state.high, state.loss_sum, state.grad_norm]
    return [x.data_ptr() for x in tensors]
