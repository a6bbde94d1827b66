"""Which of a run's losses a curve is read from."""

from __future__ import annotations

from nugpt.spec.plan import Curve
from nugpt.spec.record import RunRecord

LOSSES = ("val_loss", "val_loss_ema")
# CHOICE: the average over validations forgets in twenty of them; a run of fewer than five times as many validations
# would still hold its first ones.
ENOUGH_VALIDATIONS = 100


def loss_name(curve: Curve) -> str:
    """The loss that a curve is read from: averaged over validations where no seeds are, else the final one."""
    averaged = len(curve.seeds) == 1 and curve.spec.validations >= ENOUGH_VALIDATIONS
    return "val_loss_ema" if averaged else "val_loss"


def loss_of(record: RunRecord, name: str) -> float | None:
    """A run's loss by that name; only a done run has one."""
    loss: float | None = getattr(record, name) if record.status == "done" else None
    return loss
