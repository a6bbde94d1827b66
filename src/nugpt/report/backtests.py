"""On the results page: what `nugpt recommend` says of each swept size from smaller ones, beside what was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nugpt.fit.backtest import Backtest, backtest, tally
from nugpt.fit.curves import answer
from nugpt.fit.measured import Measured, one_each
from nugpt.fit.recommend import groups_of
from nugpt.report.words import between, counted, number, printed

TOLD = (
    "For every swept size that has smaller ones (no axis larger, one smaller): what `nugpt recommend` says from those "
    "alone (`--backtest` prints it), and what its learning rate costs by the curve of the size itself. The two optima "
    "agree where they are no farther apart than their 90 % intervals, added as independent errors; of a recommender "
    "whose intervals are right nine in ten would. Sizes share runs and seeds, so that they are no independent trials. "
    "Curves of all studies together; of a table, those without changes to it. Beside it: what it would have cost to "
    "keep the best learning rate of the nearest smaller size. That the learning rate of another table than νGPT is "
    "expected to make up for where its exponents differ from νGPT's ([how](recommend.md#a-target)) was settled after "
    "these runs were seen: of the others this table is no test that was set before. What is said of νGPT is not "
    "touched by it."
)
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
    "agree",
    "log₂ η",
    "nats paid",
    "by keeping η",
)


Tested = Sequence[tuple[str, tuple[Backtest, ...]]]  # groups of curves by name


def tested(curves: Iterable[Measured]) -> Tested:
    """Each group of curves by its name, with the sizes that others lie below, as the command takes them by table."""
    by_table: dict[str, list[Measured]] = {}
    for curve in one_each(curves):
        if curve.spec is not None and curve.points:
            by_table.setdefault(curve.spec.table.name, []).append(curve)
    made = []
    for table, members in by_table.items():
        found = answer(members)
        made += [(found.names[group], backtest(found, group)) for group in groups_of(found, table)]
    return [(name, sizes) for name, sizes in made if sizes]


def line(groups: Tested, page: str) -> str | None:
    """For the README: what keeping the learning rate would have cost, by table, and what the recommendations would."""
    sums = []
    for table in ("nugpt", "ngpt"):
        specs = ((one, one.found.curve.spec) for _, sizes in groups for one in sizes)
        mine = [one for one, spec in specs if spec is not None and spec.table.name == table]
        if not mine:
            return None
        sums.append(tally(mine))
    ours, theirs = sums
    return (
        f"Keeping the best learning rate of the nearest smaller size costs νGPT {number(ours.kept, 3)} nats on average "
        f"over {counted(ours.sizes, 'size')} that were swept, nGPT {number(theirs.kept, 3)} over "
        f"{counted(theirs.sizes, 'size')}. What `nugpt recommend` says of them from the smaller ones alone costs "
        f"{number(ours.paid, 3)} and {number(theirs.paid, 3)}: "
        f"[recommendations, tested]({page}#recommendations-tested)."
    )


def summary_rows(groups: Tested) -> list[list[str]]:
    """A row for each group."""
    rows = []
    for name, sizes in groups:
        sums = tally(sizes)
        nats = [number(value, 3) for value in (sums.paid, sums.most, sums.expected, sums.kept)]
        rows.append([printed(name), str(sums.sizes), str(sums.agree), number(sums.off), *nats])
    return rows


def size_rows(groups: Tested) -> list[list[str]]:
    """A row for each size."""
    rows = []
    for name, sizes in groups:
        for one in sizes:
            at, said, best = one.found.curve.sizes, one.said, one.found.optimum
            assert said.interval is not None
            rows.append(
                [
                    printed(name),
                    f"d_model {at['width']:g}, {at['layers']:g} layers, {at['steps']:,.0f} steps",
                    f"{number(said.plain)} ({between(said.interval)})",
                    f"{number(best.log2_lr)} ({between(best.interval)})",
                    "yes" if one.agrees else "no",
                    number(said.log2_lr),
                    number(one.paid.nats, 3),
                    number(one.kept.nats, 3),
                ]
            )
    return rows
