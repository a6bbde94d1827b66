"""`nugpt export hf` and `nugpt import hf`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from nugpt.cli.show import warn


@dataclass(frozen=True)
class ExportHF:
    """Write a trained model as a folder that transformers loads: weights, tokenizer, code and model card."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A checkpoint's directory, a run's directory, or the first digits of a run's hash."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The folder to make."""
    checkpoint: str | None = None
    """Of a run: a checkpoint's name, as step-000000120; the newest by default."""
    store: Path = Path("runs")
    """Where runs are kept."""
    license: str | None = None
    """The licence of the weights, as apache-2.0, for the model card; it is yours to choose."""

    def run(self) -> int:
        """Export it, and say what to do with it."""
        from nugpt.cli.trained import find_checkpoint, say_diverged
        from nugpt.export.write import write_folder
        from nugpt.store import load_checkpoint
        from nugpt.store.atomic import check_writable

        check_writable(self.out.absolute().parent, "the folder of OUT")  # before gigabytes are read
        directory, name = find_checkpoint(self.source, self.store, self.checkpoint)
        known = sorted(path.name for path in directory.checkpoints.glob("step-*"))
        if not known:
            raise ValueError(directory.without_checkpoint("export"))
        if name is not None and name not in known:
            raise ValueError(f"run {directory.path} has no checkpoint {name!r}, it has {', '.join(known)}")
        checkpoint = load_checkpoint(directory.checkpoints / (name or known[-1]))
        write_folder(self.out, directory, checkpoint, self.license)
        say_diverged(directory, checkpoint.step)
        print(f"{self.out}: run {directory.path.name} at step {checkpoint.step}")
        print(f'load it with AutoModelForCausalLM.from_pretrained("{self.out}", trust_remote_code=True)')
        return 0


@dataclass(frozen=True)
class ImportHF:
    """Make a run of an exported folder: its checkpoint holds bitwise the same weights, and no optimizer state."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """What `nugpt export hf` wrote, or what transformers saved from it."""
    store: Path = Path("runs")
    """Where the run goes, in a directory named by its hash."""

    def run(self) -> int:
        """Import it, and say where it is."""
        from nugpt.export.read import import_folder

        directory, found = import_folder(self.folder, self.store)
        if not found.unchanged:
            warn(f"the weights in {self.folder} are not those that were exported; the run's record is left out")
        print(f"{directory.checkpoints / f'step-{found.step:09d}'}")
        return 0
