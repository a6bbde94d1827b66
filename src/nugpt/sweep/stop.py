"""No time on the hopeless: which runs of a curve are so far above its best that they cannot be the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nugpt.spec.plan import StopRule


def hopeless(
    rule: StopRule, steps: int, losses: Sequence[Mapping[int, float]], others: Sequence[Mapping[int, float]] = ()
) -> list[bool]:
    """For runs of one curve and seed, each a map of step → validation loss: whether to stop it at its last step.

    A run is hopeless when at its last `times` validations, all after the share `after` of the run, its loss was more
    than `margin` above the best loss that any run of the curve (these or `others`) had at the same step.
    """

    def far_above(run: Mapping[int, float], step: int) -> bool:
        best = min((other[step] for other in (*losses, *others) if step in other), default=run[step])
        return run[step] > best + rule.margin

    verdicts = []
    for run in losses:
        late = [step for step in sorted(run) if step >= rule.after * steps][-rule.times :]
        verdicts.append(len(late) == rule.times and all(far_above(run, step) for step in late))
    return verdicts
