"""What the record calls the device."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from nugpt.engines.lab.device import cpu_name, device_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vendor_id\t: X\nmodel\t\t: 85\nmodel name\t: Some  CPU @ 2.0GHz\nflags\t: a\n", "Some CPU @ 2.0GHz"),
        ("processor\t: 0\nModel\t\t: Board of some maker\n", "Board of some maker"),
        ("processor\t: 0\nmodel name\t:\n", platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
)  # fmt: skip
def test_a_cpu_is_called_by_its_model(tmp_path: Path, text: str | None, name: str) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_name(tmp_path / "cpuinfo") == name


def test_the_device_of_this_machine_has_a_name() -> None:
    assert device_name(torch.device("cpu"))
