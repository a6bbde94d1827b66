"""What `nugpt quickstart` says at its end follows from what was found, whatever that is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.test_fit import planted_points

from nugpt.cli.quickstart import PLAN, _print_learned
from nugpt.fit.curves import Measured, answer
from nugpt.fit.verdict import Verdict
from nugpt.studies import STUDIES


def learned(capsys: pytest.CaptureFixture[str], *verdicts: str, recipe: Path | None = None) -> list[str]:
    curves = [
        Measured({"size": size}, group, {"size": size}, tuple(planted_points(-7.0 - slope * i, i)))
        for group, slope in (("falls", 0.5), ("stays", 0.0))
        for i, size in enumerate((1.0, 2.0, 4.0))
    ]
    rule = STUDIES[PLAN].claims[0].rule
    _print_learned(answer(curves), [Verdict(rule, v, (), "") for v in verdicts], Path("there"), recipe)
    return capsys.readouterr().out.strip().splitlines()


def test_five_points_and_the_next_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = learned(capsys, "not decided here", "not decided here")
    assert [line[:2] for line in lines[1:6]] == ["1.", "2.", "3.", "4.", "5."]
    assert "falls: the best η moves by -0.5" in lines[1]
    assert "not decided here" in lines[3]
    assert [line.split(":")[1].split()[:2] for line in lines[6:]] == [["nugpt", "study"], ["nugpt", "sweep"]]


def test_what_was_recommended_is_trained_next(capsys: pytest.CaptureFixture[str]) -> None:
    lines = learned(capsys, "holds", recipe=Path("my runs/recommendation.json"))
    assert lines[6].endswith("  nugpt train --recipe 'my runs/recommendation.json'")


def test_a_claim_that_is_decided_is_not_called_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    line = learned(capsys, "does not hold", "not decided here", "holds")[3]
    assert "1 holds, 1 does not hold, 1 not decided here" in line
    assert "runs as short as these" in line
