"""How long an ensemble will take on a device: the cost model, corrected by what runs like it took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from nugpt.spec.record import RunRecord, worker_seconds
from nugpt.spec.run import RunSpec, Shape, shape_of
from nugpt.store.run_directory import RunDirectory, Store
from nugpt.sweep.cost import expected_seconds

MARGIN = 1.25  # on an estimate: runs of one shape differ less, an ensemble of few replicas takes more for each
# Seconds of an ensemble beside its steps, before one was seen here: 27 s on an H200 that had compiled nothing yet.
START_S = {"cuda": 30.0, "cpu": 3.0}
MOST_RECORDS = 2000  # of a store: enough to know its shapes


def slowness(runs: Iterable[RunDirectory], device_type: str) -> Iterator[tuple[RunSpec, float]]:
    """How many times as long as expected each of these runs took, of those that ended on such a device."""
    for run in runs:
        try:
            record = run.record()
            found = _slowness(run.spec(), record, device_type) if record is not None else None
            if found is not None:
                yield run.spec(), found
        except ValueError:  # a spoiled file is `status`'s to name; it must not keep other plans from running
            continue


def _slowness(spec: RunSpec, record: RunRecord, device_type: str) -> float | None:
    """A diverged run's time is that of its steps."""
    expected = record.steps / spec.steps * expected_seconds(spec, device_type)
    if record.carried_by.get("device_type") != device_type or record.wall_s <= 0 or expected <= 0:
        return None
    return worker_seconds(record) / expected


@dataclass
class Pace:
    """What is known of a device's speed: for each shape how much longer runs took than expected, and their starts."""

    device_type: str
    ratios: dict[Shape, list[float]] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, store: Store, device_type: str) -> Pace:
        """As the store's records tell."""
        pace = cls(device_type)
        for spec, found in slowness(islice(store.runs(), MOST_RECORDS), device_type):
            pace.ratios.setdefault(shape_of(spec), []).append(found)
        return pace

    def saw(self, spec: RunSpec, record: RunRecord) -> None:
        """Learn from a run's time, if it was taken on such a device."""
        found = _slowness(spec, record, self.device_type)
        if found is not None:
            self.ratios.setdefault(shape_of(spec), []).append(found)

    def started(self, took: float, records: Sequence[RunRecord]) -> None:
        """Learn what an ensemble that was trained from its first step took beside its steps."""
        self.starts.append(max(0.0, took - max(record.wall_s for record in records)))

    def start_seconds(self) -> float:
        """Of the next ensemble, beside its steps."""
        return median(self.starts) if self.starts else START_S[self.device_type]

    def run_seconds(self, spec: RunSpec) -> float:
        """A run's share of its ensemble's steps: by runs of its shape, else by all that were seen, with the margin."""
        alike = self.ratios.get(shape_of(spec)) or [median(found) for found in self.ratios.values()]
        return MARGIN * (median(alike) if alike else 1.0) * expected_seconds(spec, self.device_type)


@dataclass(frozen=True)
class TimeLimit:
    """Until when a worker may train, and what it knows of how long that takes."""

    until: float  # seconds since the epoch
    pace: Pace

    def left(self) -> float:
        """Seconds."""
        return self.until - time.time()

    def room(self, shares: Iterable[tuple[RunSpec, float]]) -> int:
        """How many of these runs, each with the share of it that is left, can end in time as one ensemble."""
        left = self.left() - self.pace.start_seconds()
        count = 0
        for spec, share in shares:
            left -= share * self.pace.run_seconds(spec)
            if left < 0:
                break
            count += 1
        return count
