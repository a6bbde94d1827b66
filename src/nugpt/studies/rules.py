"""The bounds that verdicts use, each in one place: fixed before the runs that they judge."""

from __future__ import annotations

from nugpt.spec.study_rules import DRIFT, Rule

DECENT = 0.2  # octaves per octave: where the paper speaks of decent rather than perfect transfer
NATS = 0.01  # a difference of best losses that counts: about what another seed changes
THIRD = 1 / 3


def transfers(table: str, along: str, within: float = DRIFT) -> Rule:
    """The best η does not move along an axis."""
    return Rule("no-drift", table=table, along=along, low=-within, high=within)


def drifts_left(table: str, along: str, beyond: float = DRIFT) -> Rule:
    """The best η falls along an axis."""
    return Rule("drift", table=table, along=along, high=-beyond)


def drifts_right(table: str, along: str, beyond: float = DRIFT) -> Rule:
    """The best η rises along an axis."""
    return Rule("drift", table=table, along=along, low=beyond)


def drift_rises(table: str, along: str, by: str) -> Rule:
    """What the best η moves by along an axis rises with another one."""
    return Rule("slope-change", table=table, along=along, by=by, low=0.0)


def inverse_cube_root(table: str, along: str = "steps") -> Rule:
    """The best η falls as the cube root of the iterations, within the bound that separates drift from none."""
    return Rule("slope-near", table=table, along=along, low=-THIRD - DRIFT, high=-THIRD + DRIFT)


def not_worse(table: str, against: str, at: str | None = None) -> Rule:
    """A table's best loss is at most a little above another's."""
    return Rule("loss-not-worse", table=table, against=against, at=at, high=NATS)


def matches(table: str, against: str) -> Rule:
    """Two tables' best losses are the same."""
    return Rule("loss-near", table=table, against=against, low=-NATS, high=NATS)
