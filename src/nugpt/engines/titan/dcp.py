"""Reading distributed checkpoints (DCP) without trusting them: their metadata is a pickle, tensors come weights-only.

A checkpoint of ours is a directory `step-N` that holds tensors alone (parameters by name, `optimizer.state.NAME.KEY`)
and, beside DCP's own files, `nugpt.json` with the few numbers that are not tensors.
"""

from __future__ import annotations

import enum
import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from nugpt.store.atomic import read_json
from nugpt.store.forms import METADATA, distributed_steps
from nugpt.store.run_directory import DISTRIBUTED

FOLDER = DISTRIBUTED
STATE_FILE = "nugpt.json"
METADATA_FILE = METADATA
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}  # ours and torch's name of Adam's state
STEP = "step"
# What a run's course must say beside the tensors, and what older checkpoints may lack.
COURSE = (
    *("died_at", "high", "loss_sum", "grad_norm", "logged"),
    *("ema", "wall_s", "train_loss", "val_loss", "by_source"),
)
NOTED = ("device_s", "measured_s", "measured_by")

# Everything that DCP's metadata is made of.
_ALLOWED: dict[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.TensorStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.BytesStorageMetadata,
        metadata.TensorProperties,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        torch.Size,
    )
}
_ALLOWED |= {("torch", str(kind).removeprefix("torch.")): kind for kind in (torch.float32, torch.bfloat16)}
# Where it was written, which nothing here reads: as plain text, whatever the version of Python that wrote it.
_ALLOWED |= {(module, "PosixPath"): lambda *parts: "/".join(parts) for module in ("pathlib", "pathlib._local")}
_ALLOWED[("torch.serialization", "_get_layout")] = lambda name: {"torch.strided": torch.strided}[name]


def _member(kind: Any, name: str) -> Any:
    """A member of a listed enumeration: early Python 3.11 pickles one as getattr(class, name)."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)) or name not in kind.__members__:
        raise ValueError(f"asks for {name!r} of {kind!r}, which no checkpoint of ours holds")
    return kind[name]


_ALLOWED[("builtins", "getattr")] = _member


_IN_PYTHON: Any = pickle._Unpickler  # whose steps can be watched


class _Unpickler(_IN_PYTHON):
    """Values of the listed classes and no others."""

    dispatch = dict(_IN_PYTHON.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"names {module}.{name}, which no checkpoint of ours holds")
        return _ALLOWED[(module, name)]

    def load_build(self) -> None:
        """Give an object its attributes: one that was made here, never a class or function that is listed."""
        built = self.stack[-2]
        if isinstance(built, (type, torch.dtype, torch.layout, enum.Enum)) or callable(built):
            raise ValueError(f"changes {built!r}, which no checkpoint of ours does")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def read_metadata(directory: Path) -> Metadata:
    """What a distributed checkpoint holds; whatever else its pickle asks for is refused."""
    path = directory / METADATA_FILE
    if not path.is_file():
        raise ValueError(f"{directory} is no distributed checkpoint: it has no {METADATA_FILE}")
    try:
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except Exception as error:  # a spoiled pickle raises almost anything
        raise ValueError(f"checkpoint file {path} cannot be read: {error}") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise ValueError(f"checkpoint file {path} is not the metadata of a distributed checkpoint")
    for info in found.storage_data.values():
        name = getattr(info, "relative_path", None)
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.distcp", name):
            raise ValueError(f"checkpoint file {path} names the file {name!r}, which is none of a checkpoint's")
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"checkpoint file {path} asks for {info.transform_descriptors!r} when {name} is read")
    for name, entry in found.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"checkpoint file {path} holds {name!r}, which is no tensor")
    return found


class Reader(FileSystemReader):
    """DCP's reader with our reading of the metadata."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        found = read_metadata(Path(self.path))
        found.storage_meta = StorageMeta(load_id=self.load_id)
        return found


class TensorPlanner(DefaultLoadPlanner):
    """DCP's planner, which would unpickle what is no tensor."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        raise ValueError(f"checkpoint holds {read_item.dest_index.fqn!r}, which is no tensor")


def load_tensors(directory: Path, wanted: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """Fill these tensors, or whole ones of everything the checkpoint holds, in this process alone."""
    found: dict[str, Any] = dict(read_metadata(directory).state_dict_metadata)
    if wanted is None:
        wanted = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in found.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process alone, which is what is wanted
            load(wanted, storage_reader=Reader(directory), planner=TensorPlanner(), no_dist=True)
    except (CheckpointException, OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"checkpoint {directory} cannot be read: {reason(error)}") from None
    return wanted


def reason(error: BaseException) -> str:
    """The last line of an error, which DCP puts behind the traceback of every rank."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__


def save_tensors(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Write whole tensors as a distributed checkpoint, in this process alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        save(tensors, checkpoint_id=str(directory), no_dist=True)


def read_state(directory: Path) -> dict[str, Any]:
    """The small state that lies beside the tensors."""
    path = directory / STATE_FILE
    if not path.is_file():
        raise ValueError(f"checkpoint {directory} has no {STATE_FILE}: it is none that this engine wrote")
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        raise ValueError(f"checkpoint file {path} does not say which step it is of")
    return values


def read_course(directory: Path, spec: str) -> dict[str, Any]:
    """The small state of a checkpoint of this run, refused where it is another's or lacks what a run goes on from."""
    small, path = read_state(directory), directory / STATE_FILE
    if small.get("spec") != spec:
        raise ValueError(f"checkpoint {directory} is of run {small.get('spec')!r}, but this run is {spec}")
    course = small.get("course")
    if not isinstance(course, dict):
        raise ValueError(f"checkpoint file {path} has no course, the numbers that a run goes on from")
    if missing := [name for name in COURSE if name not in course]:
        raise ValueError(f"checkpoint file {path} has no {missing[0]!r} in its course")
    if unknown := sorted(set(course) - {*COURSE, *NOTED}):
        raise ValueError(f"checkpoint file {path} has {unknown[0]!r} in its course, which this version does not know")
    return small


def by_step(folder: Path) -> list[Path]:
    """A run's checkpoints in the order of their steps, spoiled ones too; one that was cut off is none."""
    return [folder / f"step-{step}" for step in distributed_steps(folder)]
