"""`nugpt status`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.cli.show import counted, flat, number, print_json, print_table

if TYPE_CHECKING:
    from nugpt.fit.noise import NoiseModel
    from nugpt.store import RunDirectory, Store
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.state import CurveState

SIZES = ("layers", "heads", "steps")  # of runs of no plan: shown where they differ


@dataclass(frozen=True)
class Status:
    """What a store holds: every plan curve by curve, and the runs that belong to none.

    A file that cannot be read is named, the rest is shown, and the exit status is 2.
    """

    store: Path = Path("runs")
    """The store."""
    plan: str | None = None
    """One plan, with each of its runs."""
    fit: bool = False
    """Fit each curve: its optimum with interval and verdict, instead of the best learning rate seen."""
    stale_after: float = 300.0
    """Seconds without a sign of life after which a run counts as stale."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print it."""
        from nugpt.spec import checks
        from nugpt.store import opened
        from nugpt.store.plans import plans
        from nugpt.sweep.state import spent

        if not self.stale_after > 0:
            raise ValueError(f"stale_after is {self.stale_after!r}, but must be a number of seconds above 0")
        checks.folder(self.store, "store")
        if not self.store.is_dir():
            raise ValueError(f"store {self.store} does not exist")
        store = opened(self.store)
        found = [d for d in plans(store) if self.plan in (None, d.path.name)]
        if self.plan is not None and not found:
            raise ValueError(f"store {self.store} has no plan {self.plan!r}, it has {_names(store)}")
        problems: list[str] = []
        states = _plan_states(found, self.stale_after, problems)
        alone = [] if self.plan else _unplanned(store, states, self.stale_after, problems)
        if not (states or alone or problems) and (others := store.others()):
            names = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise ValueError(f"{self.store} holds no runs and no plans, but {names}: it is no store of nugpt's")
        if self.json:
            print_json(
                {
                    "plans": {name: _curves_json(curves, self.fit) for name, curves in states.items()},
                    **({"spent": {name: asdict(spent(c)) for name, c in states.items()}} if self.fit else {}),
                    "runs": alone,
                    "problems": problems,
                }
            )
        else:
            self._print(states, alone, bool(problems))
        for problem in problems:
            print(f"nugpt: error: {problem}", file=sys.stderr)
        return 2 if problems else 0

    def _print(self, states: dict[str, list[CurveState]], alone: list[dict[str, Any]], problems: bool) -> None:
        from nugpt.cli.curve_rows import CURVE_COLUMNS, SEEN_COLUMNS, curve_rows, seen_row, spent_text
        from nugpt.sweep.state import spent

        for name, curves in states.items():
            counts = Counter(place.state for curve in curves for place in curve.places)
            print(f"plan {name}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
            if self.fit:
                print_table(CURVE_COLUMNS, curve_rows(curves))
                print(spent_text(spent(curves)))
            else:
                print_table(SEEN_COLUMNS, [seen_row(curve) for curve in curves])
            if self.plan:
                _print_runs(curves)
        if alone:
            print(f"{counted(len(alone), 'run')} of no plan")
            sizes = [size for size in SIZES if len({row[size] for row in alone}) > 1]
            others = list(alone[0]["others"])
            saved = any(row["saved"] is not None for row in alone)
            rows = [
                [
                    *(r["hash"], r["state"], r["table"], *(str(r[size]) for size in sizes)),
                    *("–" if r["others"][name] is None else str(r["others"][name]) for name in others),
                    *(number(r["lr"]), str(r["seed"]), number(r["val_loss"])),
                    *([_saved_text(r["saved"])] if saved else []),
                ]
                for r in alone
            ]
            columns = ["run", "state", "table", *sizes, *others, "η", "seed", "val_loss"]
            print_table([*columns, *([""] if saved else [])], rows)
        if not states and not alone and not problems:
            print(f"store {self.store} has no runs and no plans")


def _plan_states(found: list[PlanDirectory], stale_after: float, problems: list[str]) -> dict[str, list[CurveState]]:
    """The plans that can be read, by name."""
    from nugpt.sweep.state import plan_state

    states = {}
    for directory in found:
        try:
            states[directory.path.name] = plan_state(directory.plan(), directory, stale_after, problems)
        except ValueError as error:
            problems.append(str(error))
    return states


def _saved_text(step: int | None) -> str:
    return "" if step is None else f"saved at step {step}"


def _print_runs(curves: list[CurveState]) -> None:
    from nugpt.cli.curve_rows import label_text

    rows = []
    for curve in curves:
        for p in curve.places:
            loss = p.record.val_loss if p.record else None
            told = "; ".join(filter(None, [_saved_text(p.saved), f"added: {p.added}" if p.added else ""]))
            rows.append(
                [label_text(curve.curve), f"{p.log2_lr:g}", str(p.seed), p.state, number(loss), p.spec.hash, told]
            )
    print_table(["curve", "log2 η", "seed", "state", "validation loss", "run", ""], rows)


def _curves_json(curves: list[CurveState], fit: bool) -> list[dict[str, Any]]:
    from nugpt.sweep.state import plan_noise

    noise = plan_noise(curves) if fit else None
    return [_curve_json(curve, noise) for curve in curves]


def _curve_json(curve: CurveState, noise: NoiseModel | None) -> dict[str, Any]:
    """With its optimum where the plan's noise is given."""
    found, best = None if noise is None else curve.optimum(noise, fine=True), curve.best()
    return {
        "label": dict(curve.curve.label),
        "best_seen": None if best is None else asdict(best),
        "optimum": None
        if found is None
        else {
            "verdict": found.verdict,
            "side": found.side,
            "log2_lr": found.log2_lr,
            # An end that the data put no bound on; JSON has no infinity.
            "interval": [end if math.isfinite(end) else None for end in found.interval],
        },
        "runs": [
            {
                "hash": p.spec.hash,
                "log2_lr": p.log2_lr,
                "seed": p.seed,
                "state": p.state,
                "saved": p.saved,
                "val_loss": p.record.val_loss if p.record else None,
                "added": p.added,
            }
            for p in curve.places
        ],
    }


def _unplanned(
    store: Store, states: dict[str, list[CurveState]], stale_after: float, problems: list[str]
) -> list[dict[str, Any]]:
    from nugpt.store.claims import file_system_time

    planned = {place.spec.hash for curves in states.values() for curve in curves for place in curve.places}
    now = file_system_time(store.root)
    rows = []
    for run in store.runs():
        if run.path.name not in planned:
            try:
                rows.append(_run_row(run, stale_after, now))
            except ValueError as error:
                problems.append(str(error))
    telling = _telling(rows)
    return [row | {"others": {name: row["others"].get(name) for name in telling}} for row in rows]


def _telling(rows: list[dict[str, Any]]) -> list[str]:
    """Settings without columns of their own that tell runs apart which would else look alike."""
    names = dict.fromkeys(name for row in rows for name in row["others"])
    seen = [(row["table"], *(row[size] for size in SIZES), row["lr"], row["seed"]) for row in rows]
    found = []
    for name in sorted(names, key=lambda name: name.startswith(("table.", "base."))):  # what follows from others last
        further = [(*key, str(row["others"].get(name))) for key, row in zip(seen, rows, strict=True)]
        if len(set(further)) > len(set(seen)):
            seen = further
            found.append(name)
    return found


def _run_row(run: RunDirectory, stale_after: float, now: float) -> dict[str, Any]:
    from nugpt.sweep.state import run_state, saved_step

    spec, record = run.spec(), run.record()
    state = run_state(run, record, stale_after, now)
    return {
        "hash": run.path.name,
        "state": state,
        "saved": saved_step(run, state),
        "table": spec.table.name,
        "layers": spec.model.n_layers,
        "heads": spec.model.n_heads,
        "steps": spec.steps,
        "lr": spec.lr,
        "seed": spec.seed,
        "val_loss": record.val_loss if record else None,
        "others": dict(flat(spec.to_dict())),
    }


def _names(store: Store) -> str:
    from nugpt.store.plans import plans

    return ", ".join(d.path.name for d in plans(store)) or "none"
