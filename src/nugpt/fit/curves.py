"""Everything a set of curves answers: optima, edges, drifts, regrets, laws.

A path is a row of a group's curves along one axis. The same code serves a store's plans and a user's own table of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nugpt.fit.curve import FINE
from nugpt.fit.drift import Drift, drift
from nugpt.fit.edge import Edge, stability_edge
from nugpt.fit.measured import Measured, by_group, group_names, measured, own_curves, sizes_of, words
from nugpt.fit.noise import NoiseModel, study_noise
from nugpt.fit.optimum import Optimum, optimum
from nugpt.fit.power_law import Observed, PowerLaw, power_law
from nugpt.fit.regret import Cost, Sensitivity, regret, sensitivity
from nugpt.spec.study_rules import DRIFT

__all__ = ["Answers", "CurveAnswer", "Measured", "PathAnswer", "answer", "curve_answer", "measured", "own_curves"]


@dataclass(frozen=True)
class CurveAnswer:
    """What one curve says."""

    curve: Measured
    optimum: Optimum
    edge: Edge
    sensitivity: Sensitivity


@dataclass(frozen=True)
class PathAnswer:
    """What the curves of one group say along one axis, the other sizes staying or going along."""

    group: str
    along: str
    others: Mapping[str, float] = field(hash=False)  # sizes that stay
    together: tuple[str, ...]  # axes that go along
    drift: Drift
    edge_drift: Drift
    base: float | None  # the size whose best η the regrets are for; none where no size has an optimum
    regrets: tuple[tuple[float, Cost], ...]  # size, and what the base's best η costs there
    curves: tuple[CurveAnswer, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The axis in words."""
        going = f" with {', '.join(self.together)}" if self.together else ""
        staying = f" at {words(self.others)}" if self.others else ""
        return f"{self.along}{going}{staying}"


@dataclass(frozen=True)
class Answers:
    """Everything that a set of curves says."""

    curves: tuple[CurveAnswer, ...]
    paths: tuple[PathAnswer, ...]
    laws: tuple[tuple[str, PowerLaw], ...]  # group, and η* as a power of what varies in it, where steps do
    names: Mapping[str, str] = field(hash=False)  # of the groups
    noise: NoiseModel
    level: float
    left_out: tuple[Measured, ...] = ()  # curves none of whose runs has ended


def answer(curves: Sequence[Measured], level: float = 0.90, bound: float = DRIFT) -> Answers:
    """Optimum, edge and sensitivity of every curve; drift and regret along every path; the law in iterations."""
    ended = [curve for curve in curves if curve.points]
    noise = study_noise([curve.points for curve in ended])
    found = tuple(curve_answer(curve, level, noise) for curve in ended)
    left_out = tuple(curve for curve in curves if not curve.points)
    return _together(Answers(found, (), (), group_names(curves), noise, level, left_out), bound)


def among(answers: Answers, some: Sequence[CurveAnswer]) -> Answers:
    """What some of the curves say alone, each as it was fitted: by the scatter of all."""
    return _together(replace(answers, curves=tuple(some), left_out=()), DRIFT)


def _together(found: Answers, bound: float) -> Answers:
    """With the paths and laws of its curves."""
    groups = by_group([one.curve for one in found.curves])
    rows = [[one for one in found.curves if one.curve.group == group] for group in groups]
    return replace(
        found,
        paths=tuple(path for members in rows for path in _paths(members, found.level, bound)),
        laws=tuple(law for members in rows for law in _laws(members, found.level)),
    )


def curve_answer(curve: Measured, level: float, noise: NoiseModel) -> CurveAnswer:
    found = optimum(curve.points, level, noise, effort=FINE)
    return CurveAnswer(curve, found, stability_edge(curve.points), sensitivity(found, level))


def _varying(members: Sequence[CurveAnswer]) -> list[str]:
    axes = members[0].curve.sizes
    return [axis for axis in axes if len({one.curve.sizes[axis] for one in members}) > 1]


def _paths(members: Sequence[CurveAnswer], level: float, bound: float) -> list[PathAnswer]:
    """Rows of two sizes or more along each axis that varies; one row along the first where all go together."""
    varying, found = _varying(members), []
    for along in varying:
        others = [axis for axis in varying if axis != along]
        rows: dict[tuple[float, ...], list[CurveAnswer]] = {}
        for one in members:
            rows.setdefault(tuple(one.curve.sizes[axis] for axis in others), []).append(one)
        for at, row in rows.items():
            if len({one.curve.sizes[along] for one in row}) > 1:
                found.append(_path(row, along, dict(zip(others, at, strict=True)), (), level, bound))
    if varying and not found:
        found.append(_path(members, varying[0], {}, tuple(varying[1:]), level, bound))
    return found


def _path(
    row: Sequence[CurveAnswer],
    along: str,
    others: Mapping[str, float],
    together: tuple[str, ...],
    level: float,
    bound: float,
) -> PathAnswer:
    row = sorted(row, key=lambda one: one.curve.sizes[along])
    base = _base_of(row, along)
    return PathAnswer(
        group=row[0].curve.group,
        along=along,
        others=others,
        together=together,
        drift=drift([(one.curve.sizes[along], one.optimum) for one in row], level, bound),
        edge_drift=drift([(one.curve.sizes[along], one.edge) for one in row], level, bound),
        base=None if base is None else base.curve.sizes[along],
        regrets=()
        if base is None
        else tuple(
            (one.curve.sizes[along], regret(base.optimum, one.optimum, level)) for one in row if one is not base
        ),
        curves=tuple(row),
    )


def _base_of(row: Sequence[CurveAnswer], along: str) -> CurveAnswer | None:
    """The size that the table's ratios are taken over where it was swept, or else the smallest with an optimum."""
    known = [one for one in row if one.optimum.log2_lr is not None]
    for one in known:
        spec = one.curve.spec
        if spec is not None and one.curve.sizes[along] == sizes_of(spec.base.extent)[along]:
            return one
    return known[0] if known else None


def _laws(members: Sequence[CurveAnswer], level: float) -> list[tuple[str, PowerLaw]]:
    """η* as a power of iterations, jointly with whatever else varies, where iterations do."""
    axes = _varying(members)
    observed = _observed(members, axes)
    if "steps" not in axes or not observed:
        return []
    return [(members[0].curve.group, power_law(observed, level))]


def _observed(members: Sequence[CurveAnswer], axes: Sequence[str]) -> list[Observed]:
    return [
        Observed(
            {axis: one.curve.sizes[axis] for axis in axes},
            one.optimum.log2_lr,
            one.optimum.deviation,
            one.optimum.independent,
        )
        for one in members
        if one.optimum.log2_lr is not None
    ]
