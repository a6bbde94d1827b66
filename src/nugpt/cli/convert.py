"""`nugpt convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

FORMS = ("safetensors", "dcp")


@dataclass(frozen=True)
class Convert:
    """Checkpoints of a run both ways: distributed ones (DCP) of many devices, and the store's own; none is replaced."""

    run_name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run's directory, or the beginning of its hash."""
    to: str = "safetensors"
    """safetensors: for generate, export, measure and the lab engine; dcp: for the titan engine on any mesh."""
    step: int | None = None
    """Of the checkpoint; the newest by default."""
    weights_only: bool = False
    """Leave the optimizer's state out: enough to use a model, not to go on training it."""
    store: Path = Path("runs")
    """Where runs are kept."""

    def run(self) -> int:
        """Convert, and say where the result is."""
        from nugpt.engines.titan.convert import to_distributed, to_safetensors
        from nugpt.store import Store

        if self.to not in FORMS:
            raise ValueError(f"to is {self.to!r}, but must be one of {', '.join(FORMS)}")
        if self.to == "dcp" and self.weights_only:
            raise ValueError("--weights-only leaves nothing to go on from, which is what --to dcp is for")
        run = Store(self.store).find(self.run_name)
        if self.to == "dcp":
            print(to_distributed(run, self.step))
        else:
            print(to_safetensors(run, self.step, self.weights_only))
        return 0
