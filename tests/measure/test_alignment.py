"""Alignment exponents: closed forms, float64 NumPy, and what they must not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nugpt.measure import alignment as definition
from nugpt.measure.alignment import Exponents, alignment_exponents

Array = NDArray[np.float64]
# Of float32: the exponents are logs of ratios of norms, each with a relative error of some 1e-6, over 2 log d_in.
ROUNDING = 2e-6


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_numpy(W: Array, W_0: Array, h: Array, h_0: Array) -> tuple[list[float], list[float]]:
    """α, ω, ν as Definition 1 has them, in float64: of all tokens jointly, and the mean of each token's own."""
    d_in = W.shape[1]
    joint, per_token = [], []
    for matrix, x in ((W - W_0, h_0), (W_0, h - h_0), (W - W_0, h - h_0)):
        length = np.sqrt((matrix**2).sum())
        product = x @ matrix.T
        joint.append(1 + math.log(np.sqrt((product**2).sum()) / (length * np.sqrt((x**2).sum()))) / math.log(d_in))
        own = [np.linalg.norm(p) / (length * np.linalg.norm(one)) for p, one in zip(product, x, strict=True)]
        per_token.append(float(np.mean([1 + math.log(ratio) / math.log(d_in) for ratio in own])))
    return joint, per_token


def test_a_rank_one_change_along_the_inputs_is_fully_aligned() -> None:
    v, u = gaussian(64, seed=1), gaussian(100, seed=2)
    W_0 = gaussian(100, 64, seed=3)
    lengths = torch.linspace(0.5, 2, 7).unsqueeze(1)
    h_0 = lengths * v  # tokens along v, of different lengths
    found = alignment_exponents(W_0 + torch.outer(u, v), W_0, h_0 * 3, h_0)
    for kind in found:
        assert float(kind.alpha) == pytest.approx(1, abs=ROUNDING)
        assert float(kind.nu) == pytest.approx(1, abs=ROUNDING)


def test_inputs_that_the_change_does_not_see_have_no_exponent() -> None:
    v = torch.zeros(16)
    v[0] = 1.0
    h_0 = gaussian(5, 16)
    h_0[:, 0] = 0.0
    W_0 = gaussian(8, 16, seed=1)
    found = alignment_exponents(W_0 + torch.outer(gaussian(8, seed=2), v), W_0, h_0 + 1, h_0)
    assert math.isnan(found.joint.alpha)
    assert math.isnan(found.per_token.alpha)
    assert math.isfinite(found.joint.nu)


def test_independent_gaussians_are_not_aligned() -> None:
    d_in, d_out, tokens = 256, 384, 512
    W, W_0 = gaussian(d_out, d_in, seed=1), gaussian(d_out, d_in, seed=2)
    h, h_0 = gaussian(tokens, d_in, seed=3), gaussian(tokens, d_in, seed=4)
    found = alignment_exponents(W, W_0, h, h_0)
    # ‖W h‖² is ‖W‖²‖h‖²/d_in within a relative deviation of √(2/(d_in·min(d_out, tokens))) or less: six of them.
    deviation = math.sqrt(2 / (d_in * min(d_out, tokens))) / (2 * math.log(d_in))
    for value in found.joint:
        assert float(value) == pytest.approx(0.5, abs=6 * deviation)
    # A token's own ratio is above or below, its log a little below: half its relative variance, 2/d_out, over 2 log.
    bias = (1 / d_out + 1 / d_in) / (2 * math.log(d_in))
    for value in found.per_token:
        assert float(value) == pytest.approx(0.5, abs=2 * bias + 6 * deviation)


@pytest.mark.parametrize(("d_out", "d_in", "tokens"), [(1, 2, 1), (7, 5, 3), (33, 64, 17), (5, 96, 128)])
def test_it_is_what_numpy_says_in_float64(d_out: int, d_in: int, tokens: int) -> None:
    rng = np.random.default_rng(d_in)
    W, W_0 = (rng.standard_normal((d_out, d_in)) for _ in range(2))
    h, h_0 = (rng.standard_normal((tokens, d_in)) for _ in range(2))
    joint, per_token = by_numpy(W, W_0, h, h_0)
    exact = alignment_exponents(*(torch.from_numpy(x) for x in (W, W_0, h, h_0)))
    assert [float(x) for x in exact.joint] == pytest.approx(joint, abs=1e-12)
    assert [float(x) for x in exact.per_token] == pytest.approx(per_token, abs=1e-12)
    single = alignment_exponents(*(torch.from_numpy(x).float() for x in (W, W_0, h, h_0)))
    assert [float(x) for x in single.joint] == pytest.approx(joint, abs=5e-6)  # d_in 2: a log of 0.7 to divide by


def test_a_small_change_of_large_weights_is_measured_all_the_same() -> None:
    """What training does: ΔW is a thousandth of W, and their difference is taken in float32."""
    rng = np.random.default_rng(0)
    W_0 = rng.standard_normal((48, 64)).astype(np.float32)
    W = W_0 + 1e-3 * rng.standard_normal((48, 64)).astype(np.float32)
    h_0 = rng.standard_normal((30, 64)).astype(np.float32)
    h = h_0 + 1e-2 * rng.standard_normal((30, 64)).astype(np.float32)
    joint, per_token = by_numpy(*(x.astype(np.float64) for x in (W, W_0, h, h_0)))
    found = alignment_exponents(*map(torch.from_numpy, (W, W_0, h, h_0)))
    assert [float(x) for x in found.joint] == pytest.approx(joint, abs=1e-5)
    assert [float(x) for x in found.per_token] == pytest.approx(per_token, abs=1e-5)


def test_neither_scale_nor_a_rotation_matters() -> None:
    W, W_0, h, h_0 = (
        gaussian(20, 32, seed=1),
        gaussian(20, 32, seed=2),
        gaussian(9, 32, seed=3),
        gaussian(9, 32, seed=4),
    )
    plain = alignment_exponents(W, W_0, h, h_0)
    rotation = torch.linalg.qr(gaussian(32, 32, seed=5))[0]
    turned = alignment_exponents(7 * W @ rotation, 7 * W_0 @ rotation, h @ rotation / 3, h_0 @ rotation / 3)
    for kind, other in zip(plain, turned, strict=True):
        torch.testing.assert_close(torch.stack([*kind]), torch.stack([*other]), atol=1e-5, rtol=0)


def test_nothing_is_defined_at_step_0() -> None:
    W, h = gaussian(4, 8), gaussian(3, 8)
    for kind in alignment_exponents(W, W, h, h):
        assert all(math.isnan(value) for value in kind)


def test_a_token_that_did_not_move_is_left_out_of_the_mean_over_tokens() -> None:
    W, W_0, h, h_0 = gaussian(6, 8, seed=1), gaussian(6, 8, seed=2), gaussian(4, 8, seed=3), gaussian(4, 8, seed=4)
    still = torch.cat([h, h_0[:1]]), torch.cat([h_0, h_0[:1]])
    assert float(alignment_exponents(W, W_0, *still).per_token.omega) == pytest.approx(
        float(alignment_exponents(W, W_0, h, h_0).per_token.omega), abs=ROUNDING
    )


def test_pieces_of_products_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    W, W_0, h, h_0 = gaussian(50, 16, seed=1), gaussian(50, 16, seed=2), gaussian(33, 16, seed=3), gaussian(33, 16)
    whole = alignment_exponents(W, W_0, h, h_0)
    monkeypatch.setattr(definition, "CHUNK", 101)
    for kind, other in zip(whole, alignment_exponents(W, W_0, h, h_0), strict=True):
        torch.testing.assert_close(torch.stack([*kind]), torch.stack([*other]), atol=1e-6, rtol=0)


def test_any_leading_axes_are_tokens() -> None:
    W, W_0, h, h_0 = (
        gaussian(5, 8, seed=1),
        gaussian(5, 8, seed=2),
        gaussian(2, 3, 8, seed=3),
        gaussian(2, 3, 8, seed=4),
    )
    flat = alignment_exponents(W, W_0, h.flatten(0, 1), h_0.flatten(0, 1))
    for kind, other in zip(flat, alignment_exponents(W, W_0, h, h_0), strict=True):
        assert Exponents(*map(float, kind)) == Exponents(*map(float, other))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 8), (4, 7), (3, 8), (3, 8)), r"weights are \(4, 8\) and \(4, 7\)"),
        (((4, 8), (4, 8), (3, 7), (3, 7)), r"inputs are \(3, 7\) and \(3, 7\).*ends in 8"),
        (((4, 8), (4, 8), (3, 8), (2, 8)), r"inputs are \(3, 8\) and \(2, 8\)"),
        (((4, 1), (4, 1), (3, 1), (3, 1)), r"d_in is 1"),
    ],
)
def test_what_does_not_fit_is_refused(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alignment_exponents(*(gaussian(*shape) for shape in shapes))
