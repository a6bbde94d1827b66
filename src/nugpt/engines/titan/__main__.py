"""`torchrun … -m nugpt.engines.titan --recipe FILE --data DIRECTORY`: train a recipe on many devices."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from nugpt.engines.lab.loop import Interrupted
from nugpt.engines.lab.options import KERNELS, MEASURES
from nugpt.engines.titan.agree import Refused, complain, is_first, refuse_alike
from nugpt.engines.titan.bound import end_with_torchrun
from nugpt.engines.titan.execute import Request, execute
from nugpt.engines.titan.options import ACTIVATIONS, RESHARD, TitanOptions
from nugpt.spec.record import RunRecord
from nugpt.store.claims import LostClaim


class _Parser(argparse.ArgumentParser):
    """What is wrong is raised, for rank 0 to say once."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(arguments: list[str] | None = None) -> int:
    """Train: 0 done, 1 diverged or failed, 2 a mistake in what the user gave, 128 + n stopped by signal n."""
    end_with_torchrun()
    try:
        request, debug = read_arguments(arguments)
    except ValueError as error:
        refuse_alike(error)
        return 2
    try:
        status, record = execute(request, lambda text: print(text, flush=True))
    except Refused:
        return 2
    except Interrupted as stopped:
        if is_first():
            print(f"nugpt: {stopped}", file=sys.stderr)
        return 128 + stopped.signal_number
    except LostClaim as lost:
        complain(lost)
        return 1
    except (ValueError, FileNotFoundError, PermissionError) as error:
        if debug:
            raise
        complain(error)
        return 2
    if record is not None:
        _tell(record, request.store / record.hash)
    return 0 if status == "done" else 1


def read_arguments(arguments: list[str] | None) -> tuple[Request, bool]:
    """What is asked for, and whether to show tracebacks."""
    given = vars(_parser().parse_args(arguments))
    debug = given.pop("debug")
    given["measure"] = tuple(given["measure"])
    own = {name: given.pop(name) for name in ("recipe", "data", "store", "seed", "precision", "wait", "held")}
    return Request(options=TitanOptions(**given), **own), debug


def _tell(record: RunRecord, where: Path) -> None:
    if record.status == "diverged":
        print(f"diverged at step {record.diverged_at}   {where}")
    else:
        print(
            f"validation loss {record.val_loss:.4f} (EMA {record.val_loss_ema:.4f}) after {record.steps} steps, "
            f"{record.tokens:,} tokens, {record.wall_s:.1f} s   {where}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="nugpt.engines.titan", description=__doc__, allow_abbrev=False)
    defaults = TitanOptions()

    def add(name: str, help_line: str, **more: Any) -> None:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=help_line, **more)

    add("recipe", "file that `nugpt recommend --emit titan` wrote, or a run's spec.json", type=Path, required=True)
    add("data", "directory that `nugpt data prepare` made", type=Path, required=True)
    add("store", "where runs are kept, a directory each (default: runs)", type=Path, default=Path("runs"))
    add("seed", "of initial weights and data order; by default the recipe's", type=int)
    add("precision", "of matrix products, float32 or bfloat16; by default the recipe's")
    add("wait", "seconds to wait for a process that still has the run", type=float, default=0.0)
    add("held", "the claim by which whoever starts this holds the run, as a plan's worker does", metavar="CLAIM")
    add("device", "auto, cpu or cuda", default=defaults.device)
    add("tp", "ranks that share each matrix product (tensor parallelism)", type=int, default=defaults.tp)
    add("replicate", "groups of ranks with a whole model each", type=int, default=defaults.replicate)
    add("micro_batch", "sequences of a rank per forward and backward", type=int)
    add("activations", f"what the backward pass computes again: {', '.join(ACTIVATIONS)}", default=defaults.activations)
    add("kernels", f"{', '.join(KERNELS)}: fused where a GPU, Triton and no --tp are", default=defaults.kernels)
    add("compile", "compile the blocks; by default on a GPU only", action=argparse.BooleanOptionalAction)
    add("reshard", f"drop gathered weights after the forward pass: {', '.join(RESHARD)}", default=defaults.reshard)
    add("attention", "the attention's implementation", default=defaults.attention)
    add("loss", "the loss's implementation", default=defaults.loss)
    add("checkpoint_every", "steps between checkpoints; by default ten a run", type=int)
    add("keep", "checkpoints kept", type=int, default=defaults.keep)
    add("log_every", "steps between rows of the metrics; by default two hundred a run", type=int)
    add("measure", f"what to measure beside the loss: {', '.join(MEASURES)}", nargs="*", default=defaults.measure)
    add("measure_points", "measurements a run, log-spaced; by default as many as cost little", type=int)
    add("measure_windows", "validation windows that alignment is measured on", type=int)
    add("timeout", "seconds after which a rank that waits for another gives up", type=int, default=defaults.timeout)
    add("debug", "show the traceback of an error", action="store_true")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
