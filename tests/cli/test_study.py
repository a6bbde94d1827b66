"""`nugpt study`: the list, a plan before its data is there, and one JSON document whether it is run or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sweep.small import record_of

from nugpt.cli import launch_many
from nugpt.cli import study as command
from nugpt.cli.execution import Execution
from nugpt.cli.launch_many import Wanted, measured_first
from nugpt.cli.main import main
from nugpt.cli.run_arguments import Carrier
from nugpt.spec.plan import Plan
from nugpt.spec.study import Setting
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.studies import EVIDENCE, STUDIES, plan


def test_the_list_names_every_study_with_its_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in listed] == list(STUDIES)
    assert all(row["varies"] and row["title"] for row in listed)
    assert [claim["text"] for claim in listed[0]["claims"]] == [claim.text for claim in STUDIES[listed[0]["id"]].claims]
    assert listed[0]["claims"][1]["rule"] == "slope of the best η over heads for nugpt: 90% interval from −0.1 to 0.1"
    assert main(["study", "list"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows["width-fixed-steps"][-2:] == ["paper", "3"]
    assert rows["held-out"][-2] == "ours"
    assert rows.keys() >= set(STUDIES)


def test_a_plan_of_the_paper_can_be_looked_at_before_its_data_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "width-fixed-steps", "--scale", "paper", "--json"]) == 0
    shown = capsys.readouterr()
    plan = Plan.from_dict(json.loads(shown.out))
    assert {(c.spec.model.n_layers, c.spec.model.d_model, c.spec.steps) for c in plan.curves} == {
        (12, 102 * heads, 80_000) for heads in (8, 12, 16, 20, 28, 40)
    }
    assert "no --data" in shown.err
    assert main(["study", "width-fixed-steps", "--scale", "paper", "--run"]) == 2
    assert "needs --data" in capsys.readouterr().err


def test_json_is_all_that_is_printed_though_the_plan_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def launch(*arguments: Any, **more: Any) -> int:
        asked.append(more)
        return 0

    monkeypatch.setattr(command, "launch", launch)
    assert main(["study", "width-fixed-steps", "--scale", "tiny", "--device", "cpu", "--json", "--run"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 18
    assert [more["quiet"] for more in asked] == [True]


SETTING = Setting("0" * 16, 1024)


def wanted(id: str) -> Wanted:
    return Wanted(plan(STUDIES[id], "evidence", SETTING), Carrier(measure=STUDIES[id].measures))


def test_a_study_that_measures_comes_before_those_that_share_its_runs() -> None:
    every = [wanted(id) for row in EVIDENCE.values() for id in row]
    ordered = measured_first(every)
    assert sorted(w.plan.name for w in ordered) == sorted(w.plan.name for w in every)
    seen: dict[str, Wanted] = {}
    for one in ordered:
        for spec in one.plan.specs():
            first = seen.setdefault(spec.hash, one)
            asked = STUDIES[str(one.plan.study)].measures
            assert set(first.carrier.measure) >= set(asked), (first.plan.name, one.plan.name)
    rest = [w.plan.name for w in every if "alignment" not in w.carrier.measure]
    assert [w.plan.name for w in ordered if "alignment" not in w.carrier.measure] == rest  # else the list's order
    # What others rest on is not kept waiting by runs that only a later study shares.
    names = [str(w.plan.study) for w in ordered]
    assert names[:2] == ["alignment_val", "warmup-at-base"]
    assert names.index("alignment-by-length") == names.index("run-length-by-width") - 1


def test_all_is_every_study_in_the_order_of_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "all", "--scale", "paper", "--json"]) == 0
    plans = [Plan.from_dict(values) for values in json.loads(capsys.readouterr().out)]
    assert [p.study for p in plans] == [id for row in EVIDENCE.values() for id in row]
    assert sorted(p.study or "" for p in plans) == sorted(STUDIES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["all", "--name", "mine"], "--name is 'mine', but several studies have a plan each"),
        (["width-fixed-steps", "widht"], "unknown study 'widht'"),
        (["width-fixed-steps", "--time-limit", "soon"], "time_limit is 'soon'"),
        (["width-fixed-steps", "--time-limit", "0"], "must be more than nothing"),
        (["all", "--scale", "tiny", "--run", "--executor", "slurm"], "several studies at once need --executor local"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *words, "--device", "cpu"]) == 2
    assert says in capsys.readouterr().err


def test_a_plan_that_is_left_as_it_is_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_workers(directories: list[PlanDirectory], execution: Execution, watch: Any, early: Any) -> None:
        for directory in directories:
            for spec in directory.plan().specs():
                directory.store.run(spec).write_record(record_of(spec))

    monkeypatch.setattr(launch_many, "run_workers", run_workers)
    ids, words = ["width-fixed-steps", "depth-sweeps"], ["--scale", "tiny", "--device", "cpu", "--run", "--store"]
    assert main(["study", *ids, *words, str(tmp_path / "all")]) == 0
    for others in (ids[:1], ids):  # of other data
        store = tmp_path / f"{len(others)} are other plans"
        for id in others:
            PlanDirectory.of(Store(store), plan(STUDIES[id], "tiny", SETTING))
        assert main(["study", *ids, *words, str(store)]) == 1
        assert capsys.readouterr().err.count("left as it is: ") == len(others)


def test_another_plan_of_the_name_is_said_when_printing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PlanDirectory.of(Store(tmp_path), plan(STUDIES["depth-sweeps"], "tiny", SETTING))  # of other data
    words = ["--scale", "tiny", "--device", "cpu", "--store", str(tmp_path)]
    for more in ([], ["--json"]):
        assert main(["study", "depth-sweeps", *words, *more]) == 2
        shown = capsys.readouterr()
        assert not shown.out
        assert "plan 'depth-sweeps-tiny'" in shown.err
        assert main(["study", "width-fixed-steps", "depth-sweeps", *words, *more]) == 1  # as --run leaves it
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("would be left as it is: plan 'depth-sweeps-tiny'")
    assert main(["study", "depth-sweeps", *words, "--name", "mine"]) == 0


def test_several_studies_go_to_the_same_workers_and_another_plan_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[str], str | None]] = []

    def run_workers(directories: list[PlanDirectory], execution: Execution, watch: Any, early: Any) -> None:
        watch()
        asked.append(([directory.path.name for directory in directories], execution.time_limit))

    monkeypatch.setattr(launch_many, "run_workers", run_workers)
    PlanDirectory.of(Store(tmp_path / "runs"), plan(STUDIES["depth-sweeps"], "tiny", SETTING))  # of other data
    ids = ["width-fixed-steps", "depth-sweeps", "steps-sweep-ngpt-ours"]
    words = ["study", *ids, "--scale", "tiny", "--device", "cpu", "--store", str(tmp_path / "runs"), "--run"]
    assert main([*words, "--time-limit", "28"]) == 1  # nothing was run
    assert asked == [(["width-fixed-steps-tiny", "steps-sweep-ngpt-ours-tiny"], "28")]
    shown = capsys.readouterr()
    assert "left as it is: plan 'depth-sweeps-tiny'" in shown.err
    assert shown.err.endswith("38 runs of 2 plans are left: the same command goes on\n")
