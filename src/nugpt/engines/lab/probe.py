"""Measuring while an ensemble trains: between two steps, replica by replica, on one fixed validation batch.

The weights of step 0 are copied as a run starts, once for all replicas of a seed: on the device where that takes little
of what is free there, else on the host. They are a function of (seed, name), so a resumed run makes them again and
measures the same: nothing of them is stored. On a GPU alignment is measured by a recorded graph where there is room.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nugpt.core.init import initial_value
from nugpt.data import TokenDataset
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.engines.lab.evaluate import ValidationSet
from nugpt.engines.lab.options import Options
from nugpt.engines.lab.recorded import SMALL_PART, RecordedAlignment, is_worth_recording
from nugpt.measure.decoder import DecoderAlignment, Measurement, Parameters
from nugpt.measure.lerp import lerp_statistics
from nugpt.measure.schedule import default_sampling, measured_steps
from nugpt.spec.model import parameter_shapes, total_parameters
from nugpt.spec.run import RunSpec
from nugpt.store import Checkpoint


def check_measurable(specs: list[RunSpec], options: Options, starts: Mapping[str, Checkpoint]) -> None:
    """Refuse to measure alignment where step 0 cannot be had again."""
    if "alignment" not in options.measure:
        return
    for start in (spec.start for spec in specs if spec.start is not None):
        if start.kind == "extend":
            raise ValueError("measure is 'alignment', but the run extends another, where its step 0 lies: measure that")
        if start.hash not in starts:
            raise ValueError(f"measure is 'alignment', which needs checkpoint {start.hash} that the run starts from")


def _is_finite(values: Mapping[str, Any]) -> bool:
    return all(math.isfinite(one["mean"]) for one in values.values() if isinstance(one, Mapping) and "mean" in one)


def _replica(ensemble: Ensemble, state: State, r: int) -> tuple[dict[str, Tensor], Any]:
    """One replica's parameters by name, and its gains."""
    now = {name: stacked[r].detach() for name, stacked in state.params.items()}
    return now, type(ensemble.gains)(*(g[r] for g in ensemble.gains))


class Probe:
    """What is measured of an ensemble and when; it reads parameters between steps and changes nothing."""

    def __init__(
        self, spec: RunSpec, dataset: TokenDataset, options: Options, starts: Mapping[str, Checkpoint]
    ) -> None:
        wanted = set(options.measure)
        if spec.model.architecture != "normalized":
            wanted.discard("lerp")  # it has no LERP
        sampling = default_sampling(spec.steps, spec.batch, spec.model.seq_len, spec.precision)
        self.kinds = tuple(kind for kind in options.measure if kind in wanted)
        points = options.measure_points or sampling.points
        self.steps = frozenset(measured_steps(spec.steps, points)) if self.kinds else frozenset()
        self.seconds = 0.0
        self._starts, self._made = starts, dict[Any, Tensor]()
        self._tokens: tuple[Tensor, Tensor] | None = None
        self._recorded: RecordedAlignment | None = None
        self._records = False
        if "alignment" in self.kinds:
            self._batch = ValidationSet.of(dataset, spec.model.seq_len, options.measure_windows or sampling.windows)
            self._decoder = DecoderAlignment(spec.model)

    @torch.no_grad()
    def begin(self, ensemble: Ensemble, state: State) -> None:
        """Copy the weights of step 0 from a state that stands there: steps overwrite it, and making them takes long."""
        if "alignment" not in self.kinds or state.step > 0:
            return
        for r, spec in enumerate(ensemble.specs):
            for name in ensemble.names if spec.start is None else ():
                key = self._key(ensemble, r, name)
                if key not in self._made:
                    value = state.params[name][r].detach()
                    self._made[key] = value.clone() if self._has_room(ensemble) else value.cpu()

    def rehearsal(self, ensemble: Ensemble, state: State) -> Callable[[], object] | None:
        """A measurement for nothing, where it may be recorded: so its float32 kernels load before the first one.

        That takes a GPU 0.3 s in a process's first ensemble. It holds parameters, not the ensemble, which may hold it.
        """
        if "alignment" not in self.kinds:
            return None
        batch = self._batch.inputs, self._batch.targets
        if not is_worth_recording(ensemble.config, batch[0].numel(), ensemble.device):
            return None
        now, gains = _replica(ensemble, state, 0)
        on_device = (x.to(ensemble.device) for x in batch)
        return partial(self._decoder.numbers, now.__getitem__, now.__getitem__, gains, *on_device)

    def rows(self, ensemble: Ensemble, state: State, r: int) -> list[dict[str, Any]]:
        """The rows of metrics of one replica at the step where the state stands."""
        begun = self._clock(ensemble.device)
        found = {kind: self._measure(kind, ensemble, state, r) for kind in self.kinds}
        # Weights that this step spoiled have no mean; the next step will find the replica dead.
        made = [{"step": state.step, "kind": kind, **values} for kind, values in found.items() if _is_finite(values)]
        self.seconds += self._clock(ensemble.device) - begun
        return made

    @property
    def measured_by(self) -> str | None:
        """How alignment was measured last, by a recorded graph or eagerly; None where it was not."""
        if self._tokens is None:
            return None
        return "graph" if self._recorded is not None and self._recorded.is_recorded else "eager"

    def _measure(self, kind: str, ensemble: Ensemble, state: State, r: int) -> dict[str, Any]:
        now, gains = _replica(ensemble, state, r)
        if kind == "lerp":
            return lerp_statistics(now, ensemble.resolved[r].gains, ensemble.config.n_layers)

        def start(name: str) -> Tensor:
            return self._initial(ensemble, r, name)

        return self._alignment(ensemble, now.__getitem__, start, gains).to_row()

    def _alignment(self, ensemble: Ensemble, now: Parameters, start: Parameters, gains: Any) -> Measurement:
        """One replica's measurement, recorded where that is worth it; what torch refuses to record stays eager."""
        device = ensemble.device
        if self._tokens is None:
            self._tokens = self._batch.inputs.to(device), self._batch.targets.to(device)
            self._records = is_worth_recording(ensemble.config, self._tokens[0].numel(), device)
        if self._records:
            try:
                self._recorded = self._recorded or RecordedAlignment(self._decoder, *self._tokens)
                return self._recorded.measure(now, start, gains)
            except RuntimeError:  # short of memory, or something that a graph cannot hold
                self._records, self._recorded = False, None

        def moved(name: str) -> Tensor:
            return start(name).to(device, non_blocking=True)

        return self._decoder.measure(now, moved, gains, *self._tokens)

    def _initial(self, ensemble: Ensemble, r: int, name: str) -> Tensor:
        """A parameter of step 0, made once for all replicas that share it."""
        spec, resolved = ensemble.specs[r], ensemble.resolved[r]
        if spec.start is not None:
            return self._starts[spec.start.hash].model[name]
        key = self._key(ensemble, r, name)
        if key not in self._made:
            shape = parameter_shapes(ensemble.config)[name]
            value = initial_value(name, shape, spec.seed, resolved, ensemble.roles)
            self._made[key] = value.to(ensemble.device) if self._has_room(ensemble) else value
        return self._made[key]

    @staticmethod
    def _key(ensemble: Ensemble, r: int, name: str) -> tuple[Any, ...]:
        """What an initial value depends on."""
        spec, row = ensemble.specs[r], ensemble.resolved[r].rows[ensemble.roles(name).role]
        return name, spec.seed, row.init, row.scale

    @staticmethod
    def _has_room(ensemble: Ensemble) -> bool:
        """Whether one more copy of the parameters is a small part of what the device has left."""
        if ensemble.device.type != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info(ensemble.device)
        return 4 * total_parameters(ensemble.config) < SMALL_PART * free

    @staticmethod
    def _clock(device: torch.device) -> float:
        if device.type == "cuda":  # the steps before are still under way, and not what is timed
            torch.cuda.synchronize(device)
        return time.monotonic()
