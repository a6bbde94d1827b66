"""Which of a run's losses a curve is read from."""

from __future__ import annotations

from collections.abc import Iterable

from nugpt.spec.plan import Curve
from nugpt.spec.record import RunRecord

LOSSES = ("val_loss", "val_loss_ema")
# CHOICE: the average over validations forgets in twenty of them; a run of fewer than five times as many validations
# would still hold its first ones.
ENOUGH_VALIDATIONS = 100


def loss_name(curves: Iterable[Curve]) -> str:
    """The loss that curves of one plan are read from: averaged over validations if none has seeds, else the final one.

    CHOICE: one loss for all of them. The average lags behind, most where the learning rate is high, so that its best
    learning rate is a lower one: curves of one seed beside curves of several would bend every slope through them.
    """
    averaged = all(len(curve.seeds) == 1 and curve.spec.validations >= ENOUGH_VALIDATIONS for curve in curves)
    return "val_loss_ema" if averaged else "val_loss"


def loss_of(record: RunRecord, name: str) -> float | None:
    """A run's loss by that name; only a done run has one."""
    loss: float | None = getattr(record, name) if record.status == "done" else None
    return loss
