"""The README's first screen, as far as records have it: one figure, one line of loss, commands, one word on scale."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED
from nugpt.fit.interval import Interval
from nugpt.fit.verdict import Estimate
from nugpt.report.answers import Judged
from nugpt.report.backtests import Tested, line
from nugpt.report.results import (
    COMPLETE,
    NOT_RUN,
    USUAL,
    Section,
    estimates,
    minutes,
    minutes_word,
    verdict_words,
    what_is_left,
)
from nugpt.report.words import between, number, without_links
from nugpt.spec.scales import SCALES
from nugpt.spec.study_rules import SYMBOLS, bounds

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
WIDTH, HELD_OUT = "width-fixed-steps", "held-out"
AXES = {
    "axis heads": "over width",
    "axis layers": "over depth",
    "axis steps": "over length",
    "axis all": "over all three",
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
    groups: Tested = (),
) -> str:
    """What stands between the markers; a plain sentence while the width study has too little to say for a figure."""
    width = width_study(sections)
    if width is None or width.found is None or not figures:
        runs = {run.id: run for section in sections for run in section.runs if run.ended}.values()
        so_far = (
            f"So far {len(runs):,} runs, {minutes(runs):.1f} {minutes_word(runs)}: [{page}]({page}) has what they say."
        )
        return so_far if runs else NOTHING
    parts = [_figure(width, figures), _caption(sections, width, page)]
    parts += [told for told in (_loss_line(sections), line(groups, page)) if told is not None]
    parts += [_command(one) for one in commands]
    parts.append(f"{scale} All of it, study by study: [{page}]({page}).")
    return "\n\n".join(parts)


def _figure(width: Section, figures: Mapping[str, str]) -> str:
    told = f"The best learning rate against width, nGPT and νGPT{_scale(width)}. {_moves(width)}"
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{figures["dark"]}">\n'
        f'  <img alt="{told}" src="{figures["light"]}">\n'
        "</picture>"
    )


def _caption(sections: Sequence[Section], width: Section, page: str) -> str:
    told = [_moves(width), _answers(width)]
    if width.note:
        told.append(f"{_first_sentence(width.note)} More stands [beside its numbers]({page}#{width.study.id}).")
    if width.state != COMPLETE:
        told.append(f"The study is not complete: {what_is_left(width)}.")
    held_out = answered(sections, HELD_OUT)
    if held_out is not None and held_out.found is not None:
        one = next(j for j in held_out.found.judged if j.claim.rule.kind == "prediction")
        said = f"{_said(held_out, one, AXES)}, octaves with 90 % intervals{_scale(held_out)}"
        told.append(f"Held out: {said} ([more]({page}#{held_out.study.id})).")
    return " ".join(told)


def _moves(width: Section) -> str:
    """How far either table's best learning rate moves over the widths that were run."""
    assert width.found is not None
    ngpt, nugpt = width.found.judged[:2]
    sizes = [curve.measured.sizes["width"] for curve in (*ngpt.curves, *nugpt.curves)]
    first = _slope(ngpt.verdict.estimates, " octaves per doubling of width", "90 % interval ")
    second = _slope(nugpt.verdict.estimates)
    from_to = f"From d_model {min(sizes):,.0f} to {max(sizes):,.0f}{_scale(width)}"
    return f"{from_to} nGPT's best learning rate {first}. νGPT's {second}."


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


def _answers(width: Section) -> str:
    """The verdicts on the two, and what they are by."""
    assert width.found is not None
    judged = width.found.judged[:2]
    rules = "; ".join(bounds(one.claim.rule) for one in judged)
    first, second = (one.verdict.answer for one in judged)
    words = {HOLDS: "holds", FAILS: "does not hold", UNDECIDED: "is not decided here"}
    so_far = "" if width.state == COMPLETE else ", so far,"
    if first == second:
        both = {HOLDS: "both of the paper's claims hold", FAILS: "neither of the paper's claims holds"}
        said = both.get(str(first), "neither of the paper's claims is decided here")
    else:
        said = (
            f"the paper's claim that nGPT's falls {words.get(str(first), first)}, and that νGPT's stays "
            f"{words.get(str(second), second)}"
        )
    return f"By rules fixed before the runs ({rules}){so_far} {said}."


def _first_sentence(note: str) -> str:
    """What its reader must know before all, so that it is said beside the verdict here too."""
    return re.split(r"(?<=[.!?])\s", without_links(note), maxsplit=1)[0]


def _said(section: Section, one: Judged, names: Mapping[str, str] = SYMBOLS) -> str:
    return f"{one.claim.text.rstrip('.')} — **{verdict_words(section, one)}**, {estimates(one, names)}"


def _loss_line(sections: Sequence[Section]) -> str | None:
    """Against the plain transformer that comes nearest: whoever tunes one would have that."""

    def nearest(said: tuple[Section, Judged]) -> float:
        return max((e.value for e in said[1].verdict.estimates if e.value is not None), default=-math.inf)

    complete = (answered(sections, id) for id in BASELINES)
    said = [(s, s.found.judged[0]) for s in complete if s is not None and s.found is not None]
    if not said:
        return None
    found, one = max(said, key=nearest)
    return f"{_said(found, one)}, nats of νGPT's loss less the tuned plain transformer's{_scale(found)}."


def _command(one: Shown) -> str:
    run = "<!-- run -->\n" if one.again else ""
    text = "\n".join(one.output)
    return f"{one.cost}\n\n{run}```sh\n{one.command}\n```\n\n```text\n{text}\n```"


def cost_of(section: Section) -> str:
    """What a study's runs took, in words."""
    runs = [run for run in section.runs if run.ended]
    so_far = "" if section.state == COMPLETE else " so far"
    return f"{len(runs):,} runs, {minutes(runs):.1f} {minutes_word(runs)}{so_far}, starts not counted."


def replaced(text: str, part: str, name: str) -> str:
    """The document with this part between its markers; one without markers is refused."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{name} has no place for results: it needs one line {BEGIN} and, below it, one line {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{part}\n{END}{rest.split(END)[1]}"
