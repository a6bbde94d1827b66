"""The device in words, for the record."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """A GPU as its driver calls it; a CPU by its model's name, or by its architecture where nobody says."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


@cache
def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model as Linux tells it, else as the platform does."""
    try:
        found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(\S.*)$", info.read_text(errors="replace"), re.M)
    except OSError:
        found = None
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()
