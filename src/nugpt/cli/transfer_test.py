"""`nugpt transfer-test`: a gate for a CI of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.answers import ends, finite, span
from nugpt.cli.curves import Origin, read_curves
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import number, print_json, print_table

if TYPE_CHECKING:
    from nugpt.fit.curves import Answers, PathAnswer
    from nugpt.fit.interval import Interval


@dataclass(frozen=True)
class TransferTest:
    """A gate: exit 0 where the best learning rate holds over the sizes, 1 where it drifts, costs or is not decided."""

    source: Annotated[Path, tyro.conf.Positional]
    """A store, or a .csv or .jsonl file of your own runs."""
    max_drift: float = 0.1
    """Octaves of η* per octave of size; the whole interval must lie within ±."""
    max_regret: float = 0.01
    """Nats that the base's best η may cost at another size; the whole interval must lie below."""
    group: str | None = None
    """Only this table, or this group of a file's runs."""
    allow_undecided: bool = False
    """Exit 0 where nothing fails, though something is not decided."""
    origin: Annotated[Origin, AMONG_OPTIONS] = Origin()
    level: float = 0.90
    """Of the intervals."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Test every path of sizes."""
        from nugpt.fit.curves import answer
        from nugpt.fit.interval import check_level

        check_level(self.level)
        for name in ("max_drift", "max_regret"):
            bound = getattr(self, name)
            if not isfinite(bound) or bound <= 0:
                raise ValueError(f"{name} is {bound!r}, but must be a finite number above 0")
        rows: list[dict[str, Any]] = []
        seen: list[str] = []
        for one in read_curves(self.source, self.origin):
            answers = answer(one.curves, self.level, self.max_drift)
            seen += answers.names.values()
            for path in answers.paths:
                if self.group is None or self.group in _group_words(path, answers):
                    rows += self._tested(one.name, path, answers)
        if self.group is not None and not any(self.group in (name, name.split()[0]) for name in seen):
            raise ValueError(f"group is {self.group!r}, but there are {', '.join(dict.fromkeys(seen))}")
        return self._conclude(rows)

    def _tested(self, name: str, path: PathAnswer, answers: Answers) -> list[dict[str, Any]]:
        from nugpt.fit.drift import within
        from nugpt.fit.interval import Interval

        where = {"plan": name, "group": answers.names[path.group], "along": path.name}
        drift = path.drift
        rows = [_row(where, "drift of η*", drift.slope, drift.interval, drift.no_drift)]
        for size, cost in path.regrets:
            verdict = within(cost.interval, Interval(0.0, self.max_regret))
            rows.append(_row(where, f"regret at {size:g}", cost.nats, cost.interval, verdict))
        return rows

    def _conclude(self, rows: list[dict[str, Any]]) -> int:
        from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED

        verdicts = {row["verdict"] for row in rows}
        answer = FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED
        if self.json:
            bounds = {"max_drift": self.max_drift, "max_regret": self.max_regret, "level": self.level}
            print_json({"answer": answer, **bounds, "tests": rows})
        else:
            cells = [
                [r["plan"], r["group"], r["along"], r["test"], number(r["value"]), r["shown"], r["verdict"]]
                for r in rows
            ]
            columns = ["plan", "group", "along", "test", "value", "interval", "verdict"]
            if rows:
                print_table(columns, cells, right=(4,))
            why = "" if rows else ": no group of runs has two sizes"
            print(f"transfer within ±{self.max_drift:g} octaves per octave and {self.max_regret:g} nats: {answer}{why}")
        return 0 if answer == HOLDS or (answer == UNDECIDED and self.allow_undecided) else 1


def _group_words(path: PathAnswer, answers: Answers) -> tuple[str, str]:
    name = answers.names[path.group]
    return name, name.split()[0]


def _row(where: dict[str, str], test: str, value: float | None, interval: Interval, verdict: str) -> dict[str, Any]:
    return {
        **where,
        "test": test,
        "value": finite(value),
        "interval": ends(interval),
        "shown": span(interval, 4),
        "verdict": verdict,
    }
