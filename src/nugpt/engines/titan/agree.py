"""What is wrong is said once, by rank 0, and no rank leaves before it is said: torchrun ends the rest when one does."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta

import torch.distributed as dist

GRACE = timedelta(seconds=60)  # for the slowest rank to start, where all refuse their arguments


class Refused(Exception):
    """Some rank has a reason to stop, which rank 0 has said."""


def is_first() -> bool:
    """Whether this process is rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def complain(problem: object) -> None:
    """One line of rank 0's."""
    if is_first():
        print(f"nugpt: error: {' '.join(str(problem).split())}", file=sys.stderr, flush=True)


def warn(problem: object) -> None:
    """One line of rank 0's about what does not stop the run."""
    if is_first():
        print(f"nugpt: warning: {' '.join(str(problem).split())}", file=sys.stderr, flush=True)


def first_problem(problem: str | None) -> str | None:
    """The first rank's problem, on every rank, or none when no rank has one."""
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    found = [text if rank == 0 else f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]
    return found[0] if found else None


def agree(problem: str | None) -> None:
    """Go on only if no rank has a problem; rank 0 says the first of them."""
    if (found := first_problem(problem)) is not None:
        complain(found)
        dist.barrier()
        raise Refused


def refuse_alike(problem: object) -> None:
    """Say what every rank finds wrong by itself, before the ranks have met: they meet for this alone."""
    complain(problem)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        with contextlib.suppress(Exception):  # it is said already, and all that is left is to leave
            dist.init_process_group("gloo", timeout=GRACE)
            dist.barrier()
            dist.destroy_process_group()
