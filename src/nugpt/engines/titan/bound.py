"""`python -m nugpt.engines.titan.bound WORKER …`: torchrun that ends with its worker, and ranks that end with torchrun.

Whoever takes over the run of a worker that was killed must not meet that worker's ranks. torchrun would outlive the
worker, and its ranks, each in a session of its own, would outlive torchrun; so each asks the system to be killed with
its parent. Only Linux can do that: elsewhere rank 0 sees at its next step that its worker is no more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "NUGPT_TORCHRUN"  # tells ranks the process that they end with
BINDS = sys.platform == "linux"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """Have this process killed when its parent, of this number, ends, or end now if it has ended already."""
    if not BINDS:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the system does not bind this process to its parent")
    if os.getppid() != parent:
        os._exit(1)


def end_with_torchrun() -> None:
    """The same for a rank that such a torchrun has started; any other is left alone."""
    if PARENT in os.environ:
        end_with(int(os.environ[PARENT]))


def main(arguments: list[str]) -> None:
    """Be torchrun, with these arguments of its own."""
    worker, *rest = arguments
    end_with(int(worker))
    os.environ[PARENT] = str(os.getpid())
    from torch.distributed.run import main as torchrun

    torchrun(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
