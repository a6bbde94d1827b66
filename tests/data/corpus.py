"""A small made-up corpus, and how to look at what became of it."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nugpt.data import open_dataset

WORDS = (
    *("the", "of", "sphere", "learning", "rate", "naïve", "café", "你好", "norm", "token", "🙂", "layer", "width"),
    *("depth", "data", "step", "x", "y", "12", "3.5", "\n", "(a)", "[b]"),
)


def make_documents(count: int, seed: int = 0, words: int = 60) -> list[str]:
    """Documents of random words, all different."""
    rng = random.Random(seed)
    return [f"{i} " + " ".join(rng.choices(WORDS, k=rng.randint(1, 2 * words))) for i in range(count)]


def jsonl(documents: Sequence[str], sources: Sequence[str] | None = None) -> bytes:
    """The documents as lines of JSON."""
    rows = [{"text": text} | ({"source": sources[i]} if sources else {}) for i, text in enumerate(documents)]
    return "".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows)).encode()


def write_like(path: Path, documents: Sequence[str]) -> Path:
    """Write the documents as the suffix says."""
    data = jsonl(documents)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": list(documents)}), path, row_group_size=97)
    elif path.suffix == ".gz":
        # Two members, as tools that append make them.
        half = data.index(b"\n", len(data) // 2) + 1
        path.write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))
    elif path.suffix == ".zst":
        path.write_bytes(pa.compress(data, codec="zstd", asbytes=True))
    else:
        path.write_bytes(data)
    return path


def split_documents(path: Path, split: str) -> list[list[int]]:
    """The tokens of every document of a split, its end-of-text included, read without the code under test."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    found = []
    for shard in manifest[split]["shards"]:
        tokens = np.fromfile(path / f"{shard['name']}.bin", manifest["dtype"])
        raw = (path / f"{shard['name']}.docs").read_bytes()
        start = 0
        for at in range(0, len(raw), 12):
            end = int.from_bytes(raw[at : at + 8], "little")
            found.append(tokens[start:end].tolist())
            start = end
        assert start == len(tokens)
    return found


def split_texts(path: Path, split: str) -> list[str]:
    """The texts of every document of a split."""
    tokenizer = open_dataset(path).tokenizer()
    return [tokenizer.decode(tokens[:-1]) for tokens in split_documents(path, split)]


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a directory but the lock."""
    return {one.name: one.read_bytes() for one in path.iterdir() if one.name != ".lock"}
