"""The generated part of docs/studies.md: `python -m tests.studies.page` writes it, a test compares it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from nugpt.spec.plan import Plan
from nugpt.spec.run import RunSpec, run_flops
from nugpt.spec.scales import SCALES
from nugpt.spec.study import Setting, Study
from nugpt.spec.study_rules import describe
from nugpt.studies import EVIDENCE, STUDIES, plan
from nugpt.sweep.cost import expected_seconds, refined, total_seconds

PAGE = Path(__file__).resolve().parents[2] / "docs" / "studies.md"
BEGIN = "<!-- from here on written by `python -m tests.studies.page` -->\n"
ORDER = ("tiny", "lab", "evidence", "paper")
CORES = 2


def setting(scale: str) -> Setting:
    return Setting(data="0" * 16, vocab_size=SCALES[scale].vocab_size)


def planned(study: Study, scale: str) -> Plan:
    return plan(study, scale, setting(scale))


def h200_seconds(spec: RunSpec) -> float:
    return expected_seconds(spec, "cuda")


@cache
def generated() -> str:
    claims = "\n".join(
        f"| `{study.id}` | {claim.text} | {describe(claim.rule)} |"
        for study in STUDIES.values()
        for claim in study.claims
    )
    sizes = "\n".join(_size_row(study, scale) for study in STUDIES.values() for scale in ORDER)
    union = "\n".join(_union_row(scale) for scale in ORDER)
    evidence = "\n".join(_evidence_rows())
    return f"""
## Claims and rules

| study | claim or question | rule |
|---|---|---|
{claims}

## Sizes

Runs and FLOPs are those of the grid as first planned. Time is an estimate from first measurements of a step: at `tiny`
on two CPU cores, at `lab` and `evidence` on one H200; compiling, validation and points added later come on top.

| study | scale | layers×heads | steps | tables | curves | seeds | runs | FLOPs | minutes |
|---|---|---|---|---|---|---|---|---|---|
{sizes}

## All studies together

Runs that studies share are run once.

| scale | runs | FLOPs | hours | hours with refinement |
|---|---|---|---|---|
{union}

## Evidence, in the order of its runs

Only runs that no row above has are counted. Refined: with the points that a plan adds around an optimum that lies at
the middle of its first grid. Where it lies elsewhere, points beyond the grid come on top.

| row | study | runs | refined | minutes | hours so far |
|---|---|---|---|---|---|
{evidence}
"""


def _size_row(study: Study, scale: str) -> str:
    made = planned(study, scale)
    specs = made.specs()
    shapes = dict.fromkeys(f"{c.spec.model.n_layers}×{c.spec.model.n_heads}" for c in made.curves)
    steps = sorted({c.spec.steps for c in made.curves})
    tables = dict.fromkeys(c.spec.table.name for c in made.curves)
    seeds = sorted({len(c.seeds) for c in made.curves}, reverse=True)
    cells = [
        f"`{study.id}`",
        scale,
        ", ".join(shapes),
        ", ".join(f"{n:,}" for n in steps),
        ", ".join(tables),
        str(len(made.curves)),
        " or ".join(str(n) for n in seeds),
        str(len(specs)),
        f"{sum(map(run_flops, specs)):.1e}",
        f"{seconds / 60:.1f}" if (seconds := _seconds(scale, specs)) is not None else "",
    ]
    return f"| {' | '.join(cells)} |"


def _union_row(scale: str) -> str:
    specs = {spec.hash: spec for study in STUDIES.values() for spec in planned(study, scale).specs()}
    grown = {spec.hash: spec for study in STUDIES.values() for spec in refined(planned(study, scale))}
    hours = ["" if (s := _seconds(scale, found.values())) is None else f"{s / 3600:.1f}" for found in (specs, grown)]
    return f"| {scale} | {len(specs)} | {sum(map(run_flops, specs.values())):.1e} | {' | '.join(hours)} |"


def _evidence_rows() -> Iterator[str]:
    seen: set[str] = set()
    total = 0.0
    for row, ids in EVIDENCE.items():
        for id in ids:
            made = planned(STUDIES[id], "evidence")
            first = {spec.hash: spec for spec in made.specs() if spec.hash not in seen}
            grown = {spec.hash: spec for spec in refined(made) if spec.hash not in seen}
            seconds = sum(map(h200_seconds, grown.values()))
            total += seconds
            seen |= set(grown)
            yield f"| {row} | `{id}` | {len(first)} | {len(grown)} | {seconds / 60:.1f} | {total / 3600:.1f} |"


def _seconds(scale: str, specs: Iterable[RunSpec]) -> float | None:
    if scale == "paper":
        return None  # a cluster's, and nobody has measured one
    return total_seconds(specs, "cpu") / CORES if scale == "tiny" else total_seconds(specs, "cuda")


if __name__ == "__main__":
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(written + BEGIN + generated(), encoding="utf-8")
