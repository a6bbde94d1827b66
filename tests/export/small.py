"""Small trained models to export: grouped queries over bytes, all heads over byte-level BPE."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.engines.small import MODEL, directory_of, make_dataset, make_spec, train

from nugpt.data import open_dataset, prepare
from nugpt.engines.lab.generate import Trained, load_trained
from nugpt.spec.run import RunSpec
from nugpt.store import Checkpoint, RunDirectory, load_checkpoint

STEPS = 24
SHORT: dict[str, Any] = {"lr": 2**-2, "steps": STEPS, "validations": 2, "val_windows": 4}


@dataclass(frozen=True)
class Run:
    """A finished run: its store, its spec, and what lies in its directory."""

    store: Path
    spec: RunSpec
    data: Path

    @property
    def directory(self) -> RunDirectory:
        return directory_of(self.spec, self.store)

    @property
    def checkpoint(self) -> Checkpoint:
        return load_checkpoint(self.directory.checkpoints / f"step-{STEPS:09d}")

    def lab(self) -> Trained:
        return load_trained(self.directory)


def bytes_run(root: Path) -> Run:
    """Two layers, two query heads that share one key-value head; trained at a high rate, so that nothing is flat."""
    dataset = make_dataset(root, documents=100)
    spec = make_spec(dataset, layers=2, **SHORT)
    train([spec], root / "runs", dataset, log_every=STEPS, checkpoint_every=STEPS // 2)
    return Run(root / "runs", spec, dataset.path)


def bpe_run(root: Path) -> Run:
    """Three layers, every head with keys of its own, over a byte-level BPE of 300 ids."""
    corpus = root / "corpus.jsonl"
    texts = [f"{i} the naïve café 你好 🙂 of spheres {i * i}" for i in range(400)]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    prepare([str(corpus)], "bpe:300", root / "bpe", workers=1, val_fraction=0.1)
    dataset = open_dataset(root / "bpe")
    model = replace(MODEL, n_layers=3, n_kv_heads=2, vocab_size=dataset.vocab_size)
    spec = make_spec(dataset, model=model, **SHORT)
    train([spec], root / "runs", dataset, log_every=STEPS, checkpoint_every=STEPS)
    return Run(root / "runs", spec, dataset.path)


def edit_config(folder: Path, **changes: object) -> None:
    """Change fields of a folder's config.json; a name with dots goes into nested values."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = config
        for key in outer:
            place = place[key]
        place[last] = value
    path.write_text(json.dumps(config))
