"""A folder and back: what it holds, that nothing is lost, and a line for everything that can be wrong with it."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tests.engines.small import directory_of, make_dataset, make_spec, train
from tests.export.small import STEPS, Run, edit_config

from nugpt.engines.lab import Options, execute
from nugpt.engines.lab.generate import Sampling, generate, load_trained
from nugpt.export.folder import weights_digest
from nugpt.export.read import import_folder, read_folder
from nugpt.export.write import write_folder
from nugpt.spec.run import Start
from nugpt.store import RunDirectory, Store, load_checkpoint

FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "modeling_nugpt.py",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.mark.parametrize("name", ["bytes_run", "bpe_run"])
def test_there_and_back_every_weight_is_the_same_to_the_bit(
    runs: dict[str, Run], folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    run = runs[name]
    directory, found = import_folder(folders[name], tmp_path)
    assert found.unchanged
    assert directory.path == tmp_path / run.spec.hash
    there = (run.directory.checkpoints / f"step-{STEPS:09d}" / "model.safetensors").read_bytes()
    back = (directory.checkpoints / f"step-{STEPS:09d}" / "model.safetensors").read_bytes()
    assert back == there
    assert directory.spec() == run.spec
    record, original = directory.record(), run.directory.record()
    assert record is not None
    assert original is not None
    assert (record.val_loss, record.train_loss, record.steps) == (original.val_loss, original.train_loss, STEPS)
    mine, theirs = (list(generate(load_trained(d), [], 40, Sampling(seed=3))) for d in (directory, run.directory))
    assert mine == theirs
    tokenizers = [load_trained(d).tokenizer for d in (directory, run.directory)]
    assert tokenizers[0].hash == tokenizers[1].hash


def test_what_the_folder_holds(runs: dict[str, Run], folders: dict[str, Path]) -> None:
    run, folder = runs["bytes_run"], folders["bytes_run"]
    assert {path.name for path in folder.iterdir()} == FILES
    weights = load_file(folder / "model.safetensors")
    assert weights_digest(weights) == weights_digest(run.checkpoint.model)
    config = json.loads((folder / "config.json").read_text())
    assert {key: config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")} == {
        "hidden_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
    }
    assert config["gains"] == dict(run.spec.resolved().gains)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 256
    assert generation["suppress_tokens"] == list(range(257, 384))
    assert all(
        (folder / name).stat().st_mode & 0o777 == (folder / "config.json").stat().st_mode & 0o777 for name in FILES
    )
    # A folder is passed on: nothing in it may tell where it was made.
    assert not [name for name in FILES if str(run.store.parent).encode() in (folder / name).read_bytes()]


def test_the_card_says_what_the_model_is(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["bytes_run"]
    write_folder(tmp_path / "named", run.directory, run.checkpoint, "apache-2.0")
    card = (tmp_path / "named" / "README.md").read_text(encoding="utf-8")
    record = run.directory.record()
    assert record is not None
    assert record.val_loss is not None
    assert card.startswith(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\nlicense: apache-2.0\n---\n\n# named\n"
    )
    assert run.spec.data in card
    assert f"| validation | {record.val_loss:.6g} |" in card
    assert all(f"| validation on {source} |" in card for source in ("prose", "code", "sums"))
    resolved = run.spec.resolved()
    for role, row in resolved.rows.items():
        assert re.search(rf"^\| {role} \| {re.escape(f'{row.lr:.6g}')} \|", card, flags=re.MULTILINE), role
    assert f"{resolved.gains['s_z']:.6g}" in card
    assert "Weights: apache-2.0." in card


def test_a_checkpoint_on_the_way_has_its_own_losses_and_no_record(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["bytes_run"]
    halfway = load_checkpoint(run.directory.checkpoints / f"step-{STEPS // 2:09d}")
    write_folder(tmp_path / "half", run.directory, halfway)
    assert f"| validation | {halfway.state['val_loss']:.6g} |" in (tmp_path / "half" / "README.md").read_text()
    directory, found = import_folder(tmp_path / "half", tmp_path / "runs")
    assert (found.step, found.record, directory.record()) == (STEPS // 2, None, None)
    assert weights_digest(found.tensors) == weights_digest(halfway.model)


def test_importing_again_changes_nothing_and_other_weights_are_refused(
    runs: dict[str, Run], folders: dict[str, Path], tmp_path: Path
) -> None:
    first, _ = import_folder(folders["bytes_run"], tmp_path / "runs")
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    again, _ = import_folder(folders["bytes_run"], tmp_path / "runs")
    assert {path: path.stat().st_mtime_ns for path in again.path.rglob("*")} == before
    run = runs["bytes_run"]
    write_folder(
        tmp_path / "half", run.directory, load_checkpoint(run.directory.checkpoints / f"step-{STEPS // 2:09d}")
    )
    with pytest.raises(ValueError, match="exists with other weights"):
        import_folder(tmp_path / "half", tmp_path / "runs")


def test_weights_that_were_changed_come_without_the_record(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["s_z.stored"][5] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    directory, found = import_folder(folder, tmp_path / "runs")
    assert not found.unchanged
    assert directory.record() is None
    assert torch.equal(found.tensors["s_z.stored"], weights["s_z.stored"])


def test_weights_in_several_files_are_read(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    places = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert read_folder(folder).unchanged
    places["s_z.stored"] = "../b.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ValueError, match=r"'\.\./b\.safetensors'"):
        read_folder(folder)


def test_a_run_goes_on_from_imported_weights_but_not_as_itself(folder: Path, tmp_path: Path) -> None:
    edit_config(folder, nugpt__record=None)  # as if the run had not been finished
    directory, found = import_folder(folder, tmp_path / "runs")
    dataset = make_dataset(tmp_path, documents=100)
    with pytest.raises(ValueError, match="no optimizer state"):
        train([found.spec], tmp_path / "runs", dataset)
    imported = load_checkpoint(directory.checkpoints / f"step-{STEPS:09d}")
    spec = make_spec(dataset, layers=2, steps=1, start=Start("weights", imported.hash))
    options = Options(device="cpu", log_every=1)
    (record,) = execute([spec], Store(tmp_path / "runs"), dataset, options, starts={imported.hash: imported})
    losses = [row["loss"] for row in directory_of(spec, tmp_path / "runs").read_metrics() if row["kind"] == "train"]
    assert record.status == "done"
    assert losses[0] < math.log(257) - 0.5  # of a trained model, before its first step


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def cut_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08")


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["blocks.1.mlp.s_u.stored"]
    save_file(weights, folder / "model.safetensors")


def with_another_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors") | {"lm_head.weight": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors")


def of_another_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["E_out.weight"] = weights["E_out.weight"][:-1].contiguous()
    save_file(weights, folder / "model.safetensors")


def add_tokens(path: Path, more: int) -> None:
    """A tokenizer.json with so many more ids."""
    model = tokenizers.Tokenizer.from_file(str(path))
    model.add_tokens([f"<|{i}|>" for i in range(more)])
    model.save(str(path))


def larger_than_the_model(folder: Path) -> None:
    add_tokens(folder / "tokenizer.json", 128)
    edit_config(folder, nugpt__tokenizer__n_ids=385)


def with_two_ids_changed(folder: Path) -> None:
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    ids = values["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut_short, "model.safetensors cannot be read"),
        (cut_header, "model.safetensors cannot be read"),
        (lambda f: (f / "model.safetensors").unlink(), "lacks model.safetensors"),
        (without_a_tensor, "lacks the tensor 'blocks.1.mlp.s_u.stored'"),
        (with_another_tensor, "has the tensor 'lm_head.weight'"),
        (of_another_shape, r"E_out.weight has shape \(383, 24\), but must have \(384, 24\)"),
        (lambda f: (f / "config.json").unlink(), "no exported model"),
        (lambda f: (f / "config.json").write_text("{"), "not a whole JSON document"),
        (lambda f: (f / "config.json").write_text("[]"), "model_type None"),
        (lambda f: edit_config(f, model_type="llama"), "has model_type 'llama', but must have 'nugpt'"),
        (lambda f: edit_config(f, nugpt={}), "does not say which run"),
        (lambda f: edit_config(f, nugpt__format=99), "of format 1"),
        (lambda f: edit_config(f, nugpt__spec={"format": 1}), "'nugpt' is not as we export it"),
        (lambda f: edit_config(f, nugpt__spec=None), "'nugpt' is not as we export it"),
        (lambda f: edit_config(f, num_hidden_layers=7), "num_hidden_layers is 7, but must be 2"),
        (lambda f: edit_config(f, vocab_size=385), "vocab_size is 385, but must be 384"),
        (lambda f: edit_config(f, gains__s_qk=1.0), "the gain of s_qk is 1.0"),
        (lambda f: edit_config(f, gains=3), "the gain of alpha_A is None"),
        (
            lambda f: add_tokens(f / "tokenizer.json", 1),
            "has 258 ids, but the model was trained with a tokenizer of 257",
        ),
        (with_two_ids_changed, "another tokenizer than the model was trained with"),
        (lambda f: edit_config(f, nugpt__tokenizer__end_of_text=5), "end_of_text is 5, but must be a token's name"),
        (lambda f: edit_config(f, nugpt__step=-1), "step is -1, but must be a whole number from 0 to the run's 24"),
        (lambda f: edit_config(f, nugpt__step=25), "step is 25, but must be"),
        (lambda f: edit_config(f, nugpt__step=1.5), "step is 1.5, but must be"),
        (larger_than_the_model, "the tokenizer has 385 ids, but the model's vocabulary has 384"),
        (lambda f: (f / "tokenizer.json").unlink(), "lacks tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "is not a tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_bytes(b"\xff"), "is not a tokenizer.json"),
    ],
)
def test_a_folder_that_is_wrong_is_one_line_and_imports_nothing(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=words) as error:
        import_folder(folder, tmp_path / "runs")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_a_tokenizer_of_as_many_ids_that_mean_other_texts_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["bpe_run"], tmp_path / "folder"))
    with_two_ids_changed(folder)
    with pytest.raises(ValueError, match="another tokenizer than the model was trained with"):
        read_folder(folder)
    shutil.copy(folders["bpe_run"] / "tokenizer.json", folder)
    assert read_folder(folder).unchanged
    edit_config(folder, nugpt__tokenizer__end_of_text=None)  # which would read its text as bytes
    with pytest.raises(ValueError, match="another tokenizer than the model was trained with"):
        read_folder(folder)


def test_a_pruned_run_gets_its_own_weights_back_and_no_others(folder: Path, tmp_path: Path) -> None:
    directory, found = import_folder(folder, tmp_path / "runs")
    record = (directory.path / "record.json").read_bytes()
    shutil.rmtree(directory.checkpoints)
    kept = {name: tensor.clone() for name, tensor in found.tensors.items()}  # the file is mapped, and written over
    weights = kept | {"s_z.stored": kept["s_z.stored"] + 1}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="has a record, which is not of the weights in"):
        import_folder(folder, tmp_path / "runs")
    assert not directory.checkpoints.exists()
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    import_folder(folder, tmp_path / "runs")
    back = load_checkpoint(directory.checkpoints / f"step-{STEPS:09d}")
    assert weights_digest(back.model) == weights_digest(kept)
    assert (directory.path / "record.json").read_bytes() == record


def test_what_is_no_folder_at_all_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no exported model"):
        read_folder(tmp_path / "nowhere")


# --- what cannot be exported


def test_nothing_is_overwritten_and_an_empty_folder_is_filled(runs: dict[str, Run], tmp_path: Path) -> None:
    run, out = runs["bytes_run"], tmp_path / "out"
    out.mkdir()
    write_folder(out, run.directory, run.checkpoint)
    assert {path.name for path in out.iterdir()} == FILES
    (tmp_path / "file").write_text("mine")
    for taken in (out, tmp_path / "file"):
        with pytest.raises(ValueError, match="exists and is not an empty folder"):
            write_folder(taken, run.directory, run.checkpoint)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_plain_transformer_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, documents=100)
    spec = make_spec(dataset, "prenorm-completep", steps=8)
    train([spec], tmp_path / "runs", dataset, log_every=8)
    directory = directory_of(spec, tmp_path / "runs")
    with pytest.raises(ValueError, match="architecture is 'prenorm', but only 'normalized'"):
        write_folder(tmp_path / "out", directory, load_checkpoint(directory.checkpoints / "step-000000008"))
    assert not (tmp_path / "out").exists()


def copy_of(run: Run, to: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(run.directory.path, to)))


def test_weights_that_are_no_numbers_and_tokenizers_that_do_not_fit_are_refused(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    run = runs["bpe_run"]
    spoiled = {name: tensor.clone() for name, tensor in run.checkpoint.model.items()}
    spoiled["s_z.stored"][3] = float("nan")
    with pytest.raises(ValueError, match=r"s_z\.stored at step 24 .* is not finite"):
        write_folder(tmp_path / "out", run.directory, replace(run.checkpoint, model=spoiled))
    directory = copy_of(run, tmp_path / "run")
    add_tokens(directory.path / "tokenizer.json", 101)
    with pytest.raises(ValueError, match="the tokenizer has 401 ids, but the model's vocabulary has 384"):
        write_folder(tmp_path / "out", directory, run.checkpoint)
    (directory.path / "data.json").write_text("{}")
    with pytest.raises(ValueError, match="which tokenizer"):
        write_folder(tmp_path / "out", directory, run.checkpoint)
    other = replace(run.checkpoint, state={**run.checkpoint.state, "spec": "0123456789abcdef"})
    with pytest.raises(ValueError, match="was saved by run 0123456789abcdef, not by run"):
        write_folder(tmp_path / "out", run.directory, other)
    with pytest.raises(ValueError, match="license is 'two words'"):
        write_folder(tmp_path / "out", run.directory, run.checkpoint, "two words")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_export_that_fails_leaves_nothing_behind(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("nugpt.export.write.model_card", fail)
    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "out", runs["bytes_run"].directory, runs["bytes_run"].checkpoint)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_of_the_folder_that_was_asked_for(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("nugpt.export.write.sync_file", full)
    with pytest.raises(OSError, match="No space left") as refusal:
        write_folder(tmp_path / "out", runs["bytes_run"].directory, runs["bytes_run"].checkpoint)
    assert refusal.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
