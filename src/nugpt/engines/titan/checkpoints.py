"""Checkpoints while training: TorchTitan's manager, which writes tensors alone and reads through our reader."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torchtitan.components.checkpointer import MODEL, OPTIMIZER, AsyncMode, CheckpointManager

from nugpt.engines.titan.agree import agree, first_problem, warn
from nugpt.engines.titan.dcp import (
    METADATA_FILE,
    STATE_FILE,
    Reader,
    TensorPlanner,
    by_step,
    read_course,
    read_metadata,
    reason,
)
from nugpt.engines.titan.sums import check_sums, own_files, sums_of, write_sums
from nugpt.store.atomic import write_json
from nugpt.store.forms import SUMS

GROUPS = "param_groups."  # how TorchTitan names what is no tensor of an optimizer's state


class _OptimizerTensors:
    """An optimizer's tensors: its learning rates and the like come from the run's spec, not from a file."""

    def __init__(self, optimizers: Any) -> None:
        self.optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        return {name: x for name, x in self.optimizers.state_dict().items() if not name.startswith(GROUPS)}

    def load_state_dict(self, tensors: dict[str, Any]) -> None:
        own = {name: x for name, x in self.optimizers.state_dict().items() if name.startswith(GROUPS)}
        self.optimizers.load_state_dict(own | tensors)


class Checkpoints(CheckpointManager):
    """What a run goes on from: parameters, Adam's state, and a JSON file with the rest."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """As TorchTitan's."""

    def __init__(self, config: Any, **parts: Any) -> None:
        super().__init__(config, **parts)
        self.states: dict[str, Any]
        # The batch and the learning rate follow from the step: neither the loader nor the schedule has a state.
        self.states = {MODEL: self.states[MODEL], OPTIMIZER: _OptimizerTensors(self.states[OPTIMIZER])}

    def restore(self, spec: str) -> dict[str, Any] | None:
        """Load the newest whole checkpoint, whatever mesh it was written on, and return its small state; none at first.

        A spoiled one is put aside for the one before it, with a line that says so; all ranks take the same. Where all
        are spoiled the run is refused: from its beginning it starts only when they have been put away.
        """
        box = [[str(path) for path in by_step(Path(self.folder))]]
        dist.broadcast_object_list(box, src=0)  # as rank 0 sees them
        problems: list[str] = []
        for directory in map(Path, reversed(box[0])):
            small, problem = self._restored(directory, spec)
            if problem is None:
                if problems and dist.get_rank() == 0:  # what the run saves next must be its own
                    for later in by_step(Path(self.folder)):
                        if _step(later) > _step(directory):
                            _put_aside(later)
                return small
            problems.append(problem)
            if len(problems) < len(box[0]):
                warn(f"{problem}; going back to the checkpoint before it")
        agree(f"{problems[-1]}; no other is left: remove {self.folder} to begin anew" if problems else None)
        return None

    def _restored(self, directory: Path, spec: str) -> tuple[dict[str, Any], str | None]:
        """A checkpoint's small state once its tensors are loaded, or what is wrong with it: the same on all ranks."""
        small: dict[str, Any] = {}
        problem: str | None = None
        trouble: str | None = None  # of the file system: it may pass, and the checkpoint be whole
        try:
            check_sums(directory, dist.get_rank(), dist.get_world_size())
            small = read_course(directory, spec)
            read_metadata(directory)
        except (ValueError, FileNotFoundError) as error:
            problem = str(error)
        except OSError as error:
            trouble = f"checkpoint {directory} cannot be read now: {error}"
        agree(trouble)
        problem = first_problem(problem)
        if problem is None:
            try:
                self.dcp_load(self._flattened_model_states_sd(), str(directory), False, False)
            except CheckpointException as error:  # which every rank gets when one of them cannot read its part
                problem = f"checkpoint {directory} cannot be read: {reason(error)}"
            problem = first_problem(problem)
        return small, problem

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """As TorchTitan's, but nothing is unpickled that could be code."""
        load(state_dict, storage_reader=Reader(checkpoint_id), planner=TensorPlanner())
        self.states[MODEL].load_state_dict(state_dict)

    def write(self, step: int, small: dict[str, Any], keep: int) -> None:
        """Save, then drop all but the newest `keep` and whatever was cut off."""
        directory = Path(self._create_checkpoint_id(step))
        if dist.get_rank() == 0:
            _drop(directory)  # one that was cut off, or the same one again
            directory.mkdir(parents=True)
            write_json(directory / STATE_FILE, {"step": step, **small})
        dist.barrier()
        self.dcp_save(self._flattened_model_states_sd(), str(directory), AsyncMode.DISABLED)
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, sums_of(own_files(directory, dist.get_rank())))
        if dist.get_rank() == 0:
            write_sums(directory, parts)
            kept = {path.name for path in by_step(Path(self.folder))[-keep:]}
            for path in Path(self.folder).glob("step-*"):
                if path.name not in kept:
                    _drop(path)


def _step(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))


def _put_aside(directory: Path) -> None:
    """Under a name that is no checkpoint's: somebody may still save something of it."""
    places = (directory.with_name(f"spoiled-{n}-{directory.name}") for n in itertools.count(1))
    directory.rename(next(place for place in places if not place.exists()))


def _drop(directory: Path) -> None:
    """With neither sums nor metadata it is none, even if we are killed before the rest is gone."""
    (directory / SUMS).unlink(missing_ok=True)  # the first to go: sums alone would say that it was spoiled
    (directory / METADATA_FILE).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
