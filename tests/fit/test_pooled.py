"""Curves of several plans taken together: every run once, and one loss for all that belong together."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from tests.fit.test_recommend import make_spec, record_of

from nugpt.fit.measured import Measured, OwnRun, group_names, measured, own_curves, pooled
from nugpt.fit.points import Point
from nugpt.spec import load_table
from nugpt.spec.parametrization import with_data_exponent
from nugpt.spec.plan import Curve
from nugpt.spec.run import RunSpec
from nugpt.spec.schedule import Schedule


def planned(spec: RunSpec, places: list[tuple[float, int]], loss: str = "val_loss", **label: str) -> Measured:
    """A plan's curve, whose final losses are 3 + |x + 7| + seed/10 and whose averages lie 1 above."""
    runs = []
    for x, seed in places:
        record = record_of(spec, Point(x, 3.0 + abs(x + 7) + seed / 10, seed))
        assert record.val_loss is not None
        runs.append((x, seed, replace(record, val_loss_ema=record.val_loss + 1)))
    made = Curve({"table": "nugpt", **label}, spec, tuple({x for x, _ in places}), tuple({s for _, s in places}))
    return measured(made, runs, loss)


def test_every_run_of_every_plan_is_there_once() -> None:
    coarse = planned(make_spec(), [(-8.0, 0), (-7.0, 0), (-6.0, 0)])
    fine = planned(make_spec(), [(-7.0, 0), (-7.0, 1)], plan="fine")
    for order in ((coarse, fine), (fine, coarse)):
        (one,) = pooled(order)
        found = sorted((point.log2_lr, point.seed, point.loss) for point in one.points)
        assert found == [(-8.0, 0, 4.0), (-7.0, 0, 3.0), (-7.0, 1, 3.1), (-6.0, 0, 4.0)]
        assert len(one.records) == 4
        assert one.label == coarse.label, "of the one with the most runs"


def test_other_sizes_and_settings_stay_apart() -> None:
    curves = [planned(make_spec(), [(-7.0, 0)]), planned(make_spec(4), [(-7.0, 0)])]
    assert pooled(curves) == curves


def test_a_group_that_plans_read_from_several_losses_is_read_from_the_final_one() -> None:
    averaged = planned(make_spec(4), [(-7.0, 0)], "val_loss_ema")
    (alone,) = pooled([averaged])
    assert (alone.loss, alone.points[0].loss) == ("val_loss_ema", 4.0)
    final, other = pooled([planned(make_spec(2), [(-7.0, 0), (-7.0, 1)]), averaged])
    assert (final.loss, other.loss) == ("val_loss", "val_loss")
    assert other.points[0].loss == 3.0


def test_runs_without_a_spec_are_refused() -> None:
    with pytest.raises(ValueError, match="has no spec"):
        pooled(own_curves([OwnRun(0.1, 3.0)]))


def test_groups_of_one_name_are_told_apart_by_what_differs() -> None:
    specs = [make_spec(), make_spec(schedule=Schedule(warmup=10)), make_spec(grad_clip=1.0)]
    names = group_names([planned(spec, [(-7.0, 0)]) for spec in specs])
    assert list(names.values()) == [
        "nugpt grad_clip=none schedule.warmup=0.0",
        "nugpt grad_clip=none schedule.warmup=0.1",
        "nugpt grad_clip=1.0 schedule.warmup=0.0",
    ]
    alone = group_names([planned(specs[0], [(-7.0, 0)]), planned(make_spec(4), [(-7.0, 0)])])
    assert list(alone.values()) == ["nugpt"], "sizes are no difference"


def test_the_table_as_it_is_built_in_needs_no_more_words() -> None:
    changed = with_data_exponent(load_table("nugpt"), Fraction(0))
    names = group_names([planned(spec, [(-7.0, 0)]) for spec in (make_spec(table=changed), make_spec())])
    assert list(names.values()) == ["nugpt table.base.data=none", "nugpt"]


def test_groups_that_differ_in_much_are_numbered() -> None:
    """The first fields that differ may be the same of two of them."""
    other = make_spec(data="f" * 16, grad_clip=1.0, precision="bfloat16")
    specs = [make_spec(), other, replace(other, schedule=Schedule(kind="linear"))]
    names = list(group_names([planned(spec, [(-7.0, 0)]) for spec in specs]).values())
    assert len(set(names)) == 3
    assert names[1].endswith(" (2)")
    assert names[2].endswith(" (3)")


def test_groups_of_ones_own_that_have_one_name_are_numbered() -> None:
    """Rows without a group beside some whose group is called what these are."""
    names = group_names(own_curves([OwnRun(0.1, 3.0), OwnRun(0.1, 3.0, group="all runs")]))
    assert sorted(names.values()) == ["all runs", "all runs (2)"]
