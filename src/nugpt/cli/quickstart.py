"""`nugpt quickstart`: the whole job at tiny scale, composed of the other commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nugpt.fit.curves import Answers
    from nugpt.fit.verdict import Verdict

PLAN = "width-fixed-steps"  # nGPT and νGPT at three widths


@dataclass(frozen=True)
class Quickstart:
    """The whole job on a CPU in about three minutes: sweep nGPT and νGPT at three widths, fit, recommend, report."""

    out: Path = Path("quickstart")
    """Where runs and the report are kept; the same command again goes on with them."""

    def run(self) -> int:
        """Sweep, fit, recommend, report, and say what was learned."""
        from nugpt.cli.curves import Origin, read_curves
        from nugpt.cli.execution import Execution
        from nugpt.cli.recommend import KEPT, Recommend, TargetShape
        from nugpt.cli.report import Report
        from nugpt.cli.study import Study
        from nugpt.fit.claims import verdicts
        from nugpt.fit.curves import answer
        from nugpt.spec import checks
        from nugpt.store import Store
        from nugpt.studies import STUDIES

        checks.folder(self.out, "out")
        if Store(self.out).is_begun():
            raise ValueError(
                f"out is {self.out}, which is a store itself: quickstart makes one of its own, in a new folder"
            )
        store = self.out / "runs"
        print("Training nGPT and νGPT at three widths on Python's own source and documentation, on the CPU.\n")
        status = Study(ids=(PLAN,), scale="tiny", store=store, execution=Execution(run=True, devices=("cpu",))).run()
        if status:
            return status
        print("\nA recommendation for a model four times as wide as the base, under νGPT:\n")
        target = TargetShape(n_heads=8)
        Recommend(source=store, target=target, keep=True).run()
        print()
        Report(store=store, out=self.out / "report", title="nugpt quickstart").run()
        (swept,) = read_curves(store, Origin(plan=f"{PLAN}-tiny"))
        answers = answer(swept.curves)
        recipe = store / KEPT
        _print_learned(answers, verdicts(STUDIES[PLAN].claims, answers), self.out, recipe if recipe.is_file() else None)
        return 0


def _print_learned(answers: Answers, judged: Sequence[Verdict], out: Path, recipe: Path | None) -> None:
    """What this sweep says, what it cannot say, and what to do next."""
    print("\nWhat was learned:")
    for number, path in enumerate(answers.paths[:2], 1):
        name, moves = answers.names.get(path.group, path.group), path.drift.interval
        if isfinite(moves.low) and isfinite(moves.high):
            slope = f"moves by {moves.low:+.2f} … {moves.high:+.2f} octaves per octave of width (90 % interval)"
        else:
            slope = "was enclosed at too few widths to say how it moves with width"
        print(f"{number}. {name}: the best η {slope}.")
    print(f"3. {_decided(judged)}")
    print(f"4. Every number leads back to its run: open {out / 'report' / 'report.html'}.")
    print("5. Next, by what you want:")
    if recipe is not None:
        print(f"   the model recommended above:  nugpt train --recipe {quote(str(recipe))}")
    print("   a sweep on one GPU:           nugpt study width-fixed-steps --scale lab --data DIR --run")
    print(
        "   a grid of your own:           nugpt sweep --name mine --seed 0 1 2 --vary parametrization=ngpt,nugpt --run"
    )


def _decided(judged: Sequence[Verdict]) -> str:
    """How many claims came out how; so few steps of one seed speak for themselves alone."""
    from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED

    told = [f"{n} {word}" for word in (HOLDS, FAILS, UNDECIDED) if (n := sum(v.answer == word for v in judged))]
    if len(told) == 1 and told[0].endswith(UNDECIDED):
        meaning = "What the paper claims is not decided here"
    else:
        meaning = (
            f"Of {len(judged)} claims: {', '.join(told)}; that is about runs as short as these, not about the paper's"
        )
    return f"This is forty steps of one seed: it shows how the job goes. {meaning}."
