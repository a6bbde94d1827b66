"""The parts that TorchTitan's trainer builds by configuration: loss, learning rates, schedule, batches, tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import BaseLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import BaseTokenizer

from nugpt.core.schedule import multiplier
from nugpt.data import open_dataset, prefetch
from nugpt.engines.titan.model import WRAPPERS
from nugpt.spec.run import RunSpec
from nugpt.spec.schedule import Schedule


class TokenLosses(BaseLoss):
    """The model's forward gives the loss of every token; here they become the mean over the whole batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):
        """Nothing to set."""

    def __init__(self, config: Any, *, compile_config: Any = None) -> None:
        self.config = config

    def __call__(self, losses: Tensor, labels: Tensor, global_valid_tokens: Any, **_: Any) -> tuple[Tensor, Any]:
        """The sum of these losses over the tokens of all ranks and pieces."""
        return losses.sum() / global_valid_tokens, {}


def optimizer_config(spec: RunSpec, fused: bool) -> OptimizersContainer.Config:
    """AdamW with one group per role: the table's learning rates, ε and decay."""
    resolved = spec.resolved()
    patterns: dict[str, list[str]] = {}
    for rule in spec.model.roles.rules:
        patterns.setdefault(rule.role, []).append(_through_wrappers(rule.pattern))
    groups = [
        ParamGroupConfig(
            pattern=f"^(?:{'|'.join(patterns[role])})$",
            optimizer_name="AdamW",
            optimizer_kwargs={"lr": row.lr, "betas": resolved.betas, "eps": row.eps, "weight_decay": row.weight_decay},
        )
        for role, row in resolved.rows.items()
        if role in patterns
    ]
    return OptimizersContainer.Config(param_groups=groups, implementation="fused" if fused else "foreach")


def _through_wrappers(pattern: str) -> str:
    """A rule's pattern that also matches what a wrapped block makes of the name."""
    wrapper = "|".join(name.replace(".", r"\.") for name in WRAPPERS)
    return pattern.replace(r"blocks\.\d+\.", rf"blocks\.\d+\.(?:{wrapper})*")


class ScheduleContainer(LRSchedulersContainer):
    """Our schedule, which ends exactly where it says; TorchTitan's own stops a step short of it."""

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        """The schedule of a run."""

        schedule: Schedule = Schedule()

        def build(self, *, optimizers: Any, training_steps: int) -> LRSchedulersContainer:
            """The learning rates' course over the run."""
            last, schedule = training_steps - 1, self.schedule
            return LRSchedulersContainer(
                optimizers, lambda step: multiplier(schedule, min(step, last), training_steps)
            )  # after the last step torch asks once more


class Batches(BaseDataLoader):
    """The batches of (seed, step): this rank's rows of them, in pieces of the local batch size."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Which data, in which order."""

        seed: int = 0
        batch: int = 1
        steps: int = 1

    def __init__(
        self,
        config: Any,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        self.config, self.seq_len, self.local_batch_size = config, seq_len, local_batch_size
        rows = config.batch // dp_world_size
        self.rows = slice(dp_rank * rows, (dp_rank + 1) * rows)
        self.dataset = open_dataset(config.dataset_path, check="sizes")  # read in full before training began
        self.step = 0

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        steps = prefetch(
            self.dataset,
            self.config.seed,
            self.step,
            self.config.batch,
            self.seq_len,
            stop_step=self.config.steps,
            rows=self.rows,
        )
        for inputs, targets in steps:
            self.step += 1
            pieces = (torch.from_numpy(x).split(self.local_batch_size) for x in (inputs, targets))
            for tokens, wanted in zip(*pieces, strict=True):
                yield {"input": tokens, "targets_BT": wanted}, wanted

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what comes next follows from the step, whatever the number of ranks."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""


class NoTokenizer(BaseTokenizer):
    """Data comes as tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing to set."""

    def __init__(self, config: Any, *, tokenizer_path: Any = None) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        """Never asked for."""
        raise AssertionError("data comes as tokens")

    def decode(self, *_: Any, **__: Any) -> str:
        """Never asked for."""
        raise AssertionError("data comes as tokens")

    def get_vocab_size(self) -> int:
        """Never asked for."""
        raise AssertionError("data comes as tokens")
