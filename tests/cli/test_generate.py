"""`nugpt generate`: text on standard output, and a line for every mistake."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.engines.small import directory_of, make_dataset, make_spec, train

from nugpt.cli.main import main
from nugpt.engines.lab.generate import Sampling, generate, load_trained
from nugpt.spec.run import RunSpec
from nugpt.store import Store


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSpec]:
    """A store with a run that was trained at a high rate, so that its text is not noise."""
    root = tmp_path_factory.mktemp("generate")
    dataset = make_dataset(root)
    spec = make_spec(dataset, lr=2**-2, steps=40)
    train([spec], root / "runs", dataset, log_every=40, checkpoint_every=20)
    return root / "runs", spec


def text_of(
    finished: tuple[Path, RunSpec], prompt: str, n: int, sampling: Sampling, checkpoint: str | None = None
) -> str:
    store, spec = finished
    trained = load_trained(directory_of(spec, store), checkpoint)
    tokens = list(generate(trained, trained.tokenizer.encode(prompt), n, sampling))
    return prompt + trained.tokenizer.decode(tokens) + "\n"


def test_prints_the_prompt_and_what_follows(finished: tuple[Path, RunSpec], capsys: pytest.CaptureFixture[str]) -> None:
    store, spec = finished
    for name in (spec.hash, spec.hash[:6], str(store / spec.hash)):
        assert main(["generate", name, "--store", str(store), "--prompt", "7 the naïve", "--max-tokens", "40"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out == text_of(finished, "7 the naïve", 40, Sampling(0.8))
    words = ["--temperature", "1.2", "--top-k", "30", "--top-p", "0.9", "--seed", "5", "--max-tokens", "25"]
    words += ["--checkpoint", "step-000000020"]
    assert main(["generate", spec.hash, "--store", str(store), *words]) == 0
    assert capsys.readouterr().out == text_of(finished, "", 25, Sampling(1.2, 30, 0.9, 5), "step-000000020")


def test_without_the_cache_the_text_is_the_same(
    finished: tuple[Path, RunSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    store, spec = finished
    for more in (["--temperature", "0"], ["--seed", "3"]):
        words = ["generate", spec.hash, "--store", str(store), "--max-tokens", "40", *more]
        main(words)
        cached = capsys.readouterr().out
        main([*words, "--no-cache"])
        assert capsys.readouterr().out == cached


def test_text_is_shown_as_it_comes(finished: tuple[Path, RunSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    store, spec = finished
    flushed: list[str] = []
    written: list[str] = []
    monkeypatch.setattr(sys.stdout, "write", lambda text: written.append(text) or len(text))
    monkeypatch.setattr(sys.stdout, "flush", lambda: flushed.append("".join(written)))
    assert main(["generate", spec.hash, "--store", str(store), "--prompt", "7 the ", "--max-tokens", "30"]) == 0
    assert len(set(flushed)) > 10
    assert flushed[0].startswith("7 the ")
    assert "".join(written) == text_of(finished, "7 the ", 30, Sampling(0.8))


def test_a_run_can_be_used_where_its_data_is_not(
    finished: tuple[Path, RunSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, spec = finished
    moved = tmp_path / "elsewhere"
    for path in (store / spec.hash).rglob("*"):
        if path.is_file():
            target = moved / path.relative_to(store / spec.hash)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    about = json.loads((moved / "data.json").read_text())
    (moved / "data.json").write_text(json.dumps(about | {"path": "/gone"}))
    assert main(["generate", str(moved), "--prompt", "7 ", "--max-tokens", "20"]) == 0
    assert capsys.readouterr().out == text_of(finished, "7 ", 20, Sampling(0.8))


@pytest.mark.parametrize(
    ("name", "more", "word"),
    [
        ("zzzz", [], "zzzz"),
        ("/nowhere/at/all", [], "/nowhere/at/all"),
        ("", [], "hash"),
        ("RUN", ["--checkpoint", "step-000000007"], "step-000000020, step-000000040"),
        ("RUN", ["--max-tokens", "0"], "max_tokens is 0"),
        ("RUN", ["--temperature", "-1"], "temperature is -1"),
        ("RUN", ["--top-p", "0"], "top_p is 0"),
        ("RUN", ["--top-k", "-2"], "top_k is -2"),
        ("RUN", ["--seed", "-2"], "seed is -2"),
        ("RUN", ["--device", "toaster"], "toaster"),
        ("RUN", ["--device", "cuda:99"], "cuda:99"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    finished: tuple[Path, RunSpec], capsys: pytest.CaptureFixture[str], name: str, more: list[str], word: str
) -> None:
    store, spec = finished
    assert main(["generate", spec.hash if name == "RUN" else name, "--store", str(store), *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"nugpt: error: [^\n]+\n", err), err
    assert word in err


def test_a_run_without_a_checkpoint_or_with_spoiled_ones_is_one_line(
    finished: tuple[Path, RunSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, spec = finished
    directory = Store(tmp_path).run(spec)
    assert main(["generate", spec.hash, "--store", str(tmp_path)]) == 2
    assert "no checkpoint" in capsys.readouterr().err
    (directory.checkpoints / "step-000000020").mkdir(parents=True)
    assert main(["generate", spec.hash, "--store", str(tmp_path)]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("nugpt: warning: checkpoint ")
    assert "step-000000020" in warning
    assert "no checkpoint" in error
    (tmp_path / spec.hash / "spec.json").write_text('{"format": 99}')
    assert main(["generate", spec.hash, "--store", str(tmp_path)]) == 2
    assert "99" in capsys.readouterr().err
