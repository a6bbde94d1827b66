"""What the results page says of stores that are not whole: plans of several scales, records that cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.planted import DATA, REPLICAS, SETTING, WALL_S, fill, write_run

from nugpt.cli import results
from nugpt.cli.curve_rows import curve_rows, spent_text
from nugpt.cli.main import main
from nugpt.cli.results import digest, read_sections
from nugpt.report.readme import BEGIN, END, answered
from nugpt.report.results import Section, page
from nugpt.spec.plan import Plan
from nugpt.store import Store
from nugpt.store.archive import pack_folder, write_empty
from nugpt.store.plans import PlanDirectory
from nugpt.studies import STUDIES, plan
from nugpt.sweep.state import plan_state, spent

README = f"{BEGIN}\n{END}\n"
WIDTH = "width-fixed-steps"


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a page's time, and is looked at elsewhere."""
    monkeypatch.setattr(results, "_figures", lambda *_: ())


def planned(id: str = WIDTH, scale: str = "tiny") -> Plan:
    return plan(STUDIES[id], scale, SETTING)


def written(path: Path, folder: Path, *words: str, status: int = 0) -> str:
    """The page that the command writes."""
    assert main(["report", str(path), "-o", str(folder / "docs"), "--results", *words]) == status
    return (folder / "docs" / "results.md").read_text()


def part(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def sections_of(store: Store) -> Sequence[Section]:
    return read_sections(store, store.root, store.root.parent / "docs", {})[0]


def test_a_page_alone_leaves_the_readmes_figures(tmp_path: Path) -> None:
    write_empty(tmp_path / "archive")
    (tmp_path / "README.md").write_text(README)
    folder = tmp_path / "docs" / "figures" / "results"
    folder.mkdir(parents=True)
    for name in ("headline-light.svg", "headline-dark.svg", "of-another-time.svg"):
        (folder / name).write_text("<svg/>")
    written(tmp_path / "archive", tmp_path)
    assert {path.name for path in folder.iterdir()} == {"headline-light.svg", "headline-dark.svg"}
    written(tmp_path / "archive", tmp_path, "--readme", str(tmp_path / "README.md"))  # which now shows no figure
    assert not list(folder.iterdir())


def test_data_without_facts_is_told_by_its_hash_and_each_run_by_its_own_share(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, planned())
    alone, *others = store.runs()
    for run in (alone, *others):
        (run.path / "data.json").write_text(json.dumps({"content_hash": DATA, "end_of_text": None, "path": "/x"}))
    record = alone.record()
    assert record is not None
    alone.write_record(replace(record, carried_by={**record.carried_by, "replicas": 1}))
    pack_folder(store, tmp_path / "archive")
    for path in (store.root, tmp_path / "archive"):
        text = written(path, tmp_path)
        assert f"| data | content hash `{DATA[:16]}` |" in text
        assert "The paper's data is FineWeb-Edu; here it is not." in text
        minutes = (len(others) * WALL_S / REPLICAS + WALL_S) / 60
        assert f"| GPU-minutes | {minutes:.1f}, runs that studies share counted once |" in text


@pytest.mark.parametrize("name", ["record.json", "data.json"])
def test_what_cannot_be_read_is_named_and_the_rest_is_told(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "runs")
    fill(store, planned())
    runs = list(store.runs())
    (runs[0].path / name).write_text('{"cut off')
    text = written(store.root, tmp_path, status=2)
    assert f"**Could not be read:** {runs[0].path / name}: not a whole JSON document" in text
    assert str(runs[0].path / name) in capsys.readouterr().err
    state = part(text, f"{WIDTH} at tiny")
    if name == "record.json":
        assert f"**Not complete**: {len(runs) - 1} of {len(runs)} runs have ended." in state
    else:
        assert f"**Complete**: all {len(runs)} runs of its grid have ended." in state


def test_plans_of_one_study_are_told_apart_and_a_small_one_does_not_stand_in(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    tiny = planned()
    fill(store, tiny)
    fill(store, replace(tiny, name="mine"))
    assert answered(sections_of(store), WIDTH) is not None
    lab = planned(scale="lab")
    PlanDirectory.of(store, lab)
    for spec in lab.specs():
        if spec.seed == 0 or spec.lr == lab.specs()[0].lr:
            write_run(store, spec)
    (tmp_path / "README.md").write_text(README)
    text = written(store.root, tmp_path, "--readme", str(tmp_path / "README.md"))
    names = [f"{WIDTH} at tiny, plan mine", f"{WIDTH} at lab", f"{WIDTH} at tiny"]
    assert [line for line in re.findall(r"^## (.*)$", text, re.M) if line.startswith(WIDTH)] == names
    for name, anchor in zip(names, ("at-tiny-plan-mine", "at-lab", "at-tiny"), strict=True):
        assert f"| [`{name}`](#{WIDTH}-{anchor}) |" in text
    assert "**Not complete**" in part(text, names[1])
    assert "**Complete**" in part(text, names[2])
    assert "| seeds | 1 on " in part(text, names[1])  # a second at one learning rate is not a second seed
    assert "2 on" not in part(text, names[1]).split("| seeds |")[1].splitlines()[0]
    readme = (tmp_path / "README.md").read_text()
    assert "**not complete (so far: holds)**" in readme
    assert "(scale `lab`)" in readme
    assert "(scale `tiny`)" not in readme


def test_of_curves_at_one_learning_rate_no_optimum_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = planned("alignment_val")
    fill(store, made)
    states = plan_state(made, PlanDirectory(store.root / "plans" / made.name), 60.0)
    for row in curve_rows(states):
        assert row[1:5] == ["1/1", "–", "–", "at -3.5 alone"]
    assert spent_text(spent(states)) == f"{len(states) * WALL_S / REPLICAS / 60:.3g} device-minutes"
    width = planned()
    fill(store, width)
    states = plan_state(width, PlanDirectory(store.root / "plans" / width.name), 60.0)
    assert "the optimum known to" in spent_text(spent(states))
    assert all("alone" not in row[4] for row in curve_rows(states))


def test_a_study_whose_runs_were_not_measured_is_not_complete(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = planned("alignment_val")
    PlanDirectory.of(store, replace(made, policy=replace(made.policy, extend=0)))
    for spec in made.specs():
        write_run(store, spec)
    text = part(written(store.root, tmp_path), "alignment_val at tiny")
    runs = len(made.specs())
    assert f"**Not complete**: {runs} runs ended without measuring alignment (`nugpt measure`" in text
    assert "- **not complete (so far: " in text
    first, *_ = store.runs()
    first.append_metrics([{"step": 1, "kind": "alignment"}])
    assert results._standing(store, made.name, ("alignment",))[3] == runs - 1
    assert results._standing(store, made.name, ())[3] == 0


def test_what_smaller_scales_cannot_say_is_not_said_of_the_papers(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, planned())
    (section,) = [one for one in sections_of(store) if one.study.id == WIDTH]
    assert section.study.limits
    assert section.study.limits in page([section], [], "")
    assert section.study.limits not in page([replace(section, scale="paper")], [], "")
    asked = replace(section.study, title="Does it hold?")
    assert "\n\nDoes it hold? Varies: " in page([replace(section, study=asked)], [], "")


def test_how_a_plan_was_launched_is_no_part_of_what_a_page_is_made_from(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    directory = PlanDirectory.of(store, planned())
    write_run(store, planned().specs()[0])
    before = digest(store.root)
    directory.write_launch({"data": "/of/this/machine", "options": {}})
    assert digest(store.root) == before
    write_run(store, planned().specs()[1])
    assert digest(store.root) != before
