"""`lm_eval` on an exported folder with the tasks of eval/: its figures are those worked out from the lab model."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.docs.markdown import ROOT, blocks
from tests.export.small import Run, bytes_run

from nugpt.engines.lab.generate import Trained
from nugpt.export.write import write_folder

pytestmark = pytest.mark.hf
TASKS = ROOT / "eval"
TEXT = "7 the naïve sphere of 🙂 learning\n\nrate, twice over\r\n"
QUESTIONS = [  # with every choice within the 16 tokens that the model reads
    {"question": "7 the", "choices": ["café", "sphere", "norm"], "answer": 0},
    {"question": "learning", "choices": ["rate", "你好"], "answer": 1},
    {"question": "", "choices": ["the", "zzzzzz"], "answer": 0},
    {"question": "4 lay", "choices": ["q", "width of"], "answer": 1},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return bytes_run(tmp_path_factory.mktemp("run"))


def documented_arguments() -> list[str]:
    """Those of the command that docs/export.md gives for files of one's own."""
    text = "".join(block.text for block in blocks(ROOT / "docs" / "export.md") if block.language == "sh")
    commands = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]
    (arguments,) = (words[1:] for words in commands if words[0] == "lm_eval" and "--metadata" in words)
    return arguments


@pytest.fixture(scope="module")
def results(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the documented command reports."""
    root = tmp_path_factory.mktemp("evaluation")
    write_folder(root / "mymodel", run.directory, run.checkpoint)
    (root / "eval").symlink_to(TASKS)
    (root / "my.txt").write_bytes(TEXT.encode())
    (root / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS), encoding="utf-8")
    command = [sys.executable, "-m", "lm_eval", *documented_arguments(), "--output_path", "results"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(root / "hf")}
    done = subprocess.run(command, cwd=root, env=os.environ | offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (root / "results").rglob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())["results"]
    return found


def log_likelihood(lab: Trained, context: list[int], continuation: list[int]) -> float:
    """The sum of the continuation's log-probabilities, in float64."""
    ids = torch.tensor([context + continuation])
    logits = lab.model.logits(lab.model(ids[:, :-1], lab.gains), lab.gains)[0].double()
    rows = logits.log_softmax(-1)[len(context) - 1 :]
    return float(rows.gather(-1, torch.tensor(continuation).unsqueeze(-1)).sum())


def test_rolling_perplexity_is_that_of_windows_of_the_models_length(run: Run, results: dict[str, Any]) -> None:
    lab = run.lab()
    ids, length = lab.tokenizer.encode(TEXT), run.spec.model.seq_len
    assert len(ids) > 3 * length
    total = 0.0
    for start in range(0, len(ids), length):
        end = min(start + length, len(ids))
        # Every window has `length` inputs: the last, which has less to foretell, sees more of what came before.
        context = ids[end - length - 1 : start] if start else [lab.tokenizer.eot]
        total += log_likelihood(lab, context, ids[start:end])
    n_bytes = len(TEXT.encode())
    figures = results["nugpt_text"]
    # Float32 there, float64 sums here: seven digits of a sum of some sixty numbers.
    assert figures["bits_per_byte,none"] == pytest.approx(-total / n_bytes / math.log(2), rel=1e-5)
    assert figures["byte_perplexity,none"] == pytest.approx(math.exp(-total / n_bytes), rel=1e-5)


def test_the_choice_is_the_likeliest_continuation(run: Run, results: dict[str, Any]) -> None:
    lab = run.lab()
    right = right_by_length = 0
    for row in QUESTIONS:
        context = lab.tokenizer.encode(str(row["question"])) or [lab.tokenizer.eot]
        options = [str(one) for one in row["choices"]]
        scores = [log_likelihood(lab, context, lab.tokenizer.encode(" " + one)) for one in options]
        by_length = [score / len(one) for score, one in zip(scores, options, strict=True)]
        right += scores.index(max(scores)) == row["answer"]
        right_by_length += by_length.index(max(by_length)) == row["answer"]
    assert results["nugpt_choice"]["acc,none"] == pytest.approx(right / len(QUESTIONS))
    assert results["nugpt_choice"]["acc_norm,none"] == pytest.approx(right_by_length / len(QUESTIONS))


@pytest.fixture(scope="module")
def local_files() -> ModuleType:
    spec = importlib.util.spec_from_file_location("local_files", TASKS / "local_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_file_the_samples_are_read(local_files: ModuleType) -> None:
    assert local_files.text(version=1.0)["test"][0]["text"] == (TASKS / "sample.txt").read_text(encoding="utf-8")
    rows = list(local_files.choices(pretrained="out")["test"])
    assert len(rows) == 6
    assert all(0 <= row["answer"] < len(row["choices"]) for row in rows)


def test_only_a_line_feed_ends_a_line(local_files: ModuleType, tmp_path: Path) -> None:
    row = {"question": "one\u2028two\x85three", "choices": ["a", "b"], "answer": 1}
    (tmp_path / "my.jsonl").write_bytes((json.dumps(row, ensure_ascii=False) + "\r\n").encode())
    assert list(local_files.choices(choice_file=str(tmp_path / "my.jsonl"))["test"]) == [row]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1: must be a JSON object"),
        ("[]", "line 1: must be a JSON object"),
        ('{"question": "a", "choices": ["b"]}', "'answer'"),
        ('{"question": "a", "choices": ["b"], "answer": 1}', "answer is 1, but must be the place of one of 1"),
        ('{"question": "a", "choices": ["b", "c"], "answer": 0.9}', "answer is 0.9, but must be"),
        ('{"question": "a", "choices": ["b", "c"], "answer": true}', "answer is True, but must be"),
        ('{"question": "a", "choices": "bc", "answer": 0}', "choices a list of texts"),
        ('{"question": "a", "choices": ["b", ""], "answer": 0}', "none of them empty"),
        ('{"question": 3, "choices": ["b", "c"], "answer": 0}', "question must be a text"),
        ("", "is empty"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(local_files: ModuleType, tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "my.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=words) as error:
        local_files.choices(choice_file=str(tmp_path / "my.jsonl"))
    assert "\n" not in str(error.value)
    (tmp_path / "my.txt").write_text("")
    with pytest.raises(ValueError, match="is empty"):
        local_files.text(text_file=str(tmp_path / "my.txt"))
