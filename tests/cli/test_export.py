"""`nugpt export hf`, `nugpt import hf`, and `nugpt generate` on what they make: a line for every mistake."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.export.small import STEPS, Run, bytes_run, edit_config

from nugpt.cli.main import main
from nugpt.engines.lab.generate import Sampling, generate
from nugpt.store import RunDirectory

NEWEST = f"step-{STEPS:09d}"
GREEDY = ["--temperature", "0", "--max-tokens", "30"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return bytes_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    assert main(["export", "hf", str(run.directory.path), str(out)]) == 0
    return out


def text_after(run: Run, prompt: str, n: int, sampling: Sampling) -> str:
    lab = run.lab()
    return lab.tokenizer.decode(generate(lab, lab.tokenizer.encode(prompt), n, sampling))


def one_line(capsys: pytest.CaptureFixture[str], words: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"nugpt: error: [^\n]+\n", err), err
    assert words in err


def test_a_run_by_hash_or_directory_and_a_checkpoint_export_the_same(
    run: Run, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(run.store)]
    ways = {
        "hash": [run.spec.hash[:6], *store],
        "named": [run.spec.hash, *store, "--checkpoint", NEWEST],
        "checkpoint": [str(run.directory.checkpoints / NEWEST)],
    }
    for name, words in ways.items():
        assert main(["export", "hf", words[0], str(tmp_path / name), *words[1:]]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert f"run {run.spec.hash} at step {STEPS}" in out
        for file in ("model.safetensors", "config.json", "modeling_nugpt.py", "tokenizer.json"):
            assert (tmp_path / name / file).read_bytes() == (exported / file).read_bytes()
    half = str(run.directory.checkpoints / f"step-{STEPS // 2:09d}")
    assert main(["export", "hf", half, str(tmp_path / "half")]) == 0
    assert f"at step {STEPS // 2}" in capsys.readouterr().out


def test_a_run_that_diverged_is_exported_and_continued_with_a_warning(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.directory.path, tmp_path / "runs" / run.spec.hash)
    directory = RunDirectory(tmp_path / "runs" / run.spec.hash)
    record = directory.record()
    assert record is not None
    lost = replace(record, status="diverged", val_loss=None, val_loss_ema=None, train_loss=None, val_loss_by_source={})
    for at, told in (
        (STEPS - 1, f"; its weights, saved when that was noticed at step {STEPS}, are no result\n"),
        (STEPS, f"; its weights, saved when that was noticed at step {STEPS}, are no result\n"),
        (STEPS + 1, f"; its weights of step {STEPS} are from before\n"),
    ):
        directory.write_record(replace(lost, steps=at, diverged_at=at, lerp={}))
        expected = f"nugpt: warning: run {run.spec.hash} diverged at step {at}{told}"
        assert main(["export", "hf", str(directory.path), str(tmp_path / f"out {at}")]) == 0
        assert capsys.readouterr().err == expected
        assert main(["generate", str(directory.path), *GREEDY]) == 0
        assert capsys.readouterr().err == expected


def test_importing_gives_a_run_whose_weights_are_the_same_to_the_bit(
    run: Run, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # the second time it is there already
        assert main(["import", "hf", str(exported), "--store", str(tmp_path)]) == 0
        made = tmp_path / run.spec.hash / "checkpoints" / NEWEST
        assert capsys.readouterr().out == f"{made}\n"
    theirs = run.directory.checkpoints / NEWEST / "model.safetensors"
    assert (made / "model.safetensors").read_bytes() == theirs.read_bytes()
    assert main(["generate", str(made), "--prompt", "7 the ", *GREEDY]) == 0
    assert capsys.readouterr().out == "7 the " + text_after(run, "7 the ", 30, Sampling(0)) + "\n"


def test_changed_weights_are_warned_of(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "folder"))
    edit_config(folder, nugpt__weights="0" * 64)
    assert main(["import", "hf", str(folder), "--store", str(tmp_path / "runs")]) == 0
    assert "warning: the weights" in capsys.readouterr().err


def test_generate_takes_a_folder_and_streams_the_labs_text(
    run: Run, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (GREEDY, ["--seed", "5", "--max-tokens", "30", "--temperature", "1.2"], [*GREEDY, "--no-cache"]):
        sampling = Sampling(0) if "0" in more else Sampling(1.2, seed=5)
        assert main(["generate", str(exported), "--prompt", "7 the ", *more]) == 0
        assert capsys.readouterr().out == "7 the " + text_after(run, "7 the ", 30, sampling) + "\n"


@pytest.mark.slow
def test_neither_exporting_nor_generating_needs_transformers(run: Run, exported: Path, tmp_path: Path) -> None:
    code = """
import sys
from nugpt.cli.main import main
folder, out, checkpoint, store = sys.argv[1:]
assert main(["export", "hf", checkpoint, out]) == 0
assert main(["import", "hf", folder, "--store", store]) == 0
assert main(["generate", folder, "--max-tokens", "3"]) == 0
sys.exit("transformers was imported" if "transformers" in sys.modules else 0)
"""
    words = [exported, tmp_path / "out", run.directory.checkpoints / NEWEST, tmp_path / "runs"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- the interactive prompt


def test_lines_are_continued_and_an_empty_one_goes_on(
    run: Run, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("7 the \n\n1 of\n"))
    assert main(["generate", str(exported), "--interactive", *GREEDY]) == 0
    lab = run.lab()
    first = lab.tokenizer.encode("7 the ")
    first += list(generate(lab, first, 30, Sampling(0)))
    second = list(generate(lab, first, 30, Sampling(0)))
    expected = [
        lab.tokenizer.decode(first),
        lab.tokenizer.decode(second),
        "1 of" + text_after(run, "1 of", 30, Sampling(0)),
    ]
    assert capsys.readouterr().out == "".join(text + "\n" for text in expected)


def test_a_prompt_comes_before_the_first_question_and_turns_draw_anew(
    run: Run, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("7 the \n"))
    words = ["generate", str(exported), "--interactive", "--prompt", "7 the ", "--max-tokens", "30", "--seed", "4"]
    assert main([*words, "--temperature", "1"]) == 0
    expected = ["7 the " + text_after(run, "7 the ", 30, Sampling(1.0, seed=seed)) + "\n" for seed in (4, 5)]
    assert expected[0] != expected[1]
    assert capsys.readouterr().out == "".join(expected)


def test_a_document_that_goes_on_is_the_one_that_was_begun(
    run: Run, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    words = ["generate", str(exported), "--interactive", "--temperature", "0", "--max-tokens", "12"]
    assert main(words) == 0
    lab = run.lab()
    whole = list(generate(lab, [], 24, Sampling(0)))
    assert len(whole) == 24
    assert capsys.readouterr().out == lab.tokenizer.decode(whole[:12]) + "\n" + lab.tokenizer.decode(whole[12:]) + "\n"


def test_a_text_that_is_not_utf8_is_one_line_and_ends_no_conversation(
    run: Run, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["generate", str(exported), "--prompt", "a\udcff"]) == 2
    one_line(capsys, r"the text 'a\udcff' is not UTF-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\udcff\n1 of\n"))
    assert main(["generate", str(exported), "--interactive", *GREEDY]) == 0
    out, err = capsys.readouterr()
    assert out == "1 of" + text_after(run, "1 of", 30, Sampling(0)) + "\n"
    assert err == "nugpt: the text 'a\\udcff' is not UTF-8: give it in that encoding\n"


def test_an_interrupt_stops_the_text_and_not_the_conversation(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import nugpt.engines.lab.generate as module

    real, calls = module.generate, 0

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        for i, token in enumerate(real(*arguments)):  # type: ignore[arg-type]
            if calls == 1 and i == 3:
                raise KeyboardInterrupt
            yield token

    monkeypatch.setattr(module, "generate", interrupted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("7 the \n1 of\n"))
    assert main(["generate", str(exported), "--interactive", *GREEDY]) == 0
    assert calls == 2
    assert "\n1 of" in capsys.readouterr().out
    calls = 0
    assert main(["generate", str(exported), "--prompt", "7 the ", *GREEDY]) == 130


# --- mistakes


def test_a_checkpoint_cut_short_is_one_line(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(run.directory.path, tmp_path / "copy"))
    weights = copy / "checkpoints" / NEWEST / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for name in (copy, weights.parent):  # a run's newest is not passed over for an older one in silence
        assert main(["export", "hf", str(name), str(tmp_path / "out")]) == 2
        one_line(capsys, "model.safetensors does not match its checksum")
    assert main(["generate", str(weights.parent)]) == 2
    one_line(capsys, "does not match its checksum")
    older = copy / "checkpoints" / f"step-{STEPS // 2:09d}"
    shutil.rmtree(weights.parent)
    shutil.copytree(older, weights.parent)  # a checkpoint that is whole, but of another model
    edit_spec(copy, n_kv_heads=2)
    for command in (["export", "hf", str(copy), str(tmp_path / "out")], ["generate", str(copy)]):
        assert main(command) == 2
        one_line(capsys, "has shape (12, 24), but must have (24, 24)")
    (copy / "data.json").unlink()
    shutil.copy(run.directory.path / "spec.json", copy)
    assert main(["generate", str(copy)]) == 2
    one_line(capsys, "data.json does not say which tokenizer")
    (weights.parent / "state.json").unlink()
    assert main(["export", "hf", str(weights.parent), str(tmp_path / "out")]) == 2
    one_line(capsys, "has no state.json")
    assert not (tmp_path / "out").exists()


def edit_spec(directory: Path, **changes: object) -> None:
    values = json.loads((directory / "spec.json").read_text())
    values["model"] |= changes
    (directory / "spec.json").write_text(json.dumps(values))


@pytest.mark.parametrize("command", [["import", "hf"], ["generate"]])
def test_a_spoiled_folder_is_one_line(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    def spoiled(name: str) -> Path:
        return Path(shutil.copytree(exported, tmp_path / name))

    foreign = spoiled("foreign")
    edit_config(foreign, model_type="gpt2")
    short = spoiled("short")
    content = (short / "model.safetensors").read_bytes()
    (short / "model.safetensors").write_bytes(content[: len(content) // 2])
    other = spoiled("other")
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text(encoding="utf-8")[:100])
    bare = spoiled("bare")
    (bare / "config.json").unlink()
    cases = (
        (foreign, "'gpt2'"),
        (short, "cut short"),
        (other, "is not a tokenizer.json"),
        (bare, "config.json"),
    )
    for folder, words in cases:
        assert main([*command, str(folder), "--store", str(tmp_path / "runs")]) == 2
        one_line(capsys, words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "hf", "zzzz", "OUT"], "zzzz"),
        (["export", "hf", "RUN", "TAKEN"], "exists and is not an empty folder"),
        (["export", "hf", "RUN", "OUT", "--checkpoint", "step-000000007"], f"it has step-{STEPS // 2:09d}, {NEWEST}"),
        (["export", "hf", "RUN", "OUT", "--license", "a b"], "license is 'a b'"),
        (["export", "hf", "CHECKPOINT", "OUT", "--checkpoint", NEWEST], "is a checkpoint already"),
        (["export", "hf", "LONE", "OUT"], "lies in no run's directory"),
        (["export", "hf", "FOLDER", "OUT"], "is an exported folder already"),
        (["export", "hf", "TAKEN", "OUT"], "is neither a run's directory nor a checkpoint's"),
        (["export", "hf", "DCP", "OUT"], "/empty --step 7` makes one of it"),
        (["generate", "DCP"], "/empty --step 7` makes one of it"),
        (["train", "--start-from", "DCP"], "dcp/step-7 is a checkpoint of many devices: `nugpt convert /"),
        (["train", "--extend", "DCP", "--steps", "9"], "/empty --step 7` makes one of it"),
        (["train", "--start-from", "FOLDER"], "is an exported folder: `nugpt import hf` makes a run of it"),
        (["generate", "TAKEN"], "is neither a run's directory nor a checkpoint's"),
        (["export", "hf", "EMPTY", "OUT"], "has no checkpoint to export"),
        (["import", "hf", "nowhere"], "nowhere is no exported model"),
        (["import", "hf", "RUN"], "is no exported model"),
        (["generate", "FOLDER", "--checkpoint", NEWEST], "is an exported folder"),
        (["export"], "'export' needs a second word: export hf"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    run: Run, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    (tmp_path / "checkpoints" / NEWEST).mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    shutil.copy(run.directory.path / "spec.json", tmp_path / "empty")
    (tmp_path / "empty" / "dcp" / "step-7").mkdir(parents=True)
    places = {
        "RUN": run.directory.path,
        "CHECKPOINT": run.directory.checkpoints / NEWEST,
        "LONE": tmp_path / "checkpoints" / NEWEST,
        "EMPTY": tmp_path / "empty",
        "DCP": tmp_path / "empty" / "dcp" / "step-7",
        "OUT": tmp_path / "out",
        "TAKEN": tmp_path / "taken",
        "FOLDER": exported,
    }
    assert main([str(places.get(word, word)) for word in words]) == 2
    one_line(capsys, says)
    assert not (tmp_path / "out").exists()


def test_the_weights_of_the_folder_are_the_checkpoints(run: Run, exported: Path) -> None:
    ours, theirs = load_file(exported / "model.safetensors"), run.checkpoint.model
    assert {name: tensor.numpy().tobytes() for name, tensor in ours.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in theirs.items()
    }
