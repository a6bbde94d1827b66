"""Coarse to fine is worth it: fewer runs for each optimum that is known to ±1/8 octave."""

from __future__ import annotations

import pytest
from tests.sweep.economy import measure

DENSE, HALVES, OCTAVES = "quarter octaves over four", "half octaves, then quarters", "three octaves, then quarters"


@pytest.mark.slow
def test_octaves_then_quarters_take_under_half_the_runs_of_a_dense_grid() -> None:
    found = measure(20, 0.004, [DENSE, HALVES, OCTAVES])
    for name in (HALVES, OCTAVES):
        assert found[name].known >= 18
        assert found[name].error < 0.05
        assert found[name].covered >= 0.7  # of twenty
        assert found[name].per_known < 0.5 * found[DENSE].per_known
