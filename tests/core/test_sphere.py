"""Norm, LERP and retraction."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nugpt.core.sphere import lerp, norm, retract_tensor_


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_norm_by_hand() -> None:
    y = torch.tensor([[3.0, 4.0], [0.0, -2.0], [5.0, 12.0]], dtype=torch.float64)
    truth = torch.tensor([[0.6, 0.8], [0.0, -1.0], [5 / 13, 12 / 13]], dtype=torch.float64)
    torch.testing.assert_close(norm(y), truth, rtol=0, atol=1e-15)
    torch.testing.assert_close(norm(y.mT, dim=0), truth.mT, rtol=0, atol=1e-15)


@given(
    st.lists(st.floats(-1e3, 1e3, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=1, max_size=8),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_norm_has_length_one_and_keeps_the_direction(values: list[float], factor: float) -> None:
    y = torch.tensor(values, dtype=torch.float64)
    if not y.any():
        assert not norm(y).any()
        return
    assert norm(y).norm().item() == pytest.approx(1, abs=1e-14)
    torch.testing.assert_close(norm(factor * y), norm(y), rtol=0, atol=1e-14)
    assert torch.dot(norm(y), y) > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_zero_vector_stays_zero_with_a_finite_gradient(dtype: torch.dtype) -> None:
    y = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0]], dtype=dtype, requires_grad=True)
    out = norm(y)
    (out * torch.tensor([1.0, 2.0, 3.0], dtype=dtype)).sum().backward()
    assert out.dtype == dtype
    assert not out[0].any()
    assert y.grad is not None
    assert torch.isfinite(y.grad).all()
    assert y.grad[1].any()


@pytest.mark.parametrize("size", [1e-18, 1e-12, 1e-8, 1e18])
def test_no_length_is_guarded_but_zero(size: float) -> None:
    y = size * torch.tensor([3.0, 4.0])
    torch.testing.assert_close(norm(y), torch.tensor([0.6, 0.8]), rtol=3e-7, atol=0)


def test_gradient_of_norm_is_the_projection_over_the_length() -> None:
    y = draw(5, 7).requires_grad_()
    direction = draw(5, 7, seed=1)
    (norm(y) * direction).sum().backward()
    length = y.detach().norm(dim=-1, keepdim=True)
    unit = y.detach() / length
    truth = (direction - unit * (unit * direction).sum(-1, keepdim=True)) / length
    torch.testing.assert_close(y.grad, truth, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("size", [4, 48, 1020])
def test_bfloat16_is_normalised_in_float32(size: int) -> None:
    y = (100 * draw(64, size)).to(torch.bfloat16)
    ours = norm(y)
    assert ours.dtype == torch.bfloat16
    exact = y.double() / y.double().norm(dim=-1, keepdim=True)
    # One rounding to bfloat16, at most 2^-8 of the value, and float32's own, far smaller.
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8 * 1.001, atol=0)


def test_lerp_is_equation_2() -> None:
    h, branch = norm(draw(2, 3, 8)), norm(draw(2, 3, 8, seed=1))
    alpha = draw(8, seed=2).abs()
    mixed = (1 - alpha) * h + alpha * branch
    torch.testing.assert_close(lerp(h, branch, alpha), mixed / mixed.norm(dim=-1, keepdim=True), rtol=0, atol=1e-14)
    torch.testing.assert_close(lerp(h, branch, torch.zeros(8, dtype=torch.float64)), h, rtol=0, atol=1e-15)
    torch.testing.assert_close(lerp(h, branch, torch.ones(8, dtype=torch.float64)), branch, rtol=0, atol=1e-15)


def test_bfloat16_lerp_is_computed_in_float32() -> None:
    h, branch = norm(draw(16, 48)).to(torch.bfloat16), norm(draw(16, 48, seed=1)).to(torch.bfloat16)
    alpha = torch.full((48,), 0.003)  # a move below half a bfloat16 step of h: lost if h + α(b − h) were rounded first
    ours = lerp(h, branch, alpha)
    assert ours.dtype == torch.bfloat16
    exact = h.double() + alpha.double() * (branch.double() - h.double())
    exact = exact / exact.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8 * 1.001, atol=1e-7)


@pytest.mark.parametrize("alpha_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bfloat16_lerp_takes_its_difference_in_float32(alpha_dtype: torch.dtype) -> None:
    h, branch = norm(draw(16, 48)).to(torch.bfloat16), norm(draw(16, 48, seed=1)).to(torch.bfloat16)
    alpha = torch.full((48,), 0.5, dtype=alpha_dtype)
    ours = lerp(h, branch, alpha)
    # Halfway, h and branch cancel in many components: a difference rounded to bfloat16 shows there in full.
    exact = (h.double() + branch.double()) / 2
    exact = exact / exact.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8 * 1.001, atol=1e-7)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_retraction_is_in_place_and_along_its_axis(axis: int) -> None:
    weight = draw(5, 3)
    other = 1 - axis % 2
    truth = weight / weight.square().sum(axis, keepdim=True).sqrt()
    assert retract_tensor_(weight, axis) is weight
    torch.testing.assert_close(weight, truth, rtol=0, atol=1e-15)
    assert (weight.norm(dim=other) - 1).abs().max() > 1e-2


def test_retraction_leaves_no_trace_in_the_graph_and_spares_zero_vectors() -> None:
    weight = torch.nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    retract_tensor_(weight, 1)
    assert weight.requires_grad
    assert weight.grad_fn is None
    assert weight.tolist() == [[0.0, 0.0], [pytest.approx(0.6), pytest.approx(0.8)]]
