"""`nugpt report --results`: the results page, its figures and the README's first screen, from an archive or a store."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.cli.curve_rows import CURVE_COLUMNS, curve_rows, spent_text
from nugpt.cli.report import plan_lines
from nugpt.cli.show import print_table, say
from nugpt.store.atomic import read_json
from nugpt.store.run_directory import RunDirectory
from nugpt.store.transfer import STALE_AFTER

if TYPE_CHECKING:
    from nugpt.report.answers import PlanAnswer
    from nugpt.report.backtests import Group
    from nugpt.report.readme import Shown
    from nugpt.report.results import Section
    from nugpt.report.source import PlanRuns
    from nugpt.spec.plan import Plan
    from nugpt.spec.record import RunRecord
    from nugpt.spec.study import Study
    from nugpt.store import Store
    from nugpt.sweep.state import CurveState

PAGE, FIGURES = "results.md", "figures/results"
MADE_FROM = "<!-- from "  # begins the last line of a page
HEADLINES = {ground: f"headline-{ground}.svg" for ground in ("light", "dark")}  # the README's
DATA = "DATA"  # where the reader has prepared the data set


@dataclass(frozen=True)
class Results:
    """What was written, and what could not be read."""

    files: tuple[Path, ...]
    problems: tuple[str, ...]


def write_results(path: Path, out: Path, readme: Path | None = None) -> Results:
    """The page, its figures, and the README's part; those that an earlier call wrote are replaced."""
    from nugpt.report.backtests import tested
    from nugpt.report.results import check_note, page
    from nugpt.report.source import note_path, read_note
    from nugpt.store import opened
    from nugpt.store.atomic import check_writable
    from nugpt.studies import STUDIES

    before = _page_before(out / PAGE)
    for file in (out, out / PAGE, out / FIGURES, *([] if readme is None else [readme])):
        check_writable(file, "readme" if file == readme else "out")
    store = opened(path)
    texts: dict[Path, str] = {}
    sections, problems = read_sections(store, path, out, texts)
    data = data_of(store, problems)
    rebuild = _command("report", path, "-o", out, "--results", *(("--readme", readme) if readme else ()))
    rules = "[studies.md](studies.md)" if (out / "studies.md").is_file() else "`nugpt study list`"
    note = check_note(note_path(path, "index"), read_note(path, "index", problems), STUDIES)
    say("the recommendations, tested")
    groups = tested(curve.measured for section in sections if section.found for curve in section.found.plan.curves)
    made = page(sections, data, rebuild, rules, problems, note, groups)
    if readme is not None:
        texts[readme] = _readme(readme, sections, data, path, out, texts, groups)
    texts[out / PAGE] = sealed(made, texts[readme] if readme is not None else None, path)
    kept = {file for file in texts if file.suffix == ".svg"}
    if readme is None:  # the README that shows them was not asked for, and stays as it is
        kept |= {out / FIGURES / name for name in HEADLINES.values()}
    ours = {*HEADLINES.values(), *re.findall(rf"{FIGURES}/([^)\s]+\.svg)", before)}
    for file in (out / FIGURES).glob("*.svg"):
        if file.name in ours and file not in kept:
            file.unlink()
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return Results(tuple(texts), tuple(problems))


def _page_before(file: Path) -> str:
    """The page that an earlier call wrote, nothing where there is none; one of another hand is not replaced."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    if text and MADE_FROM not in text:
        raise FileExistsError(f"{file} was not written by `nugpt report`: move it away, or name another folder")
    return text


def sealed(page: str, readme: str | None, path: Path) -> str:
    """The page with what it, the README's part and the archive come to: a number changed by hand breaks the seal."""
    from nugpt.report.readme import BEGIN, END

    part = f"; README sha256 {_sha256(readme.split(BEGIN)[1].split(END)[0])}" if readme is not None else ""
    return f"{page}\n<!-- page sha256 {_sha256(page)}{part} -->\n{MADE_FROM}{digest(path)} -->\n"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest(path: Path) -> str:
    """Names what a page was made from: all of an archive's files, or the records and plans of a store."""
    of_archive = ("archive.json", "shared.jsonl", "runs/*.jsonl", "plans/*.jsonl", "notes/*.md")
    of_store = ("*/record.json", "plans/*/plan.json", "plans/*/added/*.json")  # how a plan was launched is no result
    files = {file for pattern in (*of_archive, *of_store, "coords/*.json") for file in path.glob(pattern)}
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(file.relative_to(path).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return f"sha256 {found.hexdigest()}"


def _command(*words: object) -> str:
    return "nugpt " + " ".join(shlex.quote(word.as_posix() if isinstance(word, Path) else str(word)) for word in words)


def read_sections(store: Store, path: Path, out: Path, texts: dict[Path, str]) -> tuple[list[Section], list[str]]:
    """Every study in the order of `evidence`, then plans of no study; their figures go to `texts`."""
    from nugpt.report import read_store
    from nugpt.report.answers import answer_plan
    from nugpt.report.results import Section, check_note
    from nugpt.report.source import note_path
    from nugpt.spec.study import Study
    from nugpt.studies import EVIDENCE, STUDIES

    say(f"reading {path}")
    source = read_store(store, (), STUDIES, out)
    sections: list[Section] = []
    taken: set[str] = set()
    specs = [curve.measured.spec for plan in source.plans for curve in plan.curves]
    used = {spec.precision for spec in specs if spec is not None}
    precision = ("--precision", *used) if len(used) == 1 else ()  # that of the others, so that runs can be shared

    def add(study: Study, runs: PlanRuns | None) -> None:
        if runs is None:
            command = _command("study", study.id, "--scale", "evidence", "--data", DATA, *precision, "--run")
            sections.append(Section(study, "evidence", None, 0, False, command))
            return
        taken.add(runs.name)
        say(f"plan {len(taken)} of {len(source.plans)}: {runs.name}")
        found = answer_plan(runs)
        plan, left, points, settled, unmeasured = _standing(store, runs.name, study.measures)
        note = check_note(note_path(path, study.id), runs.note, STUDIES)
        made = Section(
            study,
            runs.scale or "",
            found,
            left,
            points > 0 and not settled,
            again(study, plan),
            unmeasured,
            reopened=points if settled else 0,
            note=note,
        )
        if made.state != "not run yet":
            figures, linked = _figures(found, out, texts)
            made = replace(made, figures=figures, linked=linked)
        sections.append(made)

    for id in (id for row in EVIDENCE.values() for id in row):
        mine: list[PlanRuns | None] = [runs for runs in source.plans if runs.study is STUDIES[id]]
        for one in mine or [None]:
            add(STUDIES[id], one)
    for runs in source.plans:
        if runs.name not in taken:
            add(Study(runs.name, runs.name, "as its curves say", (), lambda scale, setting: ()), runs)
    return sections, list(source.problems)


def _standing(store: Store, name: str, measures: Sequence[str]) -> tuple[Plan, int, int, bool, int]:
    """The plan, how many runs it still wants, how many points its curves call for as they are read now, whether they
    called for none when their runs had ended, and how many runs were not measured."""
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.grow import additions
    from nugpt.sweep.state import plan_state

    directory = PlanDirectory(store.root / "plans" / name)
    plan = directory.plan()
    curves = plan_state(plan, directory, STALE_AFTER, [])  # what cannot be read was named when the plan was
    left = {place.spec.hash for curve in curves for place in curve.left(plan.policy)}
    done = {place.spec.hash: place.record for curve in curves for place in curve.places if place.state == "done"}
    bare = [hash for hash, record in done.items() if not all(_has(kind, store, hash, record) for kind in measures)]
    points = sum(map(len, additions(curves, plan.policy)))
    return plan, len(left), points, directory.settled(), len(bare)


def _has(kind: str, store: Store, hash: str, record: RunRecord | None) -> bool:
    """Whether a run was measured: a record says of LERP coefficients what answers are made from."""
    if kind == "lerp" and record is not None and record.lerp:
        return True
    return bool(RunDirectory(store.root / hash).read_metrics((kind,)))


def again(study: Study, plan: Plan) -> str:
    """The command that makes this plan and runs it: with the multipliers that give its very runs. None of a sweep."""
    from nugpt.spec.study import Setting
    from nugpt.studies import STUDIES
    from nugpt.studies import plan as planned

    if study.id not in STUDIES or plan.scale is None:
        return ""
    words = ["study", study.id, "--scale", plan.scale, "--data", DATA, "--precision", plan.curves[0].spec.precision]
    spec = plan.curves[0].spec
    for multipliers in _multipliers(plan):
        setting = Setting(spec.data, spec.model.vocab_size, spec.precision, multipliers)
        made = replace(planned(study, plan.scale, setting), name=plan.name)
        if made.hash == plan.hash:
            given = [word for role, value in multipliers.items() for word in (role, repr(float(value)))]
            words += ["--multiplier", *given] if given else []
            words += ["--name", plan.name] if plan.name != f"{study.id}-{plan.scale}" else []
            return _command(*words, "--run")
    return f"# the store's plan is not one that this version of the study makes\n{_command(*words, '--run')}"


def _multipliers(plan: Plan) -> Iterator[dict[str, float]]:
    """What --multiplier may have been: nothing, or what some curve has that its table does not."""
    yield {}
    found: dict[str, float] = {}
    for curve in plan.curves:
        spec = curve.spec
        plain = replace(spec, multipliers={}).multipliers
        found |= {role: value for role, value in spec.multipliers.items() if value != plain[role]}
        yield dict(found)


def data_of(store: Store, problems: list[str]) -> list[dict[str, Any]]:
    """What is known of the data sets that the store's runs were trained on; what cannot be read is a problem."""
    found: dict[str, dict[str, Any]] = {}
    for run in store.runs():
        file = run.path / "data.json"
        try:
            about = read_json(file) if file.is_file() else {}
        except ValueError as error:
            problems.append(str(error))
            continue
        if isinstance(about, dict) and isinstance(about.get("content_hash"), str):
            kept = {"content_hash": about["content_hash"], "facts": about.get("facts")}
            if about["content_hash"] not in found or kept["facts"] is not None:
                found[about["content_hash"]] = kept
    return [found[key] for key in sorted(found)]


Figures = tuple[tuple[str, str], ...]  # each with its path from the page, and what it shows


def _figures(found: PlanAnswer, out: Path, texts: dict[Path, str]) -> tuple[Figures, Figures]:
    """Those that the study is about, and the other views of what its runs measured."""
    from nugpt.report.figures import draw
    from nugpt.report.measured import VIEW_WORDS, asked_views
    from nugpt.report.vector import svg
    from nugpt.report.write import settle, shown_in

    shown, linked = [], []
    views = asked_views(found.plan)
    for drawn in draw(found):
        settle(drawn.figure)
        text = svg(drawn.figure)
        same = next((file for file, other in texts.items() if other == text), out / FIGURES / f"{drawn.name}.svg")
        texts[same] = text  # studies that are views of the same runs share figures
        name = same.relative_to(out).as_posix()
        view = drawn.of.partition("-")[0] if drawn.kind == "alignment" else ""
        what = shown_in(drawn) + (f" by {VIEW_WORDS[view]}" if view else "")
        if view and view not in views:
            linked.append((name, what))
        else:
            shown.append((name, f"{found.title}: {what}"))
    return tuple(shown), tuple(linked)


# ── the README ──


def _readme(
    readme: Path,
    sections: Sequence[Section],
    data: Sequence[dict[str, Any]],
    path: Path,
    out: Path,
    texts: dict[Path, str],
    groups: Sequence[Group],
) -> str:
    from nugpt.report.figures.headline import draw_headline, held_out_star, paths_over_width
    from nugpt.report.readme import HELD_OUT, all_seeds, answered, first_screen, replaced, width_study
    from nugpt.report.results import scale_words
    from nugpt.report.vector import svg
    from nugpt.report.write import settle

    figures: dict[str, str] = {}
    width, held_out = width_study(sections), answered(sections, HELD_OUT)
    paths = paths_over_width(width.found) if width is not None and width.found is not None else {}
    commands: list[Shown] = []
    if len(paths) == 2 and width is not None and width.found is not None:
        seeds = all_seeds(sections, width)
        paths |= paths_over_width(seeds.found) if seeds is not None and seeds.found is not None else {}
        star = held_out_star(held_out.found if held_out is not None else None)
        for ground, dark in (("light", False), ("dark", True)):
            figure = draw_headline(paths, star, dark)
            settle(figure)
            file = out / FIGURES / HEADLINES[ground]
            texts[file] = svg(figure, transparent=True)
            figures[ground] = _from(readme, file)
        commands = _shown(width, path, seeds is not None)
    scale = scale_words(sections, data) if figures else ""
    part = first_screen(sections, figures, commands, scale, _from(readme, out / PAGE), groups)
    return replaced(readme.read_text(encoding="utf-8"), part, readme.name)


def _from(readme: Path, file: Path) -> str:
    """The way from the README to a file."""
    import os

    return Path(os.path.relpath(file, readme.parent)).as_posix()


def _shown(width: Section, path: Path, more_seeds: bool) -> list[Shown]:
    """Four commands with what they print; one that these records cannot answer is left out."""
    from nugpt.report.readme import Shown, cost_of
    from nugpt.spec.parametrization import NUGPT

    assert width.found is not None
    plan = width.found.plan.name
    fit = _command("fit", path, "--plan", plan)
    known = [one.curve.label for one in width.found.fitted.curves if one.optimum.log2_lr is not None]
    heads = 2 * max((int(label["heads"]) for label in known if label["table"] == NUGPT.name), default=1)
    recommend = _command("recommend", "--from", path, "--plan", plan, "--n-heads", heads)
    printed = {command: _printed(command) for command in (fit, recommend)}
    which, further = ("first", ", and for νGPT on further seeds too") if more_seeds else ("one", "")
    told = (
        f"**Run a study.** The {which} behind the figure took {cost_of(width)} When it ends it prints fits, each "
        "of one curve by itself, and the lowest loss of any run on it; here those of the narrowest and widest models. "
        f"The figure rests on all curves together, as `nugpt fit` has them below{further}."
    )
    shown = [Shown(width.command, _end_of_run(path, plan), told, False)]
    if (drift := _between(printed[fit], "drift, octaves", "regret of")) is not None:
        shown.append(Shown(fit, ["…", *drift, "…"], "**Fit** the stored runs (no GPU needed):", True))
    if printed[recommend]:
        told = "**Recommend** a learning rate for twice the widest model whose optimum is known (no GPU needed):"
        shown.append(Shown(recommend, [*printed[recommend][:4], "…"], told, True))
    report = _command("report", path, "-o", "report")
    told = "**Report** everything as one offline page (no GPU needed):"
    shown.append(Shown(report, ["…", *plan_lines(width.found), "…"], told, False))
    return shown


def _printed(command: str) -> list[str]:
    """The lines of its output that are not empty; none where it refuses."""
    from nugpt.cli.main import main

    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        status = main(shlex.split(command)[1:])
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()] if status == 0 else []


def _between(lines: Sequence[str], first: str, last: str) -> list[str] | None:
    begin = next((i for i, line in enumerate(lines) if line.startswith(first)), None)
    if begin is None:
        return None
    end = next((i for i, line in enumerate(lines) if i > begin and line.startswith(last)), len(lines))
    return list(lines[begin:end])


def _end_of_run(path: Path, plan: str) -> list[str]:
    """Of what a plan's launch prints at its end, the rows of each table's narrowest and widest curve, and the cost."""
    from nugpt.store import opened
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.state import plan_state, spent

    directory = PlanDirectory(opened(path).root / "plans" / plan)
    curves = plan_state(directory.plan(), directory, STALE_AFTER)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_table(CURVE_COLUMNS, curve_rows(curves))
    shown, ends = ["…"], _ends(curves)
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if i < len(lines) - len(curves) or curves[i - len(lines)] in ends:
            shown.append(line)
        elif shown[-1] != "…":
            shown.append("…")
    return [*shown, spent_text(spent(curves))]


def _ends(curves: Sequence[CurveState]) -> list[CurveState]:
    """Of each table, the narrowest curve and the widest."""
    tables: dict[str, list[CurveState]] = {}
    for one in sorted(curves, key=lambda one: one.curve.spec.model.d_model):
        tables.setdefault(one.curve.spec.table.name, []).append(one)
    return [one for some in tables.values() for one in (some[0], some[-1])]
