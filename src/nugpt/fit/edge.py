"""The stability edge: the largest learning rate that trains, by a stated rule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nugpt.fit.interval import Interval
from nugpt.fit.points import Point, levels


@dataclass(frozen=True)
class EdgeRule:
    """A learning rate trains if every seed ends within `margin` nats of the curve's best mean loss."""

    margin: float = 0.5

    def __post_init__(self) -> None:
        if not math.isfinite(self.margin) or self.margin <= 0:
            raise ValueError(f"margin is {self.margin!r}, but must be a finite number of nats above 0")


@dataclass(frozen=True)
class Edge:
    """Where the cliff stands: between the last learning rate that trains and the first above it that does not."""

    verdict: str  # enclosed, or edge-censored when the grid never fails (right) or never trains (left)
    side: str | None
    log2_lr: float | None  # middle of the interval; none unless enclosed
    interval: Interval  # a bracket of the grid, not a share of a distribution
    deviation: float | None  # of a place anywhere in the bracket
    rule: EdgeRule
    notes: tuple[str, ...] = ()

    @property
    def independent(self) -> bool:
        """Where in its bracket an edge lies has nothing to do with another's."""
        return True


def stability_edge(points: Sequence[Point], rule: EdgeRule | None = None) -> Edge:
    """The edge of one curve, looked for upwards from its best learning rate."""
    rule = EdgeRule() if rule is None else rule
    if not points:
        raise ValueError("points is empty, but must hold at least one run")
    curve = levels(points)
    grid = sorted({round(point.log2_lr, 6) for point in points})
    if not len(curve.x):
        return Edge("edge-censored", "left", None, Interval(-math.inf, grid[0]), None, rule, ("nothing trained",))
    worst: dict[float, float] = defaultdict(lambda: -math.inf)
    for point in points:
        x = round(point.log2_lr, 6)
        worst[x] = max(worst[x], float(point.loss) if point.trained and point.loss is not None else math.inf)
    best = curve.best
    above = [x for x in grid if x >= best.log2_lr]
    # The best itself counts as training even where one of its seeds failed: there is no edge below it to find.
    fails = [x for x in above[1:] if worst[x] > best.loss + rule.margin]
    if not fails:
        return Edge("edge-censored", "right", None, Interval(above[-1], math.inf), None, rule)
    last = max(x for x in above if x < fails[0])
    again = any(x > fails[0] and x not in fails for x in above)
    return Edge(
        verdict="enclosed",
        side=None,
        log2_lr=(last + fails[0]) / 2,
        interval=Interval(last, fails[0]),
        deviation=(fails[0] - last) / math.sqrt(12),
        rule=rule,
        notes=("a larger learning rate trains again: the edge is the first failure",) if again else (),
    )
