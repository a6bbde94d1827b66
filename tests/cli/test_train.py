"""`nugpt train`: what it prints, how it ends, and what it makes of a mistake."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.lab.test_corpus import unigram_loss
from tests.engines.process import run
from tests.engines.small import checkpoint_names, contents, directory_of, make_dataset, result_of

import nugpt
from nugpt.cli.main import main
from nugpt.data import TokenDataset, cached_embedded, open_dataset
from nugpt.spec.recipe import NO_DATA, recipe_of
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec, Start
from nugpt.spec.toml import to_toml
from nugpt.store import RunDirectory, Store, load_checkpoint

Train = Callable[..., int]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


def arguments(dataset: TokenDataset, store: Path, *more: str) -> list[str]:
    """A model of one layer and one head for twelve steps."""
    shape = ["--preset", "tiny-l1h1", "--seq-len", "16", "--batch", "8", "--base-batch", "1"]
    often = ["--validations", "3", "--val-windows", "4"]
    given = {word for word in more if word.startswith("--")}
    steps = [] if "--steps" in given else ["--steps", "12"]
    return [
        "train",
        *shape,
        *steps,
        *often,
        "--data",
        str(dataset.path),
        "--store",
        str(store),
        "--device",
        "cpu",
        *more,
    ]


@pytest.fixture
def train(dataset: TokenDataset, tmp_path: Path) -> Train:
    """Run the command in this process with its store in `tmp_path / "runs"`."""
    return lambda *more: main(arguments(dataset, tmp_path / "runs", *more))


def only_run(store: Path) -> RunDirectory:
    (directory,) = Store(store).runs()
    return directory


def test_a_run_ends_with_its_result_in_a_line(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--lr", "0.05") == 0
    out, err = capsys.readouterr()
    directory = only_run(tmp_path / "runs")
    record = directory.record()
    assert record is not None
    assert re.fullmatch(
        rf"nugpt η 0\.05 seed 0: validation loss {record.val_loss:.6g} \(EMA {record.val_loss_ema:.6g}\) "
        rf"after 12 steps, 1,536 tokens, [\d.]+ s   {re.escape(str(directory.path))}\n",
        out,
    )
    # No terminal: a plain line for each validation, and no control characters.
    lines = err.splitlines()
    assert [line.split()[:4] for line in lines] == [["step", str(step), "of", "12"] for step in (4, 8, 12)]
    assert all("tokens/s" in line and "s left" in line for line in lines)
    assert "\x1b" not in err + out
    assert "\r" not in err + out


def test_the_same_command_again_shows_the_result_and_changes_nothing(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    first = capsys.readouterr().out
    before = contents(tmp_path / "runs")
    assert train() == 0
    out, err = capsys.readouterr()
    assert (out, err) == (first, "")
    assert contents(tmp_path / "runs") == before


def test_json_is_records_and_nothing_else(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--json", "--lr", "0.05", "0.1", "--seed", "3", "4") == 0
    out, err = capsys.readouterr()
    assert err == ""
    records = [RunRecord.from_dict(values) for values in json.loads(out)]
    specs = [RunDirectory(tmp_path / "runs" / record.hash).spec() for record in records]
    assert [(spec.lr, spec.seed) for spec in specs] == [(0.05, 3), (0.05, 4), (0.1, 3), (0.1, 4)]
    assert all(record.carried_by["replicas"] == 4 for record in records)


def test_an_ensemble_names_each_run(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--lr", "0.05", "0.1") == 0
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines()] == ["nugpt η 0.05 seed 0", "nugpt η 0.1 seed 0"]
    assert sum("η 0.05 seed 0" in line for line in err.splitlines()) == 3


def test_a_diverged_run_is_said_and_the_status_is_one(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--lr", "1e39", "0.05") == 1
    out = capsys.readouterr().out.splitlines()
    assert "diverged at step 1" in out[0]
    assert "validation loss" in out[1]
    assert train("--lr", "1e39") == 1


def test_settings_reach_the_spec(train: Train, tmp_path: Path) -> None:
    words = "--schedule wsd --final 0.2 --warmup 2 --decay 0.5 --grad-clip 0.7 --weight-decay 0.1 --precision bfloat16"
    more = "--multiplier output 0.25 hidden 2 --parametrization ngpt --micro-batch 3 --n-kv-heads 1 --rope-theta 500"
    assert train(*words.split(), *more.split(), "--seed", "9") == 0
    directory = only_run(tmp_path / "runs")
    spec, record = directory.spec(), directory.record()
    assert record is not None
    assert (spec.schedule.kind, spec.schedule.final, spec.schedule.warmup, spec.schedule.decay) == ("wsd", 0.2, 2, 0.5)
    assert (spec.grad_clip, spec.weight_decay, spec.precision, spec.seed) == (0.7, 0.1, "bfloat16", 9)
    assert (spec.multipliers["output"], spec.multipliers["hidden"], spec.table.name) == (0.25, 2.0, "ngpt")
    assert (spec.model.rope_theta, spec.steps, spec.batch) == (500.0, 12, 8)
    assert record.carried_by["micro_batch"] == 3


# --- going on, beginning elsewhere


def test_a_spoiled_checkpoint_is_passed_over_with_a_message(dataset: TokenDataset, tmp_path: Path) -> None:
    command = arguments(dataset, tmp_path / "runs", "--checkpoint-every", "4", "--log-every", "1")
    whole = arguments(dataset, tmp_path / "whole", "--checkpoint-every", "4", "--log-every", "1")
    assert run(whole, tmp_path / "log") == 0
    assert run(command, tmp_path / "log", moment=26) == -9
    directory = only_run(tmp_path / "runs")
    assert [name for name in checkpoint_names(directory) if name.startswith("step")] == [
        "step-000000004",
        "step-000000008",
    ]
    newest = directory.checkpoints / "step-000000008" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    assert run(command, tmp_path / "second") == 0
    said = (tmp_path / "second").read_text()
    assert str(newest) in said
    assert "going back to the checkpoint before it" in said
    assert "going on from the checkpoint at step 4 of 12" in said
    assert result_of(directory) == result_of(only_run(tmp_path / "whole"))


def test_a_longer_horizon_keeps_the_learning_rate(train: Train, tmp_path: Path) -> None:
    train("--lr", "0.03")
    first = only_run(tmp_path / "runs")
    names = (first.path.name[:6], str(first.checkpoints / "step-000000012"))
    for steps, name in zip(("18", "24"), names, strict=True):  # the run, or a checkpoint of it
        assert train("--steps", steps, "--extend", name) == 0
    assert train("--steps", "24", "--extend", names[0], "--lr", "0.01") == 0
    specs = [run.spec() for run in Store(tmp_path / "runs").runs()]
    assert sorted((spec.steps, spec.lr) for spec in specs) == [(12, 0.03), (18, 0.03), (24, 0.01), (24, 0.03)]


def test_from_weights_and_to_a_longer_horizon(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("--schedule", "constant", "--parametrization", "ngpt")
    first = only_run(tmp_path / "runs")
    before = contents(first.path)
    found = load_checkpoint(first.checkpoints / "step-000000012")
    capsys.readouterr()

    assert (
        train("--schedule", "constant", "--parametrization", "ngpt", "--steps", "24", "--extend", first.path.name[:6])
        == 0
    )
    assert "going on from the checkpoint at step 12 of 24" in capsys.readouterr().err
    assert (
        train("--parametrization", "ngpt", "--start-from", str(first.checkpoints / "step-000000012"), "--seed", "5")
        == 0
    )
    specs = {run.spec().start.kind: run for run in Store(tmp_path / "runs").runs() if run.spec().start is not None}  # type: ignore[union-attr]
    extended, warm = specs["extend"].spec(), specs["weights"].spec()
    assert extended.start is not None
    assert warm.start is not None
    assert (extended.start.hash, extended.start.step, extended.steps) == (found.hash, 12, 24)
    assert (warm.start.hash, warm.start.step, warm.seed) == (found.hash, 0, 5)
    assert [row["step"] for row in specs["extend"].read_metrics() if row["kind"] == "train"] == [*range(13, 25)]
    assert contents(first.path) == before
    after = contents(tmp_path / "runs")
    assert (
        train("--schedule", "constant", "--parametrization", "ngpt", "--steps", "24", "--extend", str(first.path)) == 0
    )
    assert contents(tmp_path / "runs") == after  # by its path it is the same run

    for more, word in (
        (["--extend", "zzzz"], "zzzz"),
        (["--extend", str(first.path), "--steps", "12", "--parametrization", "ngpt"], "12"),
        (["--start-from", str(first.path), "--preset", "tiny-l2h1", "--parametrization", "ngpt"], "blocks.1."),
        (["--extend", str(first.path), "--steps", "24", "--preset", "tiny-l2h1", "--lr", "0.01"], "blocks.1."),
        (["--start-from", "a", "--extend", "b"], "--start-from"),
    ):
        capsys.readouterr()
        before = contents(tmp_path / "runs")
        assert train(*more) == 2
        check_complaint(capsys.readouterr().err, word)
        assert contents(tmp_path / "runs") == before


# --- trackers


def test_tensorboard_gets_every_number(train: Train, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--lr", "0.05") == 0
    assert train("--lr", "0.05", "1e39", "0.1", "--tensorboard", str(tmp_path / "tb")) == 1
    for directory in Store(tmp_path / "runs").runs():
        if directory.spec().lr == 0.05:  # it was done before: nothing is told of it again
            assert not (tmp_path / "tb" / directory.path.name).exists()
            continue
        events = EventAccumulator(str(tmp_path / "tb" / directory.path.name)).Reload()
        told: dict[str, list[tuple[int, float]]] = {}
        for name in events.Tags()["scalars"]:
            told[name] = [(event.step, event.value) for event in events.Scalars(name)]
        expected: dict[str, list[tuple[int, Any]]] = {}
        for row in directory.read_metrics():
            by_source = {f"val_loss/{name}": loss for name, loss in row.get("val_loss_by_source", {}).items()}
            # Of a measurement's tables by block, the numbers over all blocks.
            lerp = {
                f"{role}/{what}": row[role][what]
                for role in ("alpha_A", "alpha_M")
                if role in row
                for what in ("mean", "std")
            }
            for name, value in (row | by_source | lerp).items():
                if isinstance(value, (int, float)) and name != "step":
                    expected.setdefault(name, []).append((row["step"], pytest.approx(value, rel=1e-6)))
        assert told == expected
        assert set(told) >= (
            {"loss", "grad_norm", "norm_error", "lr_multiplier"} if directory.spec().lr == 0.1 else {"loss"}
        )


def test_tensorboard_shows_no_row_twice_after_a_resume(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--lr", "0.05", "--tensorboard", str(tmp_path / "tb")) == 0
    (directory,) = Store(tmp_path / "runs").runs()
    (directory.path / "record.json").unlink()  # as if killed before the end: it goes on from the checkpoint before
    newest = max(directory.checkpoints.iterdir())
    (newest / "state.json").unlink()
    assert train("--lr", "0.05", "--tensorboard", str(tmp_path / "tb")) == 0
    assert "nugpt: warning: checkpoint" in capsys.readouterr().err
    events = EventAccumulator(str(tmp_path / "tb" / directory.path.name)).Reload()
    steps = [event.step for event in events.Scalars("loss")]
    assert steps == sorted(set(steps))
    assert steps == [row["step"] for row in directory.read_metrics() if row["kind"] == "train"]


def test_weights_and_biases_is_told_the_same(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, list[tuple[int, dict[str, float]]]] = {}
    begun: list[dict[str, Any]] = []
    finished: list[str] = []

    class Run:
        def __init__(self, id: str) -> None:
            self.id = id

        def log(self, numbers: dict[str, float], step: int) -> None:
            logged.setdefault(self.id, []).append((step, numbers))

        def finish(self) -> None:
            finished.append(self.id)

    def init(**settings: Any) -> Run:
        begun.append(settings)
        return Run(settings["id"])

    module = types.ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    assert train("--wandb", "spheres", "--seed", "0", "1") == 0
    runs = list(Store(tmp_path / "runs").runs())
    assert {settings["id"] for settings in begun} == set(finished) == {run.path.name for run in runs}
    assert {settings["project"] for settings in begun} == {"spheres"}
    for directory in runs:
        for (step, numbers), row in zip(logged[directory.path.name], directory.read_metrics(), strict=True):
            assert step == row["step"]
            assert {name: row[name] for name in numbers if name in row} == {
                name: value for name, value in numbers.items() if name in row
            }


@pytest.mark.parametrize(("flag", "module"), [("--wandb", "wandb"), ("--tensorboard", "torch.utils.tensorboard")])
def test_a_tracker_that_is_not_installed_is_one_line(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    module: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert train(flag, str(tmp_path / "x")) == 2
    check_complaint(capsys.readouterr().err, flag)
    assert not (tmp_path / "runs").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_there_is_a_bar(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(sys, "stderr", terminal)
    assert train("--checkpoint-every", "4", "--log-every", "1") == 0
    shown = terminal.getvalue()
    assert "12/12" in shown
    assert "tokens/s" in shown
    assert re.search(r"loss \d\.\d{4}", shown)
    assert "validation loss" not in shown  # which would break the bar


# --- a recipe


def written(path: Path, values: dict[str, Any]) -> str:
    """The recipe in a file of the form that its ending says, which is named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_toml(values) if path.suffix == ".toml" else json.dumps(values))
    return str(path)


@pytest.fixture
def recipe(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunSpec:
    """A run that has been trained from options, whose recipe is then written."""
    assert train("--lr", "0.05", "--seed", "3", "--multiplier", "output", "0.5") == 0
    capsys.readouterr()
    return only_run(tmp_path / "runs").spec()


@pytest.mark.parametrize("form", ["recipe.json", "recipe.toml", "a run's spec"])
def test_a_recipe_is_the_run_that_its_options_were(
    recipe: RunSpec, dataset: TokenDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    before = contents(tmp_path / "runs")
    path = tmp_path / "runs" / recipe.hash / "spec.json"
    if form != "a run's spec":
        path = Path(written(tmp_path / form, recipe_of(recipe)))
    where = ["--data", str(dataset.path), "--device", "cpu"]
    assert main(["train", "--recipe", str(path), *where, "--store", str(tmp_path / "runs")]) == 0
    assert "nugpt η 0.05 seed 3: " in capsys.readouterr().out
    assert contents(tmp_path / "runs") == before  # it is that very run, which is done

    assert main(["train", "--recipe", str(path), *where, "--store", str(tmp_path / "afresh")]) == 0
    first, afresh = (only_run(tmp_path / store).record() for store in ("runs", "afresh"))
    assert first is not None
    assert afresh is not None
    assert (afresh.hash, afresh.val_loss) == (first.hash, first.val_loss)


def test_a_recipe_without_data_takes_the_hash_of_those_given(
    recipe: RunSpec, dataset: TokenDataset, tmp_path: Path
) -> None:
    path = written(tmp_path / "recipe.json", recipe_of(replace(recipe, data=NO_DATA)))
    words = ["train", "--recipe", path, "--data", str(dataset.path), "--store", str(tmp_path / "afresh")]
    assert main([*words, "--device", "cpu"]) == 0
    assert only_run(tmp_path / "afresh").spec() == recipe


def test_a_recipe_of_other_data_is_told(
    recipe: RunSpec, dataset: TokenDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--data", str(dataset.path), "--store", str(tmp_path / "runs"), "--device", "cpu", "--recipe"]
    for data, told in (("0123456789abcdef", True), (recipe.data, False), (NO_DATA, False)):
        path = written(tmp_path / "recipe.json", recipe_of(replace(recipe, data=data)))
        assert main([*words, path]) == 0
        said = f"nugpt: warning: {path} is of the data set 0123456789abcdef, and {recipe.data} is given: "
        assert (said in capsys.readouterr().err) is told


def test_seeds_and_precision_replace_those_of_a_recipe(recipe: RunSpec, dataset: TokenDataset, tmp_path: Path) -> None:
    path = written(tmp_path / "recipe.json", recipe_of(recipe))
    words = ["train", "--recipe", path, "--data", str(dataset.path), "--store", str(tmp_path / "afresh")]
    assert main([*words, "--device", "cpu", "--seed", "0", "1", "--precision", "bfloat16"]) == 0
    specs = sorted((run.spec() for run in Store(tmp_path / "afresh").runs()), key=lambda spec: spec.seed)
    assert specs == [replace(recipe, seed=seed, precision="bfloat16") for seed in (0, 1)]


def test_a_recipe_found_on_the_embedded_corpus_needs_no_data(
    recipe: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = replace(recipe, data="0123456789abcdef", model=replace(recipe.model, vocab_size=384))
    words = ["train", "--device", "cpu", "--store", str(tmp_path / "afresh"), "--recipe"]
    assert main([*words, written(tmp_path / "none.json", recipe_of(run))]) == 2  # it is not prepared
    check_complaint(capsys.readouterr().err, "none.json names the data set 0123456789abcdef: --data is a directory")

    embedded = cached_embedded("bpe:384")
    assert main([*words, written(tmp_path / "other.json", recipe_of(run))]) == 2  # it is not that
    check_complaint(capsys.readouterr().err, "other.json names the data set 0123456789abcdef")
    run = replace(run, data=embedded.content_hash)
    assert main([*words, written(tmp_path / "recipe.json", recipe_of(run))]) == 0
    assert only_run(tmp_path / "afresh").spec() == run


BESIDE_A_RECIPE: dict[str, tuple[list[str], str]] = {
    "lr": (["--lr", "0.1"], "lr is (0.1,)"),
    "preset": (["--preset", "lab-l4h4"], "preset is 'lab-l4h4'"),
    "steps": (["--steps", "10"], "steps is 10"),
    "batch": (["--batch", "4"], "batch is 4"),
    "width": (["--n-heads", "3"], "n_heads is 3"),
    "schedule": (["--schedule", "linear"], "schedule is 'linear'"),
    "table": (["--parametrization", "ngpt"], "parametrization is 'ngpt'"),
    "other weights": (["--start-from", "abc"], "start_from is 'abc'"),
    "a longer run": (["--extend", "abc"], "extend is 'abc'"),
}


@pytest.mark.parametrize("name", BESIDE_A_RECIPE)
def test_what_a_recipe_says_is_not_said_again(
    dataset: TokenDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    more, word = BESIDE_A_RECIPE[name]
    words = ["train", "--recipe", "r.json", "--data", str(dataset.path), "--store", str(tmp_path / "runs")]
    assert main([*words, *more]) == 2
    check_complaint(capsys.readouterr().err, f"{word}, but r.json says what the run is: leave it out")


def test_a_mistake_with_a_recipe_leaves_no_run(
    recipe: RunSpec, dataset: TokenDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = replace(recipe, model=replace(recipe.model, vocab_size=256))
    begun = replace(recipe, start=Start("weights", "0123456789abcdef"))
    values = recipe_of(recipe)
    values["resolved"]["rows"]["hidden"]["lr"] *= 2
    mistakes = {
        "of no file": ([str(tmp_path / "no.json"), "--data", str(dataset.path)], "no.json' is no file"),
        "without data": (
            [written(tmp_path / "unknown.json", recipe_of(replace(recipe, data=NO_DATA)))],
            "unknown.json names no data set: --data is a directory made by `nugpt data prepare`",
        ),
        "of another vocabulary": (
            [written(tmp_path / "narrow.json", recipe_of(narrow)), "--data", str(dataset.path)],
            "vocab_size is 256, but the data's tokenizer needs at least 384",
        ),
        "from a checkpoint": (
            [written(tmp_path / "begun.json", recipe_of(begun)), "--data", str(dataset.path)],
            "starts from checkpoint 0123456789abcdef",
        ),
        "changed by hand": (
            [written(tmp_path / "changed.json", values), "--data", str(dataset.path)],
            "as the learning rate of hidden",
        ),
        "seed twice": (
            [written(tmp_path / "recipe.json", recipe_of(recipe)), "--data", str(dataset.path), "--seed", "1", "1"],
            "seed is (1, 1)",
        ),
    }
    for words, complaint in mistakes.values():
        assert main(["train", "--device", "cpu", "--store", str(tmp_path / "afresh"), "--recipe", *words]) == 2
        check_complaint(capsys.readouterr().err, complaint)
        assert not (tmp_path / "afresh").exists()


# --- mistakes


def check_complaint(err: str, word: str) -> None:
    """One line on standard error that names the value."""
    assert re.fullmatch(r"nugpt: error: [^\n]+\n", err), err
    assert word in err


MISTAKES: dict[str, tuple[list[str], str]] = {
    "lr 0": (["--lr", "0"], "lr is 0"),
    "lr below 0": (["--lr", "-0.1"], "-0.1"),
    "a learning rate twice": (["--lr", "0.1", "0.1"], "lr is (0.1, 0.1), but must be numbers, each named once"),
    "lr nan": (["--lr", "nan"], "nan"),
    "lr inf": (["--lr", "inf"], "inf"),
    "steps 0": (["--steps", "0"], "steps is 0"),
    "steps below 0": (["--steps", "-3"], "-3"),
    "batch 0": (["--batch", "0"], "0"),
    "another batch than the base's": (["--batch", "4"], "(--base-batch N, where η was tuned at N sequences per step"),
    "validations 0": (["--validations", "0"], "validations is 0"),
    "val windows 0": (["--val-windows", "0"], "val_windows is 0"),
    "a seed twice": (["--seed", "0", "0"], "seed is (0, 0), but must be whole numbers, each named once"),
    "seed below 0": (["--seed", "-1"], "seed is -1"),
    "no such device": (["--device", "toaster"], "toaster"),
    "no such card": (["--device", "cuda:99"], "cuda:99"),
    "no such precision": (["--precision", "foo"], "foo"),
    "no data there": (["--data", "nowhere/at/all"], "nowhere/at/all"),
    "both starts": (["--start-from", "a", "--extend", "b"], "--extend"),
    "no such run": (["--start-from", "abcdef"], "abcdef"),
    "no such table": (["--parametrization", "gpt5"], "gpt5"),
    "no such preset": (["--preset", "huge"], "huge"),
    "no such schedule": (["--schedule", "spiral"], "spiral"),
    "warm-up as long as the run": (["--warmup", "12"], "warmup is 12, but must be below the run's 12 steps"),
    "a decay of no use": (["--decay", "0.5"], "decay is 0.5, but only a schedule wsd has one"),
    "final above 1": (["--final", "1.5"], "1.5"),
    "clip 0": (["--grad-clip", "0"], "grad_clip is 0"),
    "decay below 0": (["--weight-decay", "-1"], "weight_decay is -1"),
    "no such role": (["--multiplier", "outputs", "2"], "outputs"),
    "multiplier 0": (["--multiplier", "output", "0"], "output"),
    "micro batch 0": (["--micro-batch", "0"], "micro_batch is 0"),
    "keep 0": (["--keep", "0"], "keep is 0"),
    "threads 0": (["--threads", "0"], "threads is 0"),
    "no such attention": (["--attention", "none"], "none"),
    "no such loss": (["--loss", "none"], "none"),
    "vocabulary too small": (["--vocab-size", "128"], "128"),
    "windows longer than the data": (["--seq-len", "100000", "--batch", "16", "--base-batch", "12500"], "100001"),
    "paper without data": ([], "--data"),
    "fused kernels on a CPU": (["--kernels", "fused"], "kernels is 'fused', but "),
    "logs in a file": (["--tensorboard", __file__], f"--tensorboard is {__file__}, but must be a directory"),
    "logs below a file": (["--tensorboard", f"{__file__}/logs"], "must be a directory"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_status_two(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    more, word = MISTAKES[name]
    if name == "paper without data":
        status = main(["train", "--preset", "paper-l12h12", "--lr", "0.01", "--store", str(tmp_path / "runs")])
    else:
        status = train(*more)
    assert status == 2
    check_complaint(capsys.readouterr().err, word)
    assert not (tmp_path / "runs").exists()  # else `status` would list a run that was never to be


@pytest.mark.parametrize("more", [["--lr", "fast"], ["--steps", "1.5"], ["--seed"], ["--nonsense", "1"]])
def test_what_cannot_be_read_is_status_two(train: Train, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = train(*more)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert capsys.readouterr().err


def test_data_with_a_flipped_byte_is_refused_by_the_name_of_its_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_dataset(tmp_path)
    shard = data.path / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    assert main(arguments(data, tmp_path / "runs")) == 2
    check_complaint(capsys.readouterr().err, "train-00000.bin")


def test_other_data_is_another_run(dataset: TokenDataset, tmp_path: Path) -> None:
    other = make_dataset(tmp_path / "other", seed=1)
    for data in (dataset, other):
        assert main(arguments(data, tmp_path / "runs")) == 0
    assert {run.spec().data for run in Store(tmp_path / "runs").runs()} == {dataset.content_hash, other.content_hash}


def test_debug_shows_where(train: Train) -> None:
    with pytest.raises(ValueError, match="lr is 0"):
        train("--lr", "0", "--debug")


# --- the whole job


@pytest.mark.slow
def test_a_preset_alone_trains_well_on_the_embedded_corpus(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(Path(nugpt.__file__).parents[1]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def nugpt_(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "nugpt", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = nugpt_("train", "--preset", "tiny-l2h2")
    directory = only_run(tmp_path / "runs")
    record = directory.record()
    assert record is not None
    assert str(Path("runs") / directory.path.name) in out
    (data,) = (tmp_path / "cache" / "nugpt").glob("embedded-*")
    dataset = open_dataset(data)
    assert record.val_loss is not None
    # Seen: 4.15 against 6.02 nats.
    assert record.val_loss < unigram_loss(dataset, 128, directory.spec().val_windows) - 1.5
    assert set(record.val_loss_by_source) == {"code", "documentation"}
    text = nugpt_("generate", directory.path.name[:8], "--prompt", "def ", "--max-tokens", "60")
    assert text.startswith("def ")
    assert len(text) > 40
    assert np.isfinite(record.val_loss_ema)
    assert directory_of(directory.spec(), tmp_path / "runs").record() == record
