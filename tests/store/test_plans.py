"""Plans in a store: one content under one name, additions that are there once and whole, files named when spoiled."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sweep.small import make_directory, make_plan, make_spec

from nugpt.spec.plan import Curve, Policy
from nugpt.store import Store
from nugpt.store.archive import write_empty
from nugpt.store.plans import Addition, PlanDirectory, plans

PLAN = make_plan()
KEY = PLAN.curves[0].key
BESIDE = [Addition(KEY, x, "0.25 octave around the optimum") for x in (-6.25, -5.75)]
BEYOND = Addition(KEY, -3.5, "best at the right edge of the grid")


def test_a_plan_is_laid_down_once_and_found_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    directory = PlanDirectory.of(store, PLAN)
    assert directory.path == store.root / "plans" / PLAN.name
    written = (directory.path / "plan.json").stat().st_mtime_ns
    assert PlanDirectory.of(store, PLAN).plan() == PLAN
    assert (directory.path / "plan.json").stat().st_mtime_ns == written
    assert directory.store.root == store.root
    assert directory.store is store  # one that knows more than its folder, as of an archive, stays the one to ask
    PlanDirectory.of(store, replace(PLAN, name="another"))
    assert [found.path.name for found in plans(store)] == ["another", "plan"]
    assert plans(Store(tmp_path / "nowhere")) == []


def test_another_plan_of_the_same_name_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, PLAN)
    (curve,) = PLAN.curves
    longer = replace(curve, spec=replace(curve.spec, steps=7))
    for other, differs in (
        (make_plan(log2_lrs=(-8, -7)), r"log2_lrs is \[-8.* there and \[-8.0, -7.0\] here"),
        (make_plan(seeds=(1,)), r"seeds is \[0\] there and \[1\] here"),
        (make_plan(steps=7), "steps is 100 there and 7 here"),
        (replace(PLAN, policy=Policy(extend=2)), "extend is 0 there and 2 here"),
        (replace(PLAN, curves=(curve, longer)), "1 curves there, 2 here"),
        (replace(PLAN, curves=(replace(curve, label={"of": "more"}),)), "of is plan there and more here"),
    ):
        with pytest.raises(ValueError, match=rf"plan 'plan' in .* is not the one asked for \({differs}\)"):
            PlanDirectory.of(directory.store, other)
    assert directory.plan() == PLAN


def test_additions_are_kept_with_their_reasons(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, PLAN)
    assert directory.additions() == []
    directory.add([])
    assert not (directory.path / "added").exists()
    directory.add(BESIDE)
    directory.add([BEYOND])
    assert directory.additions() == [*BESIDE, BEYOND]


def test_two_workers_that_come_to_the_same_points_add_them_once(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, PLAN)
    directory.add(BESIDE)
    (path,) = (directory.path / "added").iterdir()
    written = path.stat().st_mtime_ns
    PlanDirectory(directory.path).add(BESIDE)
    assert directory.additions() == BESIDE
    assert path.stat().st_mtime_ns == written
    (directory.path / "added" / "twice.json").write_bytes(path.read_bytes())  # as a merge may bring it
    assert directory.additions() == BESIDE


def test_a_worker_killed_while_adding_has_added_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_directory(tmp_path, PLAN)

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            directory.add(BESIDE)
    assert directory.additions() == []
    directory.add(BESIDE)
    assert directory.additions() == BESIDE


def test_how_a_plan_is_launched_can_change(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, PLAN)
    with pytest.raises(ValueError, match=r"never launched: it has no launch\.json"):
        directory.launch()
    for threads in (1, 2):
        directory.write_launch({"data": "somewhere", "options": {"threads": threads}})
        assert directory.launch() == {"data": "somewhere", "options": {"threads": threads}}


def test_a_directory_that_is_no_plan_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no plan: it has no plan\.json"):
        PlanDirectory(tmp_path).plan()


@pytest.mark.parametrize("file", ["plan.json", "launch.json", "added/x.json"])
@pytest.mark.parametrize("content", ["", "{", "3", "null", "[3]", '[{"curve": 1}]', '{"format": 2}', '"text"'])
def test_a_spoiled_file_is_one_line_that_names_it(tmp_path: Path, file: str, content: str) -> None:
    directory = make_directory(tmp_path, PLAN)
    (directory.path / "added").mkdir()
    (directory.path / file).write_text(content)
    read = {"plan.json": directory.plan, "launch.json": directory.launch, "added/x.json": directory.additions}[file]
    with pytest.raises(ValueError) as error:
        read()
    assert str(directory.path / file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", ['{"data": 3, "options": {}}', '{"data": "here", "options": []}'])
def test_a_launch_of_the_wrong_form_is_named(tmp_path: Path, values: str) -> None:
    directory = make_directory(tmp_path, PLAN)
    (directory.path / "launch.json").write_text(values)
    with pytest.raises(ValueError, match=r"launch\.json: not how a plan is launched"):
        directory.launch()


@pytest.mark.parametrize("change", [{"log2_lr": "x"}, {"log2_lr": None}, {"reason": 3}, {"more": 1}])
def test_an_addition_of_the_wrong_form_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    directory = make_directory(tmp_path, PLAN)
    directory.add([BEYOND])
    (path,) = (directory.path / "added").iterdir()
    (values,) = json.loads(path.read_text())
    path.write_text(json.dumps([values | change]))
    with pytest.raises(ValueError, match=path.name.replace("+", r"\+")):
        directory.additions()


def test_an_addition_is_its_own_curves(tmp_path: Path) -> None:
    curves = tuple(Curve({"steps": steps}, make_spec(steps=steps), (-7.0, -6.0), (0,)) for steps in (100, 200))
    directory = make_directory(tmp_path, replace(PLAN, curves=curves))
    directory.add([Addition(curves[1].key, -5.0, "best at the right edge of the grid")])
    found = sorted((spec.steps, math.log2(spec.lr)) for spec in directory.specs())
    assert found == [(100, -7), (100, -6), (200, -7), (200, -6), (200, -5)]


def test_no_plan_is_laid_into_an_archive(tmp_path: Path) -> None:
    write_empty(tmp_path / "archive")
    with pytest.raises(ValueError, match="is an archive of results, in which nothing runs"):
        PlanDirectory.of(Store(tmp_path / "archive"), PLAN)
    assert not (tmp_path / "archive" / "plans" / PLAN.name).exists()
