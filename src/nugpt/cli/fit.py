"""`nugpt fit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from nugpt.cli.answers import print_answers, to_json
from nugpt.cli.curves import CurveSet, Origin, read_curves
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import print_json, quiet, say


@dataclass(frozen=True)
class Fit:
    """Optimum, stability edge, drift, regret, power law and verdicts, each with its error."""

    source: Annotated[Path, tyro.conf.Positional]
    """A store, or a .csv or .jsonl file of your own runs."""
    origin: Annotated[Origin, AMONG_OPTIONS] = Origin()
    level: float = 0.90
    """Of the intervals."""
    out: Path | None = None
    """Also write the figures and report.html into this directory."""
    formats: tuple[str, ...] = ("pdf", "svg", "png")
    """Of the figures."""
    title: str | None = None
    """Of the page; by default the plan's or the file's name."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the answers, and write the page where one is asked for."""
        from nugpt.fit.claims import verdicts
        from nugpt.fit.curves import answer
        from nugpt.fit.interval import check_level
        from nugpt.spec import checks
        from nugpt.studies import STUDIES

        check_level(self.level)
        if self.out is None and self.title is not None:
            raise ValueError(f"title is {self.title!r}, but a page is written only with --out")
        if self.out is not None:
            from nugpt.report import check_page

            checks.folder(self.out, "out")
            check_page(self.out)
        if wrong := [name for name in self.formats if name not in ("pdf", "svg", "png")]:
            raise ValueError(f"format is {wrong[0]!r}, but must be one of pdf, svg, png")
        results = []
        for one in (read := read_curves(self.source, self.origin)):
            answers = answer(one.curves, self.level)
            study = STUDIES.get(one.study or "")
            claims = study.claims if study else ()
            found = verdicts(claims, answers)
            results.append((one, answers, [(c.text, verdict) for c, verdict in zip(claims, found, strict=True)]))
        if self.json:
            print_json({one.name: to_json(one, answers, judged) for one, answers, judged in results})
        else:
            for one, answers, judged in results:
                print_answers(one, answers, judged)
        return 0 if self.out is None else self._write(read, self.out)

    def _write(self, read: Sequence[CurveSet], out: Path) -> int:
        """Figures and page: a store's plans with all that is known of their runs, a file's curves as they are."""
        from nugpt.report import Source, from_curves, read_store, write_report
        from nugpt.studies import STUDIES

        source = Source("", ())
        if self.source.is_dir():
            from nugpt.store import opened

            names = () if self.origin.plan is None else (self.origin.plan,)
            source = read_store(opened(self.source), names, STUDIES, out, self.title, self.origin.loss)
        if not source.plans:  # a file's runs, or those of a store without a plan
            plans = tuple(from_curves(one.name, one.curves) for one in read)
            source = replace(source, title=self.title or read[0].name, plans=plans)
        source = replace(source, problems=(*source.problems, *(note for one in read for note in one.notes)))
        written = write_report(source, out, self.formats, self.level, quiet if self.json else say)
        size = written.page.stat().st_size / 1e6
        print(
            f"{written.page} ({size:.2f} MB), {len(written.figures)} figure files beside it",
            file=sys.stderr if self.json else sys.stdout,
        )
        return 0
