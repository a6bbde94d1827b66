"""The rotation of queries and keys, QRot and KRot of (6) and (7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nugpt.core.rope import rope_angles, rotate

# Rotations in float64 are a handful of products and sums of numbers of order 1.
ROUNDING = 1e-13
HEAD_DIMS = (2, 6, 48, 102)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def turned(x_BTNH: Tensor, positions: Tensor, theta: float = 10_000.0) -> Tensor:
    return rotate(x_BTNH, rope_angles(positions, x_BTNH.shape[-1], theta, x_BTNH.dtype))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_it_is_an_isometry(head_dim: int) -> None:
    x = draw(2, 9, 3, head_dim)
    positions = torch.tensor([0, 1, 2, 7, 100, 4095, 65_535, 3, 3])
    torch.testing.assert_close(turned(x, positions).norm(dim=-1), x.norm(dim=-1), rtol=ROUNDING, atol=0)
    # Angles between vectors at one position are kept too, so every length is: no reflection of single components.
    y = draw(2, 9, 3, head_dim, seed=1)
    inner = (turned(x, positions) * turned(y, positions)).sum(-1)
    torch.testing.assert_close(inner, (x * y).sum(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_scores_depend_on_offsets_only(head_dim: int) -> None:
    q, k = draw(1, 1, 1, head_dim), draw(1, 1, 1, head_dim, seed=1)

    def score(n: int, m: int) -> float:
        return float((turned(q, torch.tensor([n])) * turned(k, torch.tensor([m]))).sum())

    for offset in (0, 1, 5, 63):
        scores = [score(start + offset, start) for start in (0, 1, 17, 1000, 4000)]
        # At position 4000 an angle carries 4000·2^-53 of rounding.
        assert scores == pytest.approx([scores[0]] * len(scores), abs=1e-11)
    assert abs(score(5, 0) - score(6, 0)) > 1e-3  # another offset is another score
    assert abs(score(5, 0) - score(0, 5)) > 1e-3  # and its sign matters


@pytest.mark.parametrize("theta", [10_000.0, 50.0, 500_000.0])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_it_is_multiplication_by_a_complex_number_of_length_one(head_dim: int, theta: float) -> None:
    x = draw(2, 5, 3, head_dim)
    positions = torch.tensor([0, 1, 2, 31, 100])
    half = head_dim // 2
    z = x[..., :half].numpy() + 1j * x[..., half:].numpy()
    frequency = np.array([theta ** (-2 * i / head_dim) for i in range(half)])
    truth = z * np.exp(1j * positions.numpy()[:, None] * frequency)[None, :, None, :]
    ours = turned(x, positions, theta)
    np.testing.assert_allclose(ours[..., :half].numpy(), truth.real, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours[..., half:].numpy(), truth.imag, rtol=0, atol=1e-12)


def test_a_quarter_turn_by_hand() -> None:
    x = torch.tensor([[[[3.0, 4.0]]]], dtype=torch.float64)
    quarter = torch.tensor([[torch.pi / 2]], dtype=torch.float64)
    torch.testing.assert_close(rotate(x, quarter), torch.tensor([[[[-4.0, 3.0]]]], dtype=torch.float64))
    assert rope_angles(torch.tensor([3]), 4, 100.0, torch.float64).tolist() == [[3.0, pytest.approx(0.3)]]


def test_position_zero_is_left_alone_and_turns_add_up() -> None:
    x = draw(1, 1, 2, 6)
    torch.testing.assert_close(turned(x, torch.tensor([0])), x, rtol=0, atol=0)
    twice = turned(turned(x, torch.tensor([4])), torch.tensor([9]))
    torch.testing.assert_close(twice, turned(x, torch.tensor([13])), rtol=0, atol=ROUNDING)


def test_low_precision_is_rotated_in_float32() -> None:
    x = draw(2, 4, 3, 48).to(torch.bfloat16)
    positions = torch.tensor([0, 1, 1000, 4095])
    angles = rope_angles(positions, 48, 10_000.0, torch.float32)
    ours = rotate(x, angles)
    assert ours.dtype == torch.float32  # nothing is rounded on the way to Norm
    torch.testing.assert_close(ours, rotate(x.float(), angles), rtol=0, atol=0)
    # Float32 angles near 4095 are right to 4095·2^-24 = 2.4e-4; components are of order 1, at most about 4.
    exact = turned(x.double(), positions)
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=2e-3)


@pytest.mark.parametrize("n_heads", [1, 5])
def test_every_head_is_turned_alike(n_heads: int) -> None:
    x = draw(1, 3, 1, 6).expand(1, 3, n_heads, 6)
    ours = turned(x, torch.tensor([2, 8, 9]))
    torch.testing.assert_close(ours, ours[:, :, :1].expand_as(ours), rtol=0, atol=0)
