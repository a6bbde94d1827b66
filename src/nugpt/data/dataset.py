"""Batches from shards: which windows a step reads is a pure function of (seed, step)."""

import contextlib
import queue
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nugpt.data.manifest import Manifest, Shard, digest, read_manifest
from nugpt.data.permutation import Permutation, keyed_permutation
from nugpt.data.shards import document_map, token_map
from nugpt.data.tokenizer import Tokenizer, stored_tokenizer
from nugpt.data.verify import full_problems, size_problems

if TYPE_CHECKING:
    from nugpt.spec.model import ModelConfig

# Checksums run at about a gigabyte per second: below this size opening checks them all and nobody notices. Larger data
# is read in full once, and again when a file of it has changed.
FULL_CHECK_BYTES = 256 << 20
CHECKS = ("auto", "sizes", "full")
AHEAD = 4  # batches that are read before anybody asks for them

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class ValidationSet:
    """Fixed windows of the validation split, and the source of each target."""

    inputs: NDArray[np.int64]  # (windows, seq_len)
    targets: NDArray[np.int64]
    sources: NDArray[np.int64]  # places in `source_names`; an end-of-text belongs to the document it ends
    source_names: tuple[str, ...]


class TokenStream:
    """The shards of a split as one long sequence of tokens, mapped into memory."""

    def __init__(self, directory: Path, shards: Sequence[Shard], dtype: str) -> None:
        self._directory, self._shards, self._dtype = directory, tuple(shards), dtype
        self._starts = np.cumsum([0, *(shard.counts.tokens for shard in shards)])
        self._maps: dict[int, NDArray[np.generic]] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return the tokens of windows that begin at these places, one row each."""
        rows = np.empty((len(starts), length), np.int64)
        first = np.searchsorted(self._starts, starts, side="right") - 1
        for row, start, number in zip(rows, starts.tolist(), first.tolist(), strict=True):
            filled = 0
            while filled < length:  # once, but for a window that crosses into the next shard
                within = start + filled - int(self._starts[number])
                part = self._map(number)[within : within + length - filled]
                row[filled : filled + len(part)] = part
                filled += len(part)
                number += 1
        return rows

    def _map(self, number: int) -> NDArray[np.generic]:
        # Opened when first needed: a large data set has more shards than a short run touches.
        if number not in self._maps:
            self._maps[number] = token_map(self._directory, self._shards[number], self._dtype)
        return self._maps[number]


@dataclass(frozen=True)
class TokenDataset:
    """A prepared data set, open for reading."""

    path: Path
    manifest: Manifest
    checked: str  # sizes or full: how much of it was checked when it was opened
    train: TokenStream = field(repr=False)
    held_out: TokenStream = field(repr=False)

    @property
    def vocab_size(self) -> int:
        """The padded vocabulary."""
        return self.manifest.tokenizer.vocab_size

    @property
    def content_hash(self) -> str:
        """What a run records of its data."""
        return self.manifest.content_hash

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer kept with the data."""
        return stored_tokenizer(self.path, self.manifest.tokenizer.end_of_text)

    def check_suits(self, model: "ModelConfig") -> None:
        """Refuse a model whose vocabulary is too small, or whose sequences are longer than a split."""
        if self.vocab_size > model.vocab_size:
            raise ValueError(
                f"vocab_size is {model.vocab_size}, but the data's tokenizer needs at least {self.vocab_size}"
            )
        self.n_windows(model.seq_len)
        _window_count(len(self.held_out), model.seq_len, "validation")

    def n_windows(self, seq_len: int) -> int:
        """How many samples of this length an epoch has."""
        return _window_count(len(self.train), seq_len, "train")

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int, rows: slice | None = None) -> Batch:
        """Return inputs and targets of a step, or of some of its rows, which are then the same as in the whole."""
        windows = batch_windows(self.n_windows(seq_len), seed, step, batch_size, rows)
        return _shifted(self.train.read(windows * seq_len, seq_len + 1))

    def validation(self, seq_len: int, max_windows: int | None = None) -> ValidationSet:
        """Return the same windows every time: all of them, or so many spread evenly over the split."""
        n = _window_count(len(self.held_out), seq_len, "validation")
        if max_windows is not None and max_windows < 1:
            raise ValueError(f"max_windows is {max_windows}; it must be at least 1")
        kept = min(n, n if max_windows is None else max_windows)
        starts = np.arange(kept, dtype=np.int64) * n // kept * seq_len
        inputs, targets = _shifted(self.held_out.read(starts, seq_len + 1))
        ends, sources = self._validation_documents()
        places = starts[:, None] + np.arange(1, seq_len + 1)
        names = tuple(source.name for source in self.manifest.sources)
        return ValidationSet(inputs, targets, sources[np.searchsorted(ends, places, side="right")], names)

    def _validation_documents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends, sources, before = [], [], 0
        for shard in self.manifest.validation.shards:
            documents = document_map(self.path, shard)
            ends.append(documents["end"].astype(np.int64) + before)
            sources.append(documents["source"].astype(np.int64))
            before += shard.counts.tokens
        return np.concatenate(ends), np.concatenate(sources)


def open_dataset(path: str | Path, check: str = "auto") -> TokenDataset:
    """Open a prepared directory; data that is not what its manifest says is refused in a line that names the file."""
    if check not in CHECKS:
        raise ValueError(f"check is {check!r}; it must be one of {', '.join(CHECKS)}")
    directory = Path(path).expanduser()
    manifest = read_manifest(directory)
    tokens = manifest.train.counts.tokens + manifest.validation.counts.tokens
    small = tokens * np.dtype(manifest.dtype).itemsize <= FULL_CHECK_BYTES
    if check == "auto":
        check = "full" if small or not _stamp(directory, manifest).is_file() else "sizes"
    problems = (full_problems if check == "full" else size_problems)(directory, manifest)
    if problems:
        raise ValueError(problems[0] + (f" (and {len(problems) - 1} more problems)" if problems[1:] else ""))
    if check == "full" and not small:
        with contextlib.suppress(OSError):  # where nothing can be kept, large data is read in full every time
            stamp = _stamp(directory, manifest)
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
    train = TokenStream(directory, manifest.train.shards, manifest.dtype)
    held_out = TokenStream(directory, manifest.validation.shards, manifest.dtype)
    return TokenDataset(directory, manifest, check, train, held_out)


def _stamp(directory: Path, manifest: Manifest) -> Path:
    """A file of this user's cache whose name says that just these files, by size and time, were read in full."""
    from nugpt.data.cache import user_cache

    files = sorted(path for path in directory.rglob("*") if path.is_file())
    facts = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return user_cache() / "verified" / digest([str(directory.resolve()), manifest.content_hash, facts])


def batch_windows(
    n_windows: int, seed: int, step: int, batch_size: int, rows: slice | None = None
) -> NDArray[np.int64]:
    """Return the windows of a step: every epoch is another permutation of all windows, and no window is left out."""
    if step < 0:
        raise ValueError(f"step is {step}; it must not be negative")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    samples = np.arange(batch_size, dtype=np.int64)[slice(None) if rows is None else rows] + step * batch_size
    epochs, within = np.divmod(samples, n_windows)
    windows = np.empty_like(samples)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        windows[now] = _epoch_order(n_windows, seed, epoch)(within[now])
    return windows


@lru_cache(maxsize=64)
def _epoch_order(n_windows: int, seed: int, epoch: int) -> Permutation:
    return keyed_permutation(n_windows, seed, epoch)


def _window_count(tokens: int, seq_len: int, split: str) -> int:
    if seq_len < 1:
        raise ValueError(f"seq_len is {seq_len}; it must be at least 1")
    count = (tokens - 1) // seq_len
    if count < 1:
        raise ValueError(
            f"the {split} split has {tokens} tokens, fewer than the {seq_len + 1} of one window; "
            f"use a shorter seq_len or prepare more {'text' if split == 'train' else 'validation text (val_fraction)'}"
        )
    return count


def _shifted(windows: NDArray[np.int64]) -> Batch:
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


def prefetch(
    dataset: TokenDataset,
    seed: int,
    start_step: int,
    batch_size: int,
    seq_len: int,
    stop_step: int | None = None,
    rows: slice | None = None,
) -> Generator[Batch, None, None]:
    """Yield the batches of start_step, start_step + 1, …, read ahead by a thread that ends with the iterator."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def fill() -> None:
        step = start_step
        try:
            while not stopped.is_set() and (stop_step is None or step < stop_step):
                put(dataset.batch(seed, step, batch_size, seq_len, rows))
                step += 1
            put(None)
        except BaseException as error:  # handed to the reader, who raises it
            put(error)

    thread = threading.Thread(target=fill, name="nugpt-prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
