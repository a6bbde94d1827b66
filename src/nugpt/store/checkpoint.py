"""Checkpoints: a directory per step with safetensors and JSON, checksummed, there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.spec.checks import written_as
from nugpt.spec.model import ModelConfig, parameter_shapes
from nugpt.spec.run import RunSpec
from nugpt.store.atomic import read_json, sync_directory, sync_file, write_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
_NAME = re.compile(r"step-(\d{9})")
_ASIDE = re.compile(r"\.step-(\d{9})\.[0-9a-f]{32}\.old")
_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """One replica's weights, optimizer state and counters after `step` optimizer steps."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    hash: str  # of the two tensor files


def save_checkpoint(
    directory: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int | None,
) -> Path:
    """Write a checkpoint beside the others; on any error the old stay intact.

    Then drop later ones, which are not this run's course any more, and of the rest all but `keep`; None: drop none.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    final = directory / f"step-{step:09d}"
    temporary = directory / f".{final.name}.{uuid.uuid4().hex}.tmp"
    try:
        temporary.mkdir()
        for name, tensors in zip(_FILES, (model, optimizer), strict=True):
            save_file(dict(tensors), temporary / name)
            sync_file(temporary / name)
        small = {"format": FORMAT, "step": step, **state}
        checksums = {name: _sha256(temporary / name) for name in _FILES} | {"state": _sha256_of_values(small)}
        write_json(temporary / "state.json", small | {"sha256": checksums})
        if final.exists():  # a spoiled one of the same step, or the same one again: moved aside, it is still found
            final.rename(directory / f".{final.name}.{uuid.uuid4().hex}.old")
        temporary.rename(final)
        sync_directory(directory)
    except SafetensorError as error:  # how safetensors reports a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"cannot write the checkpoint {final}: {error}") from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with written_as(final):
            raise
    if keep is None:
        return final
    # One of a later step is spoiled, or lies beyond where the run went back to: it must not push out a good one.
    saved = _by_step(directory)
    for step_dir in saved[saved.index(final) + 1 :] + saved[: saved.index(final) + 1][:-keep]:
        shutil.rmtree(step_dir, ignore_errors=True)
    for left in directory.glob(".step-*"):  # what was moved aside, and what a process killed while saving left
        shutil.rmtree(left, ignore_errors=True)
    return final


def drop_after(directory: Path, step: int) -> None:
    """Drop the checkpoints of later steps: the run goes on from this one, and what it saves next must be its own."""
    for path in _by_step(directory):
        if _step(path) > step:
            shutil.rmtree(path, ignore_errors=True)


def steps_in(directory: Path) -> list[int]:
    """The steps of the checkpoints there, by their names, in order."""
    return [_step(path) for path in _by_step(directory)]


def path_at(directory: Path, step: int) -> Path | None:
    """Where the checkpoint of this step lies."""
    return next((path for path in _by_step(directory) if _step(path) == step), None)


def latest_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest whole checkpoint; a spoiled one is passed over with a warning that names it."""
    for step in reversed(steps_in(directory)):
        if (found := checkpoint_at(directory, step)) is not None:
            return found
    return None


def checkpoint_at(directory: Path, step: int) -> Checkpoint | None:
    """The checkpoint of this step; none, with a warning that names it, when it is spoiled."""
    path = path_at(directory, step)
    if path is None:
        return None
    try:
        return load_checkpoint(path)
    except ValueError as error:
        warnings.warn(f"{error}; going back to the checkpoint before it", RuntimeWarning, stacklevel=3)
        return None


def load_checkpoint(step_dir: Path) -> Checkpoint:
    """This checkpoint, refused with a line that names the file when a checksum or a file is wrong."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (step_dir / "state.json").is_file():
        raise ValueError(f"checkpoint {step_dir} has no state.json")
    state = read_json(step_dir / "state.json")
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"checkpoint {step_dir} is not of format {FORMAT}, which this version reads")
    checksums = state.get("sha256")
    small = {key: value for key, value in state.items() if key != "sha256"}
    if not isinstance(checksums, dict) or checksums.get("state") != _sha256_of_values(small):
        raise ValueError(f"checkpoint file {step_dir / 'state.json'} does not match its checksum")
    tensors = []
    for name in _FILES:
        path = step_dir / name
        if not path.is_file():
            raise ValueError(f"checkpoint {step_dir} lacks {name}")
        if _sha256(path) != checksums.get(name):
            raise ValueError(f"checkpoint file {path} does not match its checksum")
        try:
            tensors.append(load_file(path))
        except SafetensorError as error:
            raise ValueError(f"checkpoint file {path} cannot be read: {error}") from None
    content = "".join(checksums[name] for name in _FILES)
    return Checkpoint(state["step"], tensors[0], tensors[1], state, hashlib.sha256(content.encode()).hexdigest()[:16])


def check_checkpoint(tensors: Mapping[str, Tensor], state: Mapping[str, Any], spec: RunSpec, where: str) -> None:
    """Refuse weights that are not those of this run's model, by name and shape, or were saved by another run."""
    check_tensors(tensors, spec.model, where)
    if state.get("spec", spec.hash) != spec.hash:
        raise ValueError(f"{where} was saved by run {state['spec']}, not by run {spec.hash}")


def check_tensors(tensors: Mapping[str, Tensor], model: ModelConfig, where: str) -> None:
    """Refuse tensors that are not those of this model, by name and shape."""
    shapes = parameter_shapes(model)
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(f"{where} lacks the tensor {name!r}")
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{where}: {name} has shape {tuple(tensors[name].shape)}, but must have {shape}")
    if unknown := sorted(set(tensors) - set(shapes)):
        raise ValueError(f"{where} has the tensor {unknown[0]!r}, which the model does not know")


def _by_step(directory: Path) -> list[Path]:
    """The checkpoints in order; one that was moved aside counts where the process died before its successor came."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = {match[1]: name for name in sorted(names) if (match := _ASIDE.fullmatch(name))}
    found |= {match[1]: name for name in names if (match := _NAME.fullmatch(name))}
    return [directory / found[digits] for digits in sorted(found)]


def _step(path: Path) -> int:
    match = _NAME.search(path.name)
    assert match is not None
    return int(match[1])


def _sha256_of_values(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
