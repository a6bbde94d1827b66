"""The parts of the page that say what was found: verdicts, then plan by plan, then the recommendation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nugpt.fit.curves import CurveAnswer
from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED, Drift
from nugpt.fit.groups import GroupDifference, group_differences
from nugpt.fit.verdict import Estimate, estimate_of
from nugpt.report.answers import COEFFICIENTS, SIZE_WORDS, Judged, Path, PlanAnswer, has_grid
from nugpt.report.charts import lerp_name, path_name
from nugpt.report.estimates import estimate, in_words
from nugpt.report.html import Child, Html, joined, link, table, tag
from nugpt.report.layout import label_text, printable
from nugpt.report.measured import alignment_tables
from nugpt.report.source import CurveRuns
from nugpt.report.words import NONE, between, cost, counted, number, short, size, without_links
from nugpt.spec.study_rules import describe

OPEN = "open question"
SMOKE_TESTS = ("tiny", "lab")  # scales that are there to see that all works
FEW = 3  # learning rates: so many points fix a curve of three unknowns and leave nothing to check it by
BADGES = {HOLDS: "badge holds", FAILS: "badge fails", UNDECIDED: "badge", OPEN: "badge"}


def verdict_section(found: Sequence[PlanAnswer]) -> Html:
    """Every claim with its verdict, those studies first that decide something; plans without an ended run by name."""
    ordered = sorted(found, key=lambda plan: not any(_answer(one) in (HOLDS, FAILS) for one in plan.judged))
    with_claims = [plan for plan in ordered if plan.judged]
    asked = [plan for plan in with_claims if _begun(plan)] or with_claims
    count = Counter(_answer(one) for plan in asked for one in plan.judged)
    parts: list[Child] = [tag("h2", "Verdicts", id="verdicts"), tag("p", _summary(count))]
    if len(asked) > 1:
        parts.append(_glance(asked))
    for plan in asked:
        name = link(plan_anchor(plan), plan.title)
        parts += [tag("h3", name, " ", tag("small", plan.plan.name)), _caveats(plan), *_note(plan.plan.note)]
        parts += [_claim(one, claim_anchor(plan, i)) for i, one in enumerate(plan.judged)]
    not_run = [plan for plan in with_claims if not _begun(plan)] if len(asked) < len(with_claims) else []
    without = [plan for plan in found if not plan.judged]
    for told, plans in (("None of their runs has ended", not_run), ("Without claims of their own", without)):
        if plans:
            names = joined((link(plan_anchor(plan), plan.title) for plan in plans), ", ")
            parts.append(tag("p", f"{told}, so without a verdict: ", names, "."))
            parts += [part for plan in plans for part in _note(plan.plan.note)]
    return tag("section", *parts)


def _glance(found: Sequence[PlanAnswer]) -> Html:
    """Every claim in a row of its own, leading to where all of its numbers and its rule are."""
    rows: list[list[Child]] = [
        [
            joined([_badge(_answer(one)), tag("small", " so far") if _missing(plan) else None]),
            link(claim_anchor(plan, i), one.claim.text),
            estimate(one),
            link(plan_anchor(plan), plan.plan.name),
        ]
        for plan in found
        for i, one in enumerate(plan.judged)
    ]
    return table(["verdict", "claim or question", "what decides it, with its interval", "plan"], rows)


def _begun(found: PlanAnswer) -> bool:
    return any(run.ended for curve in found.plan.curves for run in curve.runs)


def _missing(found: PlanAnswer) -> int:
    """How many of a plan's runs have not ended."""
    return sum({run.id: not run.ended for curve in found.plan.curves for run in curve.runs}.values())


def _badge(answer: str) -> Html:
    return tag("span", answer, class_=BADGES[answer])


def claim_anchor(found: PlanAnswer, i: int) -> str:
    """The place of a plan's claim in the page."""
    return f"claim-{found.plan.name}-{i + 1}"


def _summary(count: Mapping[str, int]) -> str:
    claims = sum(count.get(answer, 0) for answer in (HOLDS, FAILS, UNDECIDED))
    if not claims and not count.get(OPEN):
        return "No plan here belongs to a study, so there is no claim to judge; the estimates below are all there is."
    told = (
        f"{counted(claims, 'claim')}: {count.get(HOLDS, 0)} {_verb(count.get(HOLDS, 0))}, "
        f"{count.get(FAILS, 0)} {'does' if count.get(FAILS, 0) == 1 else 'do'} not hold, "
        f"{count.get(UNDECIDED, 0)} not decided here"
    )
    told += f"; {counted(count[OPEN], 'open question')} without bounds to judge by." if count.get(OPEN) else "."
    if claims and not count.get(HOLDS) and not count.get(FAILS):
        told += (
            " These runs are too few, too short or too noisy to decide anything: read the intervals, not the points."
        )
    return told + " Each rule was fixed before the runs; a claim holds only if the whole interval keeps its bounds."


def _caveats(found: PlanAnswer) -> Html | None:
    """What a verdict must not be read without: runs that are missing, how small they are, what one seed cannot say."""
    said = []
    if missing := _missing(found):
        runs = len({run.id for curve in found.plan.curves for run in curve.runs})
        said.append(f"{missing:,} of {counted(runs, 'run')} {'has' if missing == 1 else 'have'} not ended.")
    curves = [curve for curve in found.plan.curves if any(run.ended for run in curve.runs)]
    longest = max((curve.measured.sizes.get("steps", 0.0) for curve in curves), default=0.0)
    if found.plan.scale in SMOKE_TESTS and longest:
        said.append(
            f"Scale {found.plan.scale} is a smoke test: what is decided here holds for runs of at most "
            f"{counted(int(longest), 'step')}, and need not hold for longer or larger ones."
        )
    if curves and all(len({run.seed for run in curve.runs if run.ended}) == 1 for curve in curves):
        said.append("One seed each: how much a loss varies from run to run was assumed, not measured.")
    few = [c for c in curves if has_grid(c) and len({run.log2_lr for run in c.runs if run.trained}) <= FEW]
    if few:
        said.append(f"{counted(len(few), 'curve')} of {len(curves)} with {FEW} learning rates or fewer that trained.")
    return tag("p", tag("strong", "Read with care. "), " ".join(said)) if said else None


def _note(markdown: str) -> list[Html]:
    """What a person wrote about the runs, by paragraph; links lead out of the page, and only their words stay."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", without_links(markdown).replace("`", ""))]
    return [tag("p", "Note: ", part, class_="note") for part in parts if part]


def _verb(n: int) -> str:
    return "holds" if n == 1 else "hold"


def _answer(one: Judged) -> str:
    return one.verdict.answer or OPEN


def _claim(one: Judged, anchor: str) -> Html:
    estimates = [_estimate(estimate) for estimate in one.verdict.estimates]
    said = joined(estimates, "; ") if estimates else escaped_reason(one)
    ended = [curve for curve in one.curves if any(run.ended for run in curve.runs)]
    return tag(
        "div",
        tag("div", _badge(_answer(one))),
        tag(
            "div",
            tag("p", one.claim.text),
            tag("p", said),
            tag("p", "Rule: ", describe(one.claim.rule), ".", class_="soft"),
            _from(ended),
        ),
        class_="claim",
        id=anchor,
    )


def escaped_reason(one: Judged) -> Html:
    """Why there is no number, in the verdict's words."""
    return tag("span", f"No estimate: {one.verdict.reason}.", class_="soft")


def _estimate(one: Estimate) -> Html:
    before, value, interval = in_words(one, f", {one.level:.0%} interval")
    return tag("span", before, tag("strong", value) if value else None, interval)


def _from(curves: Sequence[CurveRuns]) -> Html:
    """Which curves a number comes from, each leading to its runs."""
    if not curves:
        return tag("p", "None of its runs has ended.", class_="soft")
    links = joined((curve_link(curve) for curve in curves), "; ")
    runs = counted(sum(run.ended for curve in curves for run in curve.runs), "run")
    words = f"From {runs} of {counted(len(curves), 'curve')}"
    return tag("details", tag("summary", words), links)


def curve_link(curve: CurveRuns, text: Child = None) -> Html:
    """To a curve's runs."""
    return link(f"curve-{curve.key}", label_text(curve) or "all runs" if text is None else text)


def plan_anchor(found: PlanAnswer) -> str:
    """The plan's place in the page."""
    return f"plan-{found.plan.name}"


def plan_section(found: PlanAnswer, charts: Html, stills: Html) -> Html:
    """One plan: what it is, its charts, its tables."""
    study, plan = found.plan.study, found.plan
    what = [f"plan {plan.name}"]
    what += [f"scale {plan.scale}"] if plan.scale else []
    what += [f"varies: {study.varies}"] if study else []
    what += [f"the paper's {study.figure}"] if study and study.figure else []
    states = ", ".join(f"{n:,} {state}" for state, n in found.states.items()) or "none"
    return tag(
        "section",
        tag("h2", found.title),
        tag("p", "; ".join(what), f". Runs: {states}.", class_="soft"),
        charts,
        stills,
        *_tables(found),
        id=plan_anchor(found),
    )


def _tables(found: PlanAnswer) -> list[Html]:
    grids = [one for one in found.fitted.curves if has_grid(found.runs_of(one))]
    if not found.fitted.curves:
        return [tag("p", "None of its runs has ended: there is nothing to say yet.")]
    parts: list[Html] = []
    if grids:
        parts += [tag("h3", "Optima"), _optima(found, grids)]
    else:
        parts.append(tag("p", "Its curves have one learning rate each: there is no optimum to look for."))
    left = [curve for curve in found.plan.curves if not any(run.ended for run in curve.runs)]
    if left:
        parts.append(tag("p", f"{counted(len(left), 'curve')} without a run that has ended.", class_="soft"))
    if found.paths:
        parts += [tag("h3", "Drift and regret"), _drifts(found.paths)]
    if compared := group_differences(found.fitted) if found.plan.study is None else ():
        parts += [tag("h3", "Best losses compared"), _compared(compared)]
    if found.fitted.laws:
        parts += [tag("h3", "Power laws of the best η"), _laws(found)]
    if found.multipliers:
        parts += [tag("h3", "Multipliers"), _multipliers(found)]
    if found.lerps:
        parts += [tag("h3", "LERP coefficients over depth"), _lerps(found)]
    return parts + alignment_tables(found)


def _compared(found: Sequence[GroupDifference]) -> Html:
    level = f"{found[0].difference.level:.0%}"
    columns = ["group", "less", "at", f"nats ({level} interval)", "seeds in common"]
    rows: list[list[Child]] = [
        [
            printable(each.first),
            printable(each.second),
            printable(each.where) or NONE,
            _estimate(estimate_of(each.difference)),
            each.difference.seeds,
        ]
        for each in found
    ]
    told = (
        "Loss at the best learning rate of the first less that of the second, paired over seeds: below 0, it is better."
    )
    return joined([table(columns, rows, right=(3, 4)), tag("p", told, class_="soft")])


def _optima(found: PlanAnswer, grids: Sequence[CurveAnswer]) -> Html:
    level = f"{found.fitted.level:.0%}"
    columns = ["curve", "runs", f"best log₂ η ({level} interval)", "η", "loss there", "optimum", "edge, log₂ η"]
    columns += ["nats, an octave low", "nats, an octave high"]
    notes = dict.fromkeys(note for one in grids for note in one.optimum.notes)
    return joined(
        [
            table(columns, [_optimum_row(found.runs_of(one), one) for one in grids], right=(2, 3, 4, 6, 7, 8)),
            tag("p", f"Notes: {'; '.join(notes)}.", class_="soft") if notes else None,
        ]
    )


def _optimum_row(runs: CurveRuns, one: CurveAnswer) -> list[Child]:
    best, edge = one.optimum, one.edge
    span = f" ({between(best.interval)})"
    states = Counter(run.state for run in runs.runs)
    shown = ", ".join(f"{n} {state}" for state, n in states.items())
    verdict = best.verdict + (f", goes on to the {best.side}" if best.side else "")
    return [
        curve_link(runs),
        shown,
        joined([curve_link(runs, number(best.log2_lr)), span]) if best.log2_lr is not None else between(best.interval),
        f"{2.0**best.log2_lr:.3g}" if best.log2_lr is not None else NONE,
        f"{number(best.loss, 3)} ({between(best.loss_interval, 3)})" if best.loss is not None else NONE,
        verdict,
        between(edge.interval),
        cost(one.sensitivity.at(-1.0)),
        cost(one.sensitivity.at(1.0)),
    ]


def _drifts(paths: Sequence[Path]) -> Html:
    columns = ["curves", "over", "slope of log₂ η*", "no drift", "slope of the edge", "regret of the base's η, nats"]
    rows = []
    for path in paths:
        answer = path.answer
        sizes = joined(
            (
                curve_link(runs, size(one.curve.sizes[answer.along]))
                for one, runs in zip(answer.curves, path.curves, strict=True)
            ),
            ", ",
        )
        over = joined([SIZE_WORDS.get(answer.along, answer.along), ": ", sizes])
        rows.append(
            [
                path_name(path),
                over,
                _slope(answer.drift),
                _no_drift(answer.drift),
                _slope(answer.edge_drift),
                _regret(path),
            ]
        )
    bound = paths[0].answer.drift.bound
    told = (
        f"A slope is in octaves of η per octave of size. “No drift” holds if the whole interval lies within ±{bound:g};"
        " a slope needs three sizes. Regret is what each size pays for the base size's best η instead of its own."
    )
    return joined([table(columns, rows, right=(2, 4)), tag("p", told, class_="soft")])


def _slope(drift: Drift) -> str:
    return NONE if drift.slope is None else f"{number(drift.slope)} ({between(drift.interval)})"


def _no_drift(drift: Drift) -> Html:
    return tag("span", drift.no_drift, class_=BADGES[drift.no_drift])


def _regret(path: Path) -> Child:
    if path.answer.base is None:
        return "no size has an enclosed optimum"
    runs = {
        one.curve.sizes[path.answer.along]: curve for one, curve in zip(path.answer.curves, path.curves, strict=True)
    }
    paid = [joined([curve_link(runs[at], size(at)), ": ", cost(one)]) for at, one in path.answer.regrets]
    return joined([f"base {size(path.answer.base)}; ", joined(paid, "; ")])


def _laws(found: PlanAnswer) -> Html:
    rows: list[list[Child]] = []
    for group, law in found.fitted.laws:
        powers = [
            f"{SIZE_WORDS.get(name, name)}^{number(power)} ({between(law.intervals[name])})"
            for name, power in law.exponents.items()
        ]
        rows.append([found.fitted.names[group], " · ".join(powers) or NONE, law.values, "; ".join(law.notes)])
    return table(["curves", "η* in proportion to", "optima", "notes"], rows)


def _multipliers(found: PlanAnswer) -> Html:
    rows: list[list[Child]] = []
    for line in found.multipliers:
        tried = joined(
            (
                joined([f"2^{one.log2_multiplier:g}: ".replace("-", "−"), curve_link(one.curve, number(one.loss, 3))])
                for one in line.tried
            ),
            ", ",
        )
        rows.append([line.role, line.name or NONE, tried])
    told = "The loss reached with each multiplier: at the best η where there is a grid, else at the one η that was run."
    return joined([table(["role", "curves", "loss by multiplier"], rows), tag("p", told, class_="soft")])


def _lerps(found: PlanAnswer) -> Html:
    rows: list[list[Child]] = []
    for line in found.lerps:
        power, interval = line.law.exponents.get("depth"), line.law.intervals.get("depth")
        at = joined(
            (
                joined([f"{one.layers}: ", link(f"run-{one.run.id}", f"{short(one.mean)} ± {short(one.std)}")])
                for one in line.at
            ),
            ", ",
        )
        rows.append([lerp_name(line), number(power), between(interval), at])
    told = (
        "The mean effective coefficient at the learning rate of the grid next to each depth's optimum, every seed "
        f"apart, ± its spread over components. {' and '.join(COEFFICIENTS.values())} stand for attention and MLP."
    )
    columns = ["coefficient", "power of depth", f"{found.fitted.level:.0%} interval", "layers: mean ± spread"]
    return joined([table(columns, rows, right=(1, 2)), tag("p", told, class_="soft")])


def recommendation_section(values: Any, known: set[str], specs: bool = True) -> Html:
    """What `nugpt recommend` left in the store, whatever of it can be read; runs without specs allow none."""
    head = tag("h2", "Recommendation", id="recommendation")
    if values is None:
        told = "None is in the store: `nugpt recommend --keep` makes one from these sweeps and keeps it there."
        if not specs:
            told = "None: a recommendation needs the specs of the runs, which these do not have. The optima are below."
        return tag("section", head, tag("p", told, class_="soft"))
    whole = values if isinstance(values, Mapping) else {"value": values}
    advice = whole.get("recommended")
    parts: list[Child] = [head]
    if isinstance(advice, Mapping):
        parts += _advice(advice, known)
    resolved = whole.get("resolved")
    rows = resolved.get("rows") if isinstance(resolved, Mapping) else None
    if isinstance(rows, Mapping) and all(isinstance(row, Mapping) for row in rows.values()):
        columns = list(dict.fromkeys(key for row in rows.values() for key in row))
        cells = [[role, *(_value(row.get(key)) for key in columns)] for role, row in rows.items()]
        parts += [tag("h3", "Role by role"), table(["role", *(c.replace("_", " ") for c in columns)], cells)]
    if not isinstance(advice, Mapping):
        parts.append(_nested(whole))
    return tag("section", *parts)


def _advice(advice: Mapping[str, Any], known: set[str]) -> list[Html]:
    interval = advice.get("interval")
    spread = f" (best log₂ η from {_range(interval)})" if isinstance(interval, Sequence) else " (no interval: no sweep)"
    lines = [
        tag("p", "η = ", tag("strong", _value(advice.get("lr"))), f" = 2^{_value(advice.get('log2_lr'))}", spread, ".")
    ]
    plain = f"The plain optimum, carried over: 2^{_value(advice.get('plain_log2_lr'))}."
    lines.append(tag("p", plain, " The recommended η leans to the safe side of a cliff."))
    loss = advice.get("loss")
    if isinstance(loss, Mapping):
        lines.append(tag("p", _expected_loss(loss)))
    warnings = advice.get("warnings")
    if isinstance(warnings, Sequence) and not isinstance(warnings, str):
        lines += [tag("p", tag("strong", "Warning: "), str(warning)) for warning in warnings]
    costs = advice.get("costs")
    if isinstance(costs, Sequence) and all(isinstance(one, Mapping) for one in costs) and costs:
        rows = [[_value(one.get("octaves")), _value(one.get("nats")), _range(one.get("interval"))] for one in costs]
        lines += [tag("h3", "What being off costs"), table(["octaves off", "nats", "interval"], rows)]
    reach = advice.get("reach")
    if isinstance(reach, Sequence) and all(isinstance(one, Mapping) for one in reach) and reach:
        keys = list(dict.fromkeys(key for one in reach for key in one))
        rows = [[_value(one.get(key)) for key in keys] for one in reach]
        lines += [tag("h3", "How far it reaches"), table([key.replace("_", " ") for key in keys], rows)]
    told = {words: _value(advice[key]) for key, words in _FACTS.items() if advice.get(key) is not None}
    share = advice.get("tuning_share")
    if isinstance(share, (int, float)):
        told["tuning, as a share of the target's FLOPs"] = f"{100 * share:.3g} %"
    lines += [table(["", ""], list(told.items()))] if told else []
    runs = [str(run) for run in advice.get("runs") or ()] if isinstance(advice.get("runs"), Sequence) else []
    if runs:
        links = joined((link(f"run-{run}", run) if run in known else run for run in runs), ", ")
        lines.append(tag("details", tag("summary", f"Rests on {counted(len(runs), 'run')}"), tag("code", links)))
    return lines


def _expected_loss(loss: Mapping[str, Any]) -> str:
    nats = loss.get("nats")
    if not isinstance(nats, float):
        return f"No loss is forecast: {_value(loss.get('why_not'))}."
    sizes = _value(loss.get("sizes"))
    source = "as found at this size" if sizes == "1" else f"by a law through {sizes} swept sizes"
    ends = loss.get("interval")
    bounds = ends if isinstance(ends, Sequence) and not isinstance(ends, str) else ()
    span = " to ".join(number(end, 3) if isinstance(end, float) else _value(end) for end in bounds)
    return f"The loss to expect at the best η: {number(nats, 3)} nats ({span}), {source}."


_FACTS = {
    "nearest": "carried over from",
    "parameters": "parameters of the target",
    "flops": "FLOPs of the target",
    "gpu_hours": "GPU-hours of the target",
}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return short(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _range(value)
    return NONE if value is None else str(value)


def _range(value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _value(value)
    return " to ".join("unbounded" if one is None else _value(one) for one in value)


def _nested(values: Mapping[str, Any]) -> Html:
    """Whatever it is, as rows."""
    return table(
        ["", ""], [[str(key), _nested(v) if isinstance(v, Mapping) else _value(v)] for key, v in values.items()]
    )
