"""The levels of a curve by hand: what is high up weighs less, and what counts as a failure."""

from __future__ import annotations

import pytest

from nugpt.fit.points import Point, levels

# Seeds 0.2 apart at two learning rates, ±0.03 off that in opposite ways, the second 0.4 nats above the first. So high
# up 5 % of the height is twice 0.01 nats, and a point weighs 1/(1 + 2²).
LEANING = {(-8.0, 0): 2.93, (-8.0, 1): 3.07, (-7.0, 0): 3.27, (-7.0, 1): 3.53}


def test_points_high_up_weigh_less() -> None:
    found = levels([Point(x, y, seed) for (x, seed), y in LEANING.items()])
    # The seeds' gaps 0.14 and 0.26 at the weights 1 and 1/5 have the mean 0.16: 0.01 and 0.05 are left of each half.
    assert found.seed_effects == pytest.approx([-0.08, 0.08])
    assert found.mean == pytest.approx([3.0, 3.4])
    assert found.squares == pytest.approx(2 * 0.01**2 + 0.2 * 2 * 0.05**2)
    assert found.dof == pytest.approx(1 * (1 + 1 + 0.2 + 0.2) / 4)
    assert found.height == pytest.approx([0.0, 0.4])


def test_what_a_table_determines_leaves_no_noise() -> None:
    found = levels([Point(x, y, seed) for (x, seed), y in LEANING.items() if (x, seed) != (-7.0, 1)])
    assert (found.squares, found.dof) == (0.0, 0.0)
    assert found.mean == pytest.approx([3.0, 3.34])


@pytest.mark.parametrize(
    ("statuses", "failed", "noted"),
    [
        (("done", "done", "done"), False, False),
        (("done", "done", "stopped"), False, True),
        (("done", "done", "diverged", "stopped"), True, False),
        (("done", "diverged", "diverged"), True, False),
    ],
)
def test_a_learning_rate_fails_with_half_of_its_seeds(statuses: tuple[str, ...], failed: bool, noted: bool) -> None:
    there = [Point(-7.0, 3.0 if status == "done" else 9.0, seed, status) for seed, status in enumerate(statuses)]
    found = levels([*there, *(Point(-8.0, 3.1, seed) for seed in range(len(statuses)))])
    assert found.failed == ((-7.0,) if failed else ())
    assert list(found.x) == ([-8.0] if failed else [-8.0, -7.0])
    assert found.mean == pytest.approx([3.1] if failed else [3.1, 3.0])  # whatever loss a failure had
    assert found.notes == (
        ("at some learning rates a minority of seeds failed: the others are fitted",) if noted else ()
    )


def test_where_nothing_trained_there_is_neither_level_nor_noise() -> None:
    found = levels([Point(-7.0, None, 0, "diverged"), Point(-7.0, 3.0, 1, "stopped")])
    assert (len(found.x), found.seeds, found.squares, found.dof, found.failed) == (0, (), 0.0, 0.0, (-7.0,))
    assert len(found.height) == 0


def test_a_loss_of_nothing_is_a_loss() -> None:
    assert levels([Point(-7.0, 0.0, 0)]).mean == pytest.approx([0.0])


@pytest.mark.parametrize(("loss", "trained"), [(1e9, True), (-1e9, True), (1.001e9, False), (-1.001e9, False)])
def test_the_largest_number_that_is_a_loss(loss: float, trained: bool) -> None:
    assert Point(-7.0, loss, 0).trained is trained
    assert not Point(-7.0, loss, 0, "stopped").trained
    assert not Point(-7.0, None, 0).trained


def test_the_best_is_the_lowest_level_with_its_seeds() -> None:
    points = [Point(-8.0, 3.2, 0), Point(-7.0, 3.0, 0), Point(-7.0, 3.0, 1), Point(-6.0, 3.1, 0)]
    best = levels(points).best
    assert (best.log2_lr, best.loss, best.seeds) == (-7.0, pytest.approx(3.0), 2)
