"""What a finished run leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nugpt.spec.checks import check_format

FORMAT = 1
STATUSES = ("done", "diverged", "stopped")  # stopped: hopeless by a plan's rule, never an optimum
_NUMBER, _MAYBE = (int, float), (int, float, type(None))
_TYPES: dict[str, tuple[type, ...]] = {
    "hash": (str,),
    "status": (str,),
    "steps": (int,),
    "tokens": (int,),
    "flops": _NUMBER,
    "wall_s": _NUMBER,
    "val_loss": _MAYBE,
    "val_loss_ema": _MAYBE,
    "train_loss": _MAYBE,
    "diverged_at": (int, type(None)),
}


@dataclass(frozen=True)
class RunRecord:
    """A run's result and how it was obtained; a diverged run is a result, not a crash."""

    hash: str
    status: str
    steps: int  # optimizer steps taken
    tokens: int
    flops: float
    wall_s: float  # training time, summed over every start
    val_loss: float | None  # over the whole validation set, at the end; none where it is not finite
    val_loss_ema: float | None
    train_loss: float | None  # mean over the last logging interval
    diverged_at: int | None
    val_loss_by_source: Mapping[str, float] = field(default_factory=dict)
    lerp: Mapping[str, Any] = field(default_factory=dict)  # mean and spread of the effective α_A, α_M at the end
    resolved: Mapping[str, Any] = field(default_factory=dict)  # every applied learning rate, initial value, scale
    carried_by: Mapping[str, Any] = field(
        default_factory=dict
    )  # device, versions, kernels: recorded, not part of the spec

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunRecord:
        """The record these values describe; a newer format or a wrong field is refused."""
        check_format("record", values.get("format"), FORMAT)
        rest = {key: value for key, value in values.items() if key != "format"}
        if wrong := sorted(set(rest) ^ {f.name for f in fields(cls)}):
            raise ValueError(f"record {'has an unknown' if wrong[0] in rest else 'lacks the'} field {wrong[0]!r}")
        for name, value in rest.items():
            if not isinstance(value, _TYPES.get(name, (Mapping,))) or isinstance(value, bool):
                raise ValueError(f"record has a field of the wrong form: {name} is {value!r}")
        if rest["status"] not in STATUSES:
            raise ValueError(f"record has status {rest['status']!r}, but must be one of {', '.join(STATUSES)}")
        return cls(**rest)


def device_seconds(record: RunRecord) -> float:
    """What a run took of devices, so that the sum over runs is the time that devices were at work on them.

    The engines note it as they go: an ensemble's time is shared by the runs that are in it at that time. A record from
    before they did is taken to have been in its last ensemble, on its last devices, all the time.
    """
    carried = record.carried_by
    if carried.get("device_s") is not None:
        return float(carried["device_s"])
    return record.wall_s * max(1, carried.get("ranks", 1)) / max(1, carried.get("replicas", 1))


def worker_seconds(record: RunRecord) -> float:
    """What a run took of a worker's time: several devices that train one run together are one worker."""
    return device_seconds(record) / max(1, record.carried_by.get("ranks", 1))
