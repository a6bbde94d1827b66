"""A worker begun before its plan is known: `python -m nugpt.cli.early`.

The launcher and its worker both load torch, which takes seconds. Begun first, this process loads it meanwhile, and is
then told on its standard input, in one line of JSON, which worker to be and where its log is. Told nothing, it ends.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

from nugpt.cli.main import main as nugpt
from nugpt.sweep.signals import Request, heeding

LOADS = ("nugpt.cli.worker", "nugpt.engines.lab.engine", "nugpt.engines.titan.engine", "nugpt.sweep.worker")
FUSED = "nugpt.engines.lab.fused_step"  # needs triton


def main() -> int:
    """The exit status of the worker that it became; a signal that comes while it loads is for that one too."""
    return heeding(_become)


def _become(request: Request) -> int:
    """Load what every worker loads, wait for the command, and be the worker that it names."""
    for name in LOADS if find_spec("triton") is None else (*LOADS, FUSED):
        with suppress(Exception):  # what cannot be loaded the worker will say in its log
            import_module(name)
    line = sys.stdin.readline()
    if not line:
        return 0
    told = json.loads(line)
    with open(told["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    request.check()
    return nugpt(told["words"])


if __name__ == "__main__":
    sys.exit(main())
