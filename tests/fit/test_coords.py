"""Coordinate checks on made-up sizes: slopes come back, verdicts follow the interval, one exponent is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest

from nugpt.fit.coords import (
    AXES,
    BOUND,
    FALLS,
    FLAT,
    GROWS,
    LARGEST_SHARE,
    UNDECIDED,
    CoordCheck,
    Mistake,
    Sized,
    check_coordinates,
    not_a_number,
    wanted_slope,
)
from nugpt.spec import load_table
from nugpt.spec.parametrization import Power
from nugpt.spec.roles import MATRIX_ROLES, RESCALER_ROLES

TABLE = load_table("nugpt")
START = [f"{what} {role}" for role in RESCALER_ROLES for what in ("init", "scale")]
STATES = ["h1", "h", "logits", "Δh1", "Δh", "Δlogits"]
MOVED = [f"moved {role}" for role in MATRIX_ROLES + RESCALER_ROLES] + [f"stored {role}" for role in RESCALER_ROLES]
SIZES = [(48, 2), (96, 2), (192, 2), (96, 1), (96, 4)]


def make(
    off: Mapping[tuple[str, str], float] = {}, noise: float = 0.0, alignment: float = 0.75, seeds: int = 2
) -> list[Sized]:
    """Sizes that go as they should, plus `off`: (quantity, axis) → what is added to its slope."""
    rng = np.random.default_rng(0)

    def size(quantity: str, width: int, depth: int) -> float:
        slopes = [wanted_slope(quantity, axis, alignment) + off.get((quantity, axis), 0.0) for axis in AXES]
        log2 = slopes[0] * math.log2(width / 96) + slopes[1] * math.log2(depth / 2) + noise * rng.standard_normal()
        return 0.1 * 2.0**log2

    return [
        Sized(
            width,
            depth,
            seed,
            {q: size(q, width, depth) for q in START},
            tuple({q: size(q, width, depth) * step for q in STATES + MOVED} for step in (1, 2)),
        )
        for width, depth in SIZES
        for seed in range(seeds)
    ]


def verdicts(check: CoordCheck) -> dict[tuple[str, str], str]:
    return {(one.quantity, one.axis): one.verdict for one in check.slopes}


def test_sizes_that_go_as_they_should_are_flat() -> None:
    check = check_coordinates(TABLE, make(noise=0.01))
    assert set(verdicts(check).values()) == {FLAT}
    assert check.passed
    assert not check.failed
    assert check.mistakes == ()
    assert len(check.slopes) == 2 * len(START + STATES + MOVED)


def test_a_slope_is_given_back_less_what_is_wanted() -> None:
    check = check_coordinates(TABLE, make({("Δlogits", "width"): 0.5, ("Δh", "depth"): -0.3}))
    found = {(one.quantity, one.axis): one for one in check.slopes}
    assert found["Δlogits", "width"].slope == pytest.approx(0.5)
    assert found["Δlogits", "width"].verdict == GROWS
    assert found["Δh", "depth"].slope == pytest.approx(-0.3)
    assert found["Δh", "depth"].verdict == FALLS
    assert found["init s_z", "width"].slope == pytest.approx(0.0, abs=1e-12)
    assert found["init s_z", "width"].sizes == tuple((w, pytest.approx(0.1 * (w / 96) ** 0.5)) for w in (48, 96, 192))
    assert check.failed
    assert check.mistakes == ()


CELLS = [(role, "lr") for role in MATRIX_ROLES + RESCALER_ROLES]
CELLS += [(role, cell) for role in RESCALER_ROLES for cell in ("init", "scale")]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("role", "cell"), CELLS)
@pytest.mark.parametrize("by", [0.25, -0.5])
def test_one_wrong_exponent_is_named(role: str, cell: str, axis: str, by: float) -> None:
    """What a mistake of one exponent moves: its own size, and for a rescaler how far it moves as a share of itself."""
    off = {(f"{cell} {role}", axis): by}
    if cell == "lr":
        off = {(f"moved {role}", axis): by, (f"stored {role}", axis): by}
    elif cell == "scale":
        off |= {(f"moved {role}", axis): -by}
    row = TABLE.rows[role]
    power = getattr(row, cell)
    planted = replace(power, **{axis: getattr(power, axis) + F(by)})
    table = replace(TABLE, rows={**TABLE.rows, role: replace(row, **{cell: planted})})
    (mistake,) = check_coordinates(table, make(off, noise=0.01)).mistakes
    assert (mistake.role, mistake.cell, mistake.axis) == (role, cell, axis)
    assert mistake.error == pytest.approx(by, abs=0.05)
    assert mistake.exponent == float(getattr(planted, axis))
    assert mistake.wanted == pytest.approx(float(getattr(power, axis)), abs=0.05)


def test_what_every_learning_rate_shares_is_named_once() -> None:
    off = {(f"moved {role}", "width"): 0.5 for role in MATRIX_ROLES + RESCALER_ROLES}
    off |= {(f"stored {role}", "width"): 0.5 for role in RESCALER_ROLES}
    table = replace(TABLE, base=Power(width=F(1, 2), data=F(-1, 3)))
    (mistake,) = check_coordinates(table, make(off, noise=0.01)).mistakes
    assert (mistake.role, mistake.axis, mistake.exponent, mistake.wanted) == (
        "base",
        "width",
        0.5,
        pytest.approx(0, abs=0.02),
    )
    assert mistake.text.startswith("η_base: exponent of width is 1/2, 0.5")


def test_another_alignment_asks_for_other_learning_rates() -> None:
    full = load_table("nugpt-full-align")
    models = make(alignment=1.0)  # as that table would have it
    assert check_coordinates(full, models, alignment=1.0).passed
    named = {(m.role, m.cell, m.axis, round(m.error, 2)) for m in check_coordinates(full, models).mistakes}
    assert named == {("hidden", "lr", "width", -0.25), ("output", "lr", "width", -0.25)}


def test_a_change_may_grow_as_far_as_full_alignment_in_the_first_steps_takes_it() -> None:
    def verdict(slope: float, alignment: float) -> str:
        models = make({("Δlogits", "width"): slope}, alignment=alignment)
        return verdicts(check_coordinates(TABLE, models, alignment))["Δlogits", "width"]

    assert verdict(0.25, 0.75) == FLAT
    assert verdict(0.25, 1.0) == GROWS
    assert verdict(0.4, 0.75) == GROWS
    assert verdict(-0.15, 0.75) == FALLS
    models = make({("Δlogits", "depth"): 0.25})
    assert verdicts(check_coordinates(TABLE, models))["Δlogits", "depth"] == GROWS  # over depth there is no reason to


def test_two_sizes_decide_nothing() -> None:
    check = check_coordinates(TABLE, [m for m in make() if m.width != 192 and m.depth != 4])
    assert set(verdicts(check).values()) == {UNDECIDED}
    assert not check.passed
    assert not check.failed


def test_much_noise_decides_nothing() -> None:
    assert UNDECIDED in verdicts(check_coordinates(TABLE, make(noise=1.0))).values()


def test_a_size_that_is_no_number_is_not_flat() -> None:
    models = make()
    spoiled = replace(models[0], steps=tuple({**step, "Δlogits": math.nan} for step in models[0].steps))
    check = check_coordinates(TABLE, [spoiled, *models[1:]])
    assert verdicts(check)["Δlogits", "width"] == UNDECIDED
    assert not check.passed


def far(models: list[Sized], role: str, times: float, width: int | None = None) -> list[Sized]:
    """The same models, but one role's matrices moved so many times as far (of one width, or of all)."""
    name = f"moved {role}"
    return [
        replace(m, steps=tuple({**s, name: times * s[name]} for s in m.steps)) if width in (None, m.width) else m
        for m in models
    ]


@pytest.mark.parametrize("role", MATRIX_ROLES)
def test_steps_that_are_too_large_decide_nothing_that_follows_from_them(role: str) -> None:
    off = {(f"moved {role}", "width"): 0.2, ("Δlogits", "depth"): 0.5, ("init s_z", "width"): 0.5}
    assert {m.role for m in check_coordinates(TABLE, make(off)).mistakes} == {role, "s_z"}
    check = check_coordinates(TABLE, far(make(off), role, 4.0))
    (one,) = check.too_large
    narrow, wide = (
        2 ** float(np.mean([math.log2(4 * step[f"moved {role}"]) for step in model.steps]))
        for model in (make(off)[0], make(off)[4])
    )
    assert (one.role, one.share) == (role, pytest.approx(max(narrow, wide)))
    assert one.share > LARGEST_SHARE
    assert (one.width, one.depth) == (48 if narrow > wide else 192, 2)
    undecided = {quantity for (quantity, _), verdict in verdicts(check).items() if verdict == UNDECIDED}
    assert undecided == {*STATES, f"moved {role}"}  # what starts there, and rescalers, do not lie on the sphere
    assert [m.role for m in check.mistakes] == ["s_z"]  # no mistake is named from how far the matrices moved
    assert not check.passed
    assert f"{one.share:.2f} at width {one.width}, depth 2" in check.too_large_text


def test_only_the_row_that_has_the_model_is_undecided() -> None:
    check = check_coordinates(TABLE, far(make(), "hidden", 4.0, width=192))
    assert verdicts(check)["moved hidden", "width"] == UNDECIDED
    assert verdicts(check)["moved hidden", "depth"] == FLAT  # no model of that row is 192 wide
    assert [(one.role, one.width) for one in check.too_large] == [("hidden", 192)]


def test_steps_within_the_share_are_read() -> None:
    within = 0.95 * LARGEST_SHARE / (0.1 * 2**0.5 * 2**0.25)  # of the narrowest, where hidden matrices move the most
    assert check_coordinates(TABLE, far(make(), "hidden", within)).passed
    beyond = check_coordinates(TABLE, far(make(), "hidden", within / 0.9))
    assert (beyond.passed, beyond.failed) == (False, False)
    assert [(one.role, one.width) for one in beyond.too_large] == [("hidden", 48)]


def test_the_share_leaves_a_slope_within_the_bound() -> None:
    """A step along the tangent, then back on the sphere: how far its end lies from its start, against its length."""
    length = LARGEST_SHARE * np.array([0.999, 1.001])
    chord = 2 * np.sin(np.arctan(length) / 2)
    slope = np.diff(np.log(chord))[0] / np.diff(np.log(length))[0]
    assert 0.9 < slope < 1
    assert 1 - slope < BOUND  # for the steepest slope among the paper's exponents, 1


def test_a_value_that_is_no_number_is_told_with_its_size() -> None:
    model = make()[0]
    assert not_a_number(model) is None
    second = replace(model, steps=(model.steps[0], {**model.steps[1], "logits": math.inf}))
    assert not_a_number(second) == "width 48, depth 2, seed 0: logits is no number after step 2"
    start = replace(model, start={**model.start, "init s_z": math.nan})
    assert not_a_number(start) == "width 48, depth 2, seed 0: init s_z is no number before the first step"


def test_text_of_a_mistake() -> None:
    from nugpt.fit.interval import Interval

    one = Mistake("hidden", "lr", "width", 0.251, Interval(0.2, 0.3), -0.5, -0.75)
    assert one.text == "hidden.lr: exponent of width is -1/2, 0.25 too high; -3/4 is flat"
    other = replace(one, cell="init", role="s_z", axis="depth", error=-0.48, exponent=0.02, wanted=0.5)
    assert other.text == "s_z.init: exponent of depth is 0.02, 0.48 too low; 1/2 is flat"


def test_mistakes_of_the_user_are_named() -> None:
    with pytest.raises(ValueError, match=r"alignment is 0\.3"):
        check_coordinates(TABLE, make(), alignment=0.3)
    with pytest.raises(ValueError, match="models is empty"):
        check_coordinates(TABLE, [])
