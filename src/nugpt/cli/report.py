"""`nugpt report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.show import print_json, quiet, say

if TYPE_CHECKING:
    from nugpt.report import Source, Written
    from nugpt.report.answers import PlanAnswer


@dataclass(frozen=True)
class Report:
    """Figures for print, and one offline HTML page whose every number leads back to run ids.

    A file that cannot be read is named, the rest is reported, and the exit status is 2.
    """

    store: Path = Path("runs")
    """The same, as an option."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))] = Path("report")
    """Where report.html and figures/ are written."""
    plan: tuple[str, ...] = ()
    """These plans; all by default."""
    title: str | None = None
    """The page's title."""
    formats: tuple[str, ...] = ("pdf", "svg", "png")
    """Of the figures."""
    results: bool = False
    """Instead write results.md, a page of Markdown on every study, and its figures under figures/results/."""
    readme: Path | None = None
    """With --results: also write the first screen of this README, between its markers."""
    json: bool = False
    """Print JSON."""
    source: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[STORE]")] = None
    """The store, or an archive of one; --store by default."""

    def run(self) -> int:
        """Write it and say where it is."""
        from dataclasses import replace

        from nugpt.report import check_page, read_store, write_report
        from nugpt.report.loose import read_loose
        from nugpt.spec import checks
        from nugpt.store import opened
        from nugpt.studies import STUDIES

        store = self.source or self.store
        checks.folder(store, "store")
        checks.folder(self.out, "out")  # before the minutes that fitting takes
        if not store.is_dir():
            raise ValueError(f"store {store} does not exist")
        if self.results:
            return self._results(store)
        if self.readme is not None:
            raise ValueError("--readme goes with --results, which makes what is written there")
        check_page(self.out)
        tell = quiet if self.json else say
        tell(f"reading {store}")
        there = opened(store)
        source = read_store(there, self.plan, STUDIES, self.out, self.title)
        if not self.plan:
            problems = list(source.problems)
            loose = read_loose(there, self.out, problems)
            source = replace(source, loose=loose, problems=tuple(problems))
        if not (source.plans or source.coords or source.loose or source.problems):
            raise ValueError(
                f"store {store} has no plan to report on, no coordinate check and no measured run: "
                "`nugpt sweep`, `nugpt study` and `nugpt measure` make them"
            )
        written = write_report(source, self.out, self.formats, say=tell)
        if self.json:
            print_json(_facts(written) | _measured(source) | {"problems": list(source.problems)})
        else:
            _print(written, source)
        for problem in source.problems:
            print(f"nugpt: error: {problem}", file=sys.stderr)
        return 2 if source.problems else 0

    def _results(self, store: Path) -> int:
        from nugpt.cli.results import write_results

        if self.plan or self.title is not None or self.json:
            raise ValueError("--results is one page on every study: it takes no --plan, --title and --json")
        written = write_results(store, self.out, self.readme)
        for path in written.files:
            print(path)
        for problem in written.problems:
            print(f"nugpt: error: {problem}", file=sys.stderr)
        return 2 if written.problems else 0


def _facts(written: Written) -> dict[str, Any]:
    return {
        "page": str(written.page),
        "figures": [str(path) for path in written.figures],
        "verdicts": [
            {
                "plan": plan.plan.name,
                "claim": one.claim.text,
                "verdict": one.verdict.answer,
                "reason": one.verdict.reason,
            }
            for plan in written.answers
            for one in plan.judged
        ],
    }


def plan_lines(plan: PlanAnswer) -> list[str]:
    """A plan's runs, and the verdicts on its claims."""
    runs = ", ".join(f"{n} {state}" for state, n in plan.states.items()) or "no runs"
    told = [f"  {one.verdict.answer or 'open question'}: {one.claim.text}" for one in plan.judged]
    return [f"plan {plan.plan.name}: {runs}", *told]


def _measured(source: Source) -> dict[str, Any]:
    """What else there is: coordinate checks by name, and the measured runs of no plan."""
    runs = [run.id for one in source.loose for curve in one.curves for run in curve.runs]
    return {"coords": {check["name"]: check["passed"] for check in source.coords}, "runs_of_no_plan": runs}


def _print(written: Written, source: Source) -> None:
    for plan in written.answers:
        print("\n".join(plan_lines(plan)))
    rest = _measured(source)
    for name, passed in rest["coords"].items():
        print(f"coordinate check {name}: {'everything is flat' if passed else 'not everything is known to be flat'}")
    if rest["runs_of_no_plan"]:
        print(f"measured runs of no plan: {len(rest['runs_of_no_plan'])}")
    print(f"{written.page} ({written.page.stat().st_size / 1e6:.2f} MB), {len(written.figures)} figure files beside it")
