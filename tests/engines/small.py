"""Small runs for the tests: a made-up corpus, specs that train on it in a second, and how to look at what they left."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from nugpt.data import TokenDataset, open_dataset, prepare
from nugpt.engines.lab import Options, execute
from nugpt.engines.lab.ensemble import Ensemble
from nugpt.engines.lab.loop import Progress, _batches
from nugpt.spec import Base, Extent, ModelConfig, load_table
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store

WORDS = ("the", "of", "sphere", "learning", "rate", "naïve", "café", "你好", "norm", "token", "🙂", "layer", "width")
SOURCES = ("prose", "code", "sums")
MODEL = ModelConfig(n_layers=1, n_heads=2, n_kv_heads=1, head_dim=12, vocab_size=384, seq_len=16)
# Half the width, three times the depth, and other steps, so that no ratio of the tables is 1.
BASE = Base.of(Extent(d_model=12, head_dim=12, n_layers=3, steps=20, batch_tokens=64))
# What stays the same when a run is interrupted or moved: all but the time it took and what carried it.
CARRYING = ("wall_s", "carried_by")


def make_dataset(path: Path, documents: int = 300, seed: int = 0) -> TokenDataset:
    """Documents of random words from three sources, as bytes: a vocabulary of 257 ids, padded to 384."""
    rng = random.Random(seed)
    rows = [
        {"text": f"{i} " + " ".join(rng.choices(WORDS, k=rng.randint(10, 50))), "source": SOURCES[i % 3]}
        for i in range(documents)
    ]
    path.mkdir(parents=True, exist_ok=True)
    (path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prepare([str(path / "corpus.jsonl")], "bytes", path / "data", workers=1, val_fraction=0.1, shard_tokens=20_000)
    return open_dataset(path / "data")


def make_spec(dataset: TokenDataset, table: str = "nugpt", layers: int = 1, **changes: Any) -> RunSpec:
    """A run of less than a second: 24 steps of 4 sequences of 16 tokens."""
    architecture = "prenorm" if table == "prenorm-completep" else "normalized"
    model = replace(MODEL, n_layers=layers, architecture=architecture)
    fields: dict[str, Any] = {"model": model, "table": load_table(table), "base": BASE, "lr": 2**-6, "steps": 24}
    fields |= {"batch": 4, "data": dataset.content_hash, "validations": 4, "val_windows": 12}
    return RunSpec(**(fields | changes))


def train(
    specs: list[RunSpec], store: Path, dataset: TokenDataset, progress: Progress | None = None, **options: Any
) -> list[RunRecord]:
    """Train on the CPU with a checkpoint every eight steps and a row for each."""
    chosen = Options(**({"device": "cpu", "checkpoint_every": 8, "log_every": 1} | options))
    return execute(specs, Store(store), dataset, chosen, progress)


def directory_of(spec: RunSpec, store: Path) -> RunDirectory:
    return RunDirectory(store / spec.hash)


def checkpoint_names(directory: RunDirectory) -> list[str]:
    """What lies beside each other where checkpoints are kept, hidden files too."""
    return sorted(path.name for path in directory.checkpoints.iterdir())


def last_tensors(directory: RunDirectory) -> dict[str, Tensor]:
    """Weights and optimizer state of the newest checkpoint, read without the code under test."""
    newest = max(directory.checkpoints.glob("step-*"))
    return load_file(newest / "model.safetensors") | load_file(newest / "optimizer.safetensors")


def result_of(directory: RunDirectory) -> dict[str, Any]:
    """All that an interruption must not change: metrics, record, and the bytes of the last checkpoint's tensors."""
    record = json.loads((directory.path / "record.json").read_bytes())
    newest = max(directory.checkpoints.glob("step-*"))
    return {
        "metrics": [json.loads(line) for line in directory.metrics.read_text().splitlines()],
        "record": {key: value for key, value in record.items() if key not in CARRYING},
        "tensors": {path.name: path.read_bytes() for path in newest.glob("*.safetensors")},
        "step": newest.name,
    }


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory: its bytes and when it was last written."""
    files = [one for one in path.rglob("*") if one.is_file()]
    return {str(one.relative_to(path)): (one.read_bytes(), one.stat().st_mtime_ns) for one in files}


def make_ensemble(specs: list[RunSpec], **options: Any) -> Ensemble:
    import torch

    chosen = {"attention": "folded", "loss": "chunked", "compiled": False} | options
    return Ensemble(specs, torch.device("cpu"), **chosen)


def batches_of(specs: list[RunSpec], dataset: TokenDataset) -> list[tuple[Tensor, Tensor]]:
    """The batches of the whole run, (R, B, T) each."""
    import torch

    return list(_batches(specs, dataset, 0, torch.device("cpu")))


class Gone(Exception):
    """Stands for whatever ends a process between two steps."""


def gone_at(step: int) -> Progress:
    def stop(now: int) -> None:
        if now == step:
            raise Gone

    return Progress(step=stop)
