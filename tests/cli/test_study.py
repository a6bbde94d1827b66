"""`nugpt study`: the list, a plan before its data is there, and one JSON document whether it is run or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nugpt.cli import study as command
from nugpt.cli.main import main
from nugpt.spec.plan import Plan
from nugpt.studies import STUDIES


def test_the_list_names_every_study_with_its_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in listed] == list(STUDIES)
    assert all(row["varies"] and row["claims"] for row in listed)


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
    assert asked == [{"quiet": True}]
