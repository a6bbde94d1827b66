"""What a plan is expected to cost: times that were measured, the runs of a refinement, and how they are told."""

from __future__ import annotations

import pytest
from tests.sweep.small import make_plan, make_spec

from nugpt.spec import Base, Extent, ModelConfig
from nugpt.spec.plan import Policy
from nugpt.spec.run import RunSpec
from nugpt.spec.scales import SCALES
from nugpt.sweep.cost import expected_seconds, refined, told, total_seconds


def sized(model: ModelConfig, batch: int, steps: int = 1000) -> RunSpec:
    return make_spec(model=model, batch=batch, steps=steps, base=Base.of(Extent.of(model, steps, batch)))


@pytest.mark.parametrize(("heads", "milliseconds"), [(4, 1.81), (8, 3.70), (16, 9.16)])
def test_a_gpus_time_is_as_it_was_measured(heads: int, milliseconds: float) -> None:
    spec = sized(ModelConfig(4, heads, 48, 8192, 512), batch=32)
    assert expected_seconds(spec, "cuda") == pytest.approx(spec.steps * milliseconds / 1000, rel=0.08)


@pytest.mark.parametrize(("heads", "seconds"), [(1, 0.05), (2, 0.14), (4, 0.4)])
def test_a_cores_time_is_as_it_was_measured(heads: int, seconds: float) -> None:
    scale = SCALES["tiny"]
    spec = sized(scale.model(2, heads), scale.batch)
    assert expected_seconds(spec, "cpu") == pytest.approx(spec.steps * seconds, rel=0.2)  # digits as they were noted


def test_times_add_up() -> None:
    specs = [make_spec(steps=steps) for steps in (100, 300)]
    for device in ("cpu", "cuda"):
        assert total_seconds(specs, device) == pytest.approx(4 * expected_seconds(specs[0], device))
        assert total_seconds([], device) == 0


def test_a_refinement_adds_points_around_the_middle() -> None:
    policy = Policy(refine=(0.25, 0.125))
    plan = make_plan((-8, -7, -6, -5), seeds=(0, 1), policy=policy)  # two points on either side, unless it says so
    curve = plan.curves[0]
    grid = (-8, -7, -6.5, -6.25, -6.125, -6, -5.875, -5.75, -5.5, -5)
    assert {spec.hash for spec in refined(plan)} == {curve.run(x, seed).hash for x in grid for seed in (0, 1)}
    assert len(refined(plan)) == 20
    assert len(refined(make_plan((-8, -7, -6, -5), policy=Policy()))) == 4
    assert len(refined(make_plan((-7,), policy=policy))) == 1  # one learning rate has no optimum


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3.0, "0 s"),
        (0.9, "0 s"),
        (119.9, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (7200.0, "2.0 h"),
        (9000.0, "2.5 h"),
    ],
)
def test_times_are_told_in_a_unit_that_suits_them(seconds: float, words: str) -> None:
    assert told(seconds) == words
