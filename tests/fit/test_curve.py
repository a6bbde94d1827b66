"""What the curve's posterior is made of, against formulas written out and distributions of scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from nugpt.fit.curve import (
    CLIFF,
    POWERS,
    Effort,
    Family,
    _Drawn,
    _next_power,
    _sample,
    _systematic,
    _Target,
    _unusual,
    failures,
    shapes,
    windows,
)
from nugpt.fit.interval import Interval
from nugpt.fit.noise import NoiseModel
from nugpt.fit.points import Levels, Point, levels

NOISE = NoiseModel(0.01**2, 6.0)
TRIED = levels(
    [Point(x, y, s) for x, y in ((-8.0, 3.2), (-7.5, 3.1), (-7.0, 3.0), (-6.5, 3.2), (-6.0, 3.9)) for s in (0, 1)]
)


def shown(losses: list[float], failed: tuple[float, ...] = ()) -> Levels:
    """A curve of one seed, an octave apart from −8 on."""
    points = [Point(-8.0 + i, loss, 0) for i, loss in enumerate(losses)]
    return levels([*points, *(Point(x, None, 0, "diverged") for x in failed)])


def test_the_first_family_is_a_slope_and_an_exponential() -> None:
    s, k, q = 0.05, 4.0, 0.012
    for u in (-2.0, -0.3, 0.0, 0.4, 1.0):
        expected = s * ((math.exp(k * u) - 1) / k - u) + q * u**2
        assert float(CLIFF.excess(np.array(u), np.log([s, k, q]))) == pytest.approx(expected, rel=1e-12)
    # From an exponent of 12 on it goes on straight: at u = 4 the exponential has e^12 (1 + 4).
    expected = s * ((math.exp(12) * 5 - 1) / k - 4) + q * 16
    assert float(CLIFF.excess(np.array(4.0), np.log([s, k, q]))) == pytest.approx(expected, rel=1e-12)


def test_the_second_family_has_a_power_on_either_side() -> None:
    a, p, b, r = 0.07, 0.7, 0.4, 1.5
    for u, expected in ((-2.0, a * 2**1.7), (-0.5, a * 0.5**1.7), (0.5, b * 0.5**2.5), (2.0, b * 2**2.5)):
        assert float(POWERS.excess(np.array(u), np.log([a, p, b, r]))) == pytest.approx(expected, rel=1e-9)
    assert float(POWERS.excess(np.array(0.0), np.log([a, p, b, r]))) < 1e-15


def test_windows_hold_what_is_near_the_best_in_loss_and_its_neighbours() -> None:
    narrow, wide = windows(shown([3.26, 3.24, 3.1, 3.0, 3.3, 3.9, 3.99, 4.01]))
    assert list(narrow) == [False, True, True, True, True, False, False, False]  # up to 0.25 nats, and one either side
    assert list(wide) == [True, True, True, True, True, True, True, False]  # up to 1 nat
    narrow, wide = windows(shown([9.0, 9.0, 9.0, 3.0, 9.0, 9.0, 9.0]))
    assert list(narrow) == [False, False, True, True, True, False, False]
    assert list(wide) == [False, True, True, True, True, True, False]  # two on either side, however high
    (only,) = windows(shown([3.0, 3.1, 3.2]))  # one where both are the same
    assert list(only) == [True, True, True]


def test_the_nearest_failures_bound_the_optimum() -> None:
    tried = shown([3.2, 3.0, 3.2], failed=(-10.0, -9.0, -5.0, -4.0))
    assert failures(tried) == (-9.0, -5.0)
    assert failures(shown([3.2, 3.0, 3.2], failed=(-9.0,))) == (-9.0, math.inf)
    target = _Target(shown([3.2, 3.0, 3.2], failed=(-9.0,)), windows(tried), NOISE, CLIFF, "right")
    assert target.where == Interval(-9.0, -6.0 + 2.0)  # two octaves beyond the grid where none failed
    assert target.near == Interval(-7.0 - 1.5, -7.0 + 1.5)


@pytest.mark.parametrize(("times", "beyond"), [(20.0, math.log(20) - 1.5), (1.0, 0.0), (0.05, 1.5 - math.log(20))])
def test_a_curve_is_unusual_by_what_neither_side_explains(times: float, beyond: float) -> None:
    u = np.arange(-2.0, 2.5, 0.5)
    sides = [CLIFF.excess(u, CLIFF.centre[:, None]), CLIFF.excess(-u, CLIFF.centre[:, None])]
    height = times * (np.maximum(*sides) if times > 1 else np.minimum(*sides))
    found = _unusual(levels([Point(float(x) - 7, 3 + float(h), 0) for x, h in zip(u, height, strict=True)]), CLIFF)
    assert found == pytest.approx(beyond, abs=1e-6)
    assert _unusual(shown([3.0]), CLIFF) == 0.0


def made(family: Family) -> tuple[_Target, np.ndarray]:
    """A posterior, and two draws: (log2 η*, ln σ, side, the shape's logarithms)."""
    target = _Target(TRIED, windows(TRIED), NOISE, family, "right")
    first = [-7.1, math.log(0.008), 1.0, *family.centre]
    second = [-6.9, math.log(0.02), -1.0, *(family.centre + 0.3)]
    return target, np.array([first, second]).T


@pytest.mark.parametrize("family", [CLIFF, POWERS])
def test_the_likelihood_is_that_of_normal_errors_whatever_the_level(family: Family) -> None:
    target, theta = made(family)

    def log_likelihood(draw: np.ndarray, mask: np.ndarray) -> float:
        u = draw[2] * (TRIED.x[mask] - draw[0])
        misfit = 0.0003**2 + (0.05 * TRIED.height[mask]) ** 2 / TRIED.count[mask]  # 5 % of the height, by seeds
        deviations = np.sqrt(math.exp(2 * draw[1]) / TRIED.count[mask] + misfit)
        rest = TRIED.mean[mask] - family.excess(u, draw[3:, None])
        middle = float(np.average(rest, weights=deviations**-2))
        peak = float(np.sum(stats.norm.logpdf(rest, middle, deviations)))

        def density(level: float) -> float:
            return math.exp(float(np.sum(stats.norm.logpdf(rest, level, deviations))) - peak)

        return peak + math.log(integrate.quad(density, middle - 0.5, middle + 0.5, points=[middle])[0])

    # Two learning rates to an octave sharpen it by 1.6 times a cube root of two.
    sharp = 1.6 * 2 ** (1 / 3)
    for window, mask in enumerate(windows(TRIED)):
        found = target.likelihoods(theta, window)[-1]
        expected = [log_likelihood(draw, mask) for draw in theta.T]
        assert found[0] - found[1] == pytest.approx(sharp * (expected[0] - expected[1]), rel=1e-5)


@pytest.mark.parametrize("family", [CLIFF, POWERS])
def test_the_prior_is_an_inverse_chi_square_and_a_normal_distribution(family: Family) -> None:
    target, theta = made(family)

    def log_prior(draw: np.ndarray) -> float:
        chance = 6.0 * 0.01**2 / math.exp(2 * draw[1])
        noise = float(stats.chi2.logpdf(chance, 6.0)) + math.log(chance)  # per unit of ln σ, but for a constant
        covariance = family.spread @ family.spread.T
        return noise + float(stats.multivariate_normal.logpdf(draw[3:], target.centre[:, 0], covariance))

    found = target.prior(theta)
    assert found[0] - found[1] == pytest.approx(log_prior(theta[:, 0]) - log_prior(theta[:, 1]), rel=1e-9)
    outside = theta.copy()
    outside[0] = target.where.low - 0.01, target.where.high + 0.01
    assert list(target.prior(outside)) == [-math.inf] * 2
    loud = theta.copy()
    loud[1] = math.log(8.01 * 0.01), math.log(7.99 * 0.01)  # beyond eight times what the noise is taken to be
    assert list(np.isfinite(target.prior(loud))) == [False, True]


def test_draws_start_where_they_are_said_to() -> None:
    target, _ = made(CLIFF)
    start = target.start(8000, np.random.default_rng(0))
    weight = np.exp(-target.started(start))  # undone, places are even
    counts = np.histogram(start[0], bins=6, range=target.where, weights=weight)[0]
    assert counts / counts.sum() == pytest.approx(np.full(6, 1 / 6), rel=0.05)  # 500 draws in the emptiest of them
    near = (start[0] > target.near.low) & (start[0] < target.near.high)
    share = 0.75 + 0.25 * target.near.width / target.where.width
    assert float(near.mean()) == pytest.approx(share, abs=0.01)
    assert float(np.mean(start[2] < 0)) == pytest.approx(0.2, abs=0.001)  # with the cliff on the left
    chance = 6.0 * 0.01**2 / np.exp(2 * start[1])
    assert float(np.mean(chance)) == pytest.approx(6.0, rel=0.03)  # of a χ², whose deviation is √12
    assert start[3:].mean(axis=1) == pytest.approx(target.centre[:, 0], abs=0.06)  # a deviation of 1.6 over √8000
    assert np.cov(start[3:]) == pytest.approx(CLIFF.spread @ CLIFF.spread.T, abs=0.12)


def test_resampling_is_in_proportion_but_for_one() -> None:
    weight = np.random.default_rng(1).uniform(size=50)
    picked = np.bincount(_systematic(weight, np.random.default_rng(2)), minlength=50)
    assert picked.sum() == 50
    assert np.all(np.abs(picked - 50 * weight / weight.sum()) < 1)


def test_a_step_of_the_likelihood_leaves_a_share_of_the_draws() -> None:
    gain = np.random.default_rng(3).normal(0, 30, size=2000)
    step = _next_power(gain, 1.0)
    weight = np.exp(step * (gain - gain.max()))
    left = weight.sum() ** 2 / (weight @ weight) / 2000
    assert 0.35 <= left < 0.45  # the step is found to a tenth
    assert _next_power(np.zeros(10), 0.7) == 0.7  # where all count alike, the whole way


def from_the_prior(target: _Target, family: Family, n: int) -> np.ndarray:
    """Draws of what is believed before any point is seen, by scipy: places anywhere, one side in five turned around."""
    rng = np.random.default_rng(4)
    low = 6.0 / 8.0**2  # the noise is at most eight times what it is taken to be
    chance = stats.chi2.isf(rng.uniform(size=n) * stats.chi2.sf(low, 6.0), 6.0)
    shape = stats.multivariate_normal.rvs(target.centre[:, 0], family.spread @ family.spread.T, n, rng)
    places = rng.uniform(*target.where, size=n)
    return np.vstack(
        [places, np.log(6.0 * target.noise.variance / chance) / 2, rng.choice([1.0, 1.0, 1.0, 1.0, -1.0], n), shape.T]
    )


@pytest.mark.parametrize("family", [CLIFF, POWERS])
def test_the_samples_are_those_of_the_posterior_and_its_evidence(family: Family) -> None:
    """Against draws from the prior, each counted as often as it explains the points."""
    target = _Target(TRIED, windows(TRIED), NoiseModel(0.25**2, 6.0), family, "right")
    theta = from_the_prior(target, family, 400_000)
    sampled = [_sample(target, np.random.default_rng(seed), Effort(1024, 2048, 2)) for seed in range(6)]
    for window, log_likelihood in enumerate(target.likelihoods(theta, len(target.ends) - 1)):
        weight = np.exp(log_likelihood - log_likelihood.max())
        assert weight.sum() ** 2 / (weight @ weight) > 500  # so many draws are what they come to
        log_evidence = float(log_likelihood.max()) + math.log(float(weight.mean()))
        found = [one[window].log_evidence for one in sampled]
        assert float(np.mean(found)) == pytest.approx(log_evidence, abs=0.3)  # 0.2 by chance, with the heaviest tails
        places = np.concatenate([one[window].theta[0] for one in sampled])
        middle = float(np.average(theta[0], weights=weight))
        deviation = math.sqrt(float(np.average((theta[0] - middle) ** 2, weights=weight)))
        assert float(np.mean(places)) == pytest.approx(middle, abs=0.15 * deviation)
        assert float(np.std(places)) == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize("family", [CLIFF, POWERS])
def test_the_loss_at_the_optimum_is_the_weighted_mean_of_what_the_shape_leaves(family: Family) -> None:
    target, theta = made(family)
    for window, mask in enumerate(windows(TRIED)):
        for draw in theta.T:
            u = draw[2] * (TRIED.x[mask] - draw[0])
            misfit = 0.0003**2 + (0.05 * TRIED.height[mask]) ** 2 / TRIED.count[mask]
            precision = 1 / (math.exp(2 * draw[1]) / TRIED.count[mask] + misfit)
            rest = TRIED.mean[mask] - family.excess(u, draw[3:, None])
            many = np.tile(draw[:, None], 20_000)
            loss = target.drawn(many, window, 0.0, np.random.default_rng(0)).loss
            error = 1 / math.sqrt(float(precision.sum()))
            assert float(np.mean(loss)) == pytest.approx(float(np.average(rest, weights=precision)), abs=0.03 * error)
            assert float(np.std(loss)) == pytest.approx(error, rel=0.03)  # 20,000 draws: 0.5 %


def test_families_count_by_their_evidence_and_windows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second explains the points of the windows 3 and 9 times as well: 3/4 · 1 to 1/4 · 3, and 3/4 · 1 to 1/4 · 9.
    evidence = {CLIFF: (-700.0, -800.0), POWERS: (-700.0 + math.log(3), -800.0 + math.log(9))}

    def sample(target: _Target, generator: np.random.Generator, effort: Effort) -> list[_Drawn]:
        theta = np.zeros((3 + len(target.family.centre), effort.explore))
        logs = evidence[target.family]
        return [_Drawn(theta + i, np.full(effort.explore, float(i)), log) for i, log in enumerate(logs)]

    monkeypatch.setattr("nugpt.fit.curve._sample", sample)
    assert len(windows(TRIED)) == 2
    drawn = shapes(TRIED, NOISE, effort=Effort(1024, 512, 1))
    assert [theta.shape[1] for _, theta in drawn.groups] == [256 + 128, 256 + 384]
    assert [int(np.sum(drawn.loss == window)) for window in (0, 1)] == [512, 512]
    assert np.array_equal(drawn.x, drawn.loss), "a draw keeps its own loss"
