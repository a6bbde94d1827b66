"""docs/studies.md says what the code plans."""

from __future__ import annotations

from tests.studies.page import BEGIN, PAGE, generated

from nugpt.studies import STUDIES


def test_the_page_shows_the_plans_as_they_are() -> None:
    _, begin, shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert begin
    assert shown == generated(), "run python -m tests.studies.page"


def test_every_study_has_its_rows() -> None:
    text = generated()
    for id, study in STUDIES.items():
        assert text.count(f"| `{id}` |") == len(study.claims) + 4 + 1  # claims, scales, and its turn at `evidence`
