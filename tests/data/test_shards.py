"""A shard byte by byte: its tokens, where its documents end, and nothing of one that was abandoned."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from nugpt.data.manifest import Counts
from nugpt.data.shards import ShardWriter


@pytest.fixture
def writer(tmp_path: Path) -> ShardWriter:
    for name in ("data", "work"):
        (tmp_path / name).mkdir()
    return ShardWriter(tmp_path / "data", tmp_path / "work", "train-00000")


def add(writer: ShardWriter, tokens: list[int], lengths: list[int], sources: list[int], utf8_bytes: int) -> None:
    writer.add(np.array(tokens, "<u2"), np.array(lengths), np.array(sources), utf8_bytes)


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_shard_is_its_tokens_and_the_ends_of_its_documents(tmp_path: Path, writer: ShardWriter) -> None:
    add(writer, [1, 2, 258, 4, 5], [3, 2], [0, 1], 7)
    add(writer, [6], [1], [1], 2)
    shard = writer.close()
    tokens = bytes([1, 0, 2, 0, 2, 1, 4, 0, 5, 0, 6, 0])
    documents = b"".join(struct.pack("<QI", end, source) for end, source in ((3, 0), (5, 1), (6, 1)))
    assert files(tmp_path) == {"data/train-00000.bin": tokens, "data/train-00000.docs": documents}
    assert shard is not None
    assert (shard.name, shard.counts) == ("train-00000", Counts(documents=3, tokens=6, utf8_bytes=9))
    checksums = {hashlib.sha256(content).hexdigest() for content in (tokens, documents)}
    assert checksums <= set(vars(shard).values())


def test_nothing_is_left_of_a_shard_without_documents_or_of_one_that_is_abandoned(
    tmp_path: Path, writer: ShardWriter
) -> None:
    other = ShardWriter(tmp_path / "data", tmp_path / "work", "train-00001")
    assert len(files(tmp_path)) == 4
    assert writer.close() is None
    add(other, [1], [1], [0], 1)
    other.abandon()
    assert files(tmp_path) == {}
