"""The answers of a set of curves, as tables for people and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nugpt.cli.show import counted, number, print_table

if TYPE_CHECKING:
    from nugpt.cli.curves import CurveSet
    from nugpt.fit.curves import Answers, CurveAnswer, PathAnswer
    from nugpt.fit.groups import GroupDifference
    from nugpt.fit.verdict import Verdict


def print_answers(one: CurveSet, answers: Answers, judged: Sequence[tuple[str, Verdict]]) -> None:
    runs = sum(len(curve.points) for curve in one.curves)
    have = "that has ended" if runs == 1 else "that have ended"
    what = f"{counted(len(one.curves), 'curve')}, {counted(runs, 'run')} {have}"
    print(f"{one.name}: {what}, intervals at {answers.level:.0%}")
    for note in one.notes:
        print(note)
    if not answers.curves:
        print("nothing to fit yet")
        return
    several = [c for c in answers.curves if len({point.log2_lr for point in c.curve.points}) > 1]
    if single := len(answers.curves) - len(several):
        print(f"in {counted(single, 'curve')} runs at one learning rate have ended: there is no optimum to look for")
    if several:
        _print_optima(several)
    if answers.left_out:
        print(f"no run has ended in {len(answers.left_out)} curves")
    if several:
        _print_paths(one, answers)
    for group, law in answers.laws:
        terms = [f"{k}^{v:.3f} ({span(law.intervals[k], 3)})" for k, v in law.exponents.items()]
        print(f"{answers.names[group]}: η* ∝ {' · '.join(terms)}" if terms else "")
    if judged:
        rows = [[text, v.answer or "open question", _reason(v)] for text, v in judged]
        print_table(["claim", "verdict", "because"], rows)
        if others := sorted({verdict.rule.level for _, verdict in judged} - {answers.level}):
            print(
                f"claims are judged by their rules, with intervals at {', '.join(f'{level:.0%}' for level in others)}"
            )


def _print_optima(several: Sequence[CurveAnswer]) -> None:
    columns = ["curve", "runs", "optimum", "log2 η*", "interval", "loss", "edge", "-1", "-1/2", "+1/2", "+1"]
    print_table(columns, [_curve_row(c) for c in several], right=(1, *range(3, 11)))
    print("edge: largest log2 η that trains and first that fails; -1 … +1: nats paid so many octaves off the optimum")
    for note, count in Counter(note for one in several for note in one.optimum.notes).items():
        print(f"{'1 curve' if count == 1 else f'{count} curves'}: {note}")


def _print_paths(one: CurveSet, answers: Answers) -> None:
    if answers.paths:
        print_table(
            ["group", "along", "sizes", "drift of η*", "interval", "no drift", "drift of the edge"],
            [_path_row(path, answers) for path in answers.paths],
            title="drift, octaves per octave",
        )
        for path in answers.paths:
            for note in path.drift.notes:
                print(f"{answers.names[path.group]}, {path.name}: {note}")
    regrets = [row for path in answers.paths for row in _regret_rows(path, answers)]
    if regrets:
        columns = ["group", "along", "base", "size", "regret", "interval"]
        print_table(columns, regrets, title="regret of the base's best η, in nats", right=(2, 3, 4))
    if compared := _compared(one, answers):
        rows = [_difference_row(each) for each in compared]
        columns = ["group", "less", "at", "nats", "interval", "seeds"]
        print_table(columns, rows, title="best loss of one group less that of another", right=(3, 5))


def _compared(one: CurveSet, answers: Answers) -> tuple[GroupDifference, ...]:
    """A study's claims say what is compared with what; elsewhere the groups are."""
    from nugpt.fit.groups import group_differences

    return group_differences(answers) if one.study is None else ()


def _difference_row(each: GroupDifference) -> list[str]:
    found = each.difference
    shown = "–" if found.nats is None else f"{found.nats:+.4f}"
    return [each.first, each.second, each.where, shown, span(found.interval, 4), str(found.seeds)]


def _reason(verdict: Verdict) -> str:
    if verdict.answer is not None:
        return verdict.reason
    found = [f"{e.where}: {number(e.value)} ({span(e.interval, 3)})".removeprefix(": ") for e in verdict.estimates]
    return "; ".join(found) or "there is no estimate"


def _curve_row(one: CurveAnswer) -> list[str]:
    found, edge = one.optimum, one.edge
    return [
        one.curve.name or "all",
        str(len(one.curve.points)),
        found.verdict + (f" ({found.side})" if found.side else ""),
        "–" if found.log2_lr is None else f"{found.log2_lr:.2f}",
        span(found.interval),
        number(found.loss),
        span(edge.interval),
        *(nats(cost.nats) for _, cost in one.sensitivity.costs),
    ]


def _path_row(path: PathAnswer, answers: Answers) -> list[str]:
    drift, edge = path.drift, path.edge_drift
    return [
        answers.names[path.group],
        path.name,
        " ".join(f"{one.curve.sizes[path.along]:g}" for one in path.curves),
        "–" if drift.slope is None else f"{drift.slope:+.3f}",
        span(drift.interval, 3),
        drift.no_drift,
        "–" if edge.slope is None else f"{edge.slope:+.3f} ({span(edge.interval, 3)})",
    ]


def _regret_rows(path: PathAnswer, answers: Answers) -> list[list[str]]:
    return [
        [answers.names[path.group], path.name, number(path.base), f"{size:g}", nats(cost.nats), span(cost.interval, 4)]
        for size, cost in path.regrets
    ]


def span(interval: Sequence[float], digits: int = 2) -> str:
    """An interval, whose ends may be open."""
    low, high = interval
    if not math.isfinite(low) and not math.isfinite(high):
        return "open"
    left = f"{low:.{digits}f}" if math.isfinite(low) else "open"
    return f"{left} … {high:.{digits}f}" if math.isfinite(high) else f"{left} … open"


def nats(value: float | None) -> str:
    """A cost, `fails` where it is infinite."""
    if value is None:
        return "–"
    return f"{value:.4f}" if math.isfinite(value) else "fails"


def finite(value: float | None) -> float | None:
    """A value that JSON has, or none."""
    return value if value is not None and math.isfinite(value) else None


def ends(interval: Sequence[float]) -> list[float | None]:
    """An interval as plain values, null where it is open."""
    return [finite(end) for end in interval]


def to_json(one: CurveSet, answers: Answers, judged: Sequence[tuple[str, Verdict]]) -> dict[str, Any]:
    """Every answer as plain values; an end without a bound is null."""
    return {
        "level": answers.level,
        "notes": list(one.notes),
        "curves": [_curve_json(c) for c in answers.curves],
        "paths": [_path_json(path, answers) for path in answers.paths],
        "laws": [
            {
                "group": answers.names[group],
                "exponents": dict(law.exponents),
                "intervals": {name: ends(interval) for name, interval in law.intervals.items()},
                "notes": list(law.notes),
            }
            for group, law in answers.laws
        ],
        "comparisons": [
            {
                "group": each.first,
                "less": each.second,
                "at": each.where,
                "nats": finite(each.difference.nats),
                "interval": ends(each.difference.interval),
                "seeds": each.difference.seeds,
                "notes": list(each.difference.notes),
            }
            for each in _compared(one, answers)
        ],
        "claims": [
            {
                "claim": text,
                "answer": verdict.answer,
                "reason": verdict.reason,
                "estimates": [
                    {"where": e.where, "value": finite(e.value), "interval": ends(e.interval)}
                    for e in verdict.estimates
                ],
            }
            for text, verdict in judged
        ],
    }


def _curve_json(one: CurveAnswer) -> dict[str, Any]:
    found, edge = one.optimum, one.edge
    return {
        "label": dict(one.curve.label),
        "sizes": dict(one.curve.sizes),
        "runs": [record.hash for record in one.curve.records if record is not None],
        "verdict": found.verdict,
        "side": found.side,
        "log2_lr": found.log2_lr,
        "interval": ends(found.interval),
        "loss": found.loss,
        "loss_interval": None if found.loss_interval is None else ends(found.loss_interval),
        "edge": {"verdict": edge.verdict, "log2_lr": edge.log2_lr, "interval": ends(edge.interval)},
        "sensitivity": [
            {"octaves": octaves, "nats": finite(cost.nats), "interval": ends(cost.interval)}
            for octaves, cost in one.sensitivity.costs
        ],
        "notes": list(found.notes),
    }


def _path_json(path: PathAnswer, answers: Answers) -> dict[str, Any]:
    return {
        "group": answers.names[path.group],
        "along": path.along,
        "at": dict(path.others),
        "together": list(path.together),
        "drift": {"slope": path.drift.slope, "interval": ends(path.drift.interval), "no_drift": path.drift.no_drift},
        "edge_drift": {"slope": path.edge_drift.slope, "interval": ends(path.edge_drift.interval)},
        "base": path.base,
        "regrets": [
            {"size": size, "nats": finite(cost.nats), "interval": ends(cost.interval)} for size, cost in path.regrets
        ],
        "notes": list(path.drift.notes),
    }
