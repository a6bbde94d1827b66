"""Learning-rate schedules as values; `core.schedule` turns them into a multiplier of the peak at a step."""

from __future__ import annotations

from dataclasses import dataclass

from nugpt.spec.checks import is_number, make_plain

KINDS = ("cosine", "linear", "constant", "wsd")


@dataclass(frozen=True)
class Schedule:
    """How the learning rate goes from its peak to `final` of it, after `warmup` steps; `decay` is wsd's last share."""

    kind: str = "cosine"
    final: float = 0.1  # the paper: down to 10 % of the peak
    warmup: int = 0  # the paper: none
    decay: float = 0.2  # wsd only: the share of the steps after warm-up that decays

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"schedule is {self.kind!r}, but must be one of {', '.join(KINDS)}")
        if not is_number(self.final) or not 0 <= self.final <= 1:
            raise ValueError(f"schedule's final is {self.final!r}, but must be a share of the peak from 0 to 1")
        make_plain(self, "warmup")
        if not isinstance(self.warmup, int) or isinstance(self.warmup, bool) or self.warmup < 0:
            raise ValueError(f"schedule's warmup is {self.warmup!r}, but must be a whole number of steps, at least 0")
        if not is_number(self.decay) or not 0 < self.decay <= 1:
            raise ValueError(f"schedule's decay is {self.decay!r}, but must be a share of the run above 0, at most 1")

    def check_heeded(self) -> None:
        """Refuse a number that this kind of schedule does not know; asked of new runs alone, as below."""
        if self.kind != "wsd" and self.decay != Schedule.decay:
            raise ValueError(f"decay is {self.decay}, but only a schedule wsd has one: leave it out with {self.kind!r}")
        if self.kind == "constant" and self.final != Schedule.final:
            raise ValueError(f"final is {self.final}, but a schedule 'constant' stays at its peak: leave it out")

    def check_reaches_peak(self, steps: int) -> None:
        """Refuse a warm-up that takes all of a run; asked of new runs alone, so that an old one can still be read."""
        if self.warmup >= steps:
            raise ValueError(
                f"warmup is {self.warmup}, but must be below the run's {steps} steps, or its peak is never reached"
            )
