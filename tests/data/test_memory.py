"""Memory: preparing stays below a gigabyte, all processes together, whatever the size of the input."""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

GIB = 1 << 30


def documents(size: int) -> list[str]:
    """Documents of about ten thousand characters, that many bytes in all; a few words are frequent, as in any text."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(20_000)]
    often = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))  # Zipf's law
    return [f"{i} " + " ".join(rng.choices(words, cum_weights=often, k=1500)) for i in range(size // 9900)]


def write(path: Path, size: int) -> Path:
    texts = documents(min(size, 20 << 20))
    copies = -(-size // (20 << 20))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": [f"{copy} {text}" for copy in range(copies) for text in texts]}), path)
        return path
    with open(path, "w", encoding="utf-8") as file:
        for copy in range(copies):
            file.writelines(json.dumps({"text": f"{copy} {text}"}) + "\n" for text in texts)
    return path


def peak_memory(source: Path, out: Path, tokenizer: str, workers: int) -> int:
    """Prepare in a new session and return the most that its processes held together, pages they share counted once."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from nugpt.data import prepare\n"
        f"prepare([{str(source)!r}], {tokenizer!r}, {str(out)!r}, workers={workers})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, group_memory(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0
    return peak


def group_memory(group: int) -> int:
    total = 0
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getpgid(int(entry)) == group:
                lines = Path("/proc", entry, "smaps_rollup").read_text().splitlines()
                total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from /proc, which Linux has")
@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.parquet"])
def test_a_small_file_with_as_many_workers_as_there_are_by_default(tmp_path: Path, name: str) -> None:
    peak = peak_memory(write(tmp_path / name, 12 << 20), tmp_path / "out", "bpe:4096", workers=6)
    assert 50 << 20 < peak < GIB


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from /proc, which Linux has")
@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.parquet"])
def test_a_large_file(tmp_path: Path, name: str) -> None:
    peak = peak_memory(write(tmp_path / name, 300 << 20), tmp_path / "out", "bpe:8192", workers=6)
    assert 50 << 20 < peak < GIB


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory from /proc, which Linux has")
def test_the_longest_document_allowed(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"{i} " + "a b" * ((8 << 20) // 3 - 20)}) for i in range(6)]
    (tmp_path / "long.jsonl").write_text("\n".join(rows))
    assert peak_memory(tmp_path / "long.jsonl", tmp_path / "out", "bpe:300", workers=6) < GIB
