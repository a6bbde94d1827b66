"""Which curves share a picture, from what varies in a plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.small import source_of, study_plans

from nugpt.fit.measured import OwnRun, own_curves
from nugpt.report.layout import MOST_PANELS, panels, printable, text
from nugpt.report.source import PlanRuns, from_curves
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.studies import STUDIES


def planned(path: Path, id: str, scale: str = "evidence") -> PlanRuns:
    store = Store(path)
    PlanDirectory.of(store, study_plans(id, scale=scale)[0])
    (plan,) = source_of(store).plans
    return plan


# Study → the label that tells a picture's curves apart, and each picture's title and number of curves.
EXPECTED: dict[str, tuple[str | None, list[tuple[str, int]]]] = {
    "width-fixed-steps": ("heads", [("ngpt", 4), ("nugpt", 4)]),
    "depth-sweeps": ("layers", [("ngpt", 4), ("nugpt", 4)]),
    "width-sweep-ngpt-ours-with-token-corr": ("heads", [("ngpt", 4), ("nugpt", 4)]),
    "held-out": (None, [("ngpt", 8), ("completep", 8), ("nugpt", 8)]),
}


@pytest.mark.parametrize("id", EXPECTED)
def test_pictures_of_a_study(tmp_path: Path, id: str) -> None:
    along, pictures = EXPECTED[id]
    found = panels(planned(tmp_path, id))
    assert [(panel.title, len(panel.series)) for panel in found] == pictures
    assert {panel.along for panel in found} == {along}


def test_sizes_are_in_order_and_a_multiplier_is_no_size(tmp_path: Path) -> None:
    (steps,) = panels(planned(tmp_path / "steps", "steps-sweep-ngpt-ours"))
    assert [value for value, _ in steps.series] == [400, 800, 1_600, 3_200, 6_400]
    assert steps.sizes
    multipliers = panels(planned(tmp_path / "multipliers", "both-eta-input-output-sweep"))
    assert {panel.along for panel in multipliers} == {"output_log2"}
    assert not any(panel.sizes for panel in multipliers)


@pytest.mark.parametrize("id", STUDIES)
def test_every_curve_is_in_one_picture_under_a_name_of_its_own(tmp_path: Path, id: str) -> None:
    plan = planned(tmp_path, id, "lab")
    found = panels(plan)
    assert len(found) <= MOST_PANELS
    assert sorted(c.key for panel in found for _, c in panel.series) == sorted(c.key for c in plan.curves)
    for panel in found:
        names = [str(value) for value, _ in panel.series]
        assert len(set(names)) == len(names), panel.title


def test_labels_in_words() -> None:
    assert text("table", "nugpt") == "nugpt"
    assert text("weight_decay", 0.1) == "weight decay 0.1"
    assert text("output_log2", -1) == "output × 2^−1"
    assert printable("a\x00b\ud800c\nd") == "a\ufffdb\ufffdc\ufffdd"


def test_a_table_of_ones_own_has_a_picture_for_each_group_and_a_series_for_each_size() -> None:
    made = own_curves(
        [
            OwnRun(lr, 3.0, 0, (("config.width", size),), group)
            for group in ("a", "b")
            for size in (256.0, 512.0)
            for lr in (0.1, 0.2)
        ],
        "config.method",
    )
    found = panels(from_curves("runs.csv", made))
    assert [panel.title for panel in found] == ["config.method a", "config.method b"]
    assert [[value for value, _ in panel.series] for panel in found] == [[256.0, 512.0]] * 2
    assert all(panel.sizes for panel in found)
