"""The README's first screen, as far as records have it: one figure, what holds, what to know, commands, the scale."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nugpt.fit.interval import Interval
from nugpt.fit.verdict import Estimate, judge
from nugpt.report.answers import Judged
from nugpt.report.backtests import Group, line
from nugpt.report.estimates import PLACES, estimate
from nugpt.report.results import (
    COMPLETE,
    COUNTED,
    NOT_RUN,
    USUAL,
    Section,
    anchor,
    counts,
    minutes,
    minutes_word,
    table,
    verdict_words,
    what_is_left,
)
from nugpt.report.words import between, number, without_links
from nugpt.spec.scales import SCALES
from nugpt.spec.study_rules import allowed

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
WIDTH, HELD_OUT = "width-fixed-steps", "held-out"
FRESH_SEEDS, ALL_SEEDS = "width-fresh-seeds", "width-all-seeds"  # νGPT over width: other seeds, and both together
UNITS = {
    "drift": "octaves per doubling",
    "no-drift": "octaves per doubling",
    "prediction": "octaves",
    "loss-not-worse": "nats",
}
BASELINES = ("against-llama", "against-llama-clipped", "against-llama-warmup")
NOTHING = (
    "This repository has not yet reproduced the paper's measurements; [docs/paper-map.md](docs/paper-map.md) says what "
    "exists and what does not."
)


@dataclass(frozen=True)
class Shown:
    """A command of the README: what was typed, the lines that it printed, and what it cost, in words."""

    command: str
    output: Sequence[str]
    cost: str
    again: bool  # whether printing it again needs nothing but the archive


def answered(sections: Sequence[Section], id: str) -> Section | None:
    """The study's section of the largest scale that was begun, where it is complete: no smaller one stands in."""
    return next((s for s in _of_largest_scale(sections, id) if s.state == COMPLETE), None)


def width_study(sections: Sequence[Section]) -> Section | None:
    """The study of the figure: complete, or so far that both tables' slopes have an estimate, which is then said."""

    def tells(section: Section) -> bool:
        judged = section.found.judged[:2] if section.found is not None else ()
        slopes = [estimate for one in judged for estimate in one.verdict.estimates]
        return len(slopes) == 2 and all(estimate.value is not None for estimate in slopes)

    so_far = (s for s in _of_largest_scale(sections, WIDTH) if tells(s))
    return answered(sections, WIDTH) or next(so_far, None)


def all_seeds(sections: Sequence[Section], width: Section) -> Section | None:
    """The study of the figure's νGPT by more seeds than the figure's study has, where it is complete at its scale."""
    return _beside(sections, ALL_SEEDS, width)


def _beside(sections: Sequence[Section], id: str, width: Section) -> Section | None:
    section = answered(sections, id)
    return section if section is not None and section.scale == width.scale else None


def _of_largest_scale(sections: Sequence[Section], id: str) -> list[Section]:
    mine = [s for s in sections if s.study.id == id and s.state != NOT_RUN]
    largest = next((scale for scale in SCALES if any(s.scale == scale for s in mine)), None)  # they begin with `paper`
    return [s for s in mine if s.scale == largest]


def _scale(section: Section) -> str:
    """Said where it is not the usual one."""
    return "" if section.scale == USUAL else f" (scale `{section.scale}`)"


def first_screen(
    sections: Sequence[Section],
    figures: Mapping[str, str],
    commands: Sequence[Shown],
    scale: str,
    page: str,
    groups: Sequence[Group] = (),
) -> str:
    """What stands between the markers; a plain sentence while the width study has too little to say for a figure."""
    width = width_study(sections)
    if width is None or width.found is None or not figures:
        runs = {run.id: run for section in sections for run in section.runs if run.ended}.values()
        so_far = (
            f"So far {len(runs):,} runs, {minutes(runs):.1f} {minutes_word(runs)}: [{page}]({page}) has what they say."
        )
        return so_far if runs else NOTHING
    moves = _moves(width, all_seeds(sections, width))
    parts = [_figure(width, moves, figures), moves, _verdicts(sections, width, page)]
    if worth := line(groups, page):
        parts.append(f"**What transfer is worth.** {worth}")
    known = [told for told in (_caveats(width, page), _of_baseline(sections, page)) if told]
    parts += ["Before you rely on these:", "\n".join(f"- {told}" for told in known)] if known else []
    parts.append(f"{scale} All of it, study by study: [{page}]({page}).")
    parts += ["## From runs to an answer", *map(_command, commands)] if commands else []
    return "\n\n".join(parts)


def _figure(width: Section, moves: str, figures: Mapping[str, str]) -> str:
    told = f"The best learning rate against width, nGPT and νGPT{_scale(width)}. {moves}"
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{figures["dark"]}">\n'
        f'  <img alt="{told}" src="{figures["light"]}">\n'
        "</picture>"
    )


def _verdicts(sections: Sequence[Section], width: Section, page: str) -> str:
    """A row for each number that a rule judges: the slopes, the predictions held out, the loss beside the baseline."""
    assert width.found is not None
    asked = [(width, one) for one in width.found.judged[:2]]
    fresh = _beside(sections, FRESH_SEEDS, width)
    if fresh is not None and fresh.found is not None:
        asked += [(fresh, one) for one in fresh.found.judged]
    words = ["An octave is a factor of two in the learning rate."]
    held_out, baseline = answered(sections, HELD_OUT), _baseline(sections)
    if held_out is not None and held_out.found is not None:
        asked += [(held_out, one) for one in held_out.found.judged if one.claim.rule.kind == "prediction"]
        words.append(
            "A prediction is the mean of the optima at smaller sizes, each weighted by its precision; its rows show "
            "found minus predicted."
        )
    if baseline is not None:
        asked.append(baseline)
        words.append("The baseline is a plain pre-norm transformer, its learning rate tuned as well.")
    columns = ["claim", "measured, with its 90 % interval", "what its rule allows", "verdict"]
    told = (
        "Each row is judged by a rule that was fixed before the runs; a claim of several rows holds only if every row "
        f"does. {' '.join(words)}{_shared(width, held_out)}"
    )
    rows = [row for section, one in asked for row in _rows(section, one, page)]
    others = f"These are the main claims. Of all claims of complete studies: {counts(sections)} "
    every = f"({COUNTED}). [All of them]({page}#at-a-glance)."
    return f"## What holds here, and what does not\n\n{table(columns, rows)}\n\n{told}\n\n{others}{every}"


def _shared(width: Section, held_out: Section | None) -> str:
    """How far the prediction over width and the slope over width are one experiment."""
    if held_out is None or held_out.found is None:
        return ""
    labels = {("nugpt", "base"), ("nugpt", "heads")}
    curves = [c for c in held_out.found.plan.curves if (c.label.get("table"), c.label.get("axis")) in labels]
    mine = {run.id for curve in curves for run in curve.runs if run.ended}
    both = mine & {run.id for run in width.runs}
    if not both:
        return ""
    slope = f"the slope in `{width.study.id}`"
    return f" Of the {len(mine)} runs behind the prediction over width, {len(both)} are also behind {slope}."


def _rows(section: Section, one: Judged, page: str) -> list[list[str]]:
    """Of one claim: a row for each place, judged by itself."""
    rule = one.claim.rule
    rows: list[list[str]] = []
    claim = f"[{one.claim.text.rstrip('.')}]({page}#{anchor(section)}){_scale(section)}"
    if not one.verdict.estimates:
        return [[claim, one.verdict.reason, allowed(rule), f"**{verdict_words(section, one)}**"]]
    for each in one.verdict.estimates:
        alone = replace(one, verdict=judge(rule, (replace(each, where=""),)))
        where = f", {PLACES.get(each.where, each.where)}" if each.where else ""
        unit = f" {UNITS[rule.kind]}" if each.value is not None else ""
        answer = f"**{verdict_words(section, alone)}**"
        rows.append([f"{'the same' if rows else claim}{where}", f"{estimate(alone)}{unit}", allowed(rule), answer])
    return rows


def _caveats(width: Section, page: str) -> str:
    """What must be known beside the verdicts on the figure."""
    told = []
    if width.note:
        told.append(f"{_first_sentence(width.note)} [More on this]({page}#{anchor(width)}).")
    if width.state != COMPLETE:
        told.append(f"The study of width is not complete: {what_is_left(width)}.")
    return " ".join(told)


def _of_baseline(sections: Sequence[Section], page: str) -> str:
    """What must be known of how well the other side of the comparison was tuned."""
    section = baseline[0] if (baseline := _baseline(sections)) is not None else None
    if section is None or not section.note:
        return ""
    return f"{_first_sentence(section.note)} [More on this]({page}#{anchor(section)})."


def _moves(width: Section, seeds: Section | None) -> str:
    """How far either table's best learning rate moves over the widths that were run; νGPT's by all its seeds."""
    assert width.found is not None
    ngpt, nugpt = width.found.judged[:2]
    together = ""
    if seeds is not None and seeds.found is not None:
        nugpt, together = seeds.found.judged[0], ", by the seeds of two studies together"
    sizes = [curve.measured.sizes["width"] for curve in (*ngpt.curves, *nugpt.curves)]
    lengths = sorted({int(curve.measured.sizes["steps"]) for curve in (*ngpt.curves, *nugpt.curves)})
    first = _slope(ngpt.verdict.estimates, " octaves per doubling of width", "90 % interval ")
    second = _slope(nugpt.verdict.estimates)
    from_to = f"From d_model {min(sizes):,.0f} to {max(sizes):,.0f}{_scale(width)}"
    steps = " to ".join(f"{n:,}" for n in dict.fromkeys((lengths[0], lengths[-1])))
    return f"{from_to}, in runs of {steps} steps, nGPT's best learning rate {first}. νGPT's {second}{together}."


def _slope(estimates: Sequence[Estimate], unit: str = "", bracket: str = "") -> str:
    """A slope in words, with what it is in and what the bracket holds; it falls or rises where no doubt is left."""
    if not estimates or estimates[0].value is None:
        return "has no slope yet"
    value, (low, high) = estimates[0].value, estimates[0].interval
    if low > 0 or high < 0:
        sign, verb = (1, "rises") if low > 0 else (-1, "falls")
        ends = Interval(*sorted((sign * low, sign * high)))
        return f"{verb} by {number(sign * value)}{unit} ({bracket}{between(ends)})"
    return f"moves by {number(value)}{unit} ({bracket}{between(estimates[0].interval)})"


def _first_sentence(note: str) -> str:
    """What its reader must know before all, so that it is said beside the verdict here too."""
    return re.split(r"(?<=[.!?])\s", without_links(note), maxsplit=1)[0]


def _baseline(sections: Sequence[Section]) -> tuple[Section, Judged] | None:
    """νGPT's loss against the plain transformer that comes nearest: whoever tunes one would have that."""

    def nearest(said: tuple[Section, Judged]) -> float:
        return max((e.value for e in said[1].verdict.estimates if e.value is not None), default=-math.inf)

    complete = (answered(sections, id) for id in BASELINES)
    said = [(s, s.found.judged[0]) for s in complete if s is not None and s.found is not None]
    return max(said, key=nearest, default=None)


def _command(one: Shown) -> str:
    run = "<!-- run -->\n" if one.again else ""
    text = "\n".join(one.output)
    return f"{one.cost}\n\n{run}```sh\n{one.command}\n```\n\n```text\n{text}\n```"


def cost_of(section: Section) -> str:
    """What a study's runs took, in words."""
    runs = [run for run in section.runs if run.ended]
    so_far = "" if section.state == COMPLETE else " so far"
    return f"{len(runs):,} runs, {minutes(runs):.1f} {minutes_word(runs)}{so_far}, not counting start-up."


def replaced(text: str, part: str, name: str) -> str:
    """The document with this part between its markers; one without markers is refused."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{name} has no place for results: it needs one line {BEGIN} and, below it, one line {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{part}\n{END}{rest.split(END)[1]}"
