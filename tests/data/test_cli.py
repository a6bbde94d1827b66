"""`nugpt data`: what it prints, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from tests.data.corpus import jsonl, make_documents, write_like

from nugpt.cli.data import BenchData, Inspect, Prepare, Verify
from nugpt.cli.main import main
from nugpt.data import Progress
from nugpt.engines.lab.device import cpu_name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_like(tmp_path / "corpus.jsonl", make_documents(200))


def test_prepare_inspect_and_verify(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    arguments = ["--tokenizer", "bytes", "--out", out, "--workers", "1"]
    assert main(["data", "prepare", str(source), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "vocabulary 384" in printed
    assert main(["data", "inspect", out]) == 0
    assert capsys.readouterr().out == printed
    assert main(["data", "inspect", out, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    stored = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert facts == {key: value for key, value in stored.items() if key in facts}
    assert main(["data", "verify", out]) == 0
    assert "is sound" in capsys.readouterr().out


def test_verify_names_what_is_damaged_and_fails(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    Prepare((str(source),), str(out), "bytes", workers=1).run()
    content = bytearray((out / "train-00000.bin").read_bytes())
    content[100] ^= 1
    (out / "train-00000.bin").write_bytes(content)
    capsys.readouterr()
    assert Verify(str(out)).run() == 1
    assert "train-00000.bin is damaged" in capsys.readouterr().out
    assert Verify(str(out), json=True).run() == 1
    assert json.loads(capsys.readouterr().out)["sound"] is False


def test_a_mistake_is_one_line_and_status_two(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["prepare", "nowhere.txt", "--out", str(tmp_path / "a")], "nowhere.txt"),
        (["prepare", "--out", str(tmp_path / "a")], "no source"),
        (["prepare", str(source), "--out", str(tmp_path / "a"), "--tokenizer", "bpe:3"], "bpe:3"),
        (["inspect", str(tmp_path / "b")], "manifest.json"),
        (["verify", str(tmp_path / "b")], f"{tmp_path / 'b'} holds no manifest.json"),
        (["verify", str(tmp_path), "--json"], "manifest.json"),
    ):
        assert main(["data", *arguments]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert word in shown.err
        assert shown.err.count("\n") == 1


def test_malformed_lines_and_sources_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"s{i % 2}" for i in range(200)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(make_documents(200), names) + b"{\n{}\n")
    Prepare((str(tmp_path / "a.jsonl"),), str(tmp_path / "out"), "bytes", workers=1).run()
    shown = capsys.readouterr().out
    assert "a.jsonl: of 202 lines 2 were left out as malformed (1 not JSON, 1 without text, 0 not UTF-8)" in shown
    assert "s1" in shown


def test_a_log_gets_a_line_now_and_then(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nugpt.cli.data.SECONDS_BETWEEN_LINES", 0.0)
    Prepare((str(source),), str(tmp_path / "out"), "bytes", shard_tokens=5000, workers=1).run()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 3
    assert lines[-1].startswith("100.0%")
    assert "tokens/s" in lines[-1]


def test_the_benchmark_measures_both_ways(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"tokenizer": "bytes", "workers": 1, "batch_size": 2, "seq_len": 16, "seconds": 0.01}
    assert BenchData((str(source),), json=True, **settings).run() == 0  # type: ignore[arg-type]
    result = json.loads(capsys.readouterr().out)
    assert result["prepare"]["tokens"] > 10_000
    assert result["environment"]["device"] == cpu_name()
    assert min(result["load"]["tokens_per_second"], result["load"]["tokens_per_second_prefetched"]) > 0
    assert BenchData((str(source),), **settings).run() == 0  # type: ignore[arg-type]
    assert "tokens/s" in capsys.readouterr().out


def test_inspect_refuses_what_opening_refuses(source: Path, tmp_path: Path) -> None:
    Prepare((str(source),), str(tmp_path / "out"), "bytes", workers=1).run()
    (tmp_path / "out" / "train-00000.docs").unlink()
    with pytest.raises(ValueError, match=r"train-00000\.docs is missing"):
        Inspect(str(tmp_path / "out")).run()


@pytest.mark.parametrize(
    ("after", "force", "said"),
    [
        (2, False, r"stopped: {out} keeps 2 shards of [\d,]+ tokens, and the same command goes on after them"),
        (
            1,
            True,
            r"stopped: {out} keeps 1 shard of [\d,]+ tokens, and the same command without --force goes on after them",
        ),
        (0, False, r"stopped before a shard was whole: the same command begins with the first"),
    ],
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    after: int,
    force: bool,
    said: str,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pressed(progress: Progress) -> None:
        if progress.shards >= after:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("nugpt.cli.data._plain_lines", lambda: pressed)
        words = Prepare((str(source),), str(out), "bytes", shard_tokens=5000, workers=1, force=force)
        assert words.run() == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(said.format(out=re.escape(str(out))) + "\n", shown.err)
    kept = {path: path.stat().st_ino for path in out.glob("train-*.bin")}
    assert len(kept) == after
    assert Prepare((str(source),), str(out), "bytes", shard_tokens=5000, workers=1).run() == 0
    assert all(path.stat().st_ino == inode for path, inode in kept.items())


@pytest.mark.parametrize("force", [False, True])
def test_ctrl_c_before_a_whole_data_set_is_touched_says_that_it_is_whole(
    force: bool, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    out = str(tmp_path / "out")
    assert Prepare((str(source),), out, "bytes", workers=1).run() == 0
    capsys.readouterr()
    monkeypatch.setattr(import_module("nugpt.data.prepare"), "list_sources", pressed)  # hashing gigabytes
    assert Prepare((str(source),), out, "bytes", workers=1, force=force).run() == 130
    assert capsys.readouterr().err == f"stopped: the data set in {out} is whole\n"
    assert Verify(out).run() == 0


@pytest.mark.skipif(os.name != "posix", reason="signals come in another way there")
def test_ctrl_c_in_a_terminal_is_one_line_whatever_the_workers_are_at(tmp_path: Path) -> None:
    source = write_like(tmp_path / "corpus.jsonl", make_documents(20_000, words=200))
    command = [sys.executable, "-m", "nugpt", "data", "prepare", str(source), "--out", str(tmp_path / "out")]
    command += ["--tokenizer", "bytes", "--workers", "2", "--shard-tokens", "5000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    while not (tmp_path / "out" / ".nugpt-progress" / "plan.json").exists():  # workers are about to start
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err.startswith(b"stopped")
    assert err.count(b"\n") == 1
