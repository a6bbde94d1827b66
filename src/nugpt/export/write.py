"""A run's checkpoint as a folder that `transformers` loads: there whole or not at all."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

from nugpt.data.tokenizer import TOKENIZER_FILE, Tokenizer, stored_tokenizer
from nugpt.export.card import model_card
from nugpt.export.folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    check_vocabulary,
    generation_config,
    model_config,
)
from nugpt.export.inline import MODELING_FILE, modeling_code
from nugpt.export.tokenizer import tokenizer_config, tokenizer_json
from nugpt.spec.checks import written_as
from nugpt.spec.run import RunSpec
from nugpt.store import Checkpoint, RunDirectory
from nugpt.store.atomic import sync_directory, sync_file, write_json
from nugpt.store.checkpoint import check_checkpoint


def write_folder(out: Path, directory: RunDirectory, checkpoint: Checkpoint, license_name: str | None = None) -> None:
    """Write a run's checkpoint as a folder that `transformers` loads; on any error nothing is left behind."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    spec, record = directory.spec(), directory.record()
    if license_name is not None and not re.fullmatch(r"[\w.+-]+", license_name):
        raise ValueError(f"license is {license_name!r}, but must be the short name of one, as apache-2.0")
    if spec.model.architecture != "normalized":
        raise ValueError(f"architecture is {spec.model.architecture!r}, but only 'normalized' models are exported")
    where = f"checkpoint at step {checkpoint.step} of {directory.path}"
    check_checkpoint(checkpoint.model, checkpoint.state, spec, where)
    for name, tensor in checkpoint.model.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} at step {checkpoint.step} of {directory.path} is not finite: the run diverged")
    tokenizer = _tokenizer(directory, spec)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder: give the name of a new one")
    final = record if record is not None and record.steps == checkpoint.step else None
    config = model_config(spec, checkpoint, tokenizer, final)
    temporary = out.absolute().with_name(f".{out.absolute().name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir(parents=True)
        save_file(dict(checkpoint.model), temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        sync_file(temporary / WEIGHTS_FILE)
        write_json(temporary / CONFIG_FILE, config)
        write_json(temporary / "generation_config.json", generation_config(spec.model, tokenizer))
        write_json(temporary / "tokenizer_config.json", tokenizer_config(tokenizer, spec.model.seq_len))
        texts = {
            TOKENIZER_FILE: tokenizer_json(tokenizer),
            MODELING_FILE: modeling_code(),
            "README.md": model_card(out.absolute().name, spec, checkpoint, tokenizer, final, license_name),
        }
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
            sync_file(temporary / name)
        shutil.copymode(temporary / CONFIG_FILE, temporary / WEIGHTS_FILE)  # safetensors' files are the owner's alone
        temporary.rename(out.absolute())  # which replaces an empty folder
        sync_directory(out.absolute().parent)
    except SafetensorError as error:  # how safetensors reports a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"cannot write {out}: {error}") from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with written_as(out):
            raise


def _tokenizer(directory: RunDirectory, spec: RunSpec) -> Tokenizer:
    """The tokenizer kept with a run, refused when the model has no row for one of its ids."""
    tokenizer = stored_tokenizer(directory.path, directory.end_of_text())
    check_vocabulary(tokenizer, spec.model, directory.path)
    return tokenizer
