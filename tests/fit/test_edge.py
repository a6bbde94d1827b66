"""The stability edge: a bracket of the grid by a stated rule."""

from __future__ import annotations

import math

import pytest

from nugpt.fit import EdgeRule, Interval, Point, stability_edge

GRID = {-8.0: 3.587, -7.5: 3.554, -7.0: 3.550, -6.5: 3.695, -6.0: 4.483}


def runs(losses: dict[float, float | None], seed: int = 0) -> list[Point]:
    return [Point(x, y, seed, "diverged" if y is None else "done") for x, y in losses.items()]


def test_the_margin_brackets_the_edge() -> None:
    edge = stability_edge(runs(dict(GRID)), EdgeRule(margin=0.5))
    assert (edge.verdict, edge.interval, edge.log2_lr) == ("enclosed", Interval(-6.5, -6.0), -6.25)
    assert edge.deviation == pytest.approx(0.5 / math.sqrt(12))  # of a uniform distribution over the bracket
    tight = stability_edge(runs(dict(GRID)), EdgeRule(margin=0.1))
    assert tight.interval == Interval(-7.0, -6.5)


def test_one_failing_seed_is_enough() -> None:
    points = [*runs(dict(GRID)), *runs({**GRID, -6.5: None}, seed=1)]
    assert stability_edge(points).interval == Interval(-7.0, -6.5)


def test_a_stopped_run_has_failed() -> None:
    points = [*runs({-8.0: 3.6, -7.0: 3.5}), Point(-6.0, 3.6, 0, "stopped")]
    assert stability_edge(points).interval == Interval(-7.0, -6.0)


def test_a_grid_that_never_fails_is_censored() -> None:
    edge = stability_edge(runs({-8.0: 3.6, -7.0: 3.5, -6.0: 3.6}))
    assert (edge.verdict, edge.side, edge.log2_lr) == ("edge-censored", "right", None)
    assert edge.interval == Interval(-6.0, math.inf)


def test_a_grid_that_never_trains_is_censored_on_the_left() -> None:
    edge = stability_edge(runs({-8.0: None, -7.0: None}))
    assert (edge.verdict, edge.side, edge.interval) == ("edge-censored", "left", Interval(-math.inf, -8.0))


def test_training_again_beyond_a_failure_is_noted() -> None:
    edge = stability_edge(runs({-8.0: 3.5, -7.0: None, -6.0: 3.6}))
    assert edge.interval == Interval(-8.0, -7.0)
    assert "trains again" in edge.notes[0]
    assert stability_edge(runs({-8.0: 3.5, -7.0: None, -6.0: None})).notes == ()


def test_a_bad_left_is_no_edge() -> None:
    edge = stability_edge(runs({-12.0: 6.0, -8.0: 3.6, -7.0: 3.5, -6.0: None}))
    assert edge.interval == Interval(-7.0, -6.0)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="margin is -1"):
        EdgeRule(-1)
    with pytest.raises(ValueError, match="points is empty"):
        stability_edge([])
