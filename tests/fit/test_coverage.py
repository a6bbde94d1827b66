"""Stated 90 % intervals hold the truth about that often; docs/fit.md has the numbers of the slow ones."""

from __future__ import annotations

import pytest
from tests.fit import coverage
from tests.fit.coverage import Trial, Trials, share
from tests.fit.synthetic import FAMILIES, MULTIPLIERS, SPACINGS, UNLIKELY

ALWAYS = ("optimum", "drift", "regret, drift", "law, steps", "law, batch", "comparison")


def on_grid(trials: list[Trial], spacing: float) -> list[Trial]:
    return [trial for trial in trials if trial.spacing == spacing]


def test_a_few_studies() -> None:
    trials = coverage.study_trials(6, 3, ("exponential", "two_powers", "slope_and_hinge"))
    assert len(trials["optimum"]) >= 15
    assert share(trials["optimum"]) >= 0.7  # 18 sweeps of three studies: three binomial deviations below 90 %
    for name in ("drift", "law, steps", "comparison"):
        assert trials[name]


def test_the_edges_drift() -> None:
    # A bracket of the grid holds the edge for sure and is read as a deviation, so that the slope covers generously.
    assert share(coverage.edge_trials(150, 1)) >= 0.82  # 150: 2.4 %, three times below 90


# The aim is 85 to 95 % for every estimator at 2, 3 and 5 seeds. Of 500 trials a true 90 % strays by 1.3 % (one binomial
# deviation), so that one whose true coverage lies at an end of the aim is let off by two of them.
LOWEST, HIGHEST = 0.85 - 0.026, 0.95 + 0.026


@pytest.fixture(scope="module", params=[2, 3, 5])
def studied(request: pytest.FixtureRequest) -> Trials:
    return coverage.study_trials(500, request.param, salt=2025)


@pytest.fixture(scope="module", params=[2, 3, 5])
def roles(request: pytest.FixtureRequest) -> Trials:
    return coverage.role_trials(500, request.param, salt=2025)


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestFiveHundred:
    def test_the_optimum_of_every_family(self, studied: Trials) -> None:
        found = {family: round(share(studied[family]), 3) for family in FAMILIES}
        assert all(LOWEST <= covered <= HIGHEST for covered in found.values()), found

    def test_the_optimum_on_every_grid(self, studied: Trials) -> None:
        found = {spacing: round(share(on_grid(studied["optimum"], spacing)), 3) for spacing in SPACINGS}
        assert all(LOWEST <= covered <= HIGHEST for covered in found.values()), found

    def test_most_sweeps_are_enclosed(self, studied: Trials) -> None:
        assert len(studied["optimum"]) >= 0.95 * len(studied["optimum, any verdict"])

    def test_drift_laws_regret_and_comparisons(self, studied: Trials) -> None:
        found = {name: round(share(studied[name]), 3) for name in ALWAYS}
        assert all(LOWEST <= covered <= HIGHEST for covered in found.values()), found

    def test_what_may_be_wider_than_need_be(self, studied: Trials) -> None:
        # Wider than need be: the loss with two seeds, and a recommendation, which reckons with drifts that may be none.
        names = ["loss", "comparison at a cost", "recommendation", "recommendation, drift"]
        names += [name for name in studied if name.startswith("sensitivity")]
        found = {name: round(share(studied[name]), 3) for name in names}
        assert all(covered >= LOWEST for covered in found.values()), found

    def test_no_drift_is_found_and_a_drift_is_never_called_none(self, studied: Trials) -> None:
        assert share(studied["drift of -0.3, no drift said to hold"]) == 0.0
        assert share(studied["no drift, said to hold"]) > 0.4

    def test_a_regret_that_is_nothing_is_covered(self, studied: Trials) -> None:
        # Its interval starts at 0, where the truth is: it can only be too short above.
        assert share(studied["regret, none"]) >= LOWEST

    def test_multipliers_and_role_exponents(self, roles: Trials) -> None:
        found = {name: round(share(roles[name]), 3) for name in (*MULTIPLIERS, "exponent")}
        assert all(LOWEST <= covered <= HIGHEST for covered in found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [2, 3])
def test_curves_of_a_study_that_scatter_by_different_amounts(seeds: int) -> None:
    trials = coverage.study_trials(250, seeds, salt=2027, uneven=True)
    names = ("optimum", "optimum, loud", "drift", "regret, drift", "law, steps", "law, batch", "comparison")
    found = {name: round(share(trials[name]), 3) for name in names}
    # Half as many as above: two binomial deviations of a true 85 or 95 % are 4.5 and 2.7 %.
    assert all(0.85 - 0.045 <= covered <= 0.95 + 0.027 for covered in found.values()), found
    # Those that scatter less than others are told from them by few residuals; one seed is taken to say little.
    wide = {name: round(share(trials[name]), 3) for name in ("optimum, quiet", "optimum, one seed", "recommendation")}
    assert all(covered >= 0.85 for covered in wide.values()), wide


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seeds", "lowest"), [(2, 0.80), (3, 0.85), (5, 0.85)])
def test_a_multiplier_tried_at_its_own_best_learning_rate(seeds: int, lowest: float) -> None:
    # Of two seeds it is short, as docs/fit.md says, and why. Of 300 trials a true 85 % strays by 2.1 %.
    assert share(coverage.profile_trials(300, seeds, salt=1)) >= lowest - 0.021


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_curves_that_the_fit_thinks_unlikely(seeds: int) -> None:
    # Short, as docs/fit.md says: 75, 70 and 78 %, and 80, 71 and 75 %. Of 250 and 80 trials 2.9 and 5 % by chance.
    trials = coverage.study_trials(250, seeds, tuple(UNLIKELY), salt=2028)
    assert share(trials["optimum"]) >= 0.70 - 0.06
    assert share(trials["drift"]) >= 0.71 - 0.10
    assert share(trials["drift of -0.3, no drift said to hold"]) == 0.0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("jitter", [0.0, 0.07])
def test_one_seed_covers_at_least_as_often_as_it_says(jitter: float) -> None:
    # What another seed would change is an assumption, so there is no upper bound; with jitter the optimum itself moves.
    trials = coverage.study_trials(84, 1, salt=2025, jitter=jitter, unshared=0.004)
    found = {name: round(share(trials[name]), 3) for name in ALWAYS}
    assert all(covered >= 0.85 for covered in found.values()), found
    assert share(trials["drift of -0.3, no drift said to hold"]) == 0.0
