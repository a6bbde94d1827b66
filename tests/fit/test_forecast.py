"""The loss to expect of a target: planted laws, the posterior against scipy's normal distributions, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.fit.coverage import FARTHER, WITH_STEPS, forecast_trials, place, share
from tests.fit.synthetic import study
from tests.fit.test_recommend import curve_of, make_spec, planted, recommended

from nugpt.fit.backtest import backtest, tally
from nugpt.fit.curves import answer
from nugpt.fit.forecast import DRAWS, FEWEST, Known, _draws, _falls, _posterior, _terms, forecast
from nugpt.fit.recommend import choose_group, facts, from_base_lr, recommend, retarget


def seen(loss: Callable[[float, float], float], *octaves: tuple[float, float], deviation: float = 0.001) -> list[Known]:
    """Sizes so many octaves of width and steps above the smallest, as a law has them."""
    return [Known(place(*at), loss(*at), deviation) for at in octaves]


def law(width: float, steps: float = 0.0) -> float:
    return 2.5 + 0.6 * 2.0 ** (-0.5 * width) + 0.4 * 2.0 ** (-0.8 * steps)


WIDTHS = tuple((k / 2, 0.0) for k in range(9))


def test_a_planted_law_is_found_from_exact_losses() -> None:
    found = forecast(seen(law, *WIDTHS), place(6, 0))
    assert found.interval is not None
    # Two octaves beyond four, by an exponent known to a few hundredths: the fall still to come is 0.075 nats.
    assert found.loss == pytest.approx(law(6), abs=0.02)
    assert found.interval.contains(law(6))
    assert found.interval.width < 0.1
    assert found.sizes == 9


def test_two_terms_that_help_each_other_are_told_from_two_that_do_not() -> None:
    grid = [(i, j) for i in range(4) for j in range(4)]

    def together(width: float, steps: float) -> float:
        x, y = 0.6 * 2.0 ** (-0.5 * width), 0.4 * 2.0 ** (-0.8 * steps)
        return 2.5 + x + y - 0.5 * x * y

    for loss in (law, together):
        found = forecast(seen(loss, *grid), place(4, 4))
        assert found.loss == pytest.approx(loss(4, 4), abs=0.02)  # the interval's half-width is about twice that
    # Seen at one corner's two arms alone, nothing tells what both together are worth: the interval holds both.
    arms = forecast(seen(law, *[at for at in grid if 0 in at]), place(3, 3))
    assert arms.interval is not None
    whole = forecast(seen(law, *[at for at in grid if at != (3, 3)]), place(3, 3))
    assert whole.interval is not None
    assert arms.interval.width > 3 * whole.interval.width
    assert arms.interval.contains(law(3, 3))
    assert arms.interval.contains(together(3, 3))


def test_given_exponents_and_misfit_the_law_is_linear_and_its_chance_that_of_a_normal_distribution() -> None:
    rng = np.random.default_rng(3)
    features = np.stack([np.ones((2, 5)), rng.uniform(0.5, 2, (2, 5))], axis=-1)  # two cells, five sizes, two terms
    losses, variance = rng.uniform(3, 4, 5), rng.uniform(0.01, 0.04, (2, 5))
    believed = np.array([4.0, 2.0])  # deviations
    mean, covariance, log_chance = _posterior(features, losses, variance, 1 / believed**2)
    wanted = []
    for cell in (0, 1):
        of_losses = features[cell] @ np.diag(believed**2) @ features[cell].T + np.diag(variance[cell])
        wanted.append(stats.multivariate_normal(np.zeros(5), of_losses).logpdf(losses))
        gain = np.diag(believed**2) @ features[cell].T @ np.linalg.inv(of_losses)  # the same by Kalman's formula
        assert mean[cell] == pytest.approx(gain @ losses, rel=1e-9)
        assert covariance[cell] == pytest.approx(np.diag(believed**2) - gain @ features[cell] @ np.diag(believed**2))
    assert log_chance[1] - log_chance[0] == pytest.approx(wanted[1] - wanted[0], rel=1e-9)


def laws_weighed(
    known: list[Known], goal: dict[str, float], varying: str, quantiles: list[float]
) -> tuple[list[float], float]:
    """The same posterior by laws drawn from what is believed before, each counted as often as it explains the losses.

    And how many equal draws these are worth. Width varies, layers stay; of steps and batch one varies.
    """
    rng, n = np.random.default_rng(17), 2_000_000
    most = max(one.loss for one in known)
    a, c = rng.choice(np.linspace(np.sqrt(0.05), np.sqrt(1.6), 12) ** 2, (2, n))
    misfit = 0.0025 * 2.0 ** rng.integers(0, 8, n)
    floor, of_size, of_data = np.abs(rng.normal(0, most, (3, n)))
    of_both = rng.normal(0, 0.2, n)
    middle = {axis: stats.gmean([one.sizes[axis] for one in known]) for axis in ("width", varying)}
    xy = [
        ((at["width"] / middle["width"]) ** -a, (at[varying] / middle[varying]) ** -c)
        for at in map(dict, [*(one.sizes for one in known), goal])
    ]
    log_weight = np.zeros(n)
    for one, (x, y) in zip(known, xy, strict=False):
        loss, deviation = floor + of_size * x + of_data * y + of_both * x * y, np.hypot(one.deviation, misfit)
        log_weight += stats.norm.logpdf(one.loss, loss, deviation)
    for x, y in xy:
        log_weight[(of_size + of_both * y < 0) | (of_data + of_both * x < 0)] = -np.inf
    weight = np.exp(log_weight - log_weight.max())
    x, y = xy[-1]
    made = floor + of_size * x + of_data * y + of_both * x * y + misfit * rng.normal(0, 1, n)
    order = np.argsort(made)
    share = np.cumsum(weight[order]) / weight.sum()
    return [float(made[order][np.searchsorted(share, q)]) for q in quantiles], weight.sum() ** 2 / (weight**2).sum()


@pytest.mark.parametrize(("goal", "varying"), [((5, 4), "steps"), ((-3, 6), "batch"), ((2, -3), "steps")])
def test_the_posterior_is_that_of_laws_drawn_from_what_is_believed_and_weighed(
    goal: tuple[int, int], varying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nugpt.fit.forecast.DRAWS", 20_000)  # so that what is compared strays by less

    def at(width: float, more: float) -> dict[str, float]:
        sizes = place(width, 0)
        return sizes | {varying: sizes[varying] * 2.0**more}

    seen = {(0, 0): (5.2, 0.6), (2, 0): (4.0, 0.4), (4, 0): (3.9, 0.8), (0, 2): (4.3, 0.5), (2, 2): (3.7, 0.6)}
    known = [Known(at(*where), *loss) for where, loss in seen.items()]
    quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
    wanted, worth = laws_weighed(known, at(*goal), varying, quantiles)
    assert worth > 10_000
    wide, half = forecast(known, at(*goal)), forecast(known, at(*goal), 0.5)
    assert wide.interval is not None
    assert half.interval is not None
    assert wide.loss is not None
    got = [wide.interval.low, half.interval.low, wide.loss, half.interval.high, wide.interval.high]
    # Of ten thousand draws an end with a long tail strays by one or two hundredths of the interval's width.
    assert got == pytest.approx(wanted, abs=0.04 * (wanted[-1] - wanted[0]))


def test_what_is_said_rests_on_as_many_laws_where_most_that_are_drawn_do_not_fall() -> None:
    rising = seen(lambda width, steps: 3 + 0.002 * width, *WIDTHS[:4], deviation=0.01)
    assert len(_draws(rising, place(3, 0))) >= DRAWS


def test_terms_by_hand() -> None:
    sizes = [{"width": w, "layers": n, "steps": 100.0, "batch": 8.0} for w, n in ((1.0, 4.0), (4.0, 1.0))]
    goal = {"width": 8.0, "layers": 4.0, "steps": 100.0, "batch": 8.0}
    exponents = {"width": np.array([1.0, 0.5]), "layers": np.array([0.5, 1.0])}
    (size,) = _terms([Known(one, 3.0, 0.1) for one in sizes], goal, exponents)  # nothing varies in steps or batch
    # Octaves from the middle (2, 2): width −1, +1 and at the goal +2; layers +1, −1 and +1.
    by_hand = [[1 - 0.5, -1 + 0.5, -2 - 0.5], [0.5 - 1, -0.5 + 1, -1 - 1]]
    assert size == pytest.approx(np.exp2(by_hand))
    sizes[1] |= {"width": 1.0, "steps": 400.0}
    both = _terms([Known(one, 3.0, 0.1) for one in sizes], goal, {"layers": np.array([1.0]), "steps": np.array([1.0])})
    assert [one.tolist()[0] for one in both] == [pytest.approx([0.5, 2, 0.5]), pytest.approx([2, 0.5, 2])]


@pytest.mark.parametrize(
    ("coefficients", "falls"),
    [
        ((2.0, 0.3, 0.2, 0.0), True),
        ((-0.1, 0.3, 0.2, 0.0), False),  # below nothing
        ((2.0, -0.1, 0.2, 0.3), False),
        ((2.0, 0.3, -0.1, 0.3), False),
        ((2.0, 0.3, 0.2, -0.09), True),  # 0.2 − 0.09 · 2 is above 0, and 0.3 − 0.09 · 3 too
        ((2.0, 0.3, 0.2, -0.105), False),  # 0.2 − 0.105 · 2 is not
        ((2.0, 0.2, 0.3, -0.07), False),  # nor is 0.2 − 0.07 · 3
    ],
)
def test_a_law_that_more_of_anything_makes_worse_is_none(coefficients: tuple[float, ...], falls: bool) -> None:
    x, y = np.array([[1.0, 2.0]]), np.array([[3.0, 1.0]])
    assert _falls(np.array([coefficients]), [x, y]).tolist() == [falls]
    if not coefficients[3]:
        assert _falls(np.array([coefficients[:2]]), [x]).tolist() == [min(coefficients[:2]) >= 0]


def test_the_farther_and_the_less_is_known_the_wider() -> None:
    known = seen(law, *WIDTHS[::2], deviation=0.01)
    widths = [found.width for k in (5, 6, 8) if (found := forecast(known, place(k, 0)).interval) is not None]
    assert widths == sorted(widths)
    assert widths[2] > 1.5 * widths[0]
    unsure = forecast([replace(one, deviation=0.05) for one in known], place(5, 0)).interval
    few = forecast(known[-3:], place(5, 0)).interval
    half = forecast(known, place(5, 0), 0.5).interval
    assert unsure is not None
    assert few is not None
    assert half is not None
    assert min(unsure.width, few.width) > 1.3 * widths[0]
    assert half.width < 0.6 * widths[0]


def test_what_is_said_lies_in_the_middle_of_what_agrees() -> None:
    known = seen(law, *WIDTHS[:5:2], deviation=0.01)
    # Far on from three sizes the law is skewed, so that the mean lies beside the middle.
    found = forecast(known, place(8, 0), level=0.001)
    assert found.loss is not None
    assert found.interval is not None
    assert found.interval.contains(found.loss)
    assert found.interval.width < 0.01


def test_sizes_that_lie_off_any_law_widen_it() -> None:
    smooth = forecast(seen(law, *WIDTHS), place(5, 0)).interval
    rough = forecast(
        [replace(one, loss=one.loss + 0.03 * (-1) ** k) for k, one in enumerate(seen(law, *WIDTHS))], place(5, 0)
    ).interval
    assert smooth is not None
    assert rough is not None
    assert rough.width > 3.29 * 0.03 > smooth.width  # the target lies off it too, by a deviation of about as much


def test_units_and_order_say_nothing() -> None:
    known = seen(law, (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), deviation=0.01)
    found = forecast(known, place(3, 2))
    assert forecast(known, place(3, 2)) == found
    turned = forecast(known[::-1], place(3, 2))
    assert turned.loss == pytest.approx(found.loss, abs=1e-6)
    other = [replace(one, sizes=one.sizes | {"width": one.sizes["width"] / 64}) for one in known]
    assert forecast(other, place(3 - 6, 2)).loss == pytest.approx(found.loss, abs=1e-6)


def test_a_goal_that_was_swept_has_its_own_loss() -> None:
    known = [replace(one, loss=one.loss + (0.2 if k == 1 else 0.0)) for k, one in enumerate(seen(law, *WIDTHS))]
    found = forecast(known, known[1].sizes)
    assert (found.loss, found.sizes) == (known[1].loss, 1)
    assert found.interval == pytest.approx((found.loss - 1.645 * 0.001, found.loss + 1.645 * 0.001), abs=1e-6)
    less_sure = replace(known[1], loss=9.0, deviation=0.1)
    assert forecast([less_sure, *known], known[1].sizes) == forecast([*known, less_sure], known[1].sizes) == found


def test_what_cannot_be_said_is_refused_with_its_reason() -> None:
    known = seen(law, *WIDTHS[:3])
    assert forecast(known, place(3, 0)).loss is not None
    two = forecast(known[: FEWEST - 1], place(3, 0))
    assert (two.loss, two.interval) == (None, None)
    assert two.why_not == "the optimum is enclosed at 2 of the swept sizes, but 3 are needed"
    longer = forecast(known, place(3, 1))
    assert (longer.loss, longer.why_not) == (None, "steps was swept at 2000 only")
    assert longer.sizes == 3
    # Each axis counts, and all that are missing are named.
    larger = place(1, 0) | {"layers": 8.0, "batch": 2.0**20}
    assert forecast(known, larger).why_not == "layers was swept at 4 only and batch was swept at 16384 only"
    much = [replace(one, sizes=one.sizes | {"batch": 2.0**20}) for one in known]
    assert forecast(much, place(1, 0)).why_not == "batch was swept at 1048576 only"
    twice = forecast([known[0], *known[:2]], place(3, 0))
    assert twice.why_not == "the optimum is enclosed at 2 of the swept sizes, but 3 are needed"
    rising = forecast(seen(lambda width, steps: 3 + 0.5 * width, *WIDTHS[:4]), place(3, 0))
    assert (rising.loss, rising.why_not) == (None, "the losses do not fall with size and length as a law has it")


def test_a_law_that_would_fall_at_the_goal_alone_is_none() -> None:
    def turning(width: float, steps: float) -> float:
        """More width helps long runs, and harms the shortest."""
        x, y = 2.0 ** (-0.5 * (width - 1)), 2.0 ** (-0.8 * (steps - 1))
        return 3 + 0.2 * x + 0.5 * y - 0.3 * x * y

    found = forecast(seen(turning, *[(i, j) for i in range(3) for j in range(3)], deviation=0.005), place(4, 4))
    assert (found.loss, found.why_not) == (None, "the losses do not fall with size and length as a law has it")


def test_a_few_planted_laws() -> None:
    trials = forecast_trials(24, WITH_STEPS[:2])
    assert len(trials) == 2 * len(FARTHER)
    hits = [share(some) for some in trials.values()]
    assert np.mean(hits) > 0.8  # 48 laws: a true 90 % strays by 4 %


@pytest.mark.slow
def test_intervals_hold_planted_laws() -> None:
    """docs/recommend.md has these numbers."""
    found = {name: round(share(some), 3) for name, some in forecast_trials(500, salt=2025).items()}
    found |= {name: round(share(some), 3) for name, some in forecast_trials(500, ["one term"], 2025, "layers").items()}
    for name, covered in found.items():
        if "no floor" not in name:  # as the page says, that law is not held
            assert covered >= 0.9 - 0.026, found  # of 500 a true 90 % strays by 1.3 %


def test_a_recommendation_says_the_loss_of_its_target() -> None:
    rng = np.random.default_rng(5)
    heads, losses = (1, 2, 4, 8), [law(k) for k in range(4)]
    sweeps = study(rng, "exponential", 3, np.full(4, -7.0), same_shape=True, spacing=0.5, losses=losses)
    curves = [curve_of(make_spec(h), one.points) for h, one in zip(heads, sweeps, strict=True)]
    found = answer(curves)
    got = recommended(found, heads=16)
    assert got.loss is not None
    assert got.loss.interval is not None
    assert got.loss.sizes == 4
    assert got.loss.interval.contains(law(4))
    assert got.loss.loss == pytest.approx(law(4), abs=0.03)  # losses known to 0.006, one octave on
    told = facts(got)["loss"]
    assert told == {"nats": got.loss.loss, "interval": list(got.loss.interval), "sizes": 4, "why_not": None}
    half = recommend(found, choose_group(found, "nugpt"), retarget(make_spec(), 100, n_heads=16), 0.5).loss
    assert half is not None
    assert half.interval is not None
    assert (half.level, half.loss) == (0.5, got.loss.loss)
    assert half.interval.width < 0.6 * got.loss.interval.width  # of a normal distribution 0.41
    # As it was found at a swept size, with that interval's own deviation.
    own = next(one.optimum for one in found.curves if one.curve.label["heads"] == 4)
    there = recommended(found, heads=4).loss
    assert there is not None
    assert there.loss == own.loss
    assert own.loss_interval is not None
    assert there.interval is not None
    assert there.interval.width == pytest.approx(own.loss_interval.width)
    # Of other tokens, more of them at once or a model of other proportions a sweep's losses say nothing.
    changed = {
        "vocab_size is 512, and 384 in": {"vocab_size": 512},
        "seq_len is 8, and 16 in": {"seq_len": 8},
        "d_mlp / d_model is 1.0, and 2.67 in": {"d_mlp": 16 * make_spec().model.head_dim},
        "n_heads / n_kv_heads is 4, and 1 in": {"n_kv_heads": 4},
    }
    for words, changes in changed.items():
        other = recommend(found, choose_group(found, "nugpt"), retarget(make_spec(), 100, n_heads=16, **changes)).loss
        assert other is not None
        assert other.loss is None
        assert other.why_not is not None
        assert other.why_not.startswith(words)
    rows = backtest(found, choose_group(found, "nugpt"))
    assert [one.loss_off is None for one in rows] == [True, True, False], "three sizes are needed below"
    (off,) = [one.loss_off for one in rows if one.loss_off is not None]
    said = rows[2].said.loss
    assert said is not None
    assert said.loss is not None
    assert off == pytest.approx(rows[2].found.optimum.loss - said.loss)
    sums = tally(rows)
    assert (sums.losses, sums.losses_inside, sums.loss_off) == (1, 1, abs(off))
    far = replace(rows[2], found=replace(rows[2].found, optimum=replace(rows[2].found.optimum, loss=2.0)))
    assert not far.loss_inside
    assert far.loss_off is not None
    assert far.loss_off < 0
    assert (tally([far]).losses_inside, tally([far]).loss_off) == (0, -far.loss_off)
    assert tally(rows[:2]).loss_off is None


def test_a_bare_learning_rate_has_no_loss_and_two_sizes_say_why() -> None:
    bare = from_base_lr(make_spec(lr=2.0**-7))
    assert bare.loss is None
    assert facts(bare)["loss"] is None
    two = answer([one.curve for one in planted(1)[0].curves[:2]])
    got = recommended(two, heads=8).loss
    assert got is not None
    assert got.loss is None
    assert got.why_not == "the optimum is enclosed at 2 of the swept sizes, but 3 are needed"
