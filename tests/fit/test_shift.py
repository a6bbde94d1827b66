"""How far an optimum or an edge moves, and the verdict on warm-up that hangs on it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from tests.fit.synthetic import two_exponentials
from tests.sweep.economy import planted

from nugpt.fit.claims import verdicts
from nugpt.fit.curves import answer
from nugpt.fit.interval import Interval
from nugpt.fit.measured import Measured
from nugpt.fit.points import Point
from nugpt.fit.shift import shift
from nugpt.spec.study import Claim
from nugpt.spec.study_rules import Rule


def placed(at: float | None, low: float, high: float) -> SimpleNamespace:
    return SimpleNamespace(log2_lr=at, interval=Interval(low, high))


def test_independent_errors_add_in_quadrature() -> None:
    value, interval = shift(placed(-6.0, -6.3, -5.8), placed(-7.0, -7.4, -6.6))
    assert value == pytest.approx(1.0)
    assert interval == pytest.approx((1.0 - math.hypot(0.3, 0.4), 1.0 + math.hypot(0.2, 0.4)))


def test_what_is_not_enclosed_leaves_what_its_bounds_leave() -> None:
    value, interval = shift(placed(None, -5.0, math.inf), placed(-7.0, -7.5, -6.5))
    assert value is None
    assert interval == (1.5, math.inf)
    value, interval = shift(placed(-7.0, -7.5, -6.5), placed(None, -6.0, -5.0))
    assert (value, *interval) == (None, -2.5, -0.5)
    value, interval = shift(placed(-7.0, -7.5, math.inf), placed(-8.0, -8.25, -7.75))
    assert (value, interval.low, interval.high) == (1.0, pytest.approx(1 - math.hypot(0.5, 0.25)), math.inf)
    value, interval = shift(placed(-7.0, -7.0, -7.0), placed(-8.0, -8.25, -7.5))
    assert (value, *interval) == pytest.approx((1.0, 0.5, 1.25))
    value, interval = shift(placed(-6.0, -6.0, -6.0), placed(-7.0, -7.0, -7.0))
    assert (value, *interval) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("moved", "says"), [(0.0, "holds"), (0.75, "does not hold")])
def test_a_planted_shift_is_found(moved: float, says: str) -> None:
    curves = []
    for warmup, best in ((0.0, -7.0), (0.05, -7.0 + moved)):
        rng = np.random.default_rng(4)
        shape, effects = two_exponentials(rng), rng.normal(0, 0.01, size=3)
        loss = planted(rng, shape, effects, best, 0.004)
        grid = [-9 + k / 4 for k in range(17)]
        points = tuple(Point(x, loss(x, seed), seed, "done") for x in grid for seed in range(3))
        curves.append(Measured({"table": "nugpt", "warmup": warmup}, f"warm {warmup}", {"width": 192.0}, points))
    claim = Claim("It stays.", Rule("shift", table="nugpt", by="warmup", low=-0.25, high=0.25))
    asked = Claim("The edge.", Rule("edge-shift", table="nugpt", by="warmup"))
    verdict, edge = verdicts([claim, asked], answer(curves))
    assert verdict.answer == says
    (estimate,) = verdict.estimates
    assert estimate.value == pytest.approx(moved, abs=0.1)  # noise of 0.004 nats on a valley of 0.1 nats an octave
    assert estimate.where == "warmup 0.05"
    assert edge.answer is None
    (found,) = edge.estimates
    # The edge is known to the bracket of the grid, a quarter octave, at either warm-up.
    assert found.value is None or found.value == pytest.approx(moved, abs=0.5)
