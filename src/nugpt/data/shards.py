"""Shard files: raw little-endian tokens, and beside them where each document ends and which source it is from."""

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nugpt.data.manifest import Counts, Shard, publish
from nugpt.spec.checks import written_as

# One record per document: where it ends, in tokens of its shard, and its source's place in the manifest.
DOCUMENT = np.dtype([("end", "<u8"), ("source", "<u4")])


class ShardWriter:
    """Streams one shard into temporary files; `close` gives them their names."""

    def __init__(self, directory: Path, work: Path, name: str) -> None:
        self.directory, self.name, self.counts = directory, name, Counts()
        self._temporary = [work / f"{name}.bin", work / f"{name}.docs"]
        with written_as(directory / self._temporary[0].name):
            self._files = [path.open("wb") for path in self._temporary]
        self._hashes = [hashlib.sha256(), hashlib.sha256()]

    def add(
        self, tokens: NDArray[np.generic], lengths: NDArray[np.int64], sources: NDArray[np.int64], utf8_bytes: int
    ) -> None:
        """Append documents of these lengths."""
        records = np.empty(len(lengths), DOCUMENT)
        records["end"] = self.counts.tokens + np.cumsum(lengths)
        records["source"] = sources
        for file, checksum, data in zip(self._files, self._hashes, (tokens.tobytes(), records.tobytes()), strict=True):
            with written_as(self.directory / Path(file.name).name):
                file.write(data)
            checksum.update(data)
        self.counts += Counts(len(lengths), len(tokens), utf8_bytes)

    def close(self) -> Shard | None:
        """Sync the files and give them their final names, or return None where there was nothing to write."""
        for file in self._files:
            with written_as(self.directory / Path(file.name).name):
                file.flush()
                os.fsync(file.fileno())
                file.close()
        for path in self._temporary:
            if self.counts.documents:
                publish(path, self.directory / path.name)
            else:
                path.unlink()
        checksums = [checksum.hexdigest() for checksum in self._hashes]
        return Shard(self.name, self.counts, *checksums) if self.counts.documents else None

    def abandon(self) -> None:
        """Close the files without keeping them."""
        for file, path in zip(self._files, self._temporary, strict=True):
            with contextlib.suppress(OSError):  # a full disk has no room for what is still buffered
                file.close()
            path.unlink(missing_ok=True)


def shard_files(directory: Path, shard: Shard, itemsize: int) -> list[tuple[Path, int, str]]:
    """Return path, size in bytes and sha256 of each file of a shard."""
    return [
        (directory / f"{shard.name}.bin", shard.counts.tokens * itemsize, shard.tokens_sha256),
        (directory / f"{shard.name}.docs", shard.counts.documents * DOCUMENT.itemsize, shard.documents_sha256),
    ]


def size_problem(path: Path, size: int) -> str | None:
    """Say what is wrong with a file's size, if anything."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    if found != size:
        return f"{path} has {found} bytes, the manifest says {size}: it was {'cut' if found < size else 'added to'}"
    return None


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file of any size."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def token_map(directory: Path, shard: Shard, dtype: str) -> NDArray[np.generic]:
    """Map a shard's tokens into memory."""
    # As a plain array over the map: np.memmap's own slicing takes longer than copying a window.
    return np.asarray(np.memmap(directory / f"{shard.name}.bin", dtype, "r", shape=(shard.counts.tokens,)))


def document_map(directory: Path, shard: Shard) -> NDArray[np.void]:
    """Map a shard's documents into memory."""
    return np.memmap(directory / f"{shard.name}.docs", DOCUMENT, "r", shape=(shard.counts.documents,))
