"""The results page and the README's first screen: they say what was planted in the records, and nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.report import planted
from tests.report.planted import DATA, REPLICAS, SETTING, WALL_S, best_log2_lr, fill, loss_of, write_run
from tests.report.small import hostile_plan

from nugpt.cli.main import main
from nugpt.cli.results import again, digest, sealed
from nugpt.fit.claims import verdicts
from nugpt.fit.curves import answer
from nugpt.fit.expected import DOUBT
from nugpt.fit.measured import measured
from nugpt.report.readme import BEGIN, END, NOTHING
from nugpt.spec.plan import Plan
from nugpt.store import Store, opened
from nugpt.store.archive import pack_folder, write_empty
from nugpt.store.plans import PlanDirectory, plans
from nugpt.studies import EVIDENCE, STUDIES, plan
from nugpt.sweep.state import plan_state

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Made:
    """What one command wrote."""

    folder: Path
    plan: Plan  # of the width study
    page: str
    readme: str

    def section(self, heading: str) -> str:
        """A study's part of the page."""
        return self.page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


README = f"# mine\n\n{BEGIN}\nold words\n{END}\n\nwhat follows stays\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """An archive of five studies, one of them not complete, and its page."""
    folder = tmp_path_factory.mktemp("results")
    store = Store(folder / "runs")
    width = plan(STUDIES["width-fixed-steps"], "lab", SETTING)
    fill(store, width)
    for id in ("against-llama", "against-llama-clipped"):
        fill(store, plan(STUDIES[id], "tiny", replace(SETTING, vocab_size=1024)))
    fill(store, plan(STUDIES["held-out"], "tiny", replace(SETTING, vocab_size=1024)))
    fill(store, plan(STUDIES["steps-sweep-ngpt-ours"], "tiny", replace(SETTING, vocab_size=1024)), but=2)
    pack_folder(store, folder / "archive")
    shutil.rmtree(store.root)
    (folder / "archive" / "notes").mkdir()
    (folder / "archive" / "notes" / "width-fixed-steps.md").write_text(
        "We take it that [`alignment_val_l12h28`](choices.md) agrees. Nobody knows why.\n"
    )
    (folder / "archive" / "notes" / "against-llama-clipped.md").write_text(
        "The baseline could do better. How is open.\n"
    )
    (folder / "archive" / "notes" / "index.md").write_text("The data is what was at hand.\n")
    (folder / "README.md").write_text(README)
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    assert main(["report", "archive", "-o", "docs", "--results", "--readme", "README.md"]) == 0
    page, readme = ((folder / name).read_text() for name in ("docs/results.md", "README.md"))
    yield Made(folder, width, page, readme)
    patch.undo()


def test_the_page_states_the_planted_optimum_loss_and_sources_of_every_curve(made: Made) -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in made.section("width-fixed-steps at lab").splitlines()
        if ", heads " in line
    ]
    assert len(rows) == 6
    for row in rows:
        label, seeds, optimum, loss, nearest, code, prose = row
        name, heads = label.split(", heads ")
        table = {"nGPT": "ngpt", "νGPT": "nugpt"}[name]
        (curve,) = [c for c in made.plan.curves if (c.label["table"], c.label["heads"]) == (table, int(heads))]
        planted = best_log2_lr(curve.spec)
        at, low, high = (float(x.replace("−", "-")) for x in re.findall(r"−?[\d.]+", optimum))
        assert at == pytest.approx(planted, abs=0.05)  # a grid of half octaves, and the fit knows of no parabola
        assert low <= planted <= high
        assert int(seeds) == len(curve.seeds) == 2
        bottom = 3.0 - 0.05 * (table == "nugpt") + 0.005  # of the average seed
        assert float(loss.split()[0]) == pytest.approx(bottom, abs=0.0015)  # the fit is no parabola
        at = min(curve.log2_lrs, key=lambda x: abs(x - planted))
        assert float(nearest.replace("−", "-")) == at
        reached = bottom + 0.08 * (at - planted) ** 2
        assert float(code) == pytest.approx(reached - 0.5, abs=0.0005 + 1e-9)
        assert float(prose) == pytest.approx(reached + 1.0, abs=0.0005 + 1e-9)


def test_it_states_verdicts_runs_seeds_minutes_and_the_command(made: Made) -> None:
    section = made.section("width-fixed-steps at lab")
    runs = len(made.plan.specs())
    assert f"**Complete**: all {runs} runs of its grid have ended." in section
    assert re.search(
        r"- \*\*holds\*\* — nGPT's best .* it falls\. Estimate: −0\.50\d* \(−0\.\d+ to −0\.\d+\)\.", section
    )
    assert re.search(r"- \*\*holds\*\* — νGPT's best learning rate transfers over width\. Estimate: ", section)
    assert f"| GPU-minutes | {runs * WALL_S / REPLICAS / 60:.1f}; " in section
    assert "| seeds | 2 on 6 curves |" in section
    assert "| layers × heads | 4×2, 4×4, 4×8 |" in section
    assert "| steps | 800 |" in section
    assert "device NVIDIA H200, engine lab, nugpt 0.1.0, torch 2.11.0, python 3.12.1 (60 runs)" in section
    command = (
        "nugpt study width-fixed-steps --scale lab --data DATA --precision bfloat16 --multiplier output 0.25 --run"
    )
    assert command in section
    assert f"**What this scale cannot say.** {STUDIES['width-fixed-steps'].limits}" in section
    assert "\n\n**Notes.** We take it that [`alignment_val_l12h28`](choices.md) agrees. Nobody knows why." in section
    assert ": best learning rate against width](figures/results/width-fixed-steps-lab-best-lr-width.svg)" in section
    for figure in re.findall(r"\]\((figures/\S+)\)", section):
        ElementTree.parse(made.folder / "docs" / figure)


def test_the_head_counts_each_run_once_and_tells_data_and_scale(made: Made) -> None:
    head = made.page.split("## At a glance")[0]
    lines = [line for path in (made.folder / "archive" / "runs").iterdir() for line in path.read_text().splitlines()]
    runs = {json.loads(line)["record"]["hash"] for line in lines}
    assert f"| runs | {len(runs)}: {len(runs)} done |" in head
    assert f"| GPU-minutes | {len(runs) * WALL_S / REPLICAS / 60:.1f}, " in head
    assert "1,234,567 tokens for training (code 81 %, prose 19 %) and 8,901 held back for validation" in head
    assert "for validation, with a vocabulary of 4,096" in head
    assert "```sh\nnugpt data prepare FILES --tokenizer bpe:4096 --out DATA\n```\n\nThe files are not published" in head
    assert "a claim that several studies make, perhaps of shared runs, is counted in each |" in head
    assert DATA[:16] in head
    assert "\n\nThe data is what was at hand.\n" in head
    assert "The paper trains on FineWeb-Edu; these runs do not." in head
    assert "somebody" not in made.page + made.readme


def test_no_study_is_dropped(made: Made) -> None:
    ids = [id for row in EVIDENCE.values() for id in row]
    headings = re.findall(r"^## (.*)$", made.page, re.M)
    assert [heading.split(" at ")[0] for heading in headings] == [
        "At a glance",
        "Recommendations, tested",
        "One law of all runs",
        *ids,
    ]
    assert sorted(ids) == sorted(STUDIES)
    begun = {"width-fixed-steps", "against-llama", "against-llama-clipped", "held-out", "steps-sweep-ngpt-ours"}
    for id in set(ids) - begun:
        assert "**Not run yet.**" in made.section(id)
        assert f"nugpt study {id} --scale evidence --data DATA --precision bfloat16 --run" in made.section(id)
    part = made.section("steps-sweep-ngpt-ours at tiny")
    assert "**Not complete**: 18 of 20 runs have ended." in part
    assert re.search(r"- \*\*not complete \(so far: [a-z ]+\)\*\* — ", part)
    glance = made.section("At a glance")
    assert "(#steps-sweep-ngpt-ours-at-tiny) | not complete | 18 of 20 runs have ended |  |\n" in glance
    assert (
        "| holds, [with a note](#width-fixed-steps-at-lab) | νGPT's best learning rate transfers over width. |"
        in glance
    )
    noted = ("width-fixed-steps", "against-llama-clipped")
    assert glance.count("with a note") == sum(len(STUDIES[id].claims) for id in noted)
    assert "so far" not in glance, "a verdict on half of the runs is no answer yet"


def test_the_readme_has_figure_loss_and_commands_between_its_markers(made: Made) -> None:
    assert made.readme.startswith(f"# mine\n\n{BEGIN}\n<picture>")
    assert made.readme.endswith(f"{END}\n\nwhat follows stays\n")
    assert "old words" not in made.readme
    moves = (
        r"From d_model 96 to 384 \(scale `lab`\), in runs of 800 steps, nGPT's best learning rate falls by 0\.50 "
        r"octaves per doubling of width \(90 % interval 0\.\d\d to 0\.\d\d\)\. "
        r"νGPT's moves by 0\.00 \(−0\.\d\d to 0\.\d\d\)\."
    )
    assert re.search(
        rf"\n{moves}\n\n## What holds here, and what does not\n(\n\|[^\n]*)+\n\nEach row is judged by a rule that was "
        r"fixed before the runs; a claim of several rows holds only if every row does\. ",
        made.readme,
    )
    rows = [line.strip("| ").split(" | ") for line in made.readme.splitlines() if re.match(r"\| (\[|the same)", line)]
    width = "docs/results.md#width-fixed-steps-at-lab"
    assert [row[0] for row in rows[:2]] == [
        f"[nGPT's best learning rate does not transfer over width: it falls]({width}) (scale `lab`)",
        f"[νGPT's best learning rate transfers over width]({width}) (scale `lab`)",
    ]
    assert re.fullmatch(r"−0\.50 \(−0\.\d+ to −0\.\d+\) octaves per doubling", rows[0][1])
    assert [row[2:] for row in rows[:2]] == [["at most −0.1", "**holds**"], ["from −0.1 to 0.1", "**holds**"]]
    assert [row[0].rsplit(", ")[-1] for row in rows[2:6]] == [
        "over width",
        "over depth",
        "over length",
        "over all three",
    ]
    assert "a quarter octave of the best learning rate found](docs/results.md#held-out-at-tiny) (scale" in rows[2][0]
    assert {row[2] for row in rows[2:6]} == {"from −0.25 to 0.25"}
    assert re.search(r"Estimate: over width: .*; over depth: .*; over length: .*; over all three: ", made.page)
    first = "We take it that `alignment_val_l12h28` agrees."  # of the note, whose link leads nowhere from here
    assert f"\nBefore you rely on these:\n\n- {first} [More on this]({width}).\n" in made.readme
    assert "Nobody knows why" not in made.readme
    assert "\n- The baseline could do better. [More on this](docs/results.md#against-llama-" in made.readme
    assert "of the baseline with clipped gradients, at equal FLOPs](" in rows[6][0], "which comes nearest"
    assert re.fullmatch(r"−0\.03\d* \(.*\) nats", rows[6][1])
    assert rows[6][0].endswith(", d_model 48")
    assert all(row[0].startswith("the same, d_model ") for row in rows[7:])
    assert 'srcset="docs/figures/results/headline-dark.svg"' in made.readme
    assert f"{len(made.plan.specs())} runs, 9.0 GPU-minutes, not counting start-up." in made.readme
    for ground in ("light", "dark"):
        tree = ElementTree.parse(made.folder / f"docs/figures/results/headline-{ground}.svg")
        told = " ".join(text.strip() for text in tree.getroot().itertext())
        assert "nGPT: slope −0.50" in told
        assert "νGPT: slope 0.00" in told
        assert "held out" in told
    assert made.readme.count("```sh") == 4
    assert "[docs/results.md](docs/results.md)" in made.readme


def test_recommendations_are_held_against_sizes_that_were_swept(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """As the command prints them; planted are no drift of νGPT and half an octave per doubling of nGPT."""
    part = made.section("Recommendations, tested")
    assert "- Only how much runs scatter is estimated from all sizes, the tested one included." in part
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if " | d_model " in line]
    costs: dict[str, dict[tuple[float, ...], tuple[float, float]]] = {}
    for table, name in (("nugpt", "νGPT"), ("ngpt", "nGPT")):
        assert main(["recommend", "--from", "archive", "--parametrization", table, "--backtest", "--json"]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        largest_last = sorted(groups.values(), key=lambda group: len(group["sizes"]))  # it speaks where two have a size
        sizes = [one for group in largest_last for one in group["sizes"]]
        mine = [row for row in rows if row[0].split()[0] == name]
        told = [(row[3].split()[0].replace("−", "-"), row[4], row[5], *map(float, row[7:])) for row in mine]
        assert sorted(told) == sorted(
            (
                f"{one['found']['log2_lr']:.2f}",
                str(one["found"]["seeds"]),
                "yes" if one["agrees"] else "no",
                round(one["paid"]["nats"], 3),
                round(one["kept"]["nats"], 3),
            )
            for one in sizes
        )
        costs[table] = {tuple(s["size"].values()): (s["kept"]["nats"], s["paid"]["nats"]) for s in sizes}
        wide = [one for one in sizes if one["size"]["width"] == 384]
        assert [abs(one["found"]["log2_lr"] - one["kept"]["log2_lr"]) < 0.2 for one in wide] == [table == "nugpt"]
    both = costs["nugpt"].keys() & costs["ngpt"].keys()
    assert len(both) < len(costs["nugpt"]), "one size is νGPT's alone"
    kept, paid = ([sum(costs[t][at][i] for at in both) / len(both) for t in ("nugpt", "ngpt")] for i in (0, 1))
    alone = [cost for at, (cost, _) in costs["nugpt"].items() if at not in both]
    assert (
        f"costs νGPT {kept[0]:.3f} nats on average and nGPT {kept[1]:.3f}, over the {len(both)} sizes at which "
        f"both could be tested; at the {len(alone)} where only νGPT could be, it costs {sum(alone) / len(alone):.3f}. "
        f"What `nugpt recommend` says from smaller sizes alone costs νGPT {paid[0]:.3f} and nGPT {paid[1]:.3f} at the "
        f"same {len(both)}. For nGPT it assumes νGPT's exponents, a rule that was settled after these runs were seen. "
    ) in made.readme
    assert "docs/results.md#recommendations-tested" in made.readme


def test_one_law_of_all_runs_has_the_planted_exponents_as_they_are_and_as_they_are_applied(made: Made) -> None:
    rows = [line.strip("| ").split(" | ") for line in made.section("One law of all runs").splitlines() if "| " in line]
    columns, _, *rows = rows
    at = {name: i for i, name in enumerate(columns)}
    planted = {"nGPT": -0.5, "νGPT": 0.0, "CompleteP": 0.3}  # octaves of η per octave of width; along others none
    table1 = {"nGPT": 0.0, "νGPT": -0.75, "CompleteP": -1.0}  # exponents of η_hidden over width
    seen = set()
    for row in rows[:-1]:
        name = row[0].split()[0]
        if row[at["η over width"]] == "–":  # a study of length alone
            continue
        seen.add(name)
        for axis, wanted in (("width", planted[name]), ("depth", 0.0), ("length", 0.0)):
            value, low, high = (float(x.replace("−", "-")) for x in re.findall(r"−?[\d.]+", row[at[f"η over {axis}"]]))
            assert low <= wanted <= high
            own = {"width": table1[name], "depth": 0.0, "length": -1 / 3 if name == "νGPT" else 0.0}[axis]
            applied = float(row[at[f"applied to hidden, over {axis}"]].replace("−", "-"))
            assert applied == pytest.approx(value + own, abs=0.011)  # both are rounded
        assert row[at["bend seen"]] == "no"
    assert seen == set(planted)
    assert '"Bend seen: no" does not prove a plane.' in made.section("One law of all runs")
    assert rows[-1][-3:] == ["−0.75", "0.00", "−0.33"], "the paper's νGPT"


def test_commands_of_the_readme_print_what_it_shows(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"<!-- run -->\n```sh\nnugpt ([^\n]*)\n```\n\n```text\n(.*?)```", made.readme, re.S)
    assert len(shown) == 2
    for words, text in shown:
        assert main(words.split()) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        for line in text.splitlines():
            assert line == "…" or line in printed


@pytest.mark.slow
def test_the_same_archive_gives_the_same_bytes_and_another_other_ones(made: Made, tmp_path: Path) -> None:
    def written() -> dict[str, bytes]:
        found = [made.folder / "README.md", *(made.folder / "docs").rglob("*")]
        return {str(path.relative_to(made.folder)): path.read_bytes() for path in found if path.is_file()}

    before = written()
    (made.folder / "docs/figures/results/of-another-time.svg").write_text("")
    with open(made.folder / "docs/results.md", "a", encoding="utf-8") as page:  # which an earlier page showed
        page.write("![loss](figures/results/of-another-time.svg)\n")
    assert main(["report", "archive", "-o", "docs", "--results", "--readme", "README.md"]) == 0
    assert written() == before
    assert max(len(text) for name, text in before.items() if name.endswith(".svg")) < 150_000
    assert before["docs/results.md"].decode().endswith(f"<!-- from {digest(made.folder / 'archive')} -->\n")


def test_a_run_is_what_the_page_says_of_it(made: Made, tmp_path: Path) -> None:
    """Move one optimum in the records, and the page moves with it."""
    store = Store(tmp_path / "runs")
    fill(store, made.plan)
    for spec in made.plan.specs():
        if spec.table.name == "nugpt" and spec.model.n_heads == 8:
            run = store.run(spec)
            record = run.record()
            assert record is not None
            run.write_record(replace(record, val_loss=3.0 + 0.08 * (math.log2(spec.lr) + 7.5) ** 2))
    assert main(["report", str(store.root), "-o", str(tmp_path / "docs"), "--results"]) == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| νGPT, heads 8 | 2 |")]
    (at,) = re.findall(r"−(7\.\d\d) \(", row)
    assert float(at) == pytest.approx(7.5, abs=0.05)  # as above; planted before were 6.9
    assert row not in made.page


def test_while_nothing_is_there_the_readme_says_so(tmp_path: Path) -> None:
    write_empty(tmp_path / "archive")
    (tmp_path / "README.md").write_text(README)
    words = ["report", str(tmp_path / "archive"), "-o", str(tmp_path / "docs"), "--results"]
    assert main([*words, "--readme", str(tmp_path / "README.md")]) == 0
    assert f"{BEGIN}\n{NOTHING}\n{END}" in (tmp_path / "README.md").read_text()
    page = (tmp_path / "docs" / "results.md").read_text()
    assert page.count("**Not run yet.**") == len(STUDIES)


def test_while_the_width_study_says_too_little_the_readme_leads_to_the_page(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = plan(STUDIES["width-fixed-steps"], "tiny", SETTING)
    fill(store, made, but=len(made.specs()) - 7)  # of one table alone
    readme = written(store, tmp_path)
    told = f"So far 7 runs, {7 * WALL_S / REPLICAS / 60:.1f} GPU-minutes: [docs/results.md](docs/results.md)"
    assert f"{BEGIN}\n{told}" in readme
    assert not list((tmp_path / "docs").rglob("headline*"))


def test_what_the_width_study_says_so_far_is_shown_as_such(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = plan(STUDIES["width-fixed-steps"], "lab", SETTING)
    fill(store, made)
    (store.run(min(made.specs(), key=lambda spec: spec.lr)).path / "record.json").unlink()
    there = len(list(store.root.glob("*/record.json")))
    readme = written(store, tmp_path)
    assert readme.count("**not complete (so far: holds)** |") == 2
    assert f"The study of width is not complete: {there} of {there + 1} runs have ended." in readme
    assert re.search(r'alt="The best .* nGPT\'s best learning rate falls by .* νGPT\'s moves by ', readme)  # unseen
    assert f"{there} runs, {there * WALL_S / REPLICAS / 60:.1f} GPU-minutes so far, not counting start-up." in readme
    assert len(list((tmp_path / "docs").rglob("headline*"))) == 2


def test_a_width_study_whose_curves_call_for_more_says_that_and_no_count(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = plan(STUDIES["width-fixed-steps"], "evidence", SETTING)
    PlanDirectory.of(store, made)
    for spec in made.specs():  # the first grid, which is to be refined
        write_run(store, spec)
    readme = written(store, tmp_path)
    assert "The study of width is not complete: its curves call for more points." in readme
    assert "runs have ended" not in readme


def test_what_fresh_seeds_say_stands_beside_the_first_ones_and_the_figure_has_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: νGPT stays on the first seeds and falls by 0.2 octaves per doubling on the others."""
    monkeypatch.setattr(
        planted,
        "best_log2_lr",
        lambda spec: best_log2_lr(spec) - 0.2 * (spec.seed > 1) * math.log2(spec.resolved().ratios.width),
    )
    store = Store(tmp_path / "runs")
    for id in ("width-fixed-steps", "width-fresh-seeds"):
        fill(store, plan(STUDIES[id], "lab", SETTING))
    readme = written(store, tmp_path)
    first, fresh = re.findall(r"^\| \[νGPT's best learning rate transfers over width(.*)\|$", readme, re.M)
    assert re.search(r"\| −?0\.00 \(.*\*\*holds\*\*", first)
    assert fresh.startswith(", on fresh seeds](docs/results.md#width-fresh-seeds-at-lab) (scale `lab`) | −0.20 (")
    assert fresh.endswith("from −0.1 to 0.1 | **does not hold** ")
    assert "νGPT's moves by 0.00 (" in readme
    assert "The one behind the figure took" in readme
    fill(store, plan(STUDIES["width-all-seeds"], "lab", SETTING))
    readme = written(store, tmp_path)
    (fall,) = re.findall(r"νGPT's falls by (0\.\d\d) \([^)]*\), by the seeds of two studies together\.\n", readme)
    assert float(fall) == pytest.approx(0.1, abs=0.05), "between what either half was planted with"
    assert "The first behind the figure took" in readme
    assert "as `nugpt fit` has them below, and for νGPT on further seeds too." in readme
    told = (tmp_path / "docs/figures/results/headline-light.svg").read_text()
    assert f"νGPT: slope −{fall}" in told
    assert "nGPT: slope −0.50" in told


def written(store: Store, folder: Path) -> str:
    """The README that a report on this store leaves."""
    (folder / "README.md").write_text(README)
    words = ["report", str(store.root), "-o", str(folder / "docs"), "--results", "--readme", str(folder / "README.md")]
    assert main(words) == 0
    return (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--readme", "README.md"], "--readme goes with --results"),
        (["--results", "--plan", "x"], "it takes no --plan"),
        (["--results", "--readme", "bare.md"], "bare.md has no place for results"),
        (["--results"], "'7' has a digit, but a note's numbers cannot be checked"),
    ],
)
def test_mistakes_are_told(
    made: Made, words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: Any
) -> None:
    archive = tmp_path / "archive"
    if "digit" in says:
        store = Store(tmp_path / "runs")
        fill(store, plan(STUDIES["steps-sweep-ngpt-ours"], "tiny", SETTING))
        pack_folder(store, archive)
        (archive / "notes").mkdir()
        (archive / "notes" / "steps-sweep-ngpt-ours.md").write_text("A slope of 7 is large.\n")
    else:
        write_empty(archive)
    (tmp_path / "bare.md").write_text("# nothing\n")
    words = [str(tmp_path / word) if word.endswith(".md") else word for word in words]
    assert main(["report", str(archive), "-o", str(tmp_path / "docs"), *words]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_where_one_learning_rate_was_run_no_optimum_is_spoken_of(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    made = plan(STUDIES["alignment_val"], "tiny", SETTING)
    fill(store, made)
    assert main(["report", str(store.root), "-o", str(tmp_path / "docs"), "--results"]) == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    section = page.split("\n## alignment_val at tiny\n")[1].split("\n## ")[0]
    assert "edge-censored" not in section
    assert "best log₂ η" not in section
    (lr,) = {spec.lr for spec in made.specs()}
    at = f"{math.log2(lr):.2f}".replace("-", "−")
    for heads in {spec.model.n_heads for spec in made.specs()}:
        losses = [loss_of(spec) for spec in made.specs() if spec.model.n_heads == heads]
        mean = sum(losses) / len(losses)
        row = [f"heads {heads}", str(len(losses)), at, f"{mean:.3f}", f"{mean - 0.5:.3f}", f"{mean + 1.0:.3f}"]
        assert f"| {' | '.join(row)} |" in section


def test_a_plan_of_ones_own_has_its_section_and_its_labels_are_no_markup(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    fill(store, hostile_plan())
    assert main(["report", str(store.root), "-o", str(tmp_path / "docs"), "--results"]) == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "\n## hostile\n" in page
    assert "To run it again" not in page  # no command makes it
    assert "This plan belongs to no study" in page
    assert "<img" not in page
    assert "<script" not in page


def test_the_command_is_one_that_makes_the_very_plan(made: Made) -> None:
    for multipliers in ({}, {"output": 2**-0.5}, {"input": 2.0, "output": 0.25}):
        setting = replace(SETTING, multipliers=multipliers)
        for id in ("width-fixed-steps", "multipliers-at-base", "against-llama"):
            words = again(STUDIES[id], plan(STUDIES[id], "evidence", setting)).split()
            given = words[words.index("--multiplier") + 1 : -1] if "--multiplier" in words else []
            told = {role: float(value) for role, value in zip(given[::2], given[1::2], strict=True)}
            remade = plan(STUDIES[id], "evidence", replace(SETTING, multipliers=told))
            assert remade.hash == plan(STUDIES[id], "evidence", setting).hash
    changed = replace(made.plan, curves=made.plan.curves[:2])
    assert again(STUDIES["width-fixed-steps"], changed).startswith("# the store's plan is not one that")


def test_the_committed_pages_are_as_they_were_made_from_the_committed_archive() -> None:
    """By their digests, which is quick; that every byte follows is the slow test's to say."""
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/results.md", "README.md"))
    made = page.split("\n<!-- page sha256 ")[0]
    assert page == sealed(made, readme, ROOT / "results" / "evidence"), "`nugpt report --results` writes them again"
    part = readme.split(BEGIN)[1]
    assert page != sealed(made, readme.replace(part, part.replace("0", "1", 1)), ROOT / "results" / "evidence")


def test_our_plans_at_the_papers_scale_are_not_told_as_the_papers_own() -> None:
    """Its sources name no run above 80,000 steps: longer ones follow from layers and tokens that we chose."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "at the scale `paper` the same studies go up to d_model 4,080" in page
    assert "the paper's studies go" not in page


def test_what_was_reproduced_is_said_where_it_is_written_from_records() -> None:
    """A sentence outside the generated parts would go on saying that nothing was."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    written = [readme.split(BEGIN)[0] + readme.split(END)[1]]
    written += [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md") if path.name != "results.md"]
    for text in written:
        assert not re.search(r"not (yet )?reproduced|reproduced yet", text)
    assert "(results.md)" in (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_committed_page_figures_and_readme_follow_from_the_archive_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        Path("README.md"),
        Path("docs/results.md"),
        *(p.relative_to(ROOT) for p in ROOT.glob("docs/figures/results/*")),
    ]
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/studies.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "results/evidence", "-o", "docs", "--results", "--readme", "README.md"]) == 0
    for name in names:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes(), name
    made = {path.relative_to(tmp_path) for path in tmp_path.glob("docs/figures/results/*")}
    assert made == {name for name in names if name.suffix == ".svg"}


@pytest.mark.slow
def test_the_three_readings_of_one_seed_are_what_the_records_give() -> None:
    """The table of docs/choices.md on a reading that was changed after runs were seen."""
    page = (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")
    said = {
        words[0]: words[1:]
        for line in page.split("| reading |")[1].split("\n\n")[0].splitlines()[2:]
        for words in [[cell.strip() for cell in line.strip("| ").split("|")]]
    }
    ids = ("width-fixed-steps", "mup-drifts-ours-not")
    store = opened(ROOT / "results" / "evidence")
    there = {directory.path.name: directory for directory in plans(store)}
    read = {id: plan_state(there[f"{id}-evidence"].plan(), there[f"{id}-evidence"], math.inf) for id in ids}

    def slopes(name: str | None) -> tuple[list[str], list[str | None]]:
        """With verdicts, in the order of the table's columns; None reads each curve by its own number of seeds."""
        found, answers = {}, {}
        for id, states in read.items():
            curves = [
                measured(
                    state.curve,
                    [(p.log2_lr, p.seed, p.record) for p in state.places if p.record is not None],
                    name or ("val_loss_ema" if len(state.curve.seeds) == 1 else "val_loss"),
                )
                for state in states
            ]
            claims = [claim for claim in STUDIES[id].claims if claim.rule.kind in ("drift", "no-drift")]
            for claim, verdict in zip(claims, verdicts(claims, answer(curves)), strict=True):
                (one,) = verdict.estimates
                values = [one.value, one.interval.low, one.interval.high]
                shown = [f"{value:.3f}".replace("-", "−") for value in values if value is not None]
                found[id, claim.rule.table] = f"{shown[0]} ({shown[1]} to {shown[2]})"
                answers[id, claim.rule.table] = verdict.answer
        order = [*product(ids, ["nugpt"]), ("width-fixed-steps", "ngpt"), ("mup-drifts-ours-not", "completep")]
        return [found[key] for key in order], [answers[key] for key in order]

    readings = {"each curve by its own seeds": None, "the final loss": "val_loss", "the average": "val_loss_ema"}
    read_so = {name: slopes(loss) for name, loss in readings.items()}
    assert said == {name: shown for name, (shown, _) in read_so.items()}
    holds, open_ = "holds", "not decided here"
    assert [answers for _, answers in read_so.values()] == [  # as the words below the table say
        [open_, open_, holds, open_],
        [holds, holds, holds, open_],
        [holds, holds, holds, holds],
    ]


def test_how_sure_a_slope_is_taken_to_be_is_how_far_our_runs_miss_it() -> None:
    """The law of all runs, as the page has it, less what νGPT's exponents predict for each table, by hand."""
    predicted = {"νGPT": (0.0, 0.0, 0.0), "nGPT": (-5 / 8, 0.0, -1 / 3), "CompleteP": (0.0, 0.0, -1 / 3)}
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in page.split("## One law of all runs")[1].split("\n## ")[0].splitlines()
    ]
    seen = {
        row[0]: [float(cell.split()[0].replace("−", "-")) for cell in row[2:5]] for row in rows if row[0] in predicted
    }
    missed = np.array([np.subtract(seen[table], slopes) for table, slopes in predicted.items()])
    assert np.sqrt((missed**2).mean(axis=0)).round(2).tolist() == [0.1, 0.08, 0.21]  # docs/choices.md#expected-slope
    assert (missed[:, 2] < 0).all()
    assert list(DOUBT) == ["width", "layers", "steps"]
    assert list(DOUBT.values()) == [0.1, 0.1, 0.2]
