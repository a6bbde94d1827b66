"""Measuring runs that have ended: they are trained again beside the store, and only what was measured is kept."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from nugpt.data import TokenDataset
from nugpt.engines.lab.loop import Hooks, Progress, execute
from nugpt.engines.lab.options import Options
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.claims import holding

ASIDE = ".measuring"  # begins with a dot, so that it is no run of the store
# Nats between the two losses at the end: what another device or version of torch may change, and no more.
SAME = 0.05


def remeasure(
    specs: Sequence[RunSpec], store: Store, dataset: TokenDataset, options: Options, progress: Progress | None = None
) -> None:
    """Train these ended runs again (an interrupted training goes on) and add the measured rows to their metrics."""
    aside = Store(store.root / ASIDE)
    for spec in specs:
        before = store.run(spec).record()
        if before is None or before.status != "done":
            raise ValueError(f"run {spec.hash} is {before.status if before else 'not ended'}, but must be done")
        done = aside.run(spec)
        with holding([done]) as guard:
            (again,) = execute([spec], aside, dataset, replace(options, keep=1), progress, hooks=Hooks(guard))
        if again.val_loss is None or before.val_loss is None or abs(again.val_loss - before.val_loss) > SAME:
            losses = f"{before.val_loss} then and {again.val_loss} now"
            raise ValueError(f"run {spec.hash} ended at {losses}: it was not the same training, so nothing is kept")
        store.run(spec).add_measured(done.read_metrics(options.measure))
        shutil.rmtree(done.path)
    if aside.root.is_dir() and not any(aside.root.iterdir()):
        aside.root.rmdir()
