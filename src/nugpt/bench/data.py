"""How fast text becomes tokens, and tokens become batches."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nugpt.data import Manifest, Progress, TokenDataset, open_dataset, prefetch, prepare


def bench_data(
    sources: Sequence[str] = ("embedded",),
    tokenizer: str = "bpe:1024",
    prepared: str | Path | None = None,
    workers: int | None = None,
    batch_size: int = 64,
    seq_len: int = 1024,
    seconds: float = 2.0,
) -> dict[str, Any]:
    """Measure preparing (unless prepared data is given) and loading; every rate is in tokens per second."""
    with tempfile.TemporaryDirectory(prefix="nugpt-bench-") as scratch:
        result: dict[str, Any] = {}
        if prepared is None:
            prepared = Path(scratch) / "data"
            result["prepare"] = _bench_prepare(sources, tokenizer, prepared, workers)
        dataset = open_dataset(prepared)
        result["load"] = _bench_load(dataset, batch_size, seq_len, seconds)
    return result


def _bench_prepare(sources: Sequence[str], tokenizer: str, out: Path, workers: int | None) -> dict[str, Any]:
    times: dict[str, float] = {}

    def note(progress: Progress) -> None:
        times.setdefault(progress.stage, time.perf_counter())

    start = time.perf_counter()
    manifest = prepare(sources, tokenizer, out, workers=workers, report=note)
    end = time.perf_counter()
    tokens, utf8_bytes = _totals(manifest)
    return {
        "sources": list(sources),
        "tokenizer": tokenizer,
        "workers": workers,
        "tokens": tokens,
        "utf8_bytes": utf8_bytes,
        "seconds": end - start,
        # Up to the first encoded block: finding and hashing the input, and training the tokenizer.
        "seconds_before_encoding": times["encode"] - start,
        "tokens_per_second": tokens / (end - start),
        "utf8_bytes_per_second": utf8_bytes / (end - start),
    }


def _totals(manifest: Manifest) -> tuple[int, int]:
    counts = manifest.train.counts + manifest.validation.counts
    return counts.tokens, counts.utf8_bytes


def _bench_load(dataset: TokenDataset, batch_size: int, seq_len: int, seconds: float) -> dict[str, Any]:
    plain = _steps_per_second(lambda step: dataset.batch(0, step, batch_size, seq_len), seconds)
    ahead = prefetch(dataset, 0, 0, batch_size, seq_len)
    threaded = _steps_per_second(lambda step: next(islice(ahead, 1)), seconds)
    ahead.close()
    tokens = batch_size * seq_len
    return {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "tokens_per_second": plain * tokens,
        "tokens_per_second_prefetched": threaded * tokens,
        "seconds_per_batch": 1 / plain,
    }


def _steps_per_second(load: Callable[[int], object], seconds: float) -> float:
    load(0)  # maps the shards
    start, step = time.perf_counter(), 1
    while time.perf_counter() - start < seconds:
        load(step)
        step += 1
    return (step - 1) / (time.perf_counter() - start)
