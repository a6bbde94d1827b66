"""Results as a page of plain Markdown: every study with its verdicts, what they rest on, and what they cost.

Every number is taken from the records; what a person writes about them stands in notes without numbers.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from nugpt.fit.alignment import claim_estimates
from nugpt.fit.drift import FAILS, HOLDS, UNDECIDED
from nugpt.report.answers import Judged, PlanAnswer, has_grid
from nugpt.report.backtests import EACH, SUMMED, TOLD, Group, left_out, size_rows, summary_rows
from nugpt.report.estimates import estimate, estimates
from nugpt.report.laws import TOLD as LAW
from nugpt.report.laws import law_table
from nugpt.report.layout import label_text, varying
from nugpt.report.measured import alignment_groups
from nugpt.report.sections import OPEN
from nugpt.report.source import CurveRuns, Run
from nugpt.report.words import NONE, between, counted, number, printed
from nugpt.spec.study import Setting, Study
from nugpt.spec.study_rules import SYMBOLS, describe

NOT_RUN, NOT_COMPLETE, COMPLETE = "not run yet", "not complete", "complete"
USUAL = "evidence"  # the scale that a section is of where it says none
FOLD = 12  # rows of a table from which on it is folded away
COUNTED = "a claim that several studies make, perhaps of shared runs, is counted in each"
DATA = "In the commands below, DATA is the directory that `nugpt data prepare` wrote."
COMPARISONS = (
    "Each interval is a 90 % interval on its own, not corrected for the number of claims. A claim of several parts "
    "holds if all of their intervals lie within its bounds, and does not hold if one of them lies outside."
)


@dataclass(frozen=True)
class Section:
    """One study and its plan, as far as there is one."""

    study: Study
    scale: str
    found: PlanAnswer | None  # none: no run of it is there
    left: int  # runs that its grid, as it is now, still wants
    grows: bool  # or its curves call for more points
    command: str  # that does it again; none for a plan that no study makes
    unmeasured: int = 0  # runs that are done, but without what the study measures
    figures: tuple[tuple[str, str], ...] = ()  # path from the page, and what it shows
    linked: tuple[tuple[str, str], ...] = ()  # those of its runs that it is not about
    reopened: int = 0  # points that its curves call for as they are read now, and had not when its runs ended
    note: str = ""  # what a person has to say about it

    @property
    def state(self) -> str:
        """One of three words."""
        if self.found is None or not any(run.ended for run in self.runs):
            return NOT_RUN
        return NOT_COMPLETE if self.left or self.grows or self.unmeasured else COMPLETE

    @property
    def name(self) -> str:
        """The study's id, and which plan it is where that is another than the one of `evidence`."""
        id = self.study.id
        if self.found is None or self.found.plan.study is None:
            return id
        plan = self.found.plan.name
        if (self.scale, plan) == (USUAL, f"{id}-{USUAL}"):
            return id
        at = f" at {self.scale}" if self.scale else ""
        return f"{id}{at}" + ("" if plan == f"{id}-{self.scale}" else f", plan {plan}")

    @property
    def runs(self) -> list[Run]:
        """Each once."""
        curves = self.found.plan.curves if self.found is not None else ()
        return list({run.id: run for curve in curves for run in curve.runs}.values())


def check_note(path: Path, text: str, known: Iterable[str]) -> str:
    """A note, if it has no number of its own: numbers are the records' to say. Names of studies may have some."""
    for line, words in enumerate(text.splitlines(), 1):
        bare = words
        for id in sorted(known, key=len, reverse=True):
            bare = bare.replace(f"`{id}`", "")
        if found := re.search(r"\S*\d\S*", bare):
            raise ValueError(
                f"{path.as_posix()}:{line}: {found[0]!r} has a digit, but a note's numbers cannot be checked against "
                f"the records: leave it to the page, or write it as a word"
            )
    return text.strip()


def page(
    sections: Sequence[Section],
    data: Sequence[Mapping[str, Any]],
    rebuild: str,
    rules: str = "`nugpt study list`",
    problems: Sequence[str] = (),
    note: str = "",
    groups: Sequence[Group] = (),
) -> str:
    """The whole page; `rebuild` is the command that writes it, `rules` where a reader finds what was asked."""
    parts = [
        _head(sections, data, rebuild, rules),
        *([note] if note else []),
        *(f"**Could not be read:** {one}" for one in problems),
    ]
    tokens = {one["content_hash"]: facts["tokens"] for one in data if (facts := one.get("facts"))}
    parts += [_glance(sections), *_backtests(groups), *(_section(section, tokens) for section in sections)]
    return "\n\n".join(parts) + "\n"


# ── the head ──


def _head(sections: Sequence[Section], data: Sequence[Mapping[str, Any]], rebuild: str, rules: str) -> str:
    runs = {run.id: run for section in sections for run in section.runs if run.ended}
    states = Counter(section.state for section in sections)
    intro = (
        "# Results\n\n"
        "What this repository has measured so far, study by study. The page is generated from the stored records "
        "alone; no GPU is needed, and the result is the same to the byte:\n\n"
        f"```sh\n{rebuild}\n```\n\n"
        "Each study's question, and the rule that decides each claim, were fixed before its runs: "
        f"{rules}. Where something was settled later, this page says so where it matters."
    )
    if not runs:
        return f"{intro}\n\nNo run is in the archive yet: every study below is **{NOT_RUN}**."
    ended = Counter(run.state for run in runs.values())
    reopened = sum(section.state == COMPLETE and section.reopened > 0 for section in sections)
    since = f"; {reopened} of the complete would call for more points as curves are read now" if reopened else ""
    rows = [
        ["runs", f"{len(runs):,}: " + ", ".join(f"{n:,} {state}" for state, n in sorted(ended.items()))],
        [
            minutes_word(runs.values()),
            f"{minutes(runs.values()):.1f}, not counting start-up; runs that studies share are counted once",
        ],
        ["studies", ", ".join(f"{states[s]} {s}" for s in (COMPLETE, NOT_COMPLETE, NOT_RUN) if states[s]) + since],
        ["claims of complete studies", f"{counts(sections)}; {COUNTED}"],
        ["ran on", "; ".join(_carriers(runs.values()))],
    ]
    return "\n\n".join(
        (intro, table(["", ""], rows), COMPARISONS, scale_words(sections, data), *map(_data, data), DATA)
    )


def counts(sections: Sequence[Section]) -> str:
    """How many claims of complete studies have which verdict."""
    judged = [one for s in sections if s.state == COMPLETE and s.found for one in s.found.judged]
    count = Counter(one.verdict.answer or OPEN for one in judged)
    words = {HOLDS: "hold", FAILS: "do not hold", UNDECIDED: "not decided here", OPEN: "open questions"}
    return ", ".join(f"{count.get(key, 0)} {word}" for key, word in words.items())


def _data(one: Mapping[str, Any]) -> str:
    """Of one data set: what is in it, and how to prepare it or its like."""
    facts, hash = one.get("facts"), f"content hash `{one['content_hash'][:16]}`"
    if not isinstance(facts, Mapping):
        return f"**The data.** The records give only its {hash}."
    whole = sum(facts["sources"].values()) or 1
    sources = ", ".join(f"{name} {100 * tokens / whole:.0f} %" for name, tokens in facts["sources"].items())
    given = list(dict.fromkeys("FILES" if one.endswith("(file)") else one.split(" (")[0] for one in facts["inputs"]))
    command = shlex.join(["nugpt", "data", "prepare", *given, "--tokenizer", facts["tokenizer"], "--out", "DATA"])
    missing = "The files are not published with the records. With other" if "FILES" in given else "With other"
    return (
        f"**The data.** {facts['tokens']:,} tokens for training ({sources}) and {facts['validation_tokens']:,} held "
        f"back for validation, with a vocabulary of {facts['vocab_size']:,}; {hash}. As far as the records say, it was "
        f"prepared with\n\n```sh\n{command}\n```\n\n{missing} text of the same kind the numbers will differ, but each "
        "study below runs on it with its one command."
    )


def _carriers(runs: Iterable[Run]) -> list[str]:
    ways = Counter(
        ", ".join(
            f"{key} {run.carried_by[key]}"
            for key in ("device", "engine", "nugpt", "torch", "python")
            if key in run.carried_by
        )
        for run in runs
        if run.carried_by
    )
    return [f"{way} ({counted(n, 'run')})" for way, n in sorted(ways.items())]


def scale_words(sections: Sequence[Section], data: Sequence[Mapping[str, Any]]) -> str:
    """How small the runs are that the page speaks of, and what they were trained on."""
    specs = [
        c.spec for s in sections if s.found for c in s.found.plan.curves if c.spec and any(r.ended for r in c.runs)
    ]
    if not specs:
        return ""
    widths = [spec["model"]["n_heads"] * spec["model"]["head_dim"] for spec in specs]
    layers, steps = [spec["model"]["n_layers"] for spec in specs], [spec["steps"] for spec in specs]
    tokens = [spec["batch"] * spec["model"]["seq_len"] for spec in specs]
    papers = [c.spec for s in sections for c in s.study.curves("paper", Setting("any", 1))]
    theirs = f"up to d_model {max(p.model.d_model for p in papers):,} and {max(p.steps for p in papers):,} steps"
    named = " ".join(str((one.get("facts") or {}).get("inputs", "")) for one in data).lower()
    other = "" if "fineweb" in named else " The paper trains on FineWeb-Edu; these runs do not."
    return (
        f"**Scale.** Models of {_span(layers)} layers and d_model {_span(widths)}, trained for {_span(steps)} steps of "
        f"{_span(tokens)} tokens; at the scale `paper` the same studies go {theirs}.{other} "
        "Verdicts are about runs like these."
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _glance(sections: Sequence[Section]) -> str:
    """Every claim of what is complete. What verdicts would be so far stands in the sections: they change."""
    rows = []
    for section in sections:
        at = f"#{anchor(section)}"
        name, noted = f"[`{section.name}`]({at})", f", [with a note]({at})" if section.note else ""
        judged = section.found.judged if section.found is not None and section.state == COMPLETE else ()
        rows += [[name, f"{verdict_words(section, one)}{noted}", one.claim.text, estimate(one)] for one in judged]
        if not judged:
            rows.append([name, section.state, what_is_left(section) if section.state == NOT_COMPLETE else "", ""])
    return "## At a glance\n\n" + table(["study", "verdict", "claim or question", "estimate (90 % interval)"], rows)


def anchor(section: Section) -> str:
    """As a heading becomes one: without punctuation, and with hyphens for spaces."""
    return re.sub(r"[^\w -]", "", section.name.lower()).replace(" ", "-")


def verdict_words(section: Section, one: Judged) -> str:
    """The verdict; of a study that is not complete, what it would be so far."""
    answer = one.verdict.answer or OPEN
    return answer if section.state == COMPLETE else f"{NOT_COMPLETE} (so far: {answer})"


def _backtests(groups: Sequence[Group]) -> list[str]:
    if not any(group.sizes for group in groups):
        return []
    each = _folded("Size by size (`log₂ η` is the recommended one):", EACH, size_rows(groups))
    parts = ["## Recommendations, tested", TOLD, table(SUMMED, summary_rows(groups)), left_out(groups), each]
    columns, rows = law_table(groups)
    law = [f"## One law of all runs\n\n{LAW}\n\n{table(columns, rows)}"] if rows else []
    return ["\n\n".join(part for part in parts if part), *law]


# ── a study ──


def _section(section: Section, tokens: Mapping[str, int]) -> str:
    study = section.study
    of = f", the paper's `{study.figure}`" if study.figure else ""
    title = study.title if study.title.endswith(("?", "!", ".")) else f"{study.title}."
    parts = [f"## {section.name}", f"{title} Varies: {study.varies}{of}."]
    if section.found is None or section.state == NOT_RUN:
        how = f" To run it:\n\n```sh\n{section.command}\n```" if section.command else ""
        parts.append(f"**{NOT_RUN.capitalize()}.**{how}")
        parts.append("\n".join(f"- {claim.text} Rule: {describe(claim.rule)}." for claim in study.claims))
        return "\n\n".join(part for part in parts if part)
    parts.append(_state(section))
    parts += [f"![{shows}]({path})" for path, shows in section.figures]
    if section.linked:
        parts.append("Of the same runs: " + ", ".join(f"[{shows}]({path})" for path, shows in section.linked) + ".")
    parts.append("\n".join(_claim(section, one) for one in section.found.judged))
    parts.append(_at_widths(section.found))
    parts.append(table(["", ""], _facts(section, tokens)))
    if section.command:
        parts.append(f"To run it again:\n\n```sh\n{section.command}\n```")
    else:
        parts.append(
            "This plan belongs to no study: its curves, policy and seeds are stored with the plans, beside the records."
        )
    parts.append(_losses(section.found))
    if study.limits and section.scale != "paper":
        parts.append(f"**What this scale cannot say.** {study.limits}")
    if section.note:
        parts.append(f"**Notes.** {section.note}")
    return "\n\n".join(part for part in parts if part)


def _state(section: Section) -> str:
    if section.state == COMPLETE:
        n = len(section.runs)
        whole = "the one run of its grid has" if n == 1 else f"all {n:,} runs of its grid have"
        since = (
            f" Its curves called for no more points then; as they are read now, they would call for {section.reopened}."
            if section.reopened
            else ""
        )
        return f"**Complete**: {whole} ended.{since}"
    return f"**Not complete**: {what_is_left(section)}. What follows is the state so far."


def what_is_left(section: Section) -> str:
    """Why a section is not complete."""
    ended = sum(run.ended for run in section.runs)
    reasons = [f"{ended:,} of {len(section.runs):,} runs have ended"] if section.left else []
    reasons += ["its curves call for more points"] if section.grows else []
    if section.unmeasured:
        kinds = " and ".join(section.study.measures)
        again = "`nugpt measure` with `--again` trains them again and measures"
        reasons.append(f"{counted(section.unmeasured, 'run')} ended without measuring {kinds} ({again})")
    return "; ".join(reasons)


def _claim(section: Section, one: Judged) -> str:
    return (
        f"- **{verdict_words(section, one)}** — {one.claim.text} Estimate: {estimates(one)}. "
        f"Rule: {describe(one.claim.rule)}."
    )


def _at_widths(found: PlanAnswer) -> str:
    """Alignment exponents at each width by itself, beside the slopes over width that claims are judged by."""
    rules = [one.claim.rule for one in found.judged if one.claim.rule.kind == "alignment"]
    groups = {name: runs for name, runs in alignment_groups(found.plan).items() if len({r.width for r in runs}) > 1}
    widths = sorted({run.width for runs in groups.values() for run in runs})
    rows: dict[tuple[str, str, str], dict[int, str]] = {}
    for (name, runs), rule, width in product(groups.items(), rules, widths):
        alike, by = [run for run in runs if run.width == width], rule.by if rule.by == "layer" else None
        for one in claim_estimates(alike, str(rule.of), rule.at, by, rule.level):
            what = SYMBOLS.get(str(rule.of), str(rule.of)) + (f", {rule.at}" if rule.at else "")
            of = ", ".join(word for word in one.where.split(", ") if not word.startswith("width "))
            rows.setdefault((name, what, of), {})[width] = number(one.value, 3)
    if not rows:
        return ""
    told = "The exponents at each single width, as in the paper's figures. They contain the constant factor that"
    shown = [[*key[len(groups) == 1 :], *(at.get(width, NONE) for width in widths)] for key, at in rows.items()]
    columns = [*(["runs"] if len(groups) > 1 else []), "exponent", "of", *(f"d_model {width}" for width in widths)]
    return _folded(f"{told} a slope over width does not.", columns, shown)


def _facts(section: Section, tokens: Mapping[str, int]) -> list[list[str]]:
    found = section.found
    assert found is not None
    curves = [curve for curve in found.plan.curves if any(run.ended for run in curve.runs)]
    runs = [run for run in section.runs if run.ended]
    states = Counter(run.state for run in runs)
    sizes = dict.fromkeys(
        f"{c.label['layers']}×{c.label['heads']}" for c in curves if {"layers", "heads"} <= set(c.label)
    )
    lengths = sorted({spec["steps"] for curve in curves if (spec := curve.spec)})
    seeds = Counter(map(_seeds, curves))
    return [
        ["runs", ", ".join(f"{n:,} {state}" for state, n in sorted(states.items()))],
        ["seeds", ", ".join(f"{n} on {counted(k, 'curve')}" for n, k in sorted(seeds.items(), reverse=True))],
        ["layers × heads", ", ".join(sizes) or NONE],
        ["steps", ", ".join(f"{n:,}" for n in lengths) or NONE],
        ["tokens per run", _tokens(curves, tokens)],
        [minutes_word(runs), f"{minutes(runs):.1f}; some runs may be shared with other studies"],
        ["ran on", "; ".join(_carriers(runs))],
    ]


def _tokens(curves: Sequence[CurveRuns], tokens: Mapping[str, int]) -> str:
    """Of the shortest and the longest run, and how much of the data that is, where it is known."""
    specs = [spec for curve in curves if (spec := curve.spec)]
    seen = sorted({(spec["steps"] * spec["batch"] * spec["model"]["seq_len"], spec["data"]) for spec in specs})
    told = [f"{n / 1e6:.1f} M" + (f" ({n / tokens[data]:.2f} epochs)" if data in tokens else "") for n, data in seen]
    return " to ".join(dict.fromkeys((told[0], told[-1]))) if told else NONE


def _seeds(curve: CurveRuns) -> int:
    """How many seeds have ended at every learning rate at which any has: one more at one of them is not a third."""
    at: dict[float, set[int]] = {}
    for run in curve.runs:
        if run.ended:
            at.setdefault(run.log2_lr, set()).add(run.seed)
    return min(map(len, at.values()), default=0)


def minutes(runs: Iterable[Run]) -> float:
    """Of devices: a run counts for its share of its ensemble's time."""
    return sum(float(run.facts.get("device_s") or 0.0) for run in runs) / 60


def minutes_word(runs: Iterable[Run]) -> str:
    """GPU-minutes, where all of them are."""
    return "GPU-minutes" if all(run.carried_by.get("device_type") == "cuda" for run in runs) else "device-minutes"


def _losses(found: PlanAnswer) -> str:
    """Each curve's optimum, and the loss on each source at the learning rate of the grid next to it."""
    keys = varying(found.plan.curves)
    rows, sources = [], _sources(found)
    if not any(map(has_grid, found.plan.curves)):
        return _losses_alone(found, keys, sources)
    for one in found.fitted.curves:
        curve = found.runs_of(one)
        best = one.optimum
        at, by_source = _by_source(curve, best.log2_lr)
        optimum = f"{number(best.log2_lr)} ({between(best.interval)})" if best.log2_lr is not None else best.verdict
        reached = f"{number(best.loss, 3)} ({between(best.loss_interval, 3)})" if best.loss is not None else NONE
        shown = [number(by_source.get(source), 3) for source in sources]
        rows.append([_curve(curve, keys), str(_seeds(curve)), optimum, reached, number(at), *shown])
    columns = ["curve", "seeds", "best log₂ η (90 % interval)", "loss there", "nearest log₂ η run", *sources]
    told = "Optima, and the validation loss by source at the nearest learning rate that was run, averaged over seeds:"
    return _folded(told, columns, rows)


def _curve(curve: CurveRuns, keys: Sequence[str]) -> str:
    label = label_text(curve, keys)
    return printed(label) or label or "all"


def _losses_alone(found: PlanAnswer, keys: Sequence[str], sources: Sequence[str]) -> str:
    """Each curve's loss, in all and on each source, where one learning rate was run: there is no optimum to find."""
    rows = []
    for curve in found.plan.curves:
        at, by_source = _by_source(curve, None)
        # The final loss, as those on the sources are: a plan of one seed is read from another, which lags behind.
        losses = [loss for run in curve.runs if run.trained and (loss := run.facts.get("val_loss")) is not None]
        mean = sum(losses) / len(losses) if losses else None
        shown = [number(by_source.get(source), 3) for source in sources]
        rows.append([_curve(curve, keys), str(_seeds(curve)), number(at), number(mean, 3), *shown])
    columns = ["curve", "seeds", "log₂ η", "loss", *sources]
    return _folded("The validation loss in all and by source, averaged over seeds:", columns, rows)


def _folded(told: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under what is told of it, folded away where it is long."""
    made = table(columns, rows)
    if len(rows) > FOLD:
        return f"<details><summary>{told}</summary>\n\n{made}\n\n</details>"
    return f"{told}\n\n{made}"


def _sources(found: PlanAnswer) -> list[str]:
    runs = (run for curve in found.plan.curves for run in curve.runs)
    return list(dict.fromkeys(source for run in runs for source in run.facts.get("by_source") or ()))


def _by_source(curve: CurveRuns, best: float | None) -> tuple[float | None, dict[str, float]]:
    """The learning rate next to the optimum (or the best that was run) at which runs trained, and their mean losses."""
    trained = [run for run in curve.runs if run.trained]
    if not trained:
        return None, {}
    at = min(trained, key=lambda run: abs(run.log2_lr - best) if best is not None else float(run.loss or 0.0)).log2_lr
    runs = [run.facts.get("by_source") or {} for run in trained if run.log2_lr == at]
    sources = dict.fromkeys(source for one in runs for source in one)
    return at, {s: sum(one[s] for one in runs) / len(runs) for s in sources if all(s in one for one in runs)}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """Of a table: a label of one's own is no markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
