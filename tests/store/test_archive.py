"""An archive of results: whole and to the byte, without a place of the machine, and growing without loss."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sweep.small import FakeEngine, finish, make_directory, make_plan, make_spec, record_of

from nugpt.cli.main import main
from nugpt.spec.plan import Policy
from nugpt.store import RunDirectory, Store, archive, opened
from nugpt.store.archive import VALIDATIONS, is_archive, merge_folder, pack_folder, write_empty
from nugpt.store.coords import read_coords, write_coords
from nugpt.store.plans import Addition, PlanDirectory
from nugpt.store.transfer import merge, pack

PLACE = "/home/somebody/data"
CARRIED = {"device": "a device", "device_type": "cuda", "replicas": 3, "data": PLACE, "log": "/var/log/x", "code": "ab"}


def text_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def block(value: float, layers: int = 1) -> dict[str, Any]:
    return {"mean": value, "std": value / 3, "mean_by_block": [value] * layers, "std_by_block": [value / 3] * layers}


@pytest.fixture
def filled(tmp_path: Path) -> Store:
    """A finished plan with an addition, a diverged run, every kind of row, and a coordinate check."""
    directory = make_directory(tmp_path, make_plan(validations=40))
    directory.add([Addition(directory.plan().curves[0].key, -3.5, "asked for")])
    directory.write_launch({"data": PLACE, "options": {}})
    finish(directory, FakeEngine(loss=lambda spec: None if spec.lr > 2**-4 else 1 / 3))
    for run in directory.store.runs():
        record = run.record()
        assert record is not None
        run.write_record(replace(record, carried_by=CARRIED, lerp={"alpha_A": block(1 / 7)}))
        rows: list[dict[str, Any]] = [{"step": s, "kind": "train", "loss": 1 / 9} for s in range(1, 101)]
        rows += [{"step": s, "kind": "lerp", "alpha_A": block(s / 7)} for s in (1, 10, 100)]
        rows += [{"step": s, "kind": "alignment", "alpha": {"W_q": [s / 7, None]}, "loss": 2.0} for s in (1, 100)]
        run.metrics.unlink(missing_ok=True)
        rows += [{"step": 5 * k // 2, "kind": "validation", "val_loss": k / 7} for k in range(1, 41)]
        run.append_metrics(rows)
        run.keep_file("data.json", json.dumps({"content_hash": "c", "end_of_text": None, "path": PLACE}).encode())
        run.keep_file("tokenizer.json", b"{}")
    write_coords(directory.store, "mine", {"slopes": [1 / 3], "made": PLACE})
    return directory.store


def test_records_and_plans_come_back_to_the_last_bit(filled: Store, tmp_path: Path) -> None:
    merged = pack_folder(filled, tmp_path / "archive")
    assert (merged.added, merged.same, merged.conflicts) == (6, 0, ())
    other = Store(tmp_path / "other")
    assert merge(tmp_path / "archive", other).added == 6
    for run in filled.runs():
        ours, theirs = run.record(), RunDirectory(other.root / run.path.name).record()
        assert ours is not None
        assert theirs is not None
        kept = {key: value for key, value in CARRIED.items() if key not in ("data", "log")}
        assert theirs == replace(ours, carried_by=kept)
        assert RunDirectory(other.root / run.path.name).spec() == run.spec()
        assert not (other.root / run.path.name / "claim-000001.json").exists()
    here, there = (PlanDirectory(store.root / "plans" / "plan") for store in (filled, other))
    assert (here.plan(), here.additions()) == (there.plan(), there.additions())
    assert read_coords(other)[0]["slopes"] == [1 / 3]


def test_of_the_metrics_it_keeps_what_answers_are_made_from(filled: Store, tmp_path: Path) -> None:
    pack_folder(filled, tmp_path / "archive")
    for run in opened(tmp_path / "archive").runs():
        rows = run.read_metrics()
        assert {row["kind"] for row in rows} == {"validation", "lerp", "alignment"}
        assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
        validations = [row for row in rows if row["kind"] == "validation"]
        assert [row["step"] for row in validations] == [10 * k for k in range(1, VALIDATIONS + 1)]  # of forty, the last
        assert [row["val_loss"] for row in validations] == [float(f"{4 * k / 7:.6g}") for k in range(1, 11)]
        (last,) = [row for row in rows if row["kind"] == "lerp" and row["step"] == 100]
        assert last["alpha_A"] == {"mean": float(f"{100 / 7:.6g}"), "std": float(f"{100 / 21:.6g}")}
        (first,) = [row for row in rows if row["kind"] == "alignment" and row["step"] == 1]
        assert first["alpha"] == {"W_q": [float(f"{1 / 7:.6g}"), None]}


def test_it_says_nothing_of_the_machine(filled: Store, tmp_path: Path) -> None:
    pack_folder(filled, tmp_path / "archive")
    whole = "".join(text_of(tmp_path / "archive").values())
    for word in (PLACE, "somebody", "/var", str(tmp_path), "tokenizer.json"):
        assert word not in whole


def test_the_same_results_give_the_same_bytes_in_whatever_order_they_came(filled: Store, tmp_path: Path) -> None:
    pack_folder(filled, tmp_path / "once")
    before = text_of(tmp_path / "once")
    pack_folder(filled, tmp_path / "once")
    assert text_of(tmp_path / "once") == before
    back = Store(tmp_path / "back")
    merge(tmp_path / "once", back)
    pack_folder(back, tmp_path / "twice")  # thinned rows are not thinned again
    assert text_of(tmp_path / "twice") == before
    part = Store(tmp_path / "part")  # the last two runs first
    for run in list(filled.runs())[-2:]:
        shutil.copytree(run.path, part.root / run.path.name)
    pack_folder(part, tmp_path / "apart")
    assert pack_folder(filled, tmp_path / "apart").added == 4
    assert text_of(tmp_path / "apart") == before


def test_more_runs_are_more_lines(filled: Store, tmp_path: Path) -> None:
    pack_folder(filled, tmp_path / "archive")
    before = text_of(tmp_path / "archive")
    spec = make_spec(seed=7)
    filled.run(spec).write_record(record_of(spec))
    pack_folder(filled, tmp_path / "archive")
    after = text_of(tmp_path / "archive")
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {f"runs/{spec.hash[0]}.jsonl", "shared.jsonl"}
    for name in changed:
        assert set(before.get(name, "").splitlines()) < set(after[name].splitlines())


def test_what_each_run_took_is_its_own_and_the_way_it_was_carried_stands_once(filled: Store, tmp_path: Path) -> None:
    for i, run in enumerate(filled.runs()):
        record = run.record()
        assert record is not None
        run.write_record(replace(record, carried_by={**CARRIED, "device_s": 1 / (3 + i), "measured_s": 1 / (7 + i)}))
    pack_folder(filled, tmp_path / "archive")
    assert (tmp_path / "archive" / "shared.jsonl").read_text().count('"device":"a device"') == 1
    for run in opened(tmp_path / "archive").runs():
        ours, theirs = RunDirectory(filled.root / run.path.name).record(), run.record()
        assert ours is not None
        assert theirs is not None
        assert theirs.carried_by["device_s"] == ours.carried_by["device_s"]


def test_a_pack_goes_into_an_archive_too_and_a_disagreement_is_named(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(filled, tmp_path / "all.tar.gz")
    write_empty(tmp_path / "archive")
    assert main(["store", "merge", str(tmp_path / "all.tar.gz"), "--store", str(tmp_path / "archive")]) == 0
    assert "6 runs added" in capsys.readouterr().out
    pack_folder(filled, tmp_path / "direct")
    assert text_of(tmp_path / "archive") == text_of(tmp_path / "direct")
    run = next(iter(filled.runs()))
    record = run.record()
    assert record is not None
    run.write_record(replace(record, val_loss=2.5))
    before = text_of(tmp_path / "archive")
    assert main(["store", "pack", str(tmp_path / "archive"), "--store", str(filled.root)]) == 1
    told = capsys.readouterr()
    assert "0 runs added, 5 were there already" in told.out
    assert run.path.name in told.err
    assert "2.5" in told.err
    assert text_of(tmp_path / "archive") == before


def test_another_plan_or_other_points_are_named_and_left(filled: Store, tmp_path: Path) -> None:
    pack_folder(filled, tmp_path / "archive")
    before = text_of(tmp_path / "archive")
    other = make_directory(tmp_path / "other", make_plan(policy=Policy(extend=3), validations=40))
    pack_folder(other.store, tmp_path / "theirs")
    assert merge_folder(tmp_path / "theirs", tmp_path / "archive").conflicts == (
        "plans/plan: another plan of the same name",
    )
    assert text_of(tmp_path / "archive") == before


def test_other_points_of_the_same_plan_are_named_and_left(filled: Store, tmp_path: Path) -> None:
    pack_folder(filled, tmp_path / "archive")
    before = text_of(tmp_path / "archive")
    other = make_directory(tmp_path / "other", make_plan(validations=40))
    key = other.plan().curves[0].key
    other.add([Addition(key, -3.5, "for another reason")])
    pack_folder(other.store, tmp_path / "theirs")
    (file,) = (other.path / "added").iterdir()
    assert merge_folder(tmp_path / "theirs", tmp_path / "archive").conflicts == (
        f"plans/plan/added/{file.name}: other points were added in the archive",
    )
    assert text_of(tmp_path / "archive") == before
    other.add([Addition(key, -2.5, "beyond")])
    pack_folder(other.store, tmp_path / "theirs")
    merge_folder(tmp_path / "theirs", tmp_path / "archive")  # what only they have is added beside it
    added = PlanDirectory(opened(tmp_path / "archive").root / "plans" / "plan").additions()
    assert {(a.log2_lr, a.reason) for a in added} == {(-3.5, "asked for"), (-2.5, "beyond")}


class Killed(BaseException):
    """Like a kill: nothing is tidied up."""


@pytest.mark.parametrize("begun", [False, True])
def test_killed_at_any_write_it_can_be_read_and_packing_again_heals_it(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """In a new folder, and in one that grows by runs, a plan, a check, and the end of a run that had been stopped."""
    part = Store(tmp_path / "part")
    first, second, *_ = filled.runs()
    for run in (first, second):
        shutil.copytree(run.path, part.root / run.path.name)
    record = first.record()
    assert record is not None
    of_its_own = {"device": "another device", "device_type": "cuda"}  # what no other line names
    RunDirectory(part.root / first.path.name).write_record(
        replace(record, status="stopped", steps=10, carried_by=of_its_own)
    )
    pack_folder(filled, tmp_path / "whole")
    whole = text_of(tmp_path / "whole")
    write_bytes, left = archive.write_bytes, 0

    def until_killed(path: Path, content: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            path.with_name(f".{path.name}.0123.tmp").write_bytes(content[:10])
            raise Killed
        write_bytes(path, content)

    for writes in range(100):
        folder = tmp_path / f"archive-{writes}"
        if begun:
            pack_folder(part, folder)
        left = writes
        with monkeypatch.context() as patch:
            patch.setattr(archive, "write_bytes", until_killed)
            try:
                pack_folder(filled, folder)
                break
            except Killed:
                pass
        there = {run.path.name for run in opened(folder).runs()}
        assert there <= {run.path.name for run in filled.runs()}
        assert {first.path.name, second.path.name} <= there or not begun
        pack_folder(filled, folder)
        healed = {name: text for name, text in text_of(folder).items() if not name.endswith(".tmp")}
        assert healed == whole
    assert writes >= len(whole) - begun  # every file but archive.json was new to the one that grew


def test_a_run_that_was_stopped_and_went_on_to_its_end_is_no_disagreement(filled: Store, tmp_path: Path) -> None:
    early = Store(tmp_path / "early")
    run, other = list(filled.runs())[:2]
    for one, steps in ((run, 10), (other, 200)):
        record = one.record()
        assert record is not None
        early.run(one.spec()).write_record(replace(record, status="stopped", steps=steps, val_loss=4.0))
    pack_folder(early, tmp_path / "archive")
    merged = pack_folder(filled, tmp_path / "archive")
    assert merged.added == 5  # four that were not there, and the end of the one
    (conflict,) = merged.conflicts  # the other stopped later than it is said to have ended: that cannot be
    assert other.path.name in conflict
    found = RunDirectory(opened(tmp_path / "archive").root / run.path.name)
    record, taken = run.record(), found.record()
    assert record is not None
    assert taken is not None
    assert (taken.status, taken.steps, taken.val_loss) == (record.status, record.steps, record.val_loss)
    assert {row["kind"] for row in found.read_metrics()} == {"validation", "lerp", "alignment"}
    before = text_of(tmp_path / "archive")
    merged = pack_folder(early, tmp_path / "archive")  # and the other way round nothing is lost
    assert (merged.added, merged.same, len(merged.conflicts)) == (0, 2, 0)
    assert text_of(tmp_path / "archive") == before


def test_what_was_measured_later_is_added(filled: Store, tmp_path: Path) -> None:
    bare = Store(tmp_path / "bare")
    for run in filled.runs():
        shutil.copytree(run.path, bare.root / run.path.name)
        copy = RunDirectory(bare.root / run.path.name)
        kept = [row for row in copy.read_metrics() if row["kind"] == "validation"]
        copy.metrics.write_text("".join(json.dumps(row) + "\n" for row in kept))
    shutil.copytree(filled.root / "plans", bare.root / "plans")
    shutil.copytree(filled.root / "coords", bare.root / "coords")
    pack_folder(bare, tmp_path / "archive")
    assert pack_folder(filled, tmp_path / "archive").same == 6
    pack_folder(filled, tmp_path / "direct")
    assert text_of(tmp_path / "archive") == text_of(tmp_path / "direct")


def test_commands_read_it_as_a_store_and_nothing_runs_in_it(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack_folder(filled, tmp_path / "archive")
    shown = {}
    for store in (filled.root, tmp_path / "archive"):
        assert main(["fit", str(store), "--json"]) == 0
        shown[store] = capsys.readouterr().out
        assert main(["status", "--store", str(store), "--json"]) == 0
        capsys.readouterr()
    assert shown[filled.root] == shown[tmp_path / "archive"]
    before = text_of(tmp_path / "archive")
    with pytest.raises(ValueError, match="an archive of results, in which nothing runs"):
        Store(tmp_path / "archive").run(make_spec())
    with pytest.raises(ValueError, match="an archive of results, in which nothing runs"):
        PlanDirectory.of(opened(tmp_path / "archive"), make_plan(name="new"))
    assert text_of(tmp_path / "archive") == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure", "coords", "--steps", "1", "--store"], "{} is an archive of results, in which nothing runs"),
        (
            ["recommend", "--n-heads", "2", "--keep", "--from"],
            "--keep puts the recipe into {}, but that is an archive of results, to be read alone: --emit toml --out",
        ),
    ],
)
def test_no_command_writes_into_it(
    filled: Store,
    tmp_path: Path,
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack_folder(filled, tmp_path / "archive")
    before = text_of(tmp_path / "archive")
    monkeypatch.setattr("nugpt.cli.coords.Coords._measure", lambda *_: pytest.fail("measured before it was refused"))
    assert main([*words, str(tmp_path / "archive")]) == 2
    assert says.format(tmp_path / "archive") in capsys.readouterr().err
    with pytest.raises(ValueError, match="an archive of results, in which nothing runs"):
        write_coords(Store(tmp_path / "archive"), "new", {})
    assert text_of(tmp_path / "archive") == before


@pytest.mark.parametrize("words", [["--plan", "none-such"], ["--runs", "none-such"]])
def test_what_is_not_in_it_is_told_by_the_name_that_was_given(
    filled: Store, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pack_folder(filled, tmp_path / "archive")
    assert main(["measure", "align", "--store", str(tmp_path / "archive"), *words]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "archive") in told
    assert "nugpt-archive-" not in told  # where it was unpacked


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("archive.json", lambda text: text.replace('"format": 1', '"format": 2'), "not an archive of a form"),
        ("runs/*.jsonl", lambda text: text[:-40], "not a JSON object"),
        ("runs/*.jsonl", lambda text: text.replace('"lr":', '"rl":'), "is not whole"),
        ("runs/*.jsonl", lambda text: text.replace('"seed":0', '"seed":1'), "is of run"),
        ("plans/plan.jsonl", lambda text: text.replace('"curve":{', '"curse":{'), "plan"),
        ("shared.jsonl", lambda text: "", "is not whole"),
        (
            "shared.jsonl",
            lambda text: text.replace('"key":', '"kex":'),
            "not a line of an archive: it must have key and",
        ),
        ("runs/*.jsonl", lambda text: "[]\n", "not a line of an archive: it must have spec and record"),
    ],
)
def test_a_spoiled_archive_is_refused_by_name(
    filled: Store, tmp_path: Path, file: str, change: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "archive"
    pack_folder(filled, folder)
    for path in folder.glob(file):
        path.write_text(change(path.read_text()))
    assert main(["store", "merge", str(folder), "--store", str(tmp_path / "other")]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "other").exists()


def test_folders_that_are_none_are_refused(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="is no archive of a store: choose another name"):
        pack_folder(filled, tmp_path / "mine")
    with pytest.raises(ValueError, match=r"is a folder and no archive of a store: it has no archive\.json"):
        merge(tmp_path / "mine", Store(tmp_path / "other"))
    with pytest.raises(ValueError, match="no ended run and no plan to pack"):
        pack_folder(Store(tmp_path / "nothing"), tmp_path / "archive")
    assert not is_archive(tmp_path / "archive")
