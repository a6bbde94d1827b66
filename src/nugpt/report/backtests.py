"""On the results page: what `nugpt recommend` says of each swept size from smaller ones, beside what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nugpt.fit.backtest import Backtest, backtest, tally, untested
from nugpt.fit.curves import CurveAnswer, answer
from nugpt.fit.measured import Measured, pooled
from nugpt.fit.power_law import PowerLaw
from nugpt.fit.recommend import groups_of
from nugpt.report.words import between, counted, number, paid, printed
from nugpt.spec.parametrization import Parametrization

TOLD = """\
How good are the recommendations? Each swept size that has smaller ones (smaller along at least one axis, larger along
none) is predicted from those alone, and the recommended learning rate is priced on the loss curve that was measured at
that size. `nugpt recommend --backtest` prints the same. How to read it:

- **Agree**: the recommended and the found optimum are no farther apart than their 90 % intervals allow, added as
  independent errors. A recommender with correct intervals would agree at least nine times in ten, since part of the
  error is common to all sizes. A wide interval agrees with much.
- **Nats paid** is a median over the curves that are compatible with the size's runs; **nats expected** is a mean, which
  lies higher where nothing else differs. A few thousandths of a nat are less than repeated runs differ by.
- **Keeping η** means using the best learning rate of the nearest smaller size as it is.
- The runs of all studies are taken together, unfinished studies included; a table counts only as it is defined,
  without changed multipliers or exponents. Sizes share runs and seeds, so they are not independent trials.
- Only how much runs scatter is estimated from all sizes, the tested one included.
- Settled after these runs were seen, so no blind test: for tables other than νGPT, the learning rate is expected to
  make up for where their exponents differ from νGPT's ([how](recommend.md#a-target)). Until then their η was kept
  where no slope was seen, about as in the last column. Which of several equally near sizes is used, and which errors
  count as independent, was settled afterwards too and moves νGPT's rows a little. That the slope over length is less
  sure than the others ([choices](choices.md#expected-slope)) was settled later; it widens intervals. How much each
  curve's own scatter counts ([how](fit.md#optimum)) was settled last; it shortens most of them.
- The study `held-out` predicts by the mean of all smaller sizes, where the nearest one decides here; the two may give
  different answers for one size."""
SUMMED = (
    "table",
    "sizes",
    "agree",
    "octaves off, mean",
    "nats paid, mean",
    "nats paid, most",
    "nats expected, mean",
    "nats paid by keeping η, mean",
)
EACH = (
    "table",
    "size",
    "best log₂ η said (90 % interval)",
    "found (90 % interval)",
    "seeds",
    "agree",
    "log₂ η",
    "nats paid",
    "by keeping η",
)


@dataclass(frozen=True)
class Group:
    """Curves that differ in size alone, each held against those below it."""

    name: str
    parametrization: Parametrization
    law: PowerLaw | None  # of all its optima, where they determine one
    sizes: tuple[Backtest, ...]
    others: tuple[CurveAnswer, ...]  # that have smaller ones, but could not be tested


def tested(curves: Iterable[Measured]) -> list[Group]:
    """Each group of curves, as the command takes them by table."""
    by_table: dict[str, list[Measured]] = {}
    for curve in pooled(curves):
        if curve.spec is not None and curve.points:
            by_table.setdefault(curve.spec.table.name, []).append(curve)
    made = []
    for table, members in by_table.items():
        found = answer(members)
        for group in groups_of(found, table):
            spec = next(curve.spec for curve in members if curve.group == group)
            assert spec is not None
            law = next((law for of, law in found.laws if of == group and law.line is not None), None)
            sizes = backtest(found, group)
            made.append(Group(found.names[group], spec.table, law, sizes, untested(found, group, sizes)))
    return made


def line(groups: Sequence[Group], page: str) -> str | None:
    """For the README: what keeping the learning rate would have cost at sizes at which both tables could be tested."""
    largest_last = sorted(groups, key=lambda group: len(group.sizes))  # which speaks where two have the same size
    rows = [
        {_place(one.found): one for group in largest_last if group.parametrization.name == table for one in group.sizes}
        for table in ("nugpt", "ngpt")
    ]
    both = [place for place in rows[0] if place in rows[1]]
    if not both:
        return None
    ours, theirs = (tally([row[place] for place in both]) for row in rows)
    alone = [one for place, one in rows[0].items() if place not in both]
    rest = f"; at the {len(alone)} where only νGPT could be, it costs {number(tally(alone).kept, 3)}" if alone else ""
    return (
        f"Keeping the best learning rate of the nearest smaller size costs νGPT {number(ours.kept, 3)} nats on average "
        f"and nGPT {number(theirs.kept, 3)}, over the {counted(len(both), 'size')} at which both could be tested{rest}"
        f". What `nugpt recommend` says from smaller sizes alone costs νGPT {number(ours.paid, 3)} "
        f"and nGPT {number(theirs.paid, 3)} at the same {len(both)}. For nGPT it assumes νGPT's exponents, a rule that "
        f"was settled after these runs were seen. [More on this]({page}#recommendations-tested)."
    )


def _place(one: CurveAnswer) -> tuple[float, ...]:
    return tuple(one.curve.sizes.values())


def summary_rows(groups: Sequence[Group]) -> list[list[str]]:
    """A row for each group."""
    rows = []
    for group in groups:
        if not group.sizes:
            continue
        sums = tally(group.sizes)
        nats = [number(sums.paid, 3), paid(sums.most), number(sums.expected, 3), number(sums.kept, 3)]
        rows.append([printed(group.name), str(sums.sizes), str(sums.agree), number(sums.off), *nats])
    return rows


def size_rows(groups: Sequence[Group]) -> list[list[str]]:
    """A row for each size."""
    batches = {one.found.curve.sizes["batch"] for group in groups for one in group.sizes}
    rows = []
    for group in groups:
        for one in group.sizes:
            said, best = one.said, one.found.optimum
            assert said.interval is not None
            rows.append(
                [
                    printed(group.name),
                    _size(one.found.curve.sizes, len(batches) > 1),
                    f"{number(said.plain)} ({between(said.interval)})",
                    f"{number(best.log2_lr)} ({between(best.interval)})",
                    str(best.seeds),
                    "yes" if one.agrees else "no",
                    number(said.log2_lr),
                    paid(one.paid.nats),
                    paid(one.kept.nats),
                ]
            )
    return rows


def left_out(groups: Sequence[Group]) -> str:
    """The sizes that could not be tested: an optimum that left its grid may be a transfer that failed."""
    told = [
        f"{printed(group.name)} at {_size(one.curve.sizes, False)} ({_why(one)})"
        for group in groups
        for one in group.others
    ]
    return (
        f"Not tested, for lack of an enclosed optimum there or at any smaller size: {'; '.join(told)}." if told else ""
    )


def _why(one: CurveAnswer) -> str:
    return one.optimum.verdict if one.optimum.log2_lr is None else "none below it has one"


def _size(at: Mapping[str, float], batch: bool) -> str:
    tokens = f", {at['batch']:,.0f} tokens a step" if batch else ""
    return f"d_model {at['width']:g}, {at['layers']:g} layers, {at['steps']:,.0f} steps{tokens}"
