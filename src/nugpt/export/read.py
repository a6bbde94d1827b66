"""An exported folder read back, without `transformers` and without running its code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nugpt.data.tokenizer import TOKENIZER_FILE, Tokenizer, byte_tokenizer, json_tokenizer
from nugpt.export.folder import (
    CONFIG_FILE,
    FORMAT,
    MODEL_TYPE,
    WEIGHTS_FILE,
    check_vocabulary,
    shape_fields,
    weights_digest,
)
from nugpt.export.tokenizer import tokenizer_json, vocabulary_digest
from nugpt.spec.model import ModelConfig, parameter_shapes
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store, load_checkpoint, save_checkpoint
from nugpt.store.atomic import read_json
from nugpt.store.checkpoint import check_tensors


@dataclass(frozen=True)
class _KeptTokenizer:
    """What config.json says of the tokenizer that the model was trained with."""

    n_ids: int
    end_of_text: str | None  # None for plain bytes
    vocabulary: str


@dataclass(frozen=True)
class Exported:
    """What an exported folder holds: the run, the weights, and whether they are those that were exported."""

    spec: RunSpec
    step: int
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer
    state: Mapping[str, Any]  # the checkpoint's counters and losses
    record: RunRecord | None
    unchanged: bool


def read_folder(path: Path) -> Exported:
    """What an exported folder holds; whatever is wrong with it is a ValueError of one line."""
    config_path = path / CONFIG_FILE
    if not config_path.is_file():
        raise ValueError(f"{path} is no exported model: it has no {CONFIG_FILE}")
    config = read_json(config_path)
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        found = config.get("model_type") if isinstance(config, dict) else None
        raise ValueError(f"{config_path} has model_type {found!r}, but must have {MODEL_TYPE!r}, as we export it")
    about = config.get("nugpt")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{config_path} does not say which run it came from in a field 'nugpt' of format {FORMAT}")
    try:
        spec = RunSpec.from_dict(about["spec"])
        record = None if about["record"] is None else RunRecord.from_dict(about["record"])
        step, state, digest = about["step"], dict(about["state"]), str(about["weights"])
        if type(step) is not int or not 0 <= step <= spec.steps:
            raise ValueError(f"step is {step!r}, but must be a whole number from 0 to the run's {spec.steps}")
        kept = _KeptTokenizer(**{field.name: about["tokenizer"][field.name] for field in fields(_KeptTokenizer)})
        if not isinstance(kept.end_of_text, str | None):
            raise ValueError(f"end_of_text is {kept.end_of_text!r}, but must be a token's name, or null for bytes")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{config_path}: the field 'nugpt' is not as we export it: {error}") from None
    _check_config(config, spec, config_path)
    tensors = _weights(path)
    check_tensors(tensors, spec.model, str(path))
    tokenizer = _folder_tokenizer(path, spec.model, kept)
    unchanged = weights_digest(tensors) == digest
    wide = {name: tensors[name].to(torch.float32) for name in parameter_shapes(spec.model)}
    return Exported(spec, step, wide, tokenizer, state, record, unchanged)


def import_folder(path: Path, store_root: Path) -> tuple[RunDirectory, Exported]:
    """An exported folder as a run of a store, its weights bitwise the same; an existing run is never overwritten."""
    found = read_folder(path)
    directory = RunDirectory(store_root / found.spec.hash)
    saved = sorted(directory.checkpoints.glob("step-*"))
    if saved:
        there = load_checkpoint(saved[-1])
        if there.step == found.step and weights_digest(there.model) == weights_digest(found.tensors):
            return directory, found
        raise ValueError(f"run {directory.path} exists with other weights: give another --store")
    finished = directory.record() is not None  # its checkpoints were pruned
    if finished and not found.unchanged:
        raise ValueError(
            f"run {directory.path} has a record, which is not of the weights in {path}: give another --store"
        )
    Store(store_root).run(found.spec)
    if found.tokenizer.text:
        directory.keep_file(TOKENIZER_FILE, found.tokenizer.text.encode())
    data = {"content_hash": found.spec.data, "end_of_text": found.tokenizer.end_of_text, "path": None}
    directory.keep_file("data.json", json.dumps(data).encode())
    save_checkpoint(directory.checkpoints, found.step, found.tensors, {}, found.state, keep=1)
    if found.record is not None and found.unchanged and not finished:  # the result of these weights, and of no others
        directory.write_record(found.record)
    return directory, found


def _check_config(config: Mapping[str, Any], spec: RunSpec, path: Path) -> None:
    for name, value in shape_fields(spec.model).items():
        if config.get(name) != value:
            raise ValueError(f"{path}: {name} is {config.get(name)!r}, but must be {value!r}, as the run's spec has it")
    gains = config.get("gains")
    for role, gain in spec.resolved().gains.items():
        found = gains.get(role) if isinstance(gains, dict) else None
        # Powers may differ in their last digit between machines.
        if not isinstance(found, (int, float)) or not math.isclose(found, gain, rel_tol=1e-12):
            raise ValueError(f"{path}: the gain of {role} is {found!r}, but must be {gain!r}, as the run's spec has it")


def _folder_tokenizer(path: Path, model: ModelConfig, kept: _KeptTokenizer) -> Tokenizer:
    file = path / TOKENIZER_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path} lacks {TOKENIZER_FILE}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not a tokenizer.json: it is not UTF-8") from None
    found = json_tokenizer(text, str(file), kept.end_of_text)
    check_vocabulary(found, model, path)
    if found.n_ids != kept.n_ids:
        raise ValueError(f"{file} has {found.n_ids} ids, but the model was trained with a tokenizer of {kept.n_ids}")
    bytes_alone = vocabulary_digest(tokenizer_json(byte_tokenizer()))
    wanted = bytes_alone if kept.end_of_text is None else kept.vocabulary
    if vocabulary_digest(text) != wanted:
        raise ValueError(f"{file} is another tokenizer than the model was trained with: its ids mean other texts")
    return byte_tokenizer() if kept.end_of_text is None else found


def _weights(path: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the files that model.safetensors.index.json names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = [WEIGHTS_FILE]
    index = path / f"{WEIGHTS_FILE}.index.json"
    if index.is_file():
        try:
            files = sorted(set(read_json(index)["weight_map"].values()))
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{index} does not say which file holds which tensor") from None
    tensors: dict[str, Tensor] = {}
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{index} names {name!r}, but must name files beside it")
        if not (path / name).is_file():
            raise ValueError(f"{path} lacks {name}")
        try:
            tensors |= load_file(path / name)
        except SafetensorError as error:
            raise ValueError(f"{path / name} cannot be read, as if it were cut short: {error}") from None
    return tensors
