"""Killed at any moment, preparing leaves no half shard behind and goes on where it was."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data.corpus import contents, make_documents, write_like

from nugpt.data import manifest as manifest_module
from nugpt.data import prepare, verify
from nugpt.data.manifest import SHARD_NAME

SETTINGS = {"val_fraction": 0.1, "shard_tokens": 40_000}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_like(tmp_path / "corpus.jsonl", make_documents(400, words=100))


def shards(out: Path) -> dict[str, int]:
    """Every file that has the name of a shard, with its inode."""
    if not out.exists():
        return {}
    return {one.name: one.stat().st_ino for one in out.iterdir() if SHARD_NAME.fullmatch(one.stem)}


def in_child(work: Callable[[], object]) -> int:
    """Run in a fork of this process and return its exit status as waitpid gives it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_killed_before_or_after_any_file_gets_its_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: Path) -> None:
        prepare([str(source)], "bytes", out, workers=1, **SETTINGS)  # type: ignore[arg-type]

    run(tmp_path / "undisturbed")
    expected = contents(tmp_path / "undisturbed")
    sizes = {name: len(data) for name, data in expected.items()}
    replace = os.replace
    moment = 0
    while True:
        out = tmp_path / f"killed-{moment}"
        calls = 0

        def killing(old: object, new: object) -> None:
            nonlocal calls
            if calls == moment // 2 and moment % 2 == 0:  # noqa: B023
                os.kill(os.getpid(), signal.SIGKILL)
            replace(old, new)  # type: ignore[arg-type]
            if calls == moment // 2:  # noqa: B023
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1

        monkeypatch.setattr(manifest_module.os, "replace", killing)
        status = in_child(lambda: run(out))  # noqa: B023
        monkeypatch.setattr(manifest_module.os, "replace", replace)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        before = shards(out)
        # Whatever has the name of a shard is a whole one.
        assert all((out / name).stat().st_size == sizes[name] for name in before)
        committed = len(list((out / ".nugpt-progress").glob("part-*.json")))
        run(out)
        assert contents(out) == expected
        after = shards(out)
        finished = [name for name in before if int(name.split("-")[1].split(".")[0]) < committed]
        assert all(after[name] == before[name] for name in finished), "a finished shard was made again"
        moment += 1
    # Before and after each: input hashes, plan, every shard file, at least two records of parts, and the manifest.
    assert moment >= 2 * (len(shards(tmp_path / "undisturbed")) + 5)
    assert len(shards(tmp_path / "undisturbed")) >= 8


def test_a_full_disk_is_an_error_and_the_work_goes_on_later(source: Path, tmp_path: Path) -> None:
    def run(out: Path) -> None:
        prepare([str(source)], "bytes", out, workers=1, **SETTINGS)  # type: ignore[arg-type]

    def without_room() -> None:
        # A limit on the size of a file fails a write as a full disk does. Shards have eighty thousand bytes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(OSError, match="File too large") as refusal:
            run(tmp_path / "out")
        assert refusal.value.filename == str(tmp_path / "out" / "train-00000.bin")

    assert in_child(without_room) == 0
    assert shards(tmp_path / "out") == {}
    run(tmp_path / "out")
    run(tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def command(source: Path, out: Path, tokenizer: str) -> list[str]:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from nugpt.data import prepare\n"
        f"prepare([{str(source)!r}], {tokenizer!r}, {str(out)!r}, workers=2, val_fraction=0.1, shard_tokens=60_000)\n"
    )
    return [sys.executable, "-c", program]


def wait_until_gone(group: int) -> None:
    """Wait for the last process of a group to end."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("workers outlive the process that started them")


def test_killed_at_random_moments_with_workers(tmp_path: Path) -> None:
    source = write_like(tmp_path / "corpus.jsonl", make_documents(5000))
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "killed"
    start = time.monotonic()
    subprocess.run(command(source, undisturbed, "bpe:320"), check=True)
    whole = time.monotonic() - start
    rng = random.Random(3)
    for _ in range(4):
        process = subprocess.Popen(command(source, out, "bpe:320"), start_new_session=True)
        time.sleep(rng.uniform(0.3, 1.0) * whole)
        process.kill()
        process.wait()
        wait_until_gone(process.pid)
        sizes = {name: (out / name).stat().st_size for name in shards(out)}
        assert all(sizes[name] == (undisturbed / name).stat().st_size for name in sizes)
    subprocess.run(command(source, out, "bpe:320"), check=True)
    assert contents(out) == contents(undisturbed)
    assert verify(out) == []


def test_a_shard_taken_away_while_work_rests_is_made_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    class Interrupted(Exception):
        pass

    def run(stop_at: int | None) -> None:
        def report(progress: object) -> None:
            if stop_at is not None and progress.shards >= stop_at:  # type: ignore[attr-defined]
                raise Interrupted

        prepare([str(source)], "bytes", out, workers=1, report=report, **SETTINGS)  # type: ignore[arg-type]

    with pytest.raises(Interrupted):
        run(3)
    kept = shards(out)
    (out / "train-00001.bin").unlink()
    run(None)
    assert verify(out) == []
    assert shards(out)["train-00000.bin"] == kept["train-00000.bin"]
    prepare([str(source)], "bytes", tmp_path / "again", workers=1, **SETTINGS)  # type: ignore[arg-type]
    assert contents(out) == contents(tmp_path / "again")


def test_other_settings_do_not_go_on_with_work_begun(source: Path, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def report(progress: object) -> None:
        if progress.shards >= 2:  # type: ignore[attr-defined]
            raise Interrupted

    with pytest.raises(Interrupted):
        prepare([str(source)], "bytes", tmp_path / "out", workers=1, report=report, **SETTINGS)  # type: ignore[arg-type]
    before = shards(tmp_path / "out")
    with pytest.raises(ValueError, match="val_fraction"):
        prepare([str(source)], "bytes", tmp_path / "out", workers=1, shard_tokens=12_000, val_fraction=0.3)
    assert shards(tmp_path / "out") == before
    tokens = np.fromfile(tmp_path / "out" / "train-00000.bin", "<u2")
    assert len(tokens) >= 12_000
