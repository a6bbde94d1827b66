"""What commands mean by a trained model: a run, one of its checkpoints, or an exported folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.cli.show import warn
from nugpt.store import RunDirectory, Store
from nugpt.store.run_directory import DISTRIBUTED

if TYPE_CHECKING:
    from nugpt.engines.lab.generate import Trained


def find_checkpoint(name: str, store: Path, checkpoint: str | None) -> tuple[RunDirectory, str | None]:
    """The run of this directory or hash and the checkpoint asked for, which `name` may be the directory of."""
    path = Path(name).absolute()
    if re.fullmatch(r"step-\d{9}", path.name) and path.parent.name == "checkpoints":
        if checkpoint is not None:
            raise ValueError(f"{name} is a checkpoint already: leave out --checkpoint {checkpoint}")
        if not (path.parent.parent / "spec.json").is_file():
            raise ValueError(f"{name} lies in no run's directory: there is no {path.parent.parent / 'spec.json'}")
        return RunDirectory(path.parent.parent), path.name
    try:
        return Store(store).find(name), checkpoint
    except ValueError:
        if not name or not path.exists():
            raise
        check_not_distributed(name)
        what = "an exported folder already" if is_folder(name) else "neither a run's directory nor a checkpoint's"
        raise ValueError(f"{name} is {what}, and no run in {store} begins so") from None


def check_not_distributed(name: str) -> None:
    """Tell of a checkpoint of many devices the command that makes one of it for a single one."""
    path = Path(name).absolute()
    step, run = re.fullmatch(r"step-(\d+)", path.name), path.parent.parent
    if step and path.parent.name == DISTRIBUTED and (run / "spec.json").is_file():
        way = f"`nugpt convert {shlex.quote(str(run))} --step {int(step[1])}` makes one of it that can be used here"
        raise ValueError(f"{name} is a checkpoint of many devices: {way}")


def say_diverged(directory: RunDirectory, step: int) -> None:
    """Warn of the weights of a run that diverged, saved when so many steps had been taken."""
    record = directory.record()
    if record is None or record.status != "diverged" or record.diverged_at is None:
        return
    what = f"run {directory.path.name} diverged at step {record.diverged_at}"
    if step < record.diverged_at:
        told = f"its weights of step {step} are from before"
    else:  # that it had is seen when a row of metrics is due
        told = f"its weights, saved when that was noticed at step {step}, are no result"
    warn(f"{what}; {told}")


def is_folder(name: str) -> bool:
    """Whether this is a directory with a configuration as exported ones have, and not a run's."""
    return bool(name) and (Path(name) / "config.json").is_file() and not (Path(name) / "spec.json").is_file()


def load_model(name: str, store: Path, checkpoint: str | None, device: str) -> Trained:
    """The model of a run, a checkpoint or an exported folder, ready to generate."""
    from nugpt.engines.lab.generate import load_trained, trained_model

    if not is_folder(name):
        if (Path(name) / "modeling_nugpt.py").is_file():
            raise ValueError(f"{name} is no whole exported folder: it lacks config.json")
        directory, asked = find_checkpoint(name, store, checkpoint)
        trained = load_trained(directory, asked, device)
        say_diverged(directory, trained.step)
        return trained
    if checkpoint is not None:
        raise ValueError(f"{name} is an exported folder and has one checkpoint: leave out --checkpoint {checkpoint}")
    from nugpt.export.read import read_folder

    found = read_folder(Path(name))
    return trained_model(found.spec, found.tensors, found.tokenizer, found.step, device)
