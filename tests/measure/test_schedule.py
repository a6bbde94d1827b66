"""When a run is measured, and on how much."""

from __future__ import annotations

import pytest

from nugpt.measure.schedule import FEWEST_POINTS, MOST_TOKENS, SHARE, default_sampling, measured_steps
from nugpt.spec.scales import SCALES


def test_steps_are_log_spaced_from_the_first_to_the_last() -> None:
    assert measured_steps(16, 5) == (1, 2, 4, 8, 16)
    assert measured_steps(1000, 4) == (1, 10, 100, 1000)
    assert measured_steps(3, 30) == (1, 2, 3)  # no step twice
    assert measured_steps(7, 1) == (7,)
    assert measured_steps(1, 9) == (1,)
    with pytest.raises(ValueError, match="points is 0"):
        measured_steps(10, 0)


@pytest.mark.parametrize("name", SCALES)
def test_by_default_it_costs_little_at_every_scale(name: str) -> None:
    """By count of products: two passes over the batch and three more per matrix, against three of a training step."""
    scale = SCALES[name]
    points, windows = default_sampling(scale.fixed_steps, scale.batch, scale.seq_len)
    assert points >= 10
    assert windows * scale.seq_len <= MOST_TOKENS
    share = points * 5 * windows / (3 * scale.fixed_steps * scale.batch)
    assert share <= SHARE


def test_windows_are_whole_and_hold_no_more_tokens_than_allowed() -> None:
    assert default_sampling(80_000, 64, 3000).windows == 2  # of 8,192 tokens; a third does not fit
    assert default_sampling(80_000, 64, 10_000).windows == 1


def test_in_bfloat16_it_is_measured_less_often_and_on_less() -> None:
    """Two thousand steps of 32 windows of 512 tokens, whose float32 passes count ten times."""
    points, windows = default_sampling(2000, 32, 512, "bfloat16")
    assert points == 16
    assert 10 * 5 * points * windows / (3 * 2000 * 32) <= SHARE
    assert default_sampling(800, 32, 512, "bfloat16").points == 6
    assert default_sampling(80_000, 64, 4096, "bfloat16") == (30, 2)


@pytest.mark.parametrize("name", ["lab", "evidence", "paper"])
def test_in_bfloat16_it_costs_little_at_every_scale_that_is_for_a_gpu(name: str) -> None:
    """And a point takes as long as three steps however small the model: 2.5 % at one in 120 steps."""
    scale = SCALES[name]
    points, windows = default_sampling(scale.fixed_steps, scale.batch, scale.seq_len, "bfloat16")
    assert points >= 4
    assert 10 * points * 5 * windows / (3 * scale.fixed_steps * scale.batch) <= SHARE
    assert 3 * points / scale.fixed_steps <= SHARE


def test_a_short_run_has_its_few_points_though_they_cost_more_than_their_share() -> None:
    assert default_sampling(120, 16, 128, "bfloat16").points == FEWEST_POINTS


def test_a_run_of_a_few_steps_is_measured_a_few_times() -> None:
    assert default_sampling(5, 1, 128) == (4, 1)
