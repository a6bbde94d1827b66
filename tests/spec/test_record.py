"""What runs took: of devices, of which several may train one run or one many, and of a worker's time."""

from __future__ import annotations

from typing import Any

import pytest

from nugpt.spec.record import RunRecord, device_seconds, worker_seconds


@pytest.mark.parametrize(
    ("carried", "of_devices", "of_a_worker"),
    [
        ({}, 12.0, 12.0),
        ({"replicas": 4}, 3.0, 3.0),  # from before shares were noted
        ({"replicas": 1, "device_s": 7.5}, 7.5, 7.5),  # with others at first, alone at the end
        ({"replicas": 4, "device_s": 0.0}, 0.0, 0.0),
        ({"replicas": 1, "ranks": 2}, 24.0, 12.0),
        ({"replicas": 1, "ranks": 2, "device_s": 20.0}, 20.0, 10.0),
    ],
)
def test_what_a_run_took(carried: dict[str, Any], of_devices: float, of_a_worker: float) -> None:
    record = RunRecord("0" * 16, "done", 10, 640, 1e9, 12.0, 3.0, 3.0, 3.0, None, carried_by=carried)
    assert device_seconds(record) == of_devices
    assert worker_seconds(record) == of_a_worker
