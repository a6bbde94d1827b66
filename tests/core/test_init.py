"""Initial values are a function of (seed, parameter name) and nothing else."""

from __future__ import annotations

import random

import pytest
import torch
from tests.core import small

from nugpt.core.init import build, gains, initial_value, initial_values, initialize_
from nugpt.spec import parameter_shapes

MATRICES = ["E_in.weight", "blocks.0.attention.W_q.weight", "blocks.1.mlp.W_oMLP.weight", "E_out.weight"]


PINNED = [
    ("E_in.weight", 0, [-0.014718, 0.168918, -0.084896, 0.049936]),
    ("blocks.0.attention.W_q.weight", 0, [-0.018831, 0.113999, -0.194357, 0.062880]),
    ("blocks.1.mlp.W_oMLP.weight", 0, [0.349992, 0.041099, -0.025350, -0.057483]),
    ("E_out.weight", 1234567, [0.013839, -0.567052, 0.044388, 0.121878]),
]


def values(shape: object, seed: int = 0, **options: object) -> dict[str, torch.Tensor]:
    config = small.config(**(shape or {}))  # type: ignore[arg-type]
    return initial_values(parameter_shapes(config).items(), seed, small.resolved(config, **options), config.roles)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_a_model_has_the_values_of_its_names(architecture: str) -> None:
    config = small.config(architecture)
    model = build(config)
    initialize_(model, 7, small.resolved(config), config.roles)
    truth = values({"architecture": architecture}, seed=7)
    assert set(truth) == set(dict(model.named_parameters()))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, truth[name]), name


def test_neither_order_nor_company_nor_the_global_generator_matters() -> None:
    config = small.config()
    truth = values({})
    items = list(parameter_shapes(config).items())
    random.Random(0).shuffle(items)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    shuffled = initial_values(items[: len(items) // 2], 0, small.resolved(config), config.roles)
    assert torch.equal(torch.get_rng_state(), before)
    assert 0 < len(shuffled) < len(truth)
    for name, value in shuffled.items():
        assert torch.equal(value, truth[name]), name


def test_a_deeper_model_begins_with_the_shallow_ones_blocks() -> None:
    shallow, deep = values({"n_layers": 1}), values({"n_layers": 3})
    matrices = [name for name in shallow if name.endswith(".weight")]
    assert len(matrices) == 9
    assert all(torch.equal(shallow[name], deep[name]) for name in matrices)
    assert not torch.equal(deep["blocks.0.attention.W_q.weight"], deep["blocks.1.attention.W_q.weight"])


def test_matrices_do_not_depend_on_the_table_nor_on_the_learning_rate() -> None:
    truth = values({})
    for table, lr in (("ngpt", 0.01), ("nugpt", 1.0)):
        ours = values({}, table=table, lr=lr)
        assert all(torch.equal(ours[name], truth[name]) for name in truth if name.endswith(".weight"))


@pytest.mark.parametrize("name", MATRICES)
def test_seeds_and_names_are_all_different(name: str) -> None:
    config = small.config()
    shape = parameter_shapes(config)[name]
    first = initial_value(name, shape, 0, small.resolved(config), config.roles)
    again = initial_value(name, shape, 0, small.resolved(config), config.roles)
    other = initial_value(name, shape, 1, small.resolved(config), config.roles)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # Independent: for n numbers the correlation is 1/√n at random, so five times that is a wide margin.
    correlation = torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1]
    assert abs(correlation) < 5 / first.numel() ** 0.5


def test_no_two_parameters_of_a_shape_are_alike() -> None:
    matrices = [value for name, value in values({"n_kv_heads": 4}).items() if name.endswith(".weight")]
    firsts = {tuple(value.flatten()[:4].tolist()) for value in matrices}
    assert len(firsts) == len(matrices)


def test_the_weights_of_a_seed_stay_what_they_are() -> None:
    # A stored run names its seed, so these may not change. Five digits: the vectorised logarithm and cosine behind
    # torch's normal numbers differ in the last bits between processors.
    config = small.config()
    for name, seed, pinned in PINNED:
        value = initial_value(name, parameter_shapes(config)[name], seed, small.resolved(config), config.roles)
        assert value.flatten()[:4].tolist() == pytest.approx(pinned, abs=1e-5), name


@pytest.mark.parametrize("table", ["ngpt", "nugpt"])
def test_rescalers_start_at_their_scale_and_mean_their_init(table: str) -> None:
    config = small.config()
    resolved = small.resolved(config, table=table)
    model = build(config)
    initialize_(model, 0, resolved, config.roles)
    multipliers = gains(model, resolved)
    seen = set()
    for name, parameter in model.named_parameters():
        if name.endswith(".stored"):
            role = name.split(".")[-2]
            row = resolved[role]
            assert parameter.flatten().tolist() == pytest.approx([row.scale] * parameter.numel(), rel=1e-7)
            effective = model.get_submodule(name.removesuffix(".stored"))(getattr(multipliers, role))
            # float32: a product of two rounded numbers
            assert effective.flatten().tolist() == pytest.approx([row.init] * parameter.numel(), rel=3e-7)
            seen.add(role)
    assert seen == set(multipliers._fields)


def test_matrices_on_the_sphere_are_gaussian_directions() -> None:
    weight = initial_value("E_in.weight", (500, 24), 0, small.resolved(small.config()), small.config().roles)
    assert weight.dtype == torch.float32
    assert (weight.double().norm(dim=1) - 1).abs().max() < 1e-6
    # A random unit vector has mean 0 and variance 1/24 per component: 500 of them, five standard errors.
    assert weight.mean(0).abs().max() < 5 * (1 / 24 / 500) ** 0.5
    assert (weight.square().mean(0) * 24 - 1).abs().max() < 5 * (2 / 500) ** 0.5


@pytest.mark.parametrize("architecture", ["prenorm", "prenorm-qknorm"])
def test_the_baselines_matrices_have_the_tables_standard_deviation(architecture: str) -> None:
    config = small.config(architecture)
    resolved = small.resolved(config)
    # m_width is 2, so hidden matrices are narrower by √2
    expected = {"input": 0.02, "hidden": 0.0141421356, "output": 0.02}
    for name, value in values({"architecture": architecture}).items():
        role = config.roles(name).role
        if role == "norm":
            assert set(value.tolist()) == {1.0}
        else:
            # The standard deviation of n numbers errs by 1/√(2n); five times that.
            assert value.std().item() == pytest.approx(expected[role], rel=5 / (2 * value.numel()) ** 0.5), name
            assert resolved[role].init == pytest.approx(expected[role])


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_a_meta_build_has_no_memory_until_it_is_given_some(architecture: str) -> None:
    config = small.config(architecture)
    model = build(config, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    initialize_(model, 0, small.resolved(config), config.roles)
    truth = values({"architecture": architecture})
    assert all(torch.equal(parameter, truth[name]) for name, parameter in model.named_parameters())


def test_initialising_leaves_parameters_trainable_leaves() -> None:
    model = small.model(small.config())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
