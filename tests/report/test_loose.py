"""A store without plans: coordinate checks, and what was measured in runs that belong to none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fit.test_coords import TABLE, make
from tests.report.small import fill, record_of, study_plans
from tests.report.test_measured import rows_of

from nugpt.cli.coords import _values
from nugpt.cli.report import Report
from nugpt.fit.coords import check_coordinates
from nugpt.spec.run import RunSpec
from nugpt.spec.scales import scale_named
from nugpt.store import Store
from nugpt.store.coords import write_coords


def keep_check(store: Store, far: float = 1.0) -> None:
    """A check of made-up sizes, hidden matrices so many times as far from where they began."""
    models = [replace(m, steps=tuple({**s, "moved hidden": far * s["moved hidden"]} for s in m.steps)) for m in make()]
    write_coords(store, "mine", json.loads(json.dumps(_values(check_coordinates(TABLE, models), models, 2**-9, 2))))


def train(store: Store, specs: Iterable[RunSpec], measured: bool = True) -> list[str]:
    """As `nugpt train` and `nugpt measure` leave runs: no plan knows them."""
    made = []
    for spec in specs:
        directory = store.run(spec)
        directory.create(spec)
        directory.write_record(record_of(spec))
        if measured:
            directory.append_metrics(rows_of(spec.model.d_model, spec.seed, spec.model.n_layers))
        made.append(spec.hash)
    return made


def specs(heads: tuple[int, ...] = (1, 2, 4), layers: tuple[int, ...] = (2,), lr: float = 0.03) -> list[RunSpec]:
    (plan,) = study_plans("alignment_val", scale="tiny")
    first = plan.specs()[0]
    return [
        replace(first, model=replace(scale_named("tiny").model(n, h), vocab_size=first.model.vocab_size)).at(lr, 0)
        for h in heads
        for n in layers
    ]


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any], set[str]]:
    """The page, what is printed as JSON, and the figures."""
    assert Report(folder / "runs", folder / "out", formats=("svg",), json=True).run() == 0
    told = json.loads(capsys.readouterr().out)
    figures = {path.name for path in (folder / "out" / "figures").iterdir()}
    return (folder / "out" / "report.html").read_text(encoding="utf-8"), told, figures


def test_a_store_of_checks_alone_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_check(Store(tmp_path / "runs"))
    page, told, figures = report(tmp_path, capsys)
    assert 'id="coords"' in page
    assert "Everything is flat." in page
    assert 'id="verdicts"' not in page  # there is nothing to judge
    assert 'href="#verdicts"' not in page
    assert told["coords"] == {"mine": True}
    assert figures == {"coords-mine.svg"}


def test_a_check_with_too_large_steps_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_check(Store(tmp_path / "runs"), far=4.0)
    page, told, _ = report(tmp_path, capsys)
    assert "the steps were too large for a power law" in page
    assert "hidden matrices by 0.67 at width 48, depth 2" in page  # 4 · 0.1 · 2^(1/4) · √2
    assert told["coords"] == {"mine": False}


def test_runs_of_no_plan_have_a_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "runs")
    runs = train(store, specs()) + train(store, specs(heads=(2,), layers=(1, 4)))
    train(store, specs(heads=(8,)), measured=False)
    page, told, figures = report(tmp_path, capsys)
    assert 'id="no-plan"' in page
    assert "η 0.03: 5 runs" in page
    assert sorted(told["runs_of_no_plan"]) == sorted(runs)
    for run in runs:
        assert f'id="run-{run}"' in page  # what the charts and tables lead to
    assert "Alignment: max(α, ν), nugpt, 2 layers" in page
    assert "alpha_A, depths 1, 2, 4: " in page
    views = {f"no-plan-alignment-{view}-{i}.svg" for view in ("steps", "loss", "layers") for i in (1, 2, 3)}
    assert figures == views | {"no-plan-alpha-course.svg"}  # three depths are three sets of widths


def test_learning_rates_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "runs")
    train(store, specs() + specs(lr=0.0123456789012345))  # more digits than a grid's learning rates have
    page, told, figures = report(tmp_path, capsys)
    assert "η 0.03: 3 runs" in page
    assert "η 0.0123457: 3 runs" in page
    assert len(told["runs_of_no_plan"]) == 6
    assert {"no-plan-1-alignment-steps.svg", "no-plan-2-alignment-steps.svg"} <= figures


def test_runs_that_differ_in_their_validation_are_no_repetitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else two runs of one width and seed would stand for one."""
    store = Store(tmp_path / "runs")
    (again,) = [replace(spec, val_windows=spec.val_windows + 1) for spec in specs(heads=(2,))]
    train(store, [*specs(), again])
    page, told, _ = report(tmp_path, capsys)
    assert len(told["runs_of_no_plan"]) == 4
    assert "η 0.03: 3 runs" in page
    assert "η 0.03 (2): 1 run<" in page


def test_runs_of_a_plan_are_not_among_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "runs")
    (plan,) = study_plans("alignment_val", scale="tiny")
    fill(store, [plan])
    for spec in plan.specs():
        store.run(spec).append_metrics(rows_of(spec.model.d_model, spec.seed, spec.model.n_layers))
    page, told, _ = report(tmp_path, capsys)
    assert told["runs_of_no_plan"] == []
    assert 'id="no-plan"' not in page
    (loose,) = train(store, specs(heads=(1,)))
    page, told, _ = report(tmp_path, capsys)
    assert told["runs_of_no_plan"] == [loose]
    assert 'id="no-plan"' in page
    assert 'id="verdicts"' in page
    assert Report(tmp_path / "runs", tmp_path / "one", plan=(plan.name,), formats=()).run() == 0
    assert 'id="no-plan"' not in (tmp_path / "one" / "report.html").read_text(encoding="utf-8")


def test_a_spoiled_run_is_named_and_the_rest_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "runs")
    spoiled, *_ = train(store, specs())
    (store.root / spoiled / "spec.json").write_text("[]", encoding="utf-8")
    assert Report(tmp_path / "runs", tmp_path / "out", formats=()).run() == 2
    captured = capsys.readouterr()
    assert spoiled in captured.err
    assert "measured runs of no plan: 2" in captured.out
