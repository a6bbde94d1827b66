"""Checkpoints both ways: distributed ones of this engine, and the store's own in safetensors and JSON.

Neither way needs torchtitan, a GPU or more than one process. The run is held meanwhile, and what is there stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nugpt.engines.titan.dcp import (
    FOLDER,
    MOMENTS,
    NOTED,
    STATE_FILE,
    STEP,
    by_step,
    load_tensors,
    read_course,
    read_metadata,
    save_tensors,
)
from nugpt.engines.titan.sums import check_sums, own_files, sums_of, write_sums
from nugpt.spec.model import parameter_shapes
from nugpt.store import Checkpoint, RunDirectory, latest_checkpoint, load_checkpoint, save_checkpoint
from nugpt.store.atomic import write_json
from nugpt.store.checkpoint import path_at, steps_in
from nugpt.store.claims import holding

COUNTERS = ("died_at", "high", "loss_sum", "grad_norm", "logged")
CARRIED = ("ema", "wall_s", "train_loss", "val_loss")


def to_safetensors(run: RunDirectory, step: int | None = None, weights_only: bool = False) -> Path:
    """Write a distributed checkpoint (the newest, or of this step) as the store's own, one that is not there yet."""
    with holding([run]) as guard:
        spec, source = run.spec(), _distributed(run, step)
        check_sums(source)
        small = read_course(source, spec.hash)
        if (there := path_at(run.checkpoints, small["step"])) is not None:
            raise _is_there(there)
        shapes = parameter_shapes(spec.model)
        names = _names(shapes, weights_only)
        _check(source, names)
        found = load_tensors(source, {theirs: torch.empty(shape) for theirs, shape in names.values()})
        tensors = {ours: found[theirs] for ours, (theirs, _) in names.items()}
        model = {name: tensors[name] for name in shapes}
        optimizer = {name: x for name, x in tensors.items() if name not in model}
        guard()
        return save_checkpoint(run.checkpoints, small["step"], model, optimizer, _ours(small), keep=None)


def to_distributed(run: RunDirectory, step: int | None = None) -> Path:
    """Write the store's own checkpoint (the newest, or of this step) as a distributed one, which any mesh can read."""
    with holding([run]) as guard:
        spec, given = run.spec(), _own(run, step)
        target = run.path / FOLDER / f"step-{given.step}"
        if target in by_step(run.path / FOLDER):
            raise _is_there(target)
        names = _names(parameter_shapes(spec.model), weights_only=False)
        tensors: dict[str, Tensor] = {}
        for ours, (theirs, shape) in names.items():
            found = given.model.get(ours, given.optimizer.get(ours))
            if found is None or tuple(found.shape) != shape:
                raise ValueError(f"tensor {ours!r} of the checkpoint is {_shape(found)}, needed is {shape}")
            tensors[theirs] = found.float()
        for name in parameter_shapes(spec.model):
            tensors[f"optimizer.state.{name}.{STEP}"] = torch.tensor(float(given.step))
        guard()
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / STATE_FILE, {"step": given.step, "spec": spec.hash, "course": _theirs(given.state)})
        save_tensors(target, tensors)
        write_sums(target, [sums_of(own_files(target, 0))])
        return target


def _is_there(target: Path) -> ValueError:
    return ValueError(f"{target} is there already: move it away to convert that step again")


def _names(shapes: Mapping[str, tuple[int, ...]], weights_only: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Our name of every tensor → the distributed checkpoint's, and its shape."""
    names = {name: (name, shape) for name, shape in shapes.items()}
    if not weights_only:
        for ours, theirs in MOMENTS.items():
            names |= {f"{ours}.{name}": (f"optimizer.state.{name}.{theirs}", s) for name, s in shapes.items()}
    return names


def _check(source: Path, names: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    held: dict[str, Any] = read_metadata(source).state_dict_metadata
    for theirs, shape in names.values():
        entry = held.get(theirs)
        if entry is None or tuple(entry.size) != shape:
            there = "not there" if entry is None else tuple(entry.size)
            raise ValueError(f"tensor {theirs!r} of checkpoint {source} is {there}, needed is {shape}")


def _distributed(run: RunDirectory, step: int | None) -> Path:
    found = by_step(run.path / FOLDER)
    if not found:
        raise ValueError(f"run {run.path} has no distributed checkpoint in {FOLDER}/")
    if step is None:
        return found[-1]
    chosen = [path for path in found if path.name == f"step-{step}"]
    if not chosen:
        steps = ", ".join(path.name.removeprefix("step-") for path in found)
        raise ValueError(f"step is {step}, but run {run.path} has distributed checkpoints of {steps}")
    return chosen[0]


def _own(run: RunDirectory, step: int | None) -> Checkpoint:
    if step is not None and (steps := steps_in(run.checkpoints)):
        path = path_at(run.checkpoints, step)
        if path is None:
            raise ValueError(f"step is {step}, but run {run.path} has checkpoints of {', '.join(map(str, steps))}")
        return load_checkpoint(path)
    found = latest_checkpoint(run.checkpoints)
    if found is None:
        raise ValueError(f"run {run.path} has no checkpoint in checkpoints/")
    return found


def _ours(small: Mapping[str, Any]) -> dict[str, Any]:
    """The small state as the lab engine keeps it."""
    course = small["course"]
    return {
        "spec": small["spec"],
        "counters": {name: course[name] for name in COUNTERS},
        **{name: course[name] for name in CARRIED},
        **_noted(course),
        "val_loss_by_source": course["by_source"],
    }


def _theirs(state: Mapping[str, Any]) -> dict[str, Any]:
    """The small state as this engine keeps it."""
    counters = {name: state["counters"][name] for name in COUNTERS}
    carried = {name: state[name] for name in CARRIED} | _noted(state)
    return {**counters, **carried, "by_source": state["val_loss_by_source"]}


def _noted(state: Mapping[str, Any]) -> dict[str, Any]:
    """What older checkpoints do not tell, on times and measuring."""
    return {name: state[name] for name in NOTED if name in state}


def _shape(found: Tensor | None) -> object:
    return "not there" if found is None else tuple(found.shape)
