"""Run directories: found by name, metrics that survive a torn line, records that are whole or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.small import BASE, MODEL

from nugpt.spec import load_table
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store

SPEC = RunSpec(MODEL, load_table("nugpt"), BASE, 0.01, 24, 4, data="d" * 16)
RECORD = RunRecord(
    hash=SPEC.hash,
    status="done",
    steps=24,
    tokens=1536,
    flops=1e9,
    wall_s=1.5,
    val_loss=3.25,
    val_loss_ema=3.5,
    train_loss=3.125,
    diverged_at=None,
    val_loss_by_source={"prose": 3.25},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_a_run_is_found_by_hash_beginning_and_path(store: Store) -> None:
    other = replace(SPEC, seed=1)
    for spec in (SPEC, other):
        assert store.run(spec).path == store.root / spec.hash
        assert store.find(spec.hash).path == store.find(spec.hash[:6]).path == store.root / spec.hash
        assert store.find(str(store.root / spec.hash)).spec() == spec
    assert [run.path.name for run in store.runs()] == sorted([SPEC.hash, other.hash])


@pytest.mark.parametrize("name", ["", "zzz", "/nowhere/at/all", "../runs", "*", "[", "**", "x" * 300, "\0"])
def test_a_run_that_is_not_there_is_one_line(store: Store, name: str) -> None:
    store.run(SPEC)
    store.run(replace(SPEC, seed=1))
    with pytest.raises(ValueError) as error:
        store.find(name)
    assert "\n" not in str(error.value)
    assert name in str(error.value) or repr(name) in str(error.value)


def test_two_runs_that_begin_alike_are_not_chosen_between(store: Store) -> None:
    for name in ("ab12", "ab34"):
        (store.root / name).mkdir(parents=True)
        (store.root / name / "spec.json").write_text("{}")
    with pytest.raises(ValueError, match="2 runs"):
        store.find("ab")
    assert store.find("ab3").path.name == "ab34"


def test_a_directory_that_holds_another_spec_is_refused(store: Store) -> None:
    path = store.run(SPEC).path
    (path / "spec.json").write_text(json.dumps(replace(SPEC, seed=7).to_dict()))
    with pytest.raises(ValueError, match="another run"):
        store.run(SPEC)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}', '"text"'])
def test_a_spoiled_spec_is_one_line_that_names_the_file_or_field(store: Store, content: str) -> None:
    directory = store.run(SPEC)
    (directory.path / "spec.json").write_text(content)
    with pytest.raises(ValueError, match=r"spec") as error:
        directory.spec()
    assert "\n" not in str(error.value)


def test_metrics_are_appended_read_and_cut(store: Store) -> None:
    directory = store.run(SPEC)
    rows = [{"step": step, "kind": "train", "loss": 0.1 * step, "where": "naïve\u2028"} for step in range(1, 7)]
    assert directory.read_metrics() == []
    directory.append_metrics(rows[:4])
    directory.append_metrics([])
    directory.append_metrics(rows[4:])
    assert directory.read_metrics() == rows
    directory.cut_metrics(4)
    assert directory.read_metrics() == rows[:4]
    directory.cut_metrics(0)
    assert directory.read_metrics() == []


def test_a_line_torn_by_a_kill_is_left_out_and_cut_off(store: Store) -> None:
    directory = store.run(SPEC)
    rows = [{"step": step, "loss": 1 / step} for step in range(1, 5)]
    directory.append_metrics(rows)
    whole = directory.metrics.read_bytes()
    for length in range(len(whole)):
        directory.metrics.write_bytes(whole[:length])
        ended = whole[:length].count(b"\n")
        # The last row may be whole but for its line end; nothing less is taken for a row.
        assert directory.read_metrics() in (rows[:ended], rows[: ended + 1])
        kept = directory.read_metrics()
        directory.cut_metrics(9)
        directory.append_metrics([{"step": 9}])
        assert directory.read_metrics() == [*kept, {"step": 9}]


def test_a_record_comes_back_and_its_absence_is_no_error(store: Store) -> None:
    directory = store.run(SPEC)
    assert directory.record() is None
    directory.write_record(RECORD)
    assert directory.record() == RECORD


def test_a_record_that_is_not_whole_is_one_line(store: Store) -> None:
    directory = store.run(SPEC)
    directory.write_record(RECORD)
    whole = json.loads((directory.path / "record.json").read_bytes())
    text = json.dumps(whole)
    spoiled = [
        text[: len(text) // 2],
        "",
        "[]",
        "null",
        "3",
        json.dumps(whole | {"format": 2}),
        json.dumps(whole | {"x": 1}),
    ]
    spoiled += [json.dumps({key: value for key, value in whole.items() if key != "val_loss"})]
    spoiled += [json.dumps(whole | {"status": status}) for status in ("fine", ["done"], None)]
    spoiled += [json.dumps(whole | {"val_loss": "3.25"}), json.dumps(whole | {"steps": 1.5})]
    spoiled += [json.dumps(whole | {"val_loss_by_source": [1]}), json.dumps(whole | {"hash": 3})]
    for content in spoiled:
        (directory.path / "record.json").write_text(content)
        with pytest.raises(ValueError, match="record") as error:
            RunDirectory(directory.path).record()
        assert "\n" not in str(error.value)


def test_a_file_kept_with_the_run_is_written_once(store: Store) -> None:
    directory = store.run(SPEC)
    directory.keep_file("data.json", b"first")
    directory.keep_file("data.json", b"second")
    assert (directory.path / "data.json").read_bytes() == b"first"


def test_files_that_are_no_text_are_named_or_counted(store: Store) -> None:
    run = store.run(SPEC)
    run.metrics.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: not rows of metrics") as error:
        run.read_metrics()
    assert "\n" not in str(error.value)
    (run.path / "failures.jsonl").write_bytes(b"\xff\xfe\n\xff\n")
    assert run.failures() == 2  # what went wrong cannot be read, but that it did is known


def test_where_no_checkpoint_is_there_it_says_what_would_be(store: Store) -> None:
    run = store.run(SPEC)
    none = f"run {run.path} has no checkpoint to export"
    assert run.without_checkpoint("export") == none
    run.write_record(RECORD)
    assert run.without_checkpoint("export").startswith(f"{none}: a sweep drops those of runs that are done")
    (run.distributed / "step-24").mkdir(parents=True)
    assert run.without_checkpoint("export") == f"{none}: `nugpt convert` makes one of what lies in dcp/"
