"""`nugpt status`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nugpt.cli.show import number, print_json, print_table


@dataclass(frozen=True)
class Status:
    """What a store holds: every plan curve by curve, and the runs that belong to none."""

    store: Path = Path("runs")
    """The store."""
    plan: str | None = None
    """One plan, with each of its runs."""
    stale_after: float = 300.0
    """Seconds without a sign of life after which a run counts as stale."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print it."""
        from nugpt.store import Store
        from nugpt.store.plans import plans
        from nugpt.sweep.state import plan_state

        if not self.store.is_dir():
            raise ValueError(f"store {self.store} does not exist")
        store = Store(self.store)
        found = [d for d in plans(store) if self.plan in (None, d.path.name)]
        if self.plan is not None and not found:
            raise ValueError(f"store {self.store} has no plan {self.plan!r}, it has {_names(store)}")
        states = {d.path.name: plan_state(d.plan(), d, self.stale_after) for d in found}
        alone = [] if self.plan else _unplanned(store, states, self.stale_after)
        if self.json:
            print_json(
                {"plans": {name: [_curve_json(c) for c in curves] for name, curves in states.items()}, "runs": alone}
            )
            return 0
        from nugpt.cli.launch import CURVE_COLUMNS, curve_row

        for name, curves in states.items():
            counts = Counter(place.state for curve in curves for place in curve.places)
            print(f"plan {name}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
            print_table(CURVE_COLUMNS, [curve_row(curve) for curve in curves])
            if self.plan:
                _print_runs(curves)
        if alone:
            print(f"{len(alone)} runs of no plan")
            rows = [
                [r["hash"], r["state"], r["table"], number(r["lr"]), str(r["seed"]), number(r["val_loss"])]
                for r in alone
            ]
            print_table(["run", "state", "table", "η", "seed", "validation loss"], rows)
        if not states and not alone:
            print(f"store {self.store} is empty")
        return 0


def _print_runs(curves: list[Any]) -> None:
    from nugpt.cli.launch import label_text

    rows = []
    for curve in curves:
        for p in curve.places:
            loss = p.record.val_loss if p.record else None
            added = f"added: {p.added}" if p.added else ""
            rows.append(
                [label_text(curve.curve), f"{p.log2_lr:g}", str(p.seed), p.state, number(loss), p.spec.hash, added]
            )
    print_table(["curve", "log2 η", "seed", "state", "validation loss", "run", ""], rows)


def _curve_json(curve: Any) -> dict[str, Any]:
    found = curve.optimum()
    return {
        "label": dict(curve.curve.label),
        "optimum": {
            "verdict": found.verdict,
            "side": found.side,
            "log2_lr": found.log2_lr,
            "interval": None if found.interval is None else list(found.interval),
        },
        "runs": [
            {
                "hash": p.spec.hash,
                "log2_lr": p.log2_lr,
                "seed": p.seed,
                "state": p.state,
                "val_loss": p.record.val_loss if p.record else None,
                "added": p.added,
            }
            for p in curve.places
        ],
    }


def _unplanned(store: Any, states: dict[str, Any], stale_after: float) -> list[dict[str, Any]]:
    from nugpt.store.claims import file_system_time
    from nugpt.sweep.state import run_state

    planned = {place.spec.hash for curves in states.values() for curve in curves for place in curve.places}
    now = file_system_time(store.root)
    rows = []
    for run in store.runs():
        if run.path.name in planned:
            continue
        spec, record = run.spec(), run.record()
        rows.append(
            {
                "hash": run.path.name,
                "state": run_state(run, record, stale_after, now),
                "table": spec.table.name,
                "lr": spec.lr,
                "seed": spec.seed,
                "val_loss": record.val_loss if record else None,
            }
        )
    return rows


def _names(store: Any) -> str:
    from nugpt.store.plans import plans

    return ", ".join(d.path.name for d in plans(store)) or "none"
