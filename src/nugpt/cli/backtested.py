"""What `nugpt recommend --backtest` prints: each swept size as smaller ones say it, beside what was found there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nugpt.cli.answers import ends, finite, nats, span
from nugpt.cli.show import print_table

if TYPE_CHECKING:
    from nugpt.fit.backtest import Backtest
    from nugpt.fit.curves import CurveAnswer

AXES = {"width": "width (d_model)", "layers": "depth (layers)", "steps": "horizon (steps)", "batch": "batch (tokens)"}


def backtest_facts(tested: Sequence[Backtest], others: Sequence[CurveAnswer]) -> dict[str, Any]:
    """Every size and the sums as plain values; an end without a bound is null."""
    from nugpt.fit.backtest import tally

    rows = []
    for one in tested:
        best, said = one.found.optimum, one.said
        assert said.interval is not None
        rows.append(
            {
                "size": dict(one.found.curve.sizes),
                "from": said.nearest,
                "said": {"log2_lr": said.plain, "interval": ends(said.interval)},
                "found": {"log2_lr": best.log2_lr, "interval": ends(best.interval), "seeds": best.seeds},
                "off": one.off,
                "agrees": one.agrees,
                "recommended_log2_lr": said.log2_lr,
                "paid": {"nats": finite(one.paid.nats), "interval": ends(one.paid.interval)},
                "kept": {
                    "log2_lr": said.nearest_log2_lr,
                    "nats": finite(one.kept.nats),
                    "interval": ends(one.kept.interval),
                },
                "expected": said.expected,
                "loss": _loss_tested(one),
            }
        )
    left_out = [{"size": dict(one.curve.sizes), "verdict": one.optimum.verdict} for one in others]
    sums = {name: finite(value) for name, value in asdict(tally(tested)).items()} if tested else None
    return {"sizes": rows, "not_tested": left_out, "tally": sums}


def _loss_tested(one: Backtest) -> dict[str, Any] | None:
    """The loss that was said and the one that was found; none where nothing was said."""
    said, best = one.said.loss, one.found.optimum
    if said is None or said.loss is None or said.interval is None:
        return None
    assert best.loss_interval is not None
    return {
        "said": {"nats": said.loss, "interval": ends(said.interval), "sizes": said.sizes},
        "found": {"nats": best.loss, "interval": ends(best.loss_interval)},
        "inside": one.loss_inside,
    }


def print_backtest(name: str, tested: Sequence[Backtest], others: Sequence[CurveAnswer]) -> None:
    if tested:
        _print_tested(name, tested)
    for other in others:
        at = ", ".join(f"{AXES[axis]} {size:g}" for axis, size in other.curve.sizes.items())
        why = other.optimum.verdict if other.optimum.log2_lr is None else "none below it has an enclosed optimum"
        print(f"not tested, {name}: {at}: {why}")


def _print_tested(name: str, tested: Sequence[Backtest]) -> None:
    from nugpt.fit.backtest import tally

    rows = []
    for one in tested:
        best, said = one.found.optimum, one.said
        assert said.interval is not None
        rows.append(
            [
                *(f"{size:g}" for size in one.found.curve.sizes.values()),
                *(f"{said.plain:.2f}", span(said.interval)),
                *(f"{best.log2_lr:.2f}", span(best.interval)),
                f"{one.off:+.2f}",
                "yes" if one.agrees else "no",
                f"{said.log2_lr:.2f}",
                nats(one.paid.nats),
                nats(one.kept.nats),
            ]
        )
    columns = ["d_model", "layers", "steps", "batch", "said", "interval", "found", "interval"]
    columns += ["octaves off", "agree", "log2 η", "nats paid", "η kept"]
    title = f"{name}: the best log2 η as smaller sizes say it and as it was found; what their recommendation costs"
    print_table(columns, rows, title=title, right=(0, 1, 2, 3, 4, 6, 8, 10, 11, 12))
    sums = tally(tested)
    most = f"{sums.failed} would have failed" if sums.failed else f"{sums.most:.4f} at most"
    print(
        f"{sums.agree} of {sums.sizes} agree within their {tested[0].said.level:.0%} intervals taken together; paid "
        f"{sums.paid:.4f} nats on average and {most}, where {sums.expected:.4f} were expected; "
        f"keeping the best η of the nearest smaller size would have cost {sums.kept:.4f} on average"
    )
    if sums.loss_off is not None:
        print(
            f"loss at the best η: said of {sums.losses}, {sums.losses_inside} of them found within the interval, "
            f"{sums.loss_off:.3f} nats off on average"
        )
