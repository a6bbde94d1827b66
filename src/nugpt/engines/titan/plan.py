"""Which mesh a run fits on: the sharded model really built, and a step of it run, with tensors that have no memory.

One process stands for rank 0 of as many as are asked for; torch's fake process group answers for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import DTensor
from torchtitan.config import CompileConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils

from nugpt.core.init import gains
from nugpt.engines.titan.configure import activation_config, model_spec, parallelism
from nugpt.engines.titan.options import ACTIVATIONS, Mesh, TitanOptions, mesh_of
from nugpt.spec.run import RunSpec

TP_DEGREES = (1, 2, 4, 8)  # within one node
LAYERS = (2, 3)  # what a step of a deeper model takes follows from these: each block more adds the same
ADAM_BYTES, GRADIENT_BYTES = 8, 4  # per parameter, float32


@dataclass(frozen=True)
class Fit:
    """A mesh, and the bytes that each of its GPUs needs; uncompiled, so that a compiled run needs less."""

    mesh: Mesh
    activations: str
    state: int  # weights, gradients and Adam's state of rank 0
    peak: int  # the step's own at its peak: activations, gathered weights, logits

    @property
    def total(self) -> int:
        """Everything at once."""
        return self.state + self.peak


def plans(spec: RunSpec, gpus: int, memory: int, given: TitanOptions, fixed: frozenset[str]) -> Iterator[Fit]:
    """Meshes in the order of preference, each with the largest piece that fits, up to the first that does.

    `fixed`: the options that the user chose. Without them little tensor parallelism is preferred to much, and little
    recomputation to much.
    """
    _begin(gpus)
    problems = {
        tp: _problem(spec, replace(given, tp=tp), gpus) for tp in ((given.tp,) if "tp" in fixed else TP_DEGREES)
    }
    degrees = [tp for tp, problem in problems.items() if problem is None]
    if not degrees:
        reasons = "; ".join(f"with tp {tp} {problem}" for tp, problem in problems.items())
        raise ValueError(f"{gpus} GPUs have no mesh for this run: {reasons}")
    kinds = [given.activations] if "activations" in fixed else list(ACTIVATIONS)
    for tp in degrees:
        for kind in kinds:
            options = replace(given, tp=tp, activations=kind)
            found = _largest(spec, gpus, memory, options, "micro_batch" in fixed)
            yield found
            if found.total <= memory:
                return


def _problem(spec: RunSpec, options: TitanOptions, gpus: int) -> str | None:
    try:
        mesh_of(spec, options, gpus)
    except ValueError as error:
        return str(error)
    return None


def _largest(spec: RunSpec, gpus: int, memory: int, options: TitanOptions, fixed: bool) -> Fit:
    """The fit with the largest piece of a rank's batch that the memory has room for; else with the smallest."""
    whole = mesh_of(spec, options, gpus)
    sizes = [whole.micro_batch] if fixed else [n for n in range(whole.local_batch, 0, -1) if whole.local_batch % n == 0]
    state = sharded_state(spec, options, whole)
    one, each = _peak(spec, replace(options, micro_batch=1), gpus), 0
    if sizes[0] > 1:  # what each sequence more takes, from the smallest piece above one that divides the batch
        few = next(n for n in range(2, whole.local_batch + 1) if whole.local_batch % n == 0)
        each = max(0, _peak(spec, replace(options, micro_batch=few), gpus) - one) // (few - 1)
    fits = [Fit(replace(whole, micro_batch=n), options.activations, state, one + (n - 1) * each) for n in sizes]
    return next((fit for fit in fits if fit.total <= memory), fits[-1])


def sharded_state(spec: RunSpec, options: TitanOptions, mesh: Mesh) -> int:
    """Bytes of rank 0's weights, gradients and Adam's state, from the whole model laid out over the mesh."""
    numbers = sum(_own(parameter).numel() for parameter in _built(spec, options, mesh).parameters())
    return numbers * (4 + GRADIENT_BYTES + ADAM_BYTES)


def _peak(spec: RunSpec, options: TitanOptions, gpus: int) -> int:
    """Bytes that a forward and backward adds to the weights at its peak, at the run's depth."""
    shallow, deeper = LAYERS
    if spec.model.n_layers <= deeper:
        return _measured(spec, options, gpus)
    less, more = (
        _measured(replace(spec, model=replace(spec.model, n_layers=layers)), options, gpus) for layers in LAYERS
    )
    return more + (spec.model.n_layers - deeper) * max(0, (more - less) // (deeper - shallow))


def _measured(spec: RunSpec, options: TitanOptions, gpus: int) -> int:
    """The peak of one step, less what counts as state."""
    mesh = mesh_of(spec, options, gpus)
    model = _built(spec, options, mesh)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.gains = gains(model, spec.resolved())
        tokens = torch.zeros(mesh.micro_batch, spec.model.seq_len, dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            model(tokens, tokens).sum().backward()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    kinds = {str(getattr(kind, "value", kind)): size for kind, size in peak.items()}
    return int(kinds["Total"] - kinds["Parameter"] - kinds["Gradient"])


def _begin(gpus: int) -> None:
    """Stand for one of so many ranks."""
    logging.getLogger().setLevel(logging.WARNING)
    dist_utils.set_spmd_backend("partial_dtensor")
    if not torch.distributed.is_initialized():
        dist_utils.init_fake_mode(gpus)


def _built(spec: RunSpec, options: TitanOptions, mesh: Mesh) -> Any:
    """The model, spread over the mesh as a run would spread it."""
    dims = ParallelDims.from_config(parallelism(options, mesh), mesh.world)
    described = model_spec(spec, options)
    with torch.device("meta"):
        model = described.model.build()
    return described.parallelize_fn(
        model,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param=spec.precision),
        parallelism=parallelism(options, mesh),
        compile_config=CompileConfig(),
        ac_config=activation_config(options),
        dump_folder="",
    )


def _own(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
