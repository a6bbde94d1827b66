"""The power of depth of the LERP coefficients, from specs and records."""

from __future__ import annotations

from typing import Any

import pytest
from tests.report.small import study_plans

from nugpt.fit.lerp import lerp_laws
from nugpt.spec.run import RunSpec


def runs(exponent: float, *ids: str, depths: int = 3) -> list[tuple[RunSpec, dict[str, Any]]]:
    found = []
    for plan in study_plans(*ids, scale="lab"):
        for curve in plan.curves[:depths]:
            spec = curve.run(-7.0, 0)
            mean = 0.3 * spec.model.n_layers**exponent
            roles = {"alpha_A": {"mean": mean, "std": 0.6 * mean}, "alpha_M": {"mean": 2 * mean, "std": 0.4 * mean}}
            found.append((spec, roles))
    return found


def test_a_planted_power_comes_back_for_each_coefficient_and_table() -> None:
    both = runs(-0.5, "depth-sweep-baseline-alpha-power-law") + runs(-1.0, "depth-sweep-ours-alpha-power-law")
    laws = lerp_laws(both)
    assert [(law.role, law.depths) for law in laws] == [("alpha_A", (2, 4, 8)), ("alpha_M", (2, 4, 8))] * 2
    assert [law.exponent for law in laws] == pytest.approx([-0.5, -0.5, -1.0, -1.0])
    assert [law.spread for law in laws] == pytest.approx([0.6, 0.2] * 2)
    assert "mean ∝ depth^-0.50 (-0.50 to -0.50, 90% interval)" in laws[0].text
    assert laws[0].to_dict()["interval"] == pytest.approx([-0.5, -0.5])


def test_two_depths_give_no_law() -> None:
    law = lerp_laws(runs(-0.5, "depth-sweep-baseline-alpha-power-law", depths=2))[0]
    assert law.exponent is None
    assert law.to_dict()["interval"] is None
    assert "it needs three depths or more" in law.text
