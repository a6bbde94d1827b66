"""What the results page says of stores that are not whole: plans of several scales, records that cannot be read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.planted import DATA, FACTS, REPLICAS, SETTING, WALL_S, fill, write_run

from nugpt.cli import results
from nugpt.cli.curve_rows import curve_rows, spent_text
from nugpt.cli.main import main
from nugpt.cli.results import digest, read_sections
from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED
from nugpt.fit.interval import Interval
from nugpt.fit.verdict import Estimate, judge
from nugpt.report.answers import Judged
from nugpt.report.estimates import estimate
from nugpt.report.readme import BEGIN, END, answered, first_screen
from nugpt.report.results import Section, page, what_is_left
from nugpt.spec.plan import Plan, Policy
from nugpt.spec.study import Claim
from nugpt.spec.study_rules import Rule
from nugpt.store import Store
from nugpt.store.archive import pack_folder, write_empty
from nugpt.store.plans import PlanDirectory
from nugpt.studies import STUDIES, plan
from nugpt.sweep.state import plan_state, spent
from nugpt.sweep.worker import grown

README = f"{BEGIN}\n{END}\n"
WIDTH = "width-fixed-steps"


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a page's time, and is looked at elsewhere."""
    monkeypatch.setattr(results, "_figures", lambda *_: ((), ()))


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
    for name in ("headline-light.svg", "headline-dark.svg", "of-another-time.svg", "mine.svg"):
        (folder / name).write_text("<svg/>")
    before = written(tmp_path / "archive", tmp_path)
    assert len(list(folder.iterdir())) == 4
    (tmp_path / "docs" / "results.md").write_text(f"![loss](figures/results/of-another-time.svg)\n{before}")
    assert written(tmp_path / "archive", tmp_path) == before
    assert {path.name for path in folder.iterdir()} == {"headline-light.svg", "headline-dark.svg", "mine.svg"}
    (folder / "mine.svg").unlink()
    written(tmp_path / "archive", tmp_path, "--readme", str(tmp_path / "README.md"))  # which now shows no figure
    assert not list(folder.iterdir())


def test_a_page_of_another_hand_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_empty(tmp_path / "archive")
    mine = tmp_path / "results.md"
    mine.write_text("# What I found\n")
    assert main(["report", str(tmp_path / "archive"), "-o", str(tmp_path), "--results"]) == 2
    assert f"{mine} was not written by `nugpt report`" in capsys.readouterr().err
    assert mine.read_text() == "# What I found\n"


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
        assert f"**The data.** The records give only its content hash `{DATA[:16]}`." in text
        assert "The paper trains on FineWeb-Edu; these runs do not." in text
        minutes = (len(others) * WALL_S / REPLICAS + WALL_S) / 60
        assert (
            f"| GPU-minutes | {minutes:.1f}, not counting start-up; runs that studies share are counted once |" in text
        )


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


def test_a_settled_plan_whose_curves_would_now_call_for_more_says_so(tmp_path: Path) -> None:
    """As where runs were read by an earlier version: the grid counts as whole, and the page does not hide the rest."""
    made = replace(planned(), policy=Policy(extend=0, refine=(0.25,)))
    store = Store(tmp_path / "runs")
    directory = PlanDirectory.of(store, made)
    for spec in made.specs():
        write_run(store, spec)
    name = f"{WIDTH} at tiny"
    assert "**Not complete**: its curves call for more points." in part(written(store.root, tmp_path), name)
    directory.settle(sum(len(curve.log2_lrs) for curve in made.curves))
    text = written(store.root, tmp_path)
    others = len(STUDIES) - 1
    assert f"1 complete, {others} not run yet; 1 of the complete would call for more points as curves are read" in text
    (directory.path / "added").rename(tmp_path / "removed")
    grown(made, directory, 60.0)
    called = len(directory.additions())
    assert called > 0
    assert (
        f"**Complete**: all {len(made.specs())} runs of its grid have ended. "
        f"Its curves called for no more points then; as they are read now, they would call for {called}."
    ) in part(text, name)
    fill(store, made)
    assert "read now" not in written(store.root, tmp_path)


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
    assert readme.count("**not complete (so far: holds)**") == 2
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
    assert results._standing(store, made.name, ("alignment",))[4] == runs - 1
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


def test_the_loss_of_one_seed_is_the_final_one_as_those_on_its_sources_are(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = planned("alignment_val_l12h28", "evidence")
    PlanDirectory.of(store, made)
    (spec,) = made.specs()
    write_run(store, spec)
    record = store.run(spec).record()
    assert record is not None
    assert record.val_loss is not None
    store.run(spec).write_record(replace(record, val_loss_ema=record.val_loss + 0.15))
    text = part(written(store.root, tmp_path), "alignment_val_l12h28")
    loss = record.val_loss
    assert f"| all | 1 | −7.00 | {loss:.3f} | {loss - 0.5:.3f} | {loss + 1.0:.3f} |" in text
    tokens = spec.steps * spec.batch * spec.model.seq_len
    assert f"| tokens per run | {tokens / 1e6:.1f} M ({tokens / FACTS['tokens']:.2f} epochs) |" in text


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([(-0.02, 0.0), (-0.04, -0.03)], "a: −0.010 (−0.020 to 0.000); both within"),
        ([(-0.02, 0.0), (-0.04, -0.03), (0.03, 0.05)], "c: 0.040 (0.030 to 0.050); 1 of 3 outside"),
        ([(-0.02, 0.0), (0.0, 0.04), (-0.1, 0.08)], "b: 0.020 (0.000 to 0.040); 2 of 3 not decided"),
        ([(-0.02, 0.0), (-math.inf, math.inf)], "b: 0.01 (no interval: too few runs); 1 of 2 not decided"),
        ([(0.00001, 0.00002)], "a: 0.000 (0.000 to 0.000)"),
    ],
)
def test_at_a_glance_a_claim_of_several_parts_shows_the_one_that_decides(
    ends: list[tuple[float, float]], told: str
) -> None:
    rule = Rule("loss-not-worse", low=None, high=0.01)
    parts = [
        Estimate((low + high) / 2 if math.isfinite(low) else 0.01, Interval(low, high), 0.9, name)
        for name, (low, high) in zip("abc", ends, strict=False)
    ]
    assert estimate(Judged(Claim("It is so.", rule), judge(rule, parts), ())) == told


def test_of_an_open_question_the_glance_shows_the_lowest_and_the_highest() -> None:
    rule = Rule("alignment")
    parts = [Estimate(x, Interval(x - 0.1, x + 0.1), 0.9, f"layer {i}") for i, x in enumerate((0.6, 0.8, 0.5), 1)]
    shown = estimate(Judged(Claim("How it is.", rule), judge(rule, parts), ()))
    assert shown == "layer 3: 0.50 (0.40 to 0.60); layer 2: 0.80 (0.70 to 0.90); the lowest and the highest of 3"


def test_what_is_left_says_runs_and_points() -> None:
    section = Section(STUDIES[WIDTH], "tiny", None, 3, True, "")
    assert what_is_left(section) == "0 of 0 runs have ended; its curves call for more points"
    assert what_is_left(replace(section, grows=False)) == "0 of 0 runs have ended"
    assert what_is_left(replace(section, left=0)) == "its curves call for more points"


@pytest.mark.parametrize(
    "answers", [(HOLDS, HOLDS), (FAILS, FAILS), (UNDECIDED, UNDECIDED), (HOLDS, UNDECIDED), (FAILS, HOLDS)]
)
def test_the_first_screen_reads_right_whatever_the_verdicts(tmp_path: Path, answers: tuple[str, str]) -> None:
    intervals = {
        ("ngpt", HOLDS): (-0.6, -0.4),
        ("ngpt", FAILS): (0.4, 0.6),
        ("ngpt", UNDECIDED): (-0.2, 0.1),
        ("nugpt", HOLDS): (-0.05, 0.05),
        ("nugpt", FAILS): (0.4, 0.6),
        ("nugpt", UNDECIDED): (0.05, 0.15),
    }
    store = Store(tmp_path / "runs")
    fill(store, planned())
    (section,) = [one for one in sections_of(store) if one.study.id == WIDTH]
    assert section.found is not None
    judged = []
    for one, answer in zip(section.found.judged[:2], answers, strict=True):
        low, high = intervals[str(one.claim.rule.table), answer]
        found = judge(one.claim.rule, [Estimate((low + high) / 2, Interval(low, high), 0.9)])
        assert found.answer == answer
        judged.append(replace(one, verdict=found))
    section = replace(section, found=replace(section.found, judged=tuple(judged)))
    readme = first_screen([section], {"light": "a", "dark": "b"}, [], "", "results.md")
    rows = [line.strip("| ").split(" | ") for line in readme.splitlines() if line.startswith("| [")]
    assert [row[3] for row in rows] == [f"**{answer}**" for answer in answers]
    assert [row[2] for row in rows] == ["at most −0.1", "from −0.1 to 0.1"]
    slopes = [(low, high) for one in judged for low, high in [one.verdict.estimates[0].interval]]
    for row, (low, high) in zip(rows, slopes, strict=True):
        shown = [f"{value:.2f}".replace("-", "−") for value in ((low + high) / 2, low, high)]
        assert row[1] == f"{shown[0]} ({shown[1]} to {shown[2]}) octaves per doubling"
    assert "baseline" not in readme, "which was not run"
    verb = {HOLDS: "falls by 0.50", FAILS: "rises by 0.50", UNDECIDED: "moves by −0.05"}[answers[0]]
    assert f"nGPT's best learning rate {verb} octaves per doubling of width (90 % interval " in readme


def test_a_claim_that_is_not_decided_within_its_bounds_says_why() -> None:
    rule = Rule("no-drift", along="heads", low=-0.1, high=0.1)
    within = Estimate(0.0, Interval(-0.05, 0.05), 0.9, censored=True)
    one = Judged(Claim("It stays.", rule), judge(rule, [within]), ())
    assert estimate(one) == "0.00 (−0.05 to 0.05); a size has its optimum beyond its grid"
    wide = replace(within, interval=Interval(-0.2, 0.2))
    assert estimate(replace(one, verdict=judge(rule, [wide]))) == "0.00 (−0.20 to 0.20)"
