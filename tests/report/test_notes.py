"""What the notes beside the committed results say in words, held against the records that they speak of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

from nugpt.fit.claims import verdicts
from nugpt.fit.curves import Answers, answer
from nugpt.fit.measured import measured
from nugpt.fit.verdict import Verdict
from nugpt.spec.loss import loss_name
from nugpt.store import opened
from nugpt.store.plans import plans
from nugpt.studies import STUDIES
from nugpt.sweep.state import CurveState, Place, plan_state

EVIDENCE = Path(__file__).resolve().parents[2] / "results" / "evidence"


def note(id: str) -> str:
    """As a person wrote it."""
    return (EVIDENCE / "notes" / f"{id}.md").read_text(encoding="utf-8")


@cache
def states(id: str) -> list[CurveState]:
    """Every curve of a study with its runs."""
    (directory,) = [one for one in plans(opened(EVIDENCE)) if one.path.name == f"{id}-evidence"]
    return plan_state(directory.plan(), directory, math.inf)


def found(id: str, keep: Callable[[Place], bool] = lambda place: True) -> Answers:
    """What the runs of a study say, or those of them that are kept."""
    loss = loss_name([state.curve for state in states(id)])
    curves = [
        measured(
            state.curve,
            [(p.log2_lr, p.seed, p.record) for p in state.places if p.record is not None and keep(p)],
            loss,
        )
        for state in states(id)
    ]
    return answer(curves)


def judged(id: str, answers: Answers) -> dict[str, Verdict]:
    """Each claim's verdict, by its rule's kind and table."""
    claims = STUDIES[id].claims
    return {f"{c.rule.kind} {c.rule.table}": v for c, v in zip(claims, verdicts(claims, answers), strict=True)}


def test_over_depth_ngpt_holds_only_with_the_points_that_were_added_later() -> None:
    assert "without these points, it is not decided" in note("depth-sweeps")

    def first(place: Place) -> bool:
        return "which had moved" not in (place.added or "")

    now, before = (judged("depth-sweeps", some) for some in (found("depth-sweeps"), found("depth-sweeps", first)))
    changed = {key: (now[key].answer, before[key].answer) for key in now if now[key].answer != before[key].answer}
    assert changed == {"no-drift ngpt": ("holds", "not decided here")}
