"""The page: verdicts first, every number leads to its runs, nothing comes from elsewhere, labels are text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import Made
from tests.report.small import HOSTILE, SETTING, fill, loss_of, make_source, source_of, study_plans
from tests.report.test_html import Reader

from nugpt.fit.curves import Measured
from nugpt.fit.points import Point
from nugpt.report import Source, from_curves, write_report
from nugpt.spec.plan import Curve, Plan
from nugpt.store import Store, opened
from nugpt.store.archive import pack_folder
from nugpt.store.plans import PlanDirectory
from nugpt.studies import STUDIES

MOST_BYTES = 3_000_000


def page_of(source: Source, folder: Path) -> str:
    return write_report(source, folder, formats=()).page.read_text(encoding="utf-8")


def charts_in(page: str) -> dict[str, Any]:
    (block,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', page, flags=re.DOTALL)
    found: dict[str, Any] = json.loads(block)
    return {id: found[chart] if isinstance(chart, str) else chart for id, chart in found.items()}


def rows_in(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row of data of a chart, wherever its spec keeps it."""
    inline = [layer.get("data", {}).get("values", ()) for layer in (spec, *spec["layer"])]
    return [row for rows in (*spec.get("datasets", {}).values(), *inline) for row in rows]


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_verdicts_stand_before_everything_else(made: Made) -> None:
    page = made.html
    wanted = ('id="verdicts"', 'id="recommendation"', 'id="plan-', 'class="charts"', 'id="how"', 'id="runs"')
    places = [page.index(name) for name in wanted]
    assert places == sorted(places)


def test_planted_truths_are_judged_as_they_were_planted(made: Made) -> None:
    answers = {one.claim.text: one.verdict.answer for plan in made.written.answers for one in plan.judged}
    assert answers["nGPT's best learning rate does not transfer over width: it falls."] == "holds"
    assert answers["νGPT's best learning rate transfers over width."] == "holds"
    assert answers["The best learning rate falls as iterations to the power −1/3."] == "holds"
    assert answers["The mean effective α̂_A falls about as depth to the power −1/2."] == "holds"
    assert answers["ω is one half at the end."] == "not decided here"
    shown = Reader(without_scripts(made.html)).text
    for text in answers:
        assert text in shown


def test_studies_that_decide_something_come_first(made: Made) -> None:
    verdicts = made.html[made.html.index('id="verdicts"') : made.html.index('id="recommendation"')]
    order = re.findall(r'<h3><a href="#plan-([\w.-]+)"', verdicts)
    decides = {
        plan.plan.name: any(one.verdict.answer in ("holds", "does not hold") for one in plan.judged)
        for plan in made.written.answers
    }
    assert [decides[name] for name in order] == sorted((decides[name] for name in order), reverse=True)
    assert set(order) == {plan.plan.name for plan in made.written.answers if plan.judged}


def test_at_a_glance_every_claim_leads_to_its_numbers(made: Made) -> None:
    """A row each, with the verdict and the estimate of the block that it leads to, in the order of the blocks."""
    glance = made.html.split('id="verdicts"')[1].split("<tbody>")[1].split("</tbody>")[0]
    rows = re.findall(r'class="badge[^"]*">([^<]*)</span>(.*?)</td><td[^>]*><a href="#(claim-[^"]*)">', glance)
    blocks = re.findall(r'class="claim" id="(claim-[^"]*)"><div><span class="badge[^"]*">([^<]*)</span>', made.html)
    assert [(anchor, answer) for answer, _, anchor in rows] == blocks
    so_far = {anchor.removeprefix("claim-").rpartition("-")[0] for _, told, anchor in rows if "so far" in told}
    runs = {p.name: [r for c in p.curves for r in c.runs] for p in made.source.plans}
    asked = {plan.plan.name for plan in made.written.answers if plan.judged}
    assert so_far == {name for name in asked if not all(run.ended for run in runs[name])}
    assert re.search(r"<td[^>]*>−0\.5\d* \(−0\.\d+ to −0\.\d+\)</td>", glance), "nGPT's planted drift over width"


def test_an_estimate_has_as_many_digits_as_its_interval(made: Made) -> None:
    (block,) = re.findall(r'id="claim-width-fixed-steps-lab-1">(.*?)</div></div>', made.html, flags=re.DOTALL)
    value, low, high = re.findall(r"−(0\.\d+)", Reader(block).text.split("Rule")[0])
    assert len(value) == len(low) == len(high)
    assert abs(float(value) - 0.5) < 0.1


def test_plans_stand_in_the_order_of_the_studies_and_then_by_name(made: Made) -> None:
    """An order that is not that of their names."""
    names = [plan.name for plan in made.source.plans if plan.study is not None]
    assert names == [f"{id}-lab" for id in STUDIES if f"{id}-lab" in names]
    assert names != sorted(names)
    assert made.source.plans[-1].study is None


def test_many_plans_are_folded_away_in_the_head_and_few_are_not(tmp_path: Path, made: Made) -> None:
    assert "<details>" not in made.html.split("<nav")[1].split("</nav>")[0]
    store = Store(tmp_path / "runs")
    every = study_plans(*list(STUDIES)[:9], scale="tiny")
    fill(store, every[:1])
    for plan in every[1:]:
        PlanDirectory.of(store, plan)
    page = page_of(source_of(store), tmp_path / "page")
    (folded,) = re.findall(r"<details>(.*?)</details>", page.split("<nav")[1].split("</nav>")[0])
    assert folded.startswith("<summary>9 plans</summary>")
    assert folded.count('<a href="#plan-') == 9


def test_plans_without_an_ended_run_are_named_and_not_judged(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, study_plans("width-fixed-steps"))
    PlanDirectory.of(store, study_plans("batch-by-steps")[0])
    verdicts = page_of(source_of(store), tmp_path / "page").split('id="verdicts"')[1].split("</section>")[0]
    assert verdicts.count('class="claim"') == len(STUDIES["width-fixed-steps"].claims)
    told = "None of their runs has ended, so without a verdict: "
    assert f'{told}<a href="#plan-batch-by-steps-lab">' in verdicts


def test_every_link_leads_somewhere_and_no_place_exists_twice(made: Made) -> None:
    elements = Reader(without_scripts(made.html)).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes in elements:
        href = attributes.get("href") or ""
        if href.startswith("#"):
            assert href[1:] in ids, href
        elif href:
            assert (made.written.page.parent / href).is_file(), href


def test_every_run_has_a_row_and_every_point_a_run(made: Made) -> None:
    rows = set(re.findall(r'<tr id="run-([0-9a-f]{16})">', made.html))
    assert rows == {run.id for plan in made.source.plans for curve in plan.curves for run in curve.runs}
    for chart in charts_in(made.html).values():
        assert {row["run"] for row in rows_in(chart["spec"]) if "run" in row} <= rows


def test_points_carry_what_hovering_shows(made: Made) -> None:
    runs = {run.id: run for plan in made.source.plans for curve in plan.curves for run in curve.runs}
    seen = set()
    for chart in charts_in(made.html).values():
        for row in (row for row in rows_in(chart["spec"]) if "lr" in row):
            run = runs[row["run"]]
            assert (row["seed"], row["x"]) == (run.seed, run.log2_lr)
            assert math.isclose(float(row["lr"]), 2.0**run.log2_lr, rel_tol=1e-3)  # shown with four digits
            assert row["state"].startswith(run.state)
            if "loss" in row:  # above the scale
                assert row["loss"] == ("none" if run.loss is None else f"{run.loss:.4f}")
            else:
                assert row["y"] == pytest.approx(run.loss, abs=1e-5)
            seen.add(run.id)
    swept = {
        run.id
        for plan in made.source.plans
        for curve in plan.curves
        if len({r.log2_lr for r in curve.runs}) > 1
        for run in curve.runs
        if run.ended
    }
    assert seen == swept


def test_optima_are_never_bare(made: Made) -> None:
    """Each number of the column is followed by its interval; without an optimum there is a bound or a word."""
    tables = re.findall(r"<h3>Optima</h3>(.*?)</table>", made.html, flags=re.DOTALL)
    assert tables
    for part in tables:
        for row in re.findall(r"<tr>(.*?)</tr>", part.split("<tbody>")[1], flags=re.DOTALL):
            best = Reader(re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)[2]).text
            assert re.fullmatch(r"−?\d+\.\d\d \(.* to .*\)|at (least|most) .*|unbounded", best), best


def test_hostile_labels_are_text(made: Made) -> None:
    page = without_scripts(made.html)
    seen = Reader(page)
    assert HOSTILE in seen.text
    assert not [name for name, _ in seen.elements if name == "script"]
    assert not [a for _, a in seen.elements if any(key.startswith("on") for key in a)]
    images = [a["src"] or "" for name, a in seen.elements if name == "img"]
    assert images
    assert all(src.startswith("data:image/png;base64,") for src in images)


def test_the_policy_allows_the_pages_own_scripts_alone(made: Made) -> None:
    page = made.html
    (meta,) = [a for _, a in Reader(without_scripts(page)).elements if "http-equiv" in a]
    policy = meta["content"] or ""
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert len(scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert "default-src 'none'" in policy
    allowed = re.findall(r"script-src ([^;]*)", policy)[0].split()
    assert sorted(allowed) == sorted(f"'sha256-{digest}'" for digest in digests)


def test_nothing_private_is_in_the_page(made: Made) -> None:
    assert "somewhere/private" not in made.html
    assert str(made.store.root) not in made.html


def test_how_it_was_run_is_told(made: Made) -> None:
    told = made.html[made.html.index('id="how"') : made.html.index('id="runs"')]
    for fact in ("a made-up device", "2.13.0", "3.11.9", SETTING.data, "float32"):
        assert fact in told


def test_a_reader_without_scripts_gets_pictures(made: Made) -> None:
    stills = re.findall(r"<noscript>(.*?)</noscript>", made.html.split("<body>")[1], flags=re.DOTALL)
    assert len(stills) == sum(bool(plan.pictures or plan.multipliers) for plan in made.written.answers)
    for part in stills:
        for png in re.findall(r"base64,([^\"]*)", part):
            assert base64.b64decode(png).startswith(b"\x89PNG")


def test_the_recommendation_is_shown_with_its_bounds(made: Made) -> None:
    section = made.html[made.html.index('id="recommendation"') : made.html.index('id="plan-')]
    shown = Reader(section).text
    assert "0.00781" in shown
    assert "−7.2 to unbounded" in shown
    assert HOSTILE in shown


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            {"nats": 3.2764, "interval": [3.188, 3.319], "sizes": 4, "why_not": None},
            "The loss to expect at the best η: 3.276 nats (3.188 to 3.319), by a law through 4 swept sizes.",
        ),
        ({"nats": 3.0, "interval": [2.9, 3.1], "sizes": 1, "why_not": None}, "3.000 nats (2.900 to 3.100), as found"),
        ({"nats": None, "interval": None, "sizes": 2, "why_not": "2 < 3 sizes"}, "No loss is forecast: 2 < 3 sizes."),
        ({"nats": 3.0, "interval": "x"}, "3.000 nats (), by a law through – swept sizes."),
    ],
)
def test_the_loss_to_expect_is_shown_with_its_interval(tmp_path: Path, loss: dict[str, Any], said: str) -> None:
    page = page_of(Source("t", (), {"recommended": {"lr": 0.01, "loss": loss}}), tmp_path)
    assert said in Reader(page[page.index('id="recommendation"') :]).text


@pytest.mark.parametrize("advice", [None, [], "x", 3, {"recommended": 1}, {"recommended": {"costs": "x", "runs": 5}}])
def test_any_recommendation_that_json_can_hold_is_survived(tmp_path: Path, advice: Any) -> None:
    assert "Recommendation" in page_of(Source("t", (), advice), tmp_path)


def test_little_is_known_and_the_page_says_so(tmp_path: Path) -> None:
    """Three learning rates and one seed, and half of the runs missing: nothing may be decided."""
    store = Store(tmp_path / "runs")
    fill(store, study_plans("width-fixed-steps", scale="tiny"), skip=2)
    page = page_of(source_of(store), tmp_path / "report")
    assert "too few, too short or too noisy to decide anything" in page
    assert 'class="badge holds"' not in page
    assert "Scale tiny is a smoke test: what is decided here holds for runs of at most 40 steps" in page
    assert "One seed each" in page
    assert "with 3 learning rates or fewer that trained" in page
    assert "9 of 18 runs have not ended." in page


def test_what_is_well_measured_carries_no_caveat(tmp_path: Path) -> None:
    """Five learning rates and two seeds or more, at the scale that decides: octaves, and quarters as they are added."""
    store = Store(tmp_path / "runs")
    (plan,) = study_plans("steps-sweep-ngpt-ours", scale="evidence")
    grid = (-9.0, -8.0, -7.5, -7.0, -6.5, -6.0, -5.0)
    fill(store, [replace(plan, curves=tuple(replace(c, log2_lrs=grid) for c in plan.curves))])
    assert "Read with care" not in page_of(source_of(store), tmp_path / "report")


def test_what_a_person_wrote_about_the_runs_stands_with_their_verdicts(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, study_plans("steps-sweep-ngpt-ours"))
    (store.root / "notes").mkdir()
    (store.root / "notes" / "steps-sweep-ngpt-ours.md").write_text(
        "Read from the *final* loss,\nsee [`choices`](choices.md#validation).\n\nIt was <b>settled</b> later.\n"
    )
    (store.root / "notes" / "width-fixed-steps.md").write_text("Of another study.\n")
    page = page_of(source_of(store), tmp_path / "report")
    verdicts = page[page.index('id="verdicts"') : page.index('id="plan-')]
    assert '<p class="note">Note: Read from the *final* loss, see choices.</p>' in verdicts
    assert '<p class="note">Note: It was &lt;b&gt;settled&lt;/b&gt; later.</p>' in verdicts
    assert "Of another study" not in page


def test_the_page_of_an_archive_has_its_notes_and_links_to_no_file(tmp_path: Path) -> None:
    """It is read from a folder that is there for a while only."""
    store, archive = Store(tmp_path / "runs"), tmp_path / "archive"
    fill(store, study_plans("steps-sweep-ngpt-ours"))
    pack_folder(store, archive)
    (archive / "notes").mkdir()
    (archive / "notes" / "steps-sweep-ngpt-ours.md").write_text("Read from the final loss.\n")
    page = page_of(source_of(opened(archive), page_folder=tmp_path / "report"), tmp_path / "report")
    assert '<p class="note">Note: Read from the final loss.</p>' in page
    assert {target[:1] for target in re.findall(r'href="([^"]*)"', page)} == {"#"}
    there = page_of(source_of(store), tmp_path / "report2")
    assert 'href="../runs/' in there
    works = "Links to files work while the page lies where it was written"
    assert works in there
    assert works not in page


def test_a_note_that_is_no_text_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, study_plans("steps-sweep-ngpt-ours"))
    (store.root / "notes").mkdir()
    note = store.root / "notes" / "steps-sweep-ngpt-ours.md"
    note.write_bytes("Schön.".encode("latin-1"))
    source = source_of(store)
    (problem,) = source.problems
    assert problem.startswith(f"{note} cannot be read as text: ")
    assert [plan.name for plan in source.plans] == ["steps-sweep-ngpt-ours-lab"]


def test_a_plan_that_was_never_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    PlanDirectory.of(store, study_plans("width-fixed-steps")[0])
    page = page_of(source_of(store), tmp_path / "report")
    assert "None of its runs has ended" in page
    assert "<script>" not in page


def test_all_runs_diverged(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    plan = study_plans("width-fixed-steps", scale="tiny")[0]
    high = replace(plan, curves=tuple(replace(c, log2_lrs=(-1.0, 0.0, 1.0)) for c in plan.curves))
    fill(store, [high])
    source = source_of(store)
    assert {run.state for curve in source.plans[0].curves for run in curve.runs} == {"diverged"}
    page = page_of(source, tmp_path / "report")
    assert "no learning rate trained" in page


def test_a_record_that_cannot_be_read_is_named_and_the_rest_shown(tmp_path: Path) -> None:
    source = make_source(tmp_path, "width-fixed-steps", scale="tiny")
    run = source.plans[0].curves[0].runs[0]
    (tmp_path / "runs" / run.id / "record.json").write_text("{")
    again = source_of(Store(tmp_path / "runs"))
    assert len(again.problems) == 1
    assert run.id in again.problems[0]
    assert "Not everything could be read" in page_of(again, tmp_path / "report")


def test_points_that_were_added_to_a_grid_are_there(tmp_path: Path) -> None:
    from nugpt.store.plans import Addition

    store = Store(tmp_path / "runs")
    (plan,) = study_plans("width-fixed-steps", scale="tiny")
    curve = plan.curves[0]
    PlanDirectory.of(store, plan).add([Addition(curve.key, -1.25, "edge")])
    found = source_of(store).plans[0].curves[0]
    assert sorted({run.log2_lr for run in found.runs}) == sorted({*curve.log2_lrs, -1.25})


def test_anyones_runs_make_a_page(tmp_path: Path) -> None:
    """Rows without our trainer: no spec, no record, no files, the same pictures and numbers."""
    specs = {c.label["heads"]: c for c in study_plans("width-fixed-steps")[0].curves if c.label["table"] == "nugpt"}
    curves = [
        Measured(
            label={"table": HOSTILE, "size": heads},
            group="g",
            sizes={"size": float(heads)},
            points=tuple(Point(x, loss_of(spec), seed) for (x, seed), spec in curve.runs().items()),
        )
        for heads, curve in specs.items()
        if isinstance(heads, int)
    ]
    source = Source("my runs", (from_curves("mine", curves),))
    page = page_of(source, tmp_path)
    assert len(charts_in(page)) == 2
    assert HOSTILE in Reader(without_scripts(page)).text
    assert len(re.findall(r'<tr id="run-', page)) == sum(len(curve.points) for curve in curves)
    text = Reader(without_scripts(page)).text  # nothing is said of what is not known
    assert "how they were run is not recorded" in text
    assert "training time" not in text
    assert "in the store" not in text


def thousand(path: Path) -> Source:
    """Two plans of four curves, twenty-five learning rates and five seeds each."""
    store = Store(path)
    (plan,) = study_plans("width-fixed-steps")
    spec = next(c.spec for c in plan.curves if c.label["table"] == "nugpt")
    grid = tuple(-9 + 0.16 * i for i in range(25))
    for batch in range(2):
        curves = tuple(
            Curve({"table": "nugpt", "windows": n}, replace(spec, val_windows=100 * batch + n), grid, tuple(range(5)))
            for n in (1, 2, 3, 4)
        )
        fill(store, [Plan(f"plan-{batch}", curves)])
    return source_of(store)


def test_a_thousand_runs_stay_below_three_megabytes(tmp_path: Path) -> None:
    source = thousand(tmp_path / "runs")
    page = page_of(source, tmp_path / "report")
    assert len(re.findall(r'<tr id="run-', page)) == 1000
    assert len(page.encode()) < MOST_BYTES


def test_a_larger_page_has_coarser_stills_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path, "width-fixed-steps", scale="tiny")
    sharp = page_of(source, tmp_path / "sharp")
    monkeypatch.setattr("nugpt.report.write.SHARP_UP_TO", 1000)  # less than any page can have
    coarse = page_of(source, tmp_path / "coarse")
    image = r"data:image/png;base64,[^\"]+"
    assert len(coarse) < len(sharp)
    assert re.sub(image, "", coarse) == re.sub(image, "", sharp)
    assert len(re.findall(image, coarse)) == len(re.findall(image, sharp)) > 0


def test_plans_that_show_the_same_carry_its_charts_once(tmp_path: Path) -> None:
    (plan,) = make_source(tmp_path, "width-fixed-steps", scale="tiny").plans
    alone = page_of(Source("one", (plan,)), tmp_path / "one")
    both = page_of(Source("two", (plan, replace(plan, name="again"))), tmp_path / "two")
    once, twice = list(charts_in(alone).values()), list(charts_in(both).values())
    assert twice == once + once
    size = [len(page.partition('id="charts">')[2].partition("</script>")[0]) for page in (alone, both)]
    assert size[1] < 1.1 * size[0]


@pytest.mark.slow
def test_all_studies_in_one_page_stay_below_three_megabytes(tmp_path: Path) -> None:
    source = make_source(tmp_path, *STUDIES)
    page = page_of(source, tmp_path / "report")
    assert len(re.findall(r'<tr id="run-', page)) > 1000
    assert len(page.encode()) < MOST_BYTES
