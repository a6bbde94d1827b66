"""What was measured beside the loss, in the report: figures, charts, tables, verdicts, coordinate checks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fit.test_alignment import PLANTED, make_run
from tests.fit.test_coords import TABLE, make
from tests.report.small import HOSTILE, fill, source_of, study_plans

from nugpt.cli.coords import _values
from nugpt.cli.results import _figures
from nugpt.fit.alignment import implied
from nugpt.fit.coords import check_coordinates
from nugpt.report import Source, Written, write_report
from nugpt.report.figures.alignment import alignment_figures
from nugpt.report.measured import alignment_groups
from nugpt.report.results import _at_widths
from nugpt.spec.plan import lr_at
from nugpt.store import Store
from nugpt.store.coords import read_coords, write_coords

STEEP = {"alpha": 0.7, "omega": 0.5, "nu": 0.95}


def rows_of(
    width: int, seed: int, layers: int, planted: Mapping[str, float] = PLANTED, loss: float = 4.05
) -> list[dict[str, Any]]:
    """As a run's metrics hold them: exponents planted with a factor of two, coefficients that fall."""
    run = make_run(width, seed, layers, planted, factor=2.0, noise=0.01, at={1: 0.2, 2: 0.2})
    rows: list[dict[str, Any]] = [dict(row) for row in run.rows]
    rows[-1] |= {"step": 800, "loss": loss}  # the last of the study's runs
    for step in (1, 10, 100):
        alpha = {"mean": 0.2 / step, "std": 0.05, "mean_by_block": [0.1] * layers, "std_by_block": [0.1] * layers}
        rows.append({"step": step, "kind": "lerp", "alpha_A": alpha, "alpha_M": alpha})
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Written]:
    folder = tmp_path_factory.mktemp("measured")
    store = Store(folder / "runs")
    plans = study_plans("alignment_val", "alignment_val_layer_dependence", "depth-sweep-baseline-alpha-power-law")
    fill(store, plans)
    for plan in plans:
        for spec in plan.specs():
            directory = store.run(spec)
            if not directory.metrics.is_file():
                directory.append_metrics(rows_of(spec.model.d_model, spec.seed, spec.model.n_layers))
    good, bad = check_coordinates(TABLE, make()), check_coordinates(TABLE, make({("moved hidden", "width"): 0.5}))
    write_coords(store, "good", json.loads(json.dumps(_values(good, make(), 2**-9, 2))))
    write_coords(store, "wrong", json.loads(json.dumps(_values(bad, make(), 2**-9, 2))) | {"table": HOSTILE})
    source = source_of(store)
    return source, write_report(source, folder / "report", formats=("svg",))


def test_figures_are_the_papers_views_and_the_checks(made: tuple[Source, Written]) -> None:
    names = {path.name for path in made[1].figures}
    wanted = {f"alignment_val-lab-alignment-{view}.svg" for view in ("steps", "loss", "layers")}
    wanted |= {"coords-good.svg", "coords-wrong.svg", "depth-sweep-baseline-alpha-power-law-lab-alpha-course.svg"}
    assert wanted <= names
    assert not [name for name in names if name.startswith("depth-sweep") and "alignment" in name]
    text = next(path for path in made[1].figures if path.name == "alignment_val-lab-alignment-steps.svg").read_text()
    assert "hidden, d_model 96" in text
    assert "output, d_model 384" in text
    assert "mathdefault" not in text  # ticks are plain numbers where mathematics is not parsed


def test_the_results_page_shows_the_view_that_a_study_is_about_and_leads_to_the_others(
    made: tuple[Source, Written], tmp_path: Path
) -> None:
    for name, view in (("alignment_val-lab", "steps"), ("alignment_val_layer_dependence-lab", "layers")):
        (answer,) = [a for a in made[1].answers if a.plan.name == name]
        shown, linked = _figures(answer, tmp_path, {})
        assert [path.rpartition("-")[2] for path, _ in shown] == [f"{view}.svg"]
        others = {f"{other}.svg" for other in ("steps", "loss", "layers") if other != view}
        assert {path.rpartition("-")[2] for path, _ in linked} == others
    (depth,) = [a for a in made[1].answers if a.plan.name.startswith("depth-sweep")]
    assert not _figures(depth, tmp_path, {})[1]


def test_the_results_page_has_exponents_at_each_width_with_the_factor_that_a_slope_is_free_of(
    made: tuple[Source, Written],
) -> None:
    (answer,) = [a for a in made[1].answers if a.plan.name == "alignment_val-lab"]
    lines = [line.strip("| ").split(" | ") for line in _at_widths(answer).splitlines()[2:]]
    assert lines[0] == ["exponent", "of", "d_model 96", "d_model 192", "d_model 384"]
    rows = {(row[0], row[1]): [float(value) for value in row[2:]] for row in lines[2:]}
    assert set(rows) == {(what, part) for what in ("ω, end", "max(α, ν), end") for part in ("hidden", "output")}
    for what, planted in (("ω, end", PLANTED["omega"]), ("max(α, ν), end", max(PLANTED["alpha"], PLANTED["nu"]))):
        factor = [planted + 1 / math.log2(width) for width in (96, 192, 384)]  # planted: two
        assert rows[what, "output"] == pytest.approx(factor, abs=0.02)  # noise of 0.01
    (layers,) = [a for a in made[1].answers if a.plan.name == "alignment_val_layer_dependence-lab"]
    assert "| ω | layer 4 | " in _at_widths(layers)
    (depth,) = [a for a in made[1].answers if a.plan.name.startswith("depth-sweep")]
    assert _at_widths(depth) == ""


@pytest.mark.parametrize("layers", [1, 2, 3, 12, 48])
def test_layers_are_whole_numbers(layers: int) -> None:
    runs = [make_run(96, 0, layers, PLANTED, factor=2.0, noise=0.01, at={1: 0.2, 2: 0.2})]
    figure = alignment_figures({"some": runs})["layers"]
    for axes in figure.axes:
        ticks = axes.get_xticks()
        assert len(ticks)
        assert all(float(tick).is_integer() for tick in ticks)


def test_the_claims_get_verdicts_from_slopes_over_three_widths(made: tuple[Source, Written]) -> None:
    (answer,) = [a for a in made[1].answers if a.plan.name == "alignment_val-lab"]
    omega, fall, end = answer.judged
    assert omega.verdict.answer == "holds"
    assert [e.value for e in omega.verdict.estimates] == pytest.approx([0.5, 0.5], abs=0.02)
    assert [e.value for e in fall.verdict.estimates] == pytest.approx([0.4 / 7] * 6, abs=0.03)
    assert [e.value for e in end.verdict.estimates] == pytest.approx([0.75, 0.75], abs=0.02)
    assert end.verdict.answer == "does not hold"
    (layers,) = [a for a in made[1].answers if a.plan.name == "alignment_val_layer_dependence-lab"]
    assert [e.where for e in layers.judged[0].verdict.estimates] == [
        f"layer {i}, slope over width" for i in (1, 2, 3, 4)
    ]
    assert layers.judged[0].verdict.answer == "holds"


def test_the_page_tells_exponents_with_their_slope_and_leads_to_the_runs(made: tuple[Source, Written]) -> None:
    page = made[1].page.read_text(encoding="utf-8")
    assert "Alignment: max(α, ν), nugpt, 4 layers, 800 steps" in page
    assert "mid alignment (0.75)" in page
    for run in made[0].plans[0].curves[0].runs:
        assert f'href="#run-{run.id}"' in page
    assert "during training" in page


def test_runs_of_several_learning_rates_are_not_taken_for_one_another(tmp_path: Path) -> None:
    (study,) = study_plans("alignment_val")
    rates = study.curves[0].log2_lrs[0], study.curves[0].log2_lrs[0] + 1
    plan = replace(study, name="mine", curves=tuple(replace(curve, log2_lrs=rates) for curve in study.curves))
    store = Store(tmp_path / "runs")
    fill(store, [plan])
    for spec in plan.specs():
        low = spec.lr == lr_at(rates[0])
        rows = rows_of(spec.model.d_model, spec.seed, spec.model.n_layers, *((PLANTED, 4.05) if low else (STEEP, 3.9)))
        store.run(spec).append_metrics(rows)
    (found,) = source_of(store).plans
    ((name, runs),) = alignment_groups(found).items()
    assert name == f"nugpt, 4 layers, 800 steps, η {lr_at(rates[1]):.4g} of 2 that were measured"  # of the lower loss
    assert {run.lr for run in runs} == {lr_at(rates[1])}
    slope = implied(runs, "hidden", "uniform").slope
    assert slope is not None
    assert slope.value == pytest.approx(STEEP["nu"], abs=0.02)
    page = write_report(source_of(store), tmp_path / "report", formats=("svg",)).page.read_text(encoding="utf-8")
    assert name in page


def test_runs_that_differ_in_what_no_group_goes_by_are_sets_of_their_own(tmp_path: Path) -> None:
    (study,) = study_plans("alignment_val")
    more = tuple(replace(c, label={**c.label, "w": 3}, spec=replace(c.spec, val_windows=3)) for c in study.curves)
    plan = replace(study, name="mine", study=None, curves=(*study.curves, *more))
    store = Store(tmp_path / "runs")
    fill(store, [plan])
    for spec in plan.specs():
        store.run(spec).append_metrics(rows_of(spec.model.d_model, spec.seed, spec.model.n_layers))
    (found,) = source_of(store).plans
    sets = alignment_groups(found)
    assert [len(runs) for runs in sets.values()] == [len(study.specs())] * 2
    assert all(implied(runs, "hidden", "loss").slope is not None for runs in sets.values())


def test_runs_that_no_slope_has_are_named(tmp_path: Path) -> None:
    (plan,) = study_plans("alignment_val")
    store = Store(tmp_path / "runs")
    fill(store, [plan])
    *most, last = plan.specs()  # of the widest model the last seed was not measured
    for spec in most:
        store.run(spec).append_metrics(rows_of(spec.model.d_model, spec.seed, spec.model.n_layers))
    left = [spec.hash for spec in most if spec.seed == last.seed]
    assert len(left) == 2
    page = write_report(source_of(store), tmp_path / "report", formats=("svg",)).page.read_text(encoding="utf-8")
    said = page[page.index("No slope has ") : page.index(": their seed was not measured at every width")]
    assert all(hash in said for hash in left)
    assert last.hash not in said


def test_the_page_tells_coordinate_checks_and_names_what_is_wrong(made: tuple[Source, Written]) -> None:
    page = made[1].page.read_text(encoding="utf-8")
    assert 'id="coords"' in page
    assert "Everything is flat." in page
    assert "hidden.lr: exponent of width is -3/4, 0.50 too high; -5/4 is flat" in page
    assert HOSTILE not in page  # a table's name is text, whatever stands in it
    assert "Coordinate checks" in page


def test_a_spoiled_check_is_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, study_plans("alignment_val", scale="tiny"))
    write_coords(store, "mine", {"slopes": [], "mistakes": [], "passed": True, "table": "nugpt"})
    (store.root / "coords" / "other.json").write_text("[]", encoding="utf-8")
    source = source_of(store)
    assert [problem for problem in source.problems if "other.json" in problem]
    assert source.plans
    with pytest.raises(ValueError, match=r"name is '\.\./x'"):
        write_coords(store, "../x", {})
    with pytest.raises(ValueError, match=r"other\.json: not a coordinate check"):
        read_coords(store)


def test_without_measurements_nothing_is_drawn_and_claims_are_open(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, study_plans("alignment_val", scale="tiny"))
    written = write_report(source_of(store), tmp_path / "report", formats=("svg",))
    assert not [path for path in written.figures if "alignment-" in path.name]
    assert {one.verdict.answer for one in written.answers[0].judged} == {"not decided here"}
