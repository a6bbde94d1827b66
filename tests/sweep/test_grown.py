"""What a study whose grids grew by themselves says holds the truth about as often as docs/fit.md says."""

from __future__ import annotations

import pytest
from tests.sweep.grown import Grown, covered, grown


def test_shares_by_hand() -> None:
    found = [
        Grown((True, False, True), True, 0.2, True, "holds"),
        Grown((True,), None, float("inf"), True, "not decided here"),
        Grown((), False, 0.4, False, "does not hold"),
    ]
    assert [*covered(found).values()] == [0.75, 0.5, pytest.approx(0.3), 0.5, 0.0]


@pytest.mark.slow
def test_slopes_and_optima_of_studies_that_grew_are_covered() -> None:
    found = covered(grown(40, 0.0125, "3 seeds"))
    assert found["optimum"] >= 0.8  # of 160
    assert found["drift"] >= 0.8
    assert found["fails there"] == 0.0
