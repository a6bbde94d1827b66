"""`nugpt report` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.small import make_source

from nugpt.cli.report import Report


def test_it_writes_where_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_source(tmp_path, "width-fixed-steps", scale="tiny")
    command = Report(store=tmp_path / "runs", out=tmp_path / "out", formats=("svg",), json=True)
    assert command.run() == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    told = json.loads(shown.out)
    assert Path(told["page"]) == tmp_path / "out" / "report.html"
    assert all(Path(path).is_file() for path in (told["page"], *told["figures"]))
    assert {one["plan"] for one in told["verdicts"]} == {"width-fixed-steps-tiny"}
    assert {one["verdict"] for one in told["verdicts"]} <= {"holds", "does not hold", "not decided here", None}


def test_one_plan_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_source(tmp_path, "width-fixed-steps", "alignment_val", scale="tiny")
    assert Report(tmp_path / "runs", tmp_path / "out", plan=("alignment_val-tiny",), formats=()).run() == 0
    assert "width-fixed-steps" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    shown = capsys.readouterr()
    assert "plan alignment_val-tiny: 2 done" in shown.out
    told = [f"reading {tmp_path / 'runs'}", "plan 1 of 1: alignment_val-tiny", "the page"]
    assert shown.err.splitlines() == told


def test_a_page_of_another_hand_is_not_replaced(tmp_path: Path) -> None:
    make_source(tmp_path, "alignment_val", scale="tiny")
    command = Report(tmp_path / "runs", tmp_path / "out", formats=())
    assert command.run() == 0
    assert command.run() == 0  # its own is
    mine = tmp_path / "out" / "report.html"
    mine.write_text("<p>mine")
    with pytest.raises(FileExistsError, match="was not written by nugpt"):
        command.run()
    assert mine.read_text() == "<p>mine"


def test_an_unreadable_record_is_named_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path, "alignment_val", scale="tiny")
    (tmp_path / "runs" / source.plans[0].curves[0].runs[0].id / "record.json").write_text("[]")
    assert Report(tmp_path / "runs", tmp_path / "out").run() == 2
    assert "record.json: not a record" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [((), r"has no plan to report on"), (("nope",), r"has no plan 'nope', it has none")],
)
def test_mistakes_are_told(tmp_path: Path, plan: tuple[str, ...], complaint: str) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match=complaint):
        Report(tmp_path / "runs", tmp_path / "out", plan=plan).run()
    with pytest.raises(ValueError, match="does not exist"):
        Report(tmp_path / "nowhere").run()
