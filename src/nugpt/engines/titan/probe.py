"""Measurements beside the loss, at the lab engine's steps: every rank gathers what is measured, a tensor at a time.

All ranks compute the same from the same whole tensors, so that none waits for another and none holds a whole model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from nugpt.core.init import gains, initial_value
from nugpt.data import TokenDataset
from nugpt.engines.lab.evaluate import ValidationSet
from nugpt.engines.titan.options import TitanOptions
from nugpt.measure.decoder import DecoderAlignment
from nugpt.measure.lerp import ROLES, lerp_statistics
from nugpt.measure.schedule import default_sampling, measured_steps
from nugpt.spec.model import parameter_shapes
from nugpt.spec.run import RunSpec


class Probe:
    """What is measured of a run and when; it reads parameters between steps and changes nothing."""

    def __init__(
        self,
        spec: RunSpec,
        dataset: TokenDataset,
        options: TitanOptions,
        named: Sequence[tuple[str, Tensor]],
        device: torch.device,
    ) -> None:
        self.spec, self.named, self.device, self.resolved = spec, dict(named), device, spec.resolved()
        has_lerp = spec.model.architecture == "normalized"
        self.kinds = tuple(kind for kind in options.measure if kind != "lerp" or has_lerp)
        sampling = default_sampling(spec.steps, spec.batch, spec.model.seq_len, spec.precision)
        points = options.measure_points or sampling.points
        self.steps = frozenset(measured_steps(spec.steps, points)) if self.kinds else frozenset()
        self.seconds = 0.0
        if "alignment" in self.kinds:
            batch = ValidationSet.of(dataset, spec.model.seq_len, options.measure_windows or sampling.windows)
            self._tokens = batch.inputs.to(device), batch.targets.to(device)
            self._decoder = DecoderAlignment(spec.model)

    def rows(self, step: int) -> list[dict[str, Any]]:
        """The rows of metrics at this step; all ranks must call this together."""
        begun = self._clock()
        found = {kind: self.lerp() if kind == "lerp" else self._alignment() for kind in self.kinds}
        self.seconds += self._clock() - begun
        # Weights that this step spoiled have no mean; the run is about to be found diverged.
        return [{"step": step, "kind": kind, **values} for kind, values in found.items() if _is_finite(values)]

    def lerp(self) -> dict[str, Any]:
        """Mean and spread of the effective α_A, α_M."""
        if self.spec.model.architecture != "normalized":
            return {}
        names = [f"blocks.{i}.{role}.stored" for role in ROLES for i in range(self.spec.model.n_layers)]
        whole = {name: self._now(name) for name in names}
        return lerp_statistics(whole, self.resolved.gains, self.spec.model.n_layers)

    def _alignment(self) -> dict[str, Any]:
        forward = gains(self._decoder.model, self.resolved, self.device)
        return self._decoder.measure(self._now, self._start, forward, *self._tokens).to_row()

    def _now(self, name: str) -> Tensor:
        tensor = self.named[name].detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def _start(self, name: str) -> Tensor:
        """A parameter of step 0, made again: a model's worth of them would not fit beside the run."""
        shape = parameter_shapes(self.spec.model)[name]
        return initial_value(name, shape, self.spec.seed, self.resolved, self.spec.model.roles).to(self.device)

    def _clock(self) -> float:
        if self.device.type == "cuda":  # the steps before are still under way, and not what is timed
            torch.cuda.synchronize(self.device)
        return time.monotonic()


def _is_finite(values: Mapping[str, Any]) -> bool:
    return all(math.isfinite(one["mean"]) for one in values.values() if isinstance(one, Mapping) and "mean" in one)
