"""Moving results: packs that come back whole, conflicts that are named, files of strangers that are refused."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sweep.small import FakeEngine, finish, make_directory, make_plan, make_spec, record_of

from nugpt.cli.main import main
from nugpt.spec.plan import Policy
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory, Store, transfer
from nugpt.store.claims import claim
from nugpt.store.coords import read_coords, write_coords
from nugpt.store.plans import Addition
from nugpt.store.transfer import merge, pack, prune


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def filled(tmp_path: Path) -> Store:
    """A store with a finished plan, an addition to it, a diverged run, and one that has only begun."""
    directory = make_directory(tmp_path)
    directory.add([Addition(directory.plan().curves[0].key, -3.5, "asked for")])
    directory.write_launch({"data": "/data/of/this/machine", "options": {}})
    finish(directory, FakeEngine(loss=lambda spec: None if spec.lr > 2**-4 else 1 / 3))
    for run in directory.store.runs():
        (run.checkpoints / "step-000000100").mkdir(parents=True)
        (run.checkpoints / "step-000000100" / "model.safetensors").write_bytes(b"weights")
        run.keep_file("data.json", b"{}")
    directory.store.run(make_spec(seed=99)).append_metrics([{"step": 1}])
    return directory.store


def test_a_pack_comes_back_whole_without_checkpoints_and_machines(filled: Store, tmp_path: Path) -> None:
    assert pack(filled, tmp_path / "pack.tar.gz") == 6
    other = Store(tmp_path / "other")
    merged = merge(tmp_path / "pack.tar.gz", other)
    assert (merged.added, merged.same, merged.conflicts) == (6, 0, ())
    begun = make_spec(seed=99).hash
    expected = {
        name: content
        for name, content in files(filled.root).items()
        if "checkpoints" not in name and "launch.json" not in name and not name.startswith(begun)
    }
    assert files(other.root) == expected
    assert [run.record() for run in other.runs()] == [run.record() for run in filled.runs() if run.record()]


def test_merging_twice_adds_nothing(filled: Store, tmp_path: Path) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    other = Store(tmp_path / "other")
    merge(tmp_path / "pack.tar.gz", other)
    before = files(other.root)
    merged = merge(tmp_path / "pack.tar.gz", other)
    assert (merged.added, merged.same, merged.conflicts) == (0, 6, ())
    assert files(other.root) == before
    pack(other, tmp_path / "again.tar.gz")
    assert merge(tmp_path / "again.tar.gz", filled).conflicts == ()


def test_two_stores_of_one_plan_become_one(tmp_path: Path) -> None:
    plan = make_plan(seeds=(0, 1))
    stores = []
    for i, half in enumerate((plan.specs()[::2], plan.specs()[1::2])):
        directory = make_directory(tmp_path / str(i), plan)
        for spec in half:
            directory.store.run(spec).write_record(record_of(spec, 3.0 + spec.seed))
        directory.add([Addition(plan.curves[0].key, float(i), "asked for")])
        pack(directory.store, tmp_path / f"{i}.tar.gz")
        stores.append(directory)
    merged = merge(tmp_path / "1.tar.gz", stores[0].store)
    assert (merged.added, merged.same, merged.conflicts) == (5, 0, ())
    assert all(RunDirectory(stores[0].store.root / spec.hash).record() is not None for spec in plan.specs())
    assert [addition.log2_lr for addition in stores[0].additions()] == [0.0, 1.0]


def spec_of(store: Store) -> RunSpec:
    return next(run.spec() for run in store.runs() if run.record() is not None)


def test_a_disagreement_is_named_and_nothing_is_overwritten(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    spec = spec_of(filled)
    filled.run(spec).write_record(record_of(spec, 2.5))
    before = files(filled.root)
    merged = merge(tmp_path / "pack.tar.gz", filled)
    (conflict,) = merged.conflicts
    for word in (spec.hash, "2.5", str(1 / 3), "pack.tar.gz"):
        assert word in conflict
    assert (merged.added, merged.same) == (0, 5)
    assert main(["store", "merge", str(tmp_path / "pack.tar.gz"), "--store", str(filled.root)]) == 1
    assert spec.hash in capsys.readouterr().err
    assert files(filled.root) == before


def test_the_end_of_a_run_that_was_stopped_here_is_taken_over(filled: Store, tmp_path: Path) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    spec = spec_of(filled)
    other = Store(tmp_path / "other")
    run = other.run(spec)
    run.write_record(record_of(spec, 4.0, "stopped", steps=10))
    run.keep_file("data.json", b'{"mine": 1}')
    (run.checkpoints / "step-000000010").mkdir(parents=True)
    pack(other, tmp_path / "stopped.tar.gz")
    held = claim(run, 300.0, ("done", "diverged"))  # taken up again
    assert held is not None
    (conflict,) = merge(tmp_path / "pack.tar.gz", other).conflicts
    assert "under way here" in conflict
    held.release()
    merged = merge(tmp_path / "pack.tar.gz", other)
    assert (merged.added, merged.same, merged.conflicts) == (1, 5, ())
    assert run.record() == filled.run(spec).record()
    assert (run.path / "data.json").read_bytes() == b'{"mine": 1}'
    before = files(other.root)
    merged = merge(tmp_path / "stopped.tar.gz", other)
    assert (merged.added, merged.same, merged.conflicts) == (0, 1, ())
    assert files(other.root) == before


def test_another_plan_of_the_same_name_is_named_and_gets_no_points(filled: Store, tmp_path: Path) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    other = make_directory(tmp_path / "other", replace(make_plan(), policy=Policy(extend=3)))
    merged = merge(tmp_path / "pack.tar.gz", other.store)
    assert merged.added == 6
    assert merged.conflicts == ("plans/plan: another plan of the same name",)
    assert other.additions() == []
    assert other.plan().policy.extend == 3


@pytest.mark.parametrize("how", ["checkpoint", "claim"])
def test_a_run_that_is_under_way_here_is_left_alone(filled: Store, tmp_path: Path, how: str) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    other = Store(tmp_path / "other")
    run = other.run(spec_of(filled))
    run.append_metrics([{"step": 1, "mine": True}])
    if how == "checkpoint":
        (run.checkpoints / "step-000000007").mkdir(parents=True)
    else:
        assert claim(run, 300.0) is not None
    before = files(run.path)
    merged = merge(tmp_path / "pack.tar.gz", other)
    assert merged.added == 5
    (conflict,) = merged.conflicts
    assert "under way here" in conflict
    assert files(run.path) == before


def test_what_was_measured_elsewhere_alone_is_added_and_nothing_else_of_the_same_run(
    filled: Store, tmp_path: Path
) -> None:
    spec = spec_of(filled)
    pack(filled, tmp_path / "before.tar.gz")
    other = Store(tmp_path / "other")
    merge(tmp_path / "before.tar.gz", other)
    run, copy = filled.run(spec), other.run(spec)
    run.append_metrics([{"step": 7, "kind": "alignment", "omega": 0.5}, {"step": 8, "kind": "lerp", "mine": True}])
    copy.append_metrics([{"step": 8, "kind": "lerp", "mine": False}])
    before = copy.read_metrics()
    pack(filled, tmp_path / "after.tar.gz")
    merged = merge(tmp_path / "after.tar.gz", other)
    assert (merged.added, merged.same, merged.conflicts) == (0, 6, ())
    new = {"step": 7, "kind": "alignment", "omega": 0.5}
    assert sorted(copy.read_metrics(), key=str) == sorted([*before, new], key=str)
    assert copy.record() == run.record()
    whole = files(other.root)
    merge(tmp_path / "after.tar.gz", other)
    assert files(other.root) == whole


def test_coordinate_checks_move_too_and_are_never_replaced(filled: Store, tmp_path: Path) -> None:
    kept = write_coords(filled, "mine", {"slopes": [0.25]})
    pack(filled, tmp_path / "pack.tar.gz")
    other = Store(tmp_path / "other")
    assert merge(tmp_path / "pack.tar.gz", other).conflicts == ()
    assert read_coords(other) == read_coords(filled) == [{"format": 1, "name": "mine", "slopes": [0.25]}]
    assert merge(tmp_path / "pack.tar.gz", other).conflicts == ()
    changed = write_coords(other, "mine", {"slopes": [0.5]}).read_bytes()
    assert merge(tmp_path / "pack.tar.gz", other).conflicts == ("coords/mine: another check of the same name",)
    assert (other.root / "coords" / kept.name).read_bytes() == changed


def test_the_conflicts_of_one_file_are_told_though_the_next_is_refused(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    spec = spec_of(filled)
    filled.run(spec).write_record(record_of(spec, 2.5))
    files_given = [str(tmp_path / "pack.tar.gz"), str(tmp_path / "none.tar.gz")]
    assert main(["store", "merge", *files_given, "--store", str(filled.root)]) == 2
    told = capsys.readouterr().err
    assert spec.hash in told
    assert "none.tar.gz does not exist" in told


def test_nothing_to_merge_and_nowhere_to_pack_are_one_line(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "merge", "--store", str(filled.root)]) == 2
    assert "no file to merge" in capsys.readouterr().err
    assert main(["store", "pack", str(tmp_path / "pack.zip"), "--store", str(filled.root)]) == 2
    assert "pack.zip', but must end in .tar.gz or .tgz" in capsys.readouterr().err
    assert not (tmp_path / "pack.zip").exists()
    assert main(["store", "pack", str(tmp_path / "no" / "pack.tar.gz"), "--store", str(filled.root)]) == 2
    assert f"{tmp_path / 'no'} is no directory" in capsys.readouterr().err


def test_a_file_that_exists_is_not_overwritten_and_an_empty_store_not_packed(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ValueError, match="exists"):
        pack(filled, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    with pytest.raises(ValueError, match="no ended run"):
        pack(Store(tmp_path / "nowhere"), tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                tar.addfile(info)
    return path


def of_type(kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


SPEC, OTHER = make_spec(), make_spec(seed=7)
GOOD: dict[str, bytes | tarfile.TarInfo] = {
    f"{SPEC.hash}/spec.json": json.dumps(SPEC.to_dict()).encode(),
    f"{SPEC.hash}/record.json": json.dumps(record_of(SPEC).to_dict()).encode(),
}
PLAN = json.dumps(make_plan().to_dict()).encode()
WRONG: dict[str, dict[str, bytes | tarfile.TarInfo]] = {
    "up": {"../evil.json": b"{}"},
    "up-from-a-run": {f"{SPEC.hash}/../../evil": b"{}"},
    "up-from-a-plan": {"plans/../../evil.json": b"{}"},
    "up-in-a-name": {"plans/a/added/../../../x.json": b"{}"},
    "root": {"/tmp/evil.json": b"{}"},
    "dot": {"./plans/a/plan.json": PLAN},
    "link": {f"{SPEC.hash}/metrics.jsonl": of_type(tarfile.SYMTYPE)},
    "hard-link": {f"{SPEC.hash}/metrics.jsonl": of_type(tarfile.LNKTYPE)},
    "link-as-directory": {"plans": of_type(tarfile.SYMTYPE, "/tmp")},
    "device": {f"{SPEC.hash}/metrics.jsonl": of_type(tarfile.CHRTYPE)},
    "pipe": {f"{SPEC.hash}/metrics.jsonl": of_type(tarfile.FIFOTYPE)},
    "program": {f"{SPEC.hash}/model.py": b"print()"},
    "checkpoint": {f"{SPEC.hash}/checkpoints/step-000000001/state.json": b"{}"},
    "claim": {f"{SPEC.hash}/claim-000001.json": b"{}"},
    "launch": {"plans/plan/plan.json": PLAN, "plans/plan/launch.json": b"{}"},
    "not-a-hash": {"runs/spec.json": b"{}"},
    "no-record": {f"{SPEC.hash}/spec.json": GOOD[f"{SPEC.hash}/spec.json"]},
    "spec-of-another": {f"{'0' * 16}/{name.split('/')[1]}": content for name, content in GOOD.items()},
    "record-of-another": GOOD | {f"{SPEC.hash}/record.json": json.dumps(record_of(OTHER).to_dict()).encode()},
    "half-a-record": GOOD | {f"{SPEC.hash}/record.json": b'{"format": 1,'},
    "newer-record": GOOD | {f"{SPEC.hash}/record.json": b'{"format": 2}'},
    "list-as-record": GOOD | {f"{SPEC.hash}/record.json": b"[]"},
    "list-as-spec": GOOD | {f"{SPEC.hash}/spec.json": b"[]"},
    "bytes-as-spec": GOOD | {f"{SPEC.hash}/spec.json": b"\xff\xfe"},
    "plan-without-plan": {"plans/plan/added/x.json": b"[]"},
    "half-a-plan": {"plans/plan/plan.json": PLAN[:50]},
    "plan-of-another-name": {"plans/other/plan.json": PLAN},
    "newer-plan": {"plans/plan/plan.json": b'{"format": 2}'},
    "no-additions": {"plans/plan/plan.json": PLAN, "plans/plan/added/x.json": b'[{"curve": 3}]'},
    "bytes-as-metrics": GOOD | {f"{SPEC.hash}/metrics.jsonl": b"\xff\xfe\n"},
    "half-a-row-in-the-middle": GOOD | {f"{SPEC.hash}/metrics.jsonl": b'{"step": 1\n{"step": 2}\n'},
    "list-as-row": GOOD | {f"{SPEC.hash}/metrics.jsonl": b"[1]\n"},
    "row-of-no-step": GOOD | {f"{SPEC.hash}/metrics.jsonl": b'{"kind": "train"}\n'},
    "newer-check": {"coords/mine.json": b'{"format": 2, "name": "mine"}'},
    "half-a-check": {"coords/mine.json": b'{"format": 1'},
    "check-of-another-name": {"coords/mine.json": b'{"format": 1, "name": "yours"}'},
    "check-elsewhere": {"coords/../mine.json": b'{"format": 1, "name": "mine"}'},
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_strangers_pack_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Good runs stand in front: what is wrong further on must not leave half of a pack behind.
    first: dict[str, bytes | tarfile.TarInfo] = {
        f"{OTHER.hash}/spec.json": json.dumps(OTHER.to_dict()).encode(),
        f"{OTHER.hash}/record.json": json.dumps(record_of(OTHER).to_dict()).encode(),
    }
    path = archive(tmp_path / "pack.tar.gz", first | WRONG[case])
    before = files(tmp_path)
    assert main(["store", "merge", str(path), "--store", str(tmp_path / "runs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pack.tar.gz" in line
    assert files(tmp_path) == before
    assert not Path("/tmp/evil.json").exists()


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MOST_BYTES", 2_000)
    path = archive(tmp_path / "one.tar.gz", {f"{SPEC.hash}/metrics.jsonl": b" " * 2_001})
    with pytest.raises(ValueError, match="too much"):
        merge(path, Store(tmp_path / "runs"))
    monkeypatch.setattr(transfer, "MOST_BYTES_TOGETHER", 3_000)
    many = {f"{i:016x}/metrics.jsonl": b" " * 1_500 for i in range(3)}
    with pytest.raises(ValueError, match="too much"):
        merge(archive(tmp_path / "many.tar.gz", dict(many)), Store(tmp_path / "runs"))
    # A header may promise more than follows.
    info = tarfile.TarInfo(f"{SPEC.hash}/metrics.jsonl")
    info.size = 1 << 40
    (tmp_path / "promise.tar.gz").write_bytes(gzip.compress(info.tobuf()))
    with pytest.raises(ValueError, match="too much"):
        merge(tmp_path / "promise.tar.gz", Store(tmp_path / "runs"))


def test_a_pack_cut_off_or_damaged_anywhere_is_refused(filled: Store, tmp_path: Path) -> None:
    pack(filled, tmp_path / "pack.tar.gz")
    whole = (tmp_path / "pack.tar.gz").read_bytes()
    path, into = tmp_path / "damaged.tar.gz", Store(tmp_path / "into")
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x55
        for damaged in (whole[:place], bytes(flipped)):
            path.write_bytes(damaged)
            if 4 <= place < 10 and damaged == flipped:
                continue  # gzip's header dates the file and names a system: no harm is done there
            with pytest.raises(ValueError, match=r"damaged\.tar\.gz") as error:
                merge(path, into)
            assert "\n" not in str(error.value)
    assert not into.root.exists()


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b", gzip.compress(b"not a tar", mtime=0)])
def test_a_file_that_is_no_pack_is_one_line(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    assert main(["store", "merge", str(tmp_path / "file"), "--store", str(tmp_path / "runs")]) == 2
    assert "file is not a whole pack" in capsys.readouterr().err
    assert main(["store", "merge", str(tmp_path / "nowhere"), "--store", str(tmp_path / "runs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere does not exist" in line


def test_prune_drops_checkpoints_of_ended_runs_and_nothing_else(filled: Store) -> None:
    runs = {run.path.name: run for run in filled.runs()}
    ended = sorted(name for name, run in runs.items() if run.record() is not None)
    stopped, kept = runs[ended[0]], runs[ended[1]]
    stopped.write_record(replace(record_of(stopped.spec(), 5.0), status="stopped"))
    begun = runs[make_spec(seed=99).hash]
    (begun.checkpoints / "step-000000003").mkdir(parents=True)
    before = files(filled.root)
    for run in (kept, runs[ended[2]], begun):
        (run.distributed / "step-3").mkdir(parents=True)
        (run.distributed / "step-3" / "__0_0.distcp").write_bytes(b"many")
    assert prune(filled, frozenset([kept.path.name])) == 4 * len(b"weights") + len(b"many")
    for run in runs.values():
        assert run.checkpoints.exists() == (run.path in (stopped.path, kept.path, begun.path))
        assert run.distributed.exists() == (run.path in (kept.path, begun.path))
    for run in (kept, begun):
        shutil.rmtree(run.distributed)
    after = files(filled.root)
    assert after == {name: content for name, content in before.items() if name in after}
    assert {name.split("/")[-1] for name in set(before) - set(after)} == {"model.safetensors"}
    assert prune(filled, frozenset([kept.path.name])) == 0


def test_the_commands_say_what_they_did(filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, path = str(filled.root), str(tmp_path / "results.tar.gz")
    assert main(["store", "pack", path, "--store", store]) == 0
    assert capsys.readouterr().out.startswith(f"6 runs in {path}, ")
    assert main(["store", "merge", path, path, "--store", str(tmp_path / "new")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("6 runs added, 0 were there already")
    assert second.endswith("0 runs added, 6 were there already")
    kept = spec_of(filled).hash
    assert main(["store", "prune", "--store", store, "--keep", kept[:8]]) == 0
    assert capsys.readouterr().out == f"{5 * len(b'weights')} bytes of checkpoints dropped\n"
    assert [run.path.name for run in filled.runs() if run.checkpoints.exists()] == [kept]
    loose = filled.run(make_spec(seed=123))
    loose.write_record(record_of(loose.spec(), 5.0))
    (loose.checkpoints / "step-000000003").mkdir(parents=True)
    assert main(["store", "prune", "--store", store, "--keep", kept[:8]]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "1 run of no plan with checkpoints: --all drops them too"
    assert loose.checkpoints.exists()
    assert main(["store", "prune", "--store", store, "--keep", kept[:8], "--all"]) == 0
    assert capsys.readouterr().out == "0 bytes of checkpoints dropped\n"
    assert not loose.checkpoints.exists()
    for words in (
        ["prune", "--store", store, "--keep", "zzz"],
        ["prune", "--store", str(tmp_path / "nowhere")],
        ["pack", path, "--store", store],
    ):
        assert main(["store", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_could_not_be_removed_is_not_counted(
    filled: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as with ignored errors in a folder to be read alone
    assert main(["store", "prune", "--store", str(filled.root)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "0 bytes of checkpoints dropped\n"
    assert f"checkpoints of 6 runs in {filled.root} could not be removed" in shown.err


def test_a_spoiled_record_stops_a_pack_by_name(filled: Store, tmp_path: Path) -> None:
    path = filled.run(spec_of(filled)).path / "record.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match=str(path)):
        pack(filled, tmp_path / "pack.tar.gz")
    assert not (tmp_path / "pack.tar.gz").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plans/plan/added/x.json", b'[{"curve": 3}]'),
        ("plans/plan/plan.json", b'{"format": 2}'),
        ("coords/mine.json", b'{"format": 2}'),
        ("metrics.jsonl", b"\xff\xfe\n"),
    ],
)
def test_what_a_merge_would_refuse_is_not_packed(filled: Store, tmp_path: Path, name: str, content: bytes) -> None:
    path = (filled.run(spec_of(filled)).path if name == "metrics.jsonl" else filled.root) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name):
        pack(filled, tmp_path / "pack.tar.gz")
    assert not (tmp_path / "pack.tar.gz").exists()
