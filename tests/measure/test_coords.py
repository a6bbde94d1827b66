"""Coordinates of real small models: νGPT is flat, and a wrong exponent is found in what training did."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F

import pytest
import torch
from tests.core import small
from torch import Tensor

from nugpt.core.init import build, gains, initialize_
from nugpt.fit.coords import BOUND, FLAT, UNDECIDED, CoordCheck, Sized, check_coordinates
from nugpt.measure.coords import coordinates
from nugpt.spec import Base, Extent, ModelConfig, Parametrization, load_table, resolve
from nugpt.spec.roles import MATRIX_ROLES, RESCALER_ROLES

NUGPT = load_table("nugpt")
HEADS, LAYERS, STEPS, BATCH = (2, 4, 8), (1, 2, 4), 3, 8
BASE = Base.of(Extent(d_model=48, head_dim=12, n_layers=2, steps=20, batch_tokens=BATCH * 32))


def tokens(seed: int, step: int = 0) -> Tensor:
    """Text of a kind: each id is followed by one of three, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    found = [torch.randint(64, (BATCH,), generator=generator)]
    for _ in range(32):
        found.append((3 * found[-1] + torch.randint(3, (BATCH,), generator=generator)) % 64)
    return torch.stack(found, 1)


def measured(table: Parametrization, layers: int, heads: int, seed: int, lr: float = 2**-9) -> Sized:
    config = ModelConfig(layers, heads, 12, 64, 32)
    resolved = resolve(table, BASE, Extent.of(config, 20, BATCH), lr)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        both = tokens(seed, step)
        return both[:, :-1], both[:, 1:]

    found = coordinates(config, resolved, seed, batch, tokens(99)[:, :-1], STEPS)
    return Sized(config.d_model, layers, seed, found.start, found.steps)


def checked(table: Parametrization, axes: str = "both", alignment: float = 0.75) -> CoordCheck:
    sizes = [(2, heads) for heads in HEADS] if axes in ("both", "width") else []
    sizes += [(layers, 4) for layers in LAYERS if (layers, 4) not in sizes] if axes in ("both", "depth") else []
    return check_coordinates(table, [measured(table, *size, seed) for size in sizes for seed in (0, 1)], alignment)


def planted(role: str, cell: str, axis: str, by: F) -> Parametrization:
    row = NUGPT.rows[role]
    power = getattr(row, cell)
    wrong = replace(power, **{axis: getattr(power, axis) + by})
    return replace(NUGPT, name="planted", rows={**NUGPT.rows, role: replace(row, **{cell: wrong})})


def test_nugpt_is_flat_over_width_and_depth() -> None:
    check = checked(NUGPT)
    assert check.mistakes == ()
    assert check.too_large == ()
    assert {(one.quantity, one.axis, one.verdict) for one in check.slopes if one.verdict != FLAT} == set()
    for one in check.slopes:
        # Over these few ids E_out's change is aligned in full at first, so Δlogits may grow as width^(1 − 3/4).
        assert one.slope is not None
        assert -BOUND < one.slope < BOUND + one.slack
        assert one.slack == (0.25 if (one.quantity, one.axis) in (("Δh", "width"), ("Δlogits", "width")) else 0)


@pytest.mark.parametrize("lr", [2**-2, 1.0])
def test_large_steps_are_not_a_mistake_of_the_table(lr: float) -> None:
    """νGPT with steps around the sphere: its matrices then differ too little in how far they came."""
    models = [measured(NUGPT, 2, heads, seed, lr) for heads in HEADS for seed in (0, 1)]
    check = check_coordinates(NUGPT, models)
    assert check.mistakes == ()
    assert "hidden" in {one.role for one in check.too_large}
    (hidden,) = [one for one in check.slopes if (one.quantity, one.axis) == ("moved hidden", "width")]
    assert hidden.interval.low > BOUND  # what would have been called a mistake
    assert hidden.verdict == UNDECIDED


CELLS = [(role, "lr") for role in MATRIX_ROLES + RESCALER_ROLES]
CELLS += [(role, cell) for role in RESCALER_ROLES for cell in ("init", "scale")]
QUICK = [("input", "lr", "width"), ("hidden", "lr", "width"), ("output", "lr", "width"), ("hidden", "lr", "depth")]
QUICK += [("s_z", "init", "width"), ("alpha_A", "init", "depth"), ("s_qk", "scale", "width"), ("s_nu", "lr", "width")]


def find(role: str, cell: str, axis: str, by: F) -> None:
    (mistake,) = checked(planted(role, cell, axis, by), axis).mistakes
    assert (mistake.role, mistake.cell, mistake.axis) == (role, cell, axis)
    assert mistake.error == pytest.approx(float(by), abs=BOUND)
    right = float(getattr(getattr(NUGPT.rows[role], cell), axis))
    assert mistake.wanted == pytest.approx(right, abs=BOUND)


@pytest.mark.parametrize(("role", "cell", "axis"), QUICK)
def test_a_planted_mistake_is_named(role: str, cell: str, axis: str) -> None:
    find(role, cell, axis, F(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("by", [F(1, 4), F(-1, 2)])
@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize(("role", "cell"), CELLS)
def test_every_planted_mistake_is_named(role: str, cell: str, axis: str, by: F) -> None:
    """Of every cell of every role: a quarter too high, the least that the paper's tables differ by, or half too low."""
    find(role, cell, axis, by)


@pytest.mark.slow
def test_the_papers_other_tables_differ_where_it_says() -> None:
    """Against what νGPT asks for: nGPT has no width factor at all, CompleteP keeps s_z and aligns in full."""
    ngpt = {(m.role, m.cell, m.axis) for m in checked(load_table("ngpt")).mistakes}
    assert {("input", "lr", "width"), ("hidden", "lr", "width"), ("output", "lr", "width")} <= ngpt
    assert {("s_z", "init", "width"), ("alpha_A", "init", "depth"), ("alpha_M", "init", "depth")} <= ngpt
    assert {(role, "scale", "width") for role in ("alpha_A", "alpha_M", "s_qk", "s_z")} <= ngpt
    completep = {(m.role, m.cell, m.axis) for m in checked(load_table("completep"), alignment=1.0).mistakes}
    assert completep == {("s_z", "init", "width"), ("output", "lr", "width")}
    depth_mup = {(m.role, m.cell, m.axis) for m in checked(load_table("depth-mup"), "depth").mistakes}
    assert depth_mup == {("alpha_A", "init", "depth"), ("alpha_M", "init", "depth"), ("hidden", "lr", "depth")}


def test_the_sizes_are_what_they_say() -> None:
    """Against the model itself: at the start, and after one step whose every update is η times a sign."""
    config = small.config()
    resolved = small.resolved(config, lr=1e-4)
    ids = small.tokens(batch=4, time=9)
    found = coordinates(config, resolved, 3, lambda step: (ids[:, :-1], ids[:, 1:]), ids[:, :-1], 1)
    model = build(config)
    initialize_(model, 3, resolved, config.roles)
    factors = gains(model, resolved)
    with torch.no_grad():
        h = model(ids[:, :-1], factors)
        z = model.logits(h, factors)
    assert found.start["h"] == pytest.approx(1, abs=1e-6)  # the length of a token's state
    assert found.start["logits"] == pytest.approx(float(z.square().mean().sqrt()), rel=1e-6)
    for role in RESCALER_ROLES:
        row = resolved[role]
        assert found.start[f"init {role}"] == pytest.approx(row.init, rel=1e-6)
        assert found.start[f"scale {role}"] == pytest.approx(row.scale, rel=1e-6)
        if role in ("alpha_A", "alpha_M", "s_u"):  # every component of these has a gradient
            assert found.steps[0][f"stored {role}"] == pytest.approx(row.lr, rel=1e-3)
            assert found.steps[0][f"moved {role}"] == pytest.approx(row.lr / (row.scale or 0), rel=1e-3)
    # A matrix on the sphere loses what of the step points along its own vectors: a share of 1/d_model or so.
    assert found.steps[0]["moved hidden"] == pytest.approx(resolved["hidden"].lr * config.d_model**0.5, rel=0.1)
