"""The figures for print: which a plan gets, in which formats, and that labels are drawn as they are written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.conftest import Made
from tests.report.small import make_source

from nugpt.report import write_report
from nugpt.report.answers import answer_plan
from nugpt.report.charts import law_points, path_name, paths_to_draw
from nugpt.report.colours import NAMED_LIGHT, ordered
from nugpt.report.figures import draw
from nugpt.report.source import CurveRuns
from nugpt.report.words import printed

BEGINS = {"pdf": b"%PDF-", "png": b"\x89PNG", "svg": b"<?xml"}


def test_each_plan_gets_the_figures_that_its_records_allow(made: Made) -> None:
    names = {path.stem for path in made.written.figures}
    assert names == {
        "width-fixed-steps-lab-loss",
        "width-fixed-steps-lab-best-lr-width",
        "steps-sweep-ngpt-ours-lab-loss",
        "steps-sweep-ngpt-ours-lab-best-lr-steps",
        "depth-sweep-baseline-alpha-power-law-lab-loss",
        "depth-sweep-baseline-alpha-power-law-lab-best-lr-layers",
        "depth-sweep-baseline-alpha-power-law-lab-alpha",
        "role-sweeps-lab-multipliers",
        "hostile-loss",
    }


def test_every_figure_is_there_in_every_format(made: Made) -> None:
    for path in made.written.figures:
        assert path.read_bytes().startswith(BEGINS[path.suffix[1:]]), path
    stems = [path.stem for path in made.written.figures]
    assert all(stems.count(stem) == 3 for stem in stems)


def test_text_stays_text_in_the_files(made: Made) -> None:
    (path,) = [path for path in made.written.figures if path.name == "width-fixed-steps-lab-best-lr-width.svg"]
    drawn = path.read_text(encoding="utf-8")
    assert "width (d_model)" in drawn
    slope = re.search(r"nGPT: slope (-?[\d.]+) \((-?[\d.]+) to (-?[\d.]+)\)", drawn.replace("−", "-"))
    assert slope is not None
    value, low, high = map(float, slope.groups())
    assert low <= value <= high
    assert low <= -0.5 <= high  # as planted


def texts(made: Made, name: str) -> list[str]:
    (path,) = [path for path in made.written.figures if path.name == f"{name}.svg"]
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("ngpt", "nGPT"),
        ("nugpt, steps 2000, weight decay 0", "νGPT, 2000 steps, weight decay 0"),
        ("nugpt-full-align at layers=4: slope -0.1", "νGPT (full align) at 4 layers: slope −0.1"),
        ("completep width_exponent=-0.75 at steps=2000", "CompleteP width exponent −0.75 at 2000 steps"),
        ("layers 4, heads 8, axis heads, held out 0", "4 layers, heads 8"),
        ("depth-mup, layers 4, axis all, held out 1", "Depth-μP, 4 layers, held out"),
        ("hidden, width 96", "hidden, d_model 96"),
        ("nugpt at width=192 layers=4 steps=2000", "νGPT at d_model 192, 4 layers, 2000 steps"),
        ("my-ngpt-2", "my-ngpt-2"),
        ("axis heads, heads 4", "heads 4"),
    ],
)
def test_a_label_is_printed_with_names_sizes_and_signs_as_they_are_written(label: str, shown: str) -> None:
    assert printed(label) == shown


def test_sizes_are_named_by_width_and_tables_as_the_paper_writes_them(made: Made) -> None:
    told = texts(made, "width-fixed-steps-lab-loss")
    assert {"nGPT", "νGPT", "d_model 96", "d_model 192", "d_model 384"} <= set(told)
    assert not [text for text in told if "heads" in text]
    ticks = [text for text in texts(made, "depth-sweep-baseline-alpha-power-law-lab-alpha") if text.startswith("0.")]
    assert ticks
    assert all(len(text) <= len("0.015") for text in ticks)


def test_marks_and_series_are_in_the_legend_where_they_are_drawn_and_only_there(made: Made) -> None:
    for found in made.written.answers:
        for along, paths in paths_to_draw(found).items():
            edges = [row for path in paths for row in law_points(path)]
            told = texts(made, f"{found.plan.name}-best-lr-{along}")
            assert ("stability edge" in told) == any(row["kind"] == "edge" for row in edges)


def test_a_size_is_drawn_where_all_paths_together_have_three_values_of_it(tmp_path: Path) -> None:
    (plan,) = make_source(tmp_path, "batch-by-steps").plans
    found = answer_plan(plan)
    assert {path.answer.along for path in found.paths} == {"steps", "batch"}
    assert {len(path.curves) for path in found.paths} == {2}
    drawn = paths_to_draw(found)
    assert [*drawn] == ["steps"], "batches of 16 and 64 sequences alone have a length in common"
    assert [path_name(path) for path in drawn["steps"]] == [f"nugpt at {n} tokens a step" for n in (8192, 16384, 32768)]
    assert [one.name for one in draw(found)] == ["batch-by-steps-lab-loss", "batch-by-steps-lab-best-lr-steps"]


def test_a_curve_without_runs_is_in_no_legend_and_panels_share_one_all_the_same(tmp_path: Path) -> None:
    source = make_source(tmp_path, "width-fixed-steps", scale="lab")
    plan = source.plans[0]
    empty = next(c for c in plan.curves if (c.label["table"], c.label["heads"]) == ("ngpt", 8))
    bare = replace(
        empty,
        runs=tuple(replace(run, state="not ended", loss=None) for run in empty.runs),
        measured=replace(empty.measured, points=(), records=()),
    )

    def legend_texts(*without: CurveRuns) -> list[str]:
        curves = tuple(bare if c in without else c for c in plan.curves)
        (figure,) = [d.figure for d in draw(answer_plan(replace(plan, curves=curves))) if d.kind == "loss"]
        (legend,) = figure.legends
        return [text.get_text() for text in legend.get_texts()]

    assert sorted(legend_texts()) == sorted(legend_texts(empty)) == ["d_model 192", "d_model 384", "d_model 96"]
    of_one = replace(plan, curves=tuple(bare if c is empty else c for c in plan.curves if c.label["table"] == "ngpt"))
    (figure,) = [d.figure for d in draw(answer_plan(of_one)) if d.kind == "loss"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["d_model 96", "d_model 192"]


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    source = make_source(tmp_path, "width-fixed-steps", scale="tiny")
    first, second = (write_report(source, tmp_path / name) for name in ("a", "b"))
    for one, other in zip((first.page, *first.figures), (second.page, *second.figures), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_a_dollar_sign_is_no_formula(tmp_path: Path) -> None:
    source = make_source(tmp_path, "width-fixed-steps", scale="tiny")
    plan = source.plans[0]
    label = {"table": r"$\frac{broken$ \x", "heads": 1}
    curve = replace(plan.curves[0], measured=replace(plan.curves[0].measured, label=label))
    for drawn in draw(answer_plan(replace(plan, curves=(curve,)))):
        drawn.figure.savefig(tmp_path / "x.svg")
        drawn.figure.savefig(tmp_path / "x.pdf")
    assert r"$\frac{broken$" in (tmp_path / "x.svg").read_text(encoding="utf-8")


def test_an_unknown_format_is_refused_by_name(tmp_path: Path) -> None:
    source = make_source(tmp_path, "alignment_val", scale="tiny")
    with pytest.raises(ValueError, match=r"format is 'gif', but must be one of pdf, svg, png"):
        write_report(source, tmp_path / "report", formats=("gif",))


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_sizes_differ_in_lightness_not_in_hue_alone(n: int, dark: bool) -> None:
    """Whoever sees no hue at all can still order them."""
    steps = [luminance(colour) for colour in ordered(n, dark)]
    assert steps == sorted(steps)
    assert len(set(steps)) == n


@pytest.mark.parametrize("dark", [False, True])
def test_lines_stand_out_from_the_ground(dark: bool) -> None:
    """3:1 is what is asked of graphics that must be seen; the lightest ramp colours keep a little less on white."""
    ground = luminance("#12161b") if dark else 1.0
    for colour in [*ordered(6, dark), *(() if dark else NAMED_LIGHT[:5])]:
        light, deep = sorted((luminance(colour), ground), reverse=True)
        assert (light + 0.05) / (deep + 0.05) > 2.3, colour
