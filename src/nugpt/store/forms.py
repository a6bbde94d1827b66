"""The two forms of a run's checkpoints, one for each engine, and which of them is ahead.

An engine goes on from its own form alone. From behind the other's it would train again what is trained already, and
drop the rows of it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from nugpt.store.checkpoint import steps_in
from nugpt.store.run_directory import RunDirectory

METADATA = ".metadata"  # a file of a distributed checkpoint: written when all its tensors are
SUMS = "sums.json"  # the file that is written last


def distributed_steps(folder: Path) -> list[int]:
    """The steps of the distributed checkpoints there, in order, spoiled ones too.

    One with neither file was cut off while it was written, or while it was dropped, and counts as none. One with sums
    alone was whole once.
    """
    if not folder.is_dir():
        return []
    found = {path: match for path in folder.iterdir() if (match := re.fullmatch(r"step-(0|[1-9]\d*)", path.name))}
    return sorted(
        int(match[1]) for path, match in found.items() if any((path / name).is_file() for name in (METADATA, SUMS))
    )


def check_ahead_of_distributed(run: RunDirectory, step: int) -> None:
    """Refuse to go on from the store's own checkpoint of this step (0: from none) behind a distributed one."""
    newest = max(distributed_steps(run.distributed), default=0)
    if newest > step:
        raise ValueError(_behind(run, step, f"{run.distributed.name}/step-{newest}", ""))


def check_ahead_of_own(run: RunDirectory, step: int) -> None:
    """Refuse to go on from the distributed checkpoint of this step (0: from none) behind the store's own."""
    newest = max(steps_in(run.checkpoints), default=0)
    if newest > step:
        raise ValueError(_behind(run, step, f"{run.checkpoints.name}/step-{newest:09d}", " --to dcp"))


def _behind(run: RunDirectory, step: int, ahead: str, way: str) -> str:
    here = f"step {step}, where it would go on here" if step else "its beginning, where it would begin here"
    return (
        f"run {run.path} has another engine's checkpoint {ahead}, ahead of {here}: "
        f"`nugpt convert {shlex.quote(str(run.path))}{way}` takes it over, or move it away to go on without it"
    )
