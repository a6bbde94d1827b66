"""Stated 90 % intervals hold the truth about that often; docs/fit.md has the numbers of the slow ones."""

from __future__ import annotations

import pytest
from tests.fit import coverage
from tests.fit.coverage import Trial, share


def enclosed(trials: list[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.verdict == "enclosed"]


# The slow tests ask for 85 to 95 % of 500. Here 150 are drawn: a true 90 % strays by 2.4 % (one binomial deviation),
# and three of them are allowed beyond 85 to 95 where the estimator is at its worst.


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_optimum(seeds: int) -> None:
    trials = enclosed(coverage.optimum_trials(150, seeds))
    assert len(trials) > 130
    assert 0.82 <= share(trials) <= 0.98


def test_the_optimum_of_one_seed_with_pooled_noise() -> None:
    trials = enclosed(coverage.optimum_trials(60, 1, pooled_from=3))
    assert share(trials) >= 0.78  # 60: 3.9 %, three times below 90


def test_drift_regret_and_loss() -> None:
    trials = coverage.study_trials(40, 3)
    slopes = trials["drift over 3 sizes"] + trials["drift over 5 sizes"]
    assert share(slopes) >= 0.75  # 40: 4.7 %, three times below 90
    assert share(trials["regret, drift"] + trials["regret, none"]) >= 0.75
    assert share(trials["loss"]) >= 0.75
    assert share(trials["drift of -0.3"]) == 0.0  # never called no drift
    assert share(trials["no drift"]) > 0.5  # and no drift is found more often than not


def test_comparison() -> None:
    assert share(coverage.comparison_trials(20, 3, unshared=0.005)) >= 0.75  # 40 in all


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [2, 3, 5])
class TestFiveHundred:
    def test_the_optimum(self, seeds: int) -> None:
        assert 0.85 <= share(enclosed(coverage.optimum_trials(500, seeds, salt=2025))) <= 0.95

    def test_the_optimum_that_moves_with_the_seed(self, seeds: int) -> None:
        # Not what the method assumes: seeds are paired. It must still not fall apart.
        assert share(enclosed(coverage.optimum_trials(500, seeds, jitter=0.07, salt=2025))) >= 0.80

    def test_drift_regret_and_loss(self, seeds: int) -> None:
        trials = coverage.study_trials(500, seeds, salt=2026)
        for name in ("drift over 3 sizes", "drift over 5 sizes", "regret, drift", "regret, none", "loss"):
            assert share(trials[name]) >= 0.85, name

    def test_comparison(self, seeds: int) -> None:
        for unshared in (0.0, 0.005):
            assert share(coverage.comparison_trials(125, seeds, unshared, salt=2026)) >= 0.85

    def test_power_law(self, seeds: int) -> None:
        for name, trials in coverage.power_law_trials(100, seeds, salt=2026).items():
            assert share(trials) >= 0.82, name  # 100: 3 %, and 85 less one of it
