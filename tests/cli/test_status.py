"""`nugpt status`: every state of a run, stores of a thousand runs, and files that cannot be read."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sweep.small import FakeEngine, finish, make_directory, make_plan, make_spec, record_of

from nugpt.cli.curve_rows import interval_text
from nugpt.cli.main import main
from nugpt.fit.curve import FINE
from nugpt.fit.optimum import optimum
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.claims import claim
from nugpt.store.plans import Addition, PlanDirectory
from nugpt.sweep.state import plan_noise, plan_state

ALL = ("done", "diverged", "stopped", "running", "stale", "failed", "missing")


def put(store: Store, spec: RunSpec, state: str) -> None:
    """Bring a run into this state, as the programs that leave it there would."""
    if state in ("done", "diverged", "stopped"):
        store.run(spec).write_record(record_of(spec, None if state == "diverged" else 3.25, state))
    elif state in ("running", "stale"):
        held = claim(store.run(spec), 300.0)
        assert held is not None
        if state == "stale":
            os.utime(held.path, (1e9, 1e9))
    elif state == "failed":
        store.run(spec).add_failure("RuntimeError: bad luck", "traceback")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A plan with a run in each state, as well as runs of no plan."""
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-8, -8 + len(ALL))))
    for spec, state in zip(directory.plan().specs(), ALL, strict=True):
        put(directory.store, spec, state)
    for seed, state in enumerate(ALL[:-1], start=50):
        put(directory.store, make_spec(seed=seed), state)
    return directory.store


def shown(store: Store, capsys: pytest.CaptureFixture[str], *more: str, status: int = 0) -> str:
    assert main(["status", "--store", str(store.root), *more]) == status
    return capsys.readouterr().out


def told(store: Store, capsys: pytest.CaptureFixture[str], *more: str, status: int = 0) -> Any:
    return json.loads(shown(store, capsys, "--json", *more, status=status))


def test_every_state_is_shown(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(store, capsys)
    assert "plan plan: " + ", ".join(f"1 {state}" for state in ALL) in printed
    assert "3/7 (1 diverged, 1 stopped, 1 running, 1 stale, 1 failed, 1 missing)" in printed
    assert "6 runs of no plan" in printed
    for seed, state in enumerate(ALL[:-1], start=50):
        spec = make_spec(seed=seed)
        (row,) = [line.split() for line in printed.splitlines() if line.strip().startswith(spec.hash)]
        assert row == [
            spec.hash,
            state,
            "nugpt",
            "0.015625",
            str(seed),
            "3.25" if state in ("done", "stopped") else "–",
        ]


def test_runs_of_no_plan_are_told_apart_by_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    first = make_spec()
    other = replace(first, model=replace(first.model, n_layers=first.model.n_layers + 1), steps=2 * first.steps)
    for spec in (first, other):
        store.run(spec).write_record(record_of(spec, 3.25))
    lines = shown(store, capsys).splitlines()
    assert lines[2].split() == ["run", "state", "table", "layers", "steps", "η", "seed", "val_loss"]
    rows = {line.split()[0]: line.split()[3:5] for line in lines[4:6]}
    assert rows == {s.hash: [str(s.model.n_layers), str(s.steps)] for s in (first, other)}
    assert max(map(len, lines)) <= 100
    found = {run["hash"]: (run["layers"], run["heads"], run["steps"]) for run in told(store, capsys)["runs"]}
    assert found == {s.hash: (s.model.n_layers, s.model.n_heads, s.steps) for s in (first, other)}


def test_runs_that_would_look_alike_are_told_apart_by_any_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    first = make_spec()
    warm = replace(first, schedule=replace(first.schedule, warmup=5))
    extent = replace(first.base.extent, batch_tokens=2 * first.base.extent.batch_tokens)
    larger = replace(first, batch=2 * first.batch, base=replace(first.base, extent=extent))
    runs = (first, larger, replace(first, data="1" * 16), warm)
    for spec in runs:
        store.run(spec).write_record(record_of(spec, 3.25))
    lines = shown(store, capsys).splitlines()
    told_by = ["schedule.warmup", "batch", "data"]
    assert lines[2].split() == ["run", "state", "table", *told_by, "η", "seed", "val_loss"]
    expected = {s.hash: [str(s.schedule.warmup), str(s.batch), s.data] for s in runs}
    assert {line.split()[0]: line.split()[3:6] for line in lines[4:8]} == expected
    assert {run["hash"]: [*map(str, run["others"].values())] for run in told(store, capsys)["runs"]} == expected


def every_run(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the plan, and those of none."""
    return [*found["plans"]["plan"][0]["runs"], *found["runs"]]


def test_every_state_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(store, capsys)
    (curve,) = found["plans"]["plan"]
    assert [run["state"] for run in curve["runs"]] == list(ALL)
    assert [run["log2_lr"] for run in curve["runs"]] == list(range(-8, -8 + len(ALL)))
    assert [run["val_loss"] for run in curve["runs"]] == [3.25, None, 3.25, None, None, None, None]
    assert curve["optimum"] is None  # nobody asked for a fit
    assert curve["best_seen"] == {"log2_lr": -8, "loss": 3.25, "side": "left"}
    (curve,) = told(store, capsys, "--fit")["plans"]["plan"]
    assert curve["optimum"]["verdict"] in ("enclosed", "edge-censored", "flat")
    # An end that the data do not bound is null: JSON has no infinity.
    assert all(end is None or isinstance(end, float) for end in curve["optimum"]["interval"])
    assert {run["seed"]: run["state"] for run in found["runs"]} == dict(enumerate(ALL[:-1], start=50))
    assert found["problems"] == []


def test_a_run_that_was_saved_and_given_back_is_interrupted_and_names_its_step(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    planned, alone = make_plan(log2_lrs=range(-8, -8 + len(ALL))).specs()[-1], make_spec(seed=90)
    for spec in (planned, alone):
        held = claim(store.run(spec), 300.0)
        assert held is not None
        (store.run(spec).checkpoints / "step-000000007").mkdir(parents=True)
        assert {run["hash"]: run["state"] for run in every_run(told(store, capsys))}[spec.hash] == "running"
        held.release()
        found = {run["hash"]: (run["state"], run["saved"]) for run in every_run(told(store, capsys))}
        assert found[spec.hash] == ("interrupted", 7)
    for printed, spec in ((shown(store, capsys, "--plan", "plan"), planned), (shown(store, capsys), alone)):
        (line,) = [line for line in printed.splitlines() if spec.hash in line]
        assert "interrupted" in line
        assert line.rstrip().endswith("saved at step 7")


def test_a_run_whose_worker_died_is_stale_and_names_its_newest_checkpoint(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_plan(log2_lrs=range(-8, -8 + len(ALL))).specs()[ALL.index("stale")]
    (store.run(spec).checkpoints / "step-000000007").mkdir(parents=True)
    found = {run["hash"]: (run["state"], run["saved"]) for run in every_run(told(store, capsys))}
    assert found[spec.hash] == ("stale", 7)
    assert {saved for hash_, (_, saved) in found.items() if hash_ != spec.hash} == {None}


def test_how_long_silence_may_last_is_an_option(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(store, capsys, "--stale-after", "1e12")
    assert Counter(run["state"] for run in found["plans"]["plan"][0]["runs"])["running"] == 2


def test_one_plan_is_shown_run_by_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    directory = PlanDirectory(store.root / "plans" / "plan")
    (curve,) = directory.plan().curves
    directory.add([Addition(curve.key, 0.5, "best at the right edge of the grid")])
    PlanDirectory.of(store, make_plan(name="other", log2_lrs=(1,)))
    printed = shown(store, capsys, "--plan", "plan")
    assert "other" not in printed
    assert "of no plan" not in printed
    for (log2_lr, seed), spec in curve.runs().items():
        (row,) = [line.split() for line in printed.splitlines() if spec.hash in line]
        assert row[:4] == ["of=plan", f"{log2_lr:g}", str(seed), ALL[int(log2_lr) + 8]]
    (row,) = [line for line in printed.splitlines() if curve.run(0.5, 0).hash in line]
    assert "missing" in row
    assert "added: best at the right edge of the grid" in row
    assert "added" in told(store, capsys, "--plan", "plan")["plans"]["plan"][0]["runs"][-1]


def test_an_edge_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_directory(tmp_path)
    finish(directory, FakeEngine(loss=lambda spec: 3.0 - spec.lr * 40))
    (row,) = [line.split() for line in shown(directory.store, capsys).splitlines() if line.startswith(" of=plan")]
    assert row == ["of=plan", "5/5", "-4", "0.5", "right"]
    printed = shown(directory.store, capsys, "--fit")
    assert "5/5" in printed
    assert "edge-censored (right)" in printed
    assert "at least" in printed
    assert "inf" not in printed
    optimum = told(directory.store, capsys, "--fit")["plans"]["plan"][0]["optimum"]
    assert (optimum["verdict"], optimum["side"], optimum["log2_lr"]) == ("edge-censored", "right", None)
    assert optimum["interval"][1] is None


def test_what_an_optimum_has_cost_is_told_with_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-8, -7, -6.5, -6, -5.5, -5, -4), seeds=(0, 1)))
    for (x, seed), spec in directory.plan().curves[0].runs().items():
        record = record_of(spec, 3.0 + 0.1 * (x + 6) ** 2 + seed / 1000, wall_s=120.0, carried_by={"replicas": 4})
        directory.store.run(spec).write_record(record)
    # Fourteen runs of two minutes, each a quarter of its ensemble; an exact parabola over four octaves is known well.
    assert told(directory.store, capsys, "--fit")["spent"] == {"plan": {"seconds": 420.0, "known": 1, "curves": 1}}
    printed = shown(directory.store, capsys, "--fit")
    assert "7 device-minutes, the optimum known to ±1/8 octave on 1 of 1 curve: 7 minutes for each" in printed
    assert "spent" not in told(directory.store, capsys)  # without a fit nothing is known of an optimum


def test_what_is_told_of_an_optimum_is_read_from_the_fine_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On four learning rates the quick one, which steers a sweep, is too sure of itself."""
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-8, -7, -6.5, -6), seeds=(0, 1, 2)))
    scatter = random.Random(0)
    for (x, seed), spec in directory.plan().curves[0].runs().items():
        loss = 3.0 + 0.08 * (x + 6.6) ** 2 + seed / 100 + scatter.gauss(0.0, 0.002)
        directory.store.run(spec).write_record(record_of(spec, loss))
    (state,) = states = plan_state(directory.plan(), directory, 60.0)
    fine, quick = (state.optimum(plan_noise(states), fine) for fine in (True, False))
    assert fine is not None
    assert quick is not None
    assert fine == optimum(state.points(), pooled=plan_noise(states), effort=FINE)
    assert fine.interval.width > 1.2 * quick.interval.width
    assert interval_text(*fine.interval) in shown(directory.store, capsys, "--fit")
    (curve,) = told(directory.store, capsys, "--fit")["plans"]["plan"]
    assert curve["optimum"]["interval"] == [*fine.interval]


def test_nothing_is_known_at_an_edge_whatever_it_has_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_directory(tmp_path)
    finish(directory, FakeEngine(loss=lambda spec: 3.0 - spec.lr * 40))
    assert told(directory.store, capsys, "--fit")["spent"]["plan"]["known"] == 0
    assert "known to ±1/8 octave on 0 of 1 curve\n" in shown(directory.store, capsys, "--fit")


def test_a_plan_of_which_nothing_has_ended_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_directory(tmp_path)
    assert "0/5 (5 missing)" in shown(directory.store, capsys)
    (curve,) = told(directory.store, capsys, "--fit")["plans"]["plan"]
    assert (curve["optimum"], curve["best_seen"]) == (None, None)


def test_a_column_of_losses_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-8, -7, -6), seeds=(0, 1)))
    for spec, loss in zip(directory.plan().specs(), (3.5, 3.4, 3.0, 3.2, 3.3, 3.3), strict=True):
        directory.store.run(spec).write_record(record_of(spec, loss))
    for words, column, loss in (([], "mean loss there", "3.1"), (["--fit"], "lowest loss of a run", "3")):
        lines = shown(directory.store, capsys, *words).splitlines()
        (head,) = [line for line in lines if line.startswith(" curve")]
        (row,) = [line for line in lines if line.startswith(" of=plan")]
        at = head.index(column)
        assert row[at : at + len(column)].strip() == loss


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        # rows: one learning rate each, from 2^-8 up; a loss per seed, None for one that diverged
        ([(3.5, 3.4), (3.0, 3.1), (3.2, 3.2)], (-7, 3.05, None)),
        ([(3.0, 3.1), (3.5, 3.4)], (-8, 3.05, "left")),
        ([(3.5, 3.4), (3.0, 3.1)], (-7, 3.05, "right")),
        ([(3.0, 3.1)], (-8, 3.05, "both")),
        ([(3.5, 3.4), (3.0, 3.1), (None, None)], (-7, 3.05, None)),  # what diverged encloses
        ([(3.5, 3.4), (3.0, 3.1), (2.0, None)], (-7, 3.05, None)),  # half of its seeds failed
        ([(None, None)], None),
    ],
)
def test_the_best_learning_rate_seen(
    tmp_path: Path, losses: list[tuple[float | None, ...]], best: tuple[float, float, str | None] | None
) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=range(-8, -8 + len(losses)), seeds=(0, 1)))
    for spec, loss in zip(directory.plan().specs(), (loss for row in losses for loss in row), strict=True):
        directory.store.run(spec).write_record(record_of(spec, loss, "diverged" if loss is None else "done"))
    (curve,) = plan_state(directory.plan(), directory, 300.0)
    found = curve.best()
    assert (None if found is None else (found.log2_lr, round(found.loss, 6), found.side)) == best


def test_no_fit_is_imported_unless_asked_for(store: Store) -> None:
    script = (
        "import sys; from nugpt.cli.main import main; main(sys.argv[1:]); print(sorted(sys.modules), file=sys.stderr)"
    )
    for more, wanted in (([], False), (["--json"], False), (["--fit"], True)):
        command = [sys.executable, "-c", script, "status", "--store", str(store.root), *more]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert ("'nugpt.fit.optimum'" in found) == ("'numpy'" in found) == wanted
        assert "'torch'" not in found


@pytest.mark.parametrize("seconds", ["-5", "0", "nan"])
def test_a_silence_that_cannot_be_meant_is_refused(
    store: Store, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert main(["status", "--store", str(store.root), "--stale-after", seconds]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "stale_after is" in line


def test_looking_changes_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    def contents() -> dict[str, tuple[bytes, int]]:
        files = [path for path in store.root.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = contents()
    shown(store, capsys)
    assert contents() == before


def test_an_empty_and_a_missing_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert shown(Store(tmp_path / "empty"), capsys) == f"store {tmp_path / 'empty'} has no runs and no plans\n"
    assert told(Store(tmp_path / "empty"), capsys) == {"plans": {}, "runs": [], "problems": []}
    for words in (["--store", str(tmp_path / "nowhere")], ["--store", str(tmp_path / "empty"), "--plan", "x"]):
        assert main(["status", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words[-1] in line


def test_hidden_files_and_recipes_are_no_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".gitignore", "recommendation.json", "recommendation-2.json"):
        (tmp_path / name).touch()
    Store(tmp_path).check_is_one()
    assert main(["status", "--store", str(tmp_path)]) == 0
    assert "has no runs and no plans" in capsys.readouterr().out
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="has files but is no store"):
        Store(tmp_path).check_is_one()


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_folder_of_other_files_is_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (tmp_path / name).touch()
    assert main(["status", "--store", str(tmp_path), *more]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.endswith(
        f"{tmp_path} holds no runs and no plans, but a.txt, b.txt, c.txt, …: it is no store of nugpt's"
    )
    spec = make_spec()
    put(Store(tmp_path), spec, "done")  # other files beside runs are nobody's business
    assert spec.hash in shown(Store(tmp_path), capsys, *more)


def test_what_a_store_may_have_before_its_first_run_is_not_taken_for_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("plans", "coords", "notes", "0123456789abcdef"):
        (tmp_path / name).mkdir()
    for name in ("recommendation.json", ".recommendation.json.0123.tmp"):
        (tmp_path / name).touch()
    assert "has no runs and no plans" in shown(Store(tmp_path), capsys)


opened: Counter[str] = Counter()
counting = False


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if counting and event == "open" and isinstance(arguments[0], str):
        opened[os.path.basename(arguments[0])] += 1


sys.addaudithook(_count)  # for the life of the process: hence the switch


@pytest.mark.parametrize("planned", [True, False])
def test_a_thousand_runs_are_listed_reading_each_record_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], planned: bool
) -> None:
    global counting
    shapes = [make_spec(steps=steps) for steps in range(100, 140)]
    curves = tuple(Curve({"steps": spec.steps}, spec, (-8, -7, -6, -5, -4), range(5)) for spec in shapes)
    plan = Plan("large", curves, Policy(extend=0))
    store = Store(tmp_path / "runs")
    if planned:
        PlanDirectory.of(store, plan)
    for i, spec in enumerate(plan.specs()):  # written plainly: forcing each to disk takes longer than all the rest
        (store.root / spec.hash).mkdir(parents=True)
        (store.root / spec.hash / "spec.json").write_text(json.dumps(spec.to_dict()))
        record = record_of(spec, 3.0 + (i % 25 // 5 - 2) ** 2 / 10 + i % 5 / 1000)
        (store.root / spec.hash / "record.json").write_text(json.dumps(record.to_dict()))
    opened.clear()
    counting = True
    try:
        found = told(store, capsys)
    finally:
        counting = False
    runs = [run for curve in found["plans"]["large"] for run in curve["runs"]] if planned else found["runs"]
    assert len(runs) == 1000
    assert opened["record.json"] == 1000
    # What a plan says of its runs is not read again from each of them.
    assert opened["spec.json"] == (0 if planned else 1000)
    assert opened["plan.json"] == (1 if planned else 0)
    assert opened["metrics.jsonl"] == opened["failures.jsonl"] == 0


def spoil_record(store: Store, spec: RunSpec, content: str | None = None, **change: Any) -> Path:
    path = store.run(spec).path / "record.json"
    values = record_of(spec).to_dict()
    path.write_text(json.dumps(values | change) if content is None else content)
    return path


def spoil_spec(store: Store, spec: RunSpec, content: str | None = None, **change: Any) -> Path:
    path = store.run(spec).path / "spec.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | change) if content is None else content)
    return path


HALF = json.dumps(record_of(make_spec()).to_dict())[:100]


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(
    ("spoil", "change", "word"),
    [
        (spoil_record, {"content": HALF}, "not a whole JSON document"),
        (spoil_record, {"content": ""}, "not a whole JSON document"),
        (spoil_record, {"format": 2}, "format 2"),
        (spoil_record, {"val_loss": "low"}, "val_loss is 'low'"),
        (spoil_record, {"status": "fine"}, "'fine'"),
        (spoil_spec, {"content": HALF}, "not a whole JSON document"),
        (spoil_spec, {"format": 2}, "format 2"),
        (spoil_spec, {"steps": "many"}, "steps is 'many'"),
        (spoil_spec, {"lr": "fast"}, "fast"),
        (spoil_spec, {"table": [1]}, "table"),
        (spoil_spec, {"seed": None}, "seed is None"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_other_runs_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], planned: bool, spoil: Any, change: dict[str, Any], word: str
) -> None:
    plan = make_plan()
    store = Store(tmp_path / "runs")
    if planned:
        PlanDirectory.of(store, plan)
    for spec in plan.specs():
        put(store, spec, "done")
    path = spoil(store, plan.specs()[2], **change)
    if planned and spoil is spoil_spec:  # the plan knows the spec: nothing is lost, and the worker names the file
        assert [run["state"] for run in told(store, capsys)["plans"]["plan"][0]["runs"]] == ["done"] * 5
        return
    content = path.read_bytes()
    assert main(["status", "--store", str(store.root)]) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert str(path) in line
    assert word in line
    assert main(["status", "--store", str(store.root), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == [line.removeprefix("nugpt: error: ")]
    if planned:
        states = [run["state"] for run in found["plans"]["plan"][0]["runs"]]
        assert states == ["done", "done", "unreadable", "done", "done"]
        assert "1 unreadable" in shown.out
    else:
        assert len(found["runs"]) == 4
        assert "4 runs of no plan" in shown.out
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "word"),
    [('{"format": 2}', "format 2"), ("{", "not a whole JSON document"), ("[]", "form"), ('{"format": 1}', "form")],
)
def test_a_plan_that_cannot_be_read_is_named_and_the_others_are_shown(
    store: Store, capsys: pytest.CaptureFixture[str], content: str, word: str
) -> None:
    spoiled = PlanDirectory.of(store, replace(make_plan(log2_lrs=(3,)), name="newer")).path / "plan.json"
    spoiled.write_text(content)
    assert main(["status", "--store", str(store.root)]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert str(spoiled) in line
    assert word in line
    assert "plan plan: 1 done" in printed.out


def test_a_worker_names_the_spoiled_record_and_touches_nothing(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    path = spoil_record(directory.store, directory.plan().specs()[2], content=HALF)
    engine = FakeEngine()
    with pytest.raises(ValueError, match=str(path)):
        finish(directory, engine)
    assert engine.ensembles == []
    assert path.read_text() == HALF
