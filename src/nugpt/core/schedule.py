"""The learning rate's course: a pure function of step."""

from __future__ import annotations

import math

from nugpt.spec.schedule import Schedule


def multiplier(schedule: Schedule, step: int, steps: int) -> float:
    """What multiplies the peak learning rate at `step` of 0 … steps − 1: 1 at the peak, `final` at the end."""
    if not 0 <= step < steps:
        raise ValueError(f"step is {step}, but must be from 0 to {steps - 1}")
    if step < schedule.warmup:
        return (step + 1) / (schedule.warmup + 1)
    # CHOICE: exactly 1 at the first step after warm-up and exactly `final` at the last step, steps − 1.
    last = steps - 1 - schedule.warmup
    progress = (step - schedule.warmup) / last if last > 0 else 0.0
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "cosine":
        return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * progress)) / 2
    if schedule.kind == "wsd":
        progress = max(0.0, 1 - (1 - progress) / schedule.decay)
    return schedule.final + (1 - schedule.final) * (1 - progress)
