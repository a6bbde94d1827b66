"""The layout of an exported folder: names of its files, what its configurations say, what must agree in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nugpt import __version__
from nugpt.data.tokenizer import Tokenizer
from nugpt.export.inline import MODELING_FILE
from nugpt.export.tokenizer import tokenizer_json, vocabulary_digest
from nugpt.spec.model import ModelConfig
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import Checkpoint

FORMAT = 1
MODEL_TYPE = "nugpt"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_NOT_STATE = ("format", "step", "sha256")  # of a checkpoint's state.json: written anew with every checkpoint


def model_config(
    spec: RunSpec, checkpoint: Checkpoint, tokenizer: Tokenizer, record: RunRecord | None
) -> dict[str, Any]:
    """config.json: the shape under the names `transformers` uses, the gains, and the run under `nugpt`."""
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["NuGPTForCausalLM"],
        "auto_map": {
            "AutoConfig": f"{Path(MODELING_FILE).stem}.NuGPTConfig",
            "AutoModelForCausalLM": f"{Path(MODELING_FILE).stem}.NuGPTForCausalLM",
        },
        "dtype": "float32",
        **shape_fields(spec.model),
        "gains": dict(spec.resolved().gains),
        **token_ids(tokenizer),
        "use_cache": True,
        "tie_word_embeddings": False,
        "nugpt": {
            "format": FORMAT,
            "version": __version__,
            "run": spec.hash,
            "step": checkpoint.step,
            "weights": weights_digest(checkpoint.model),
            "tokenizer": {
                "n_ids": tokenizer.n_ids,
                "end_of_text": tokenizer.end_of_text,
                "hash": tokenizer.hash,
                "vocabulary": vocabulary_digest(tokenizer_json(tokenizer)),
            },
            "spec": spec.to_dict(),
            "state": {key: value for key, value in checkpoint.state.items() if key not in _NOT_STATE},
            "record": None if record is None else _without_places(record).to_dict(),
        },
    }


def _without_places(record: RunRecord) -> RunRecord:
    """The record without the path of the data: a folder that is passed on need not tell of the machine it came from."""
    return replace(record, carried_by={key: value for key, value in record.carried_by.items() if key != "data"})


def generation_config(model: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json: end-of-text ends a text, and ids that only pad the vocabulary are never drawn."""
    padding = list(range(tokenizer.n_ids, model.vocab_size))
    return {**token_ids(tokenizer), **({"suppress_tokens": padding} if padding else {})}


def shape_fields(model: ModelConfig) -> dict[str, Any]:
    """A model's shape under the names `transformers` uses."""
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_mlp,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.seq_len,
        "rope_theta": model.rope_theta,
    }


def token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """End-of-text begins and ends a document, and pads."""
    return {f"{name}_token_id": tokenizer.eot for name in ("bos", "eos", "pad")}


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of every tensor's name, type, shape and bytes, whatever file or order they stand in."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_vocabulary(tokenizer: Tokenizer, model: ModelConfig, where: Path) -> None:
    """Refuse a tokenizer that has an id for which the model has no row."""
    if tokenizer.n_ids > model.vocab_size:
        raise ValueError(
            f"{where}: the tokenizer has {tokenizer.n_ids} ids, but the model's vocabulary has {model.vocab_size}"
        )
