"""The figures for print: which a plan gets, in which formats, and that labels are drawn as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.report.conftest import Made
from tests.report.small import make_source

from nugpt.report import write_report
from nugpt.report.answers import answer_plan
from nugpt.report.colours import NAMED_LIGHT, ordered
from nugpt.report.figures import draw

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
    slope = re.search(r"ngpt: slope (-?[\d.]+) \((-?[\d.]+) to (-?[\d.]+)\)", drawn.replace("−", "-"))
    assert slope is not None
    value, low, high = map(float, slope.groups())
    assert low <= value <= high
    assert low <= -0.5 <= high  # as planted


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    source = make_source(tmp_path, "width-fixed-steps", scale="tiny")
    first, second = (write_report(source, tmp_path / name) for name in ("a", "b"))
    for one, other in zip((first.page, *first.figures), (second.page, *second.figures), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_a_dollar_sign_is_no_formula(tmp_path: Path) -> None:
    from dataclasses import replace

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
