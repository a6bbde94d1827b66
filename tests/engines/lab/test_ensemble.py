"""R replicas are R runs: equal to single ones and to an ordinary loop, and none feels another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.small import MODEL, batches_of, make_dataset, make_ensemble, make_spec
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nugpt.core.init import build, gains, initialize_
from nugpt.core.optim import adamw, retract_, set_schedule_
from nugpt.core.schedule import multiplier
from nugpt.data import TokenDataset
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.kernels import cross_entropy
from nugpt.spec import load_table
from nugpt.spec.roles import RESCALER_ROLES
from nugpt.spec.run import RunSpec

TABLES = ("nugpt", "prenorm-completep")
# The optimum of these small runs lies at 2^-2 (pre-norm: 2^-4): at these rates rounding does not grow.
BELOW_OPTIMUM = {"nugpt": 2**-4, "ngpt": 2**-4, "prenorm-completep": 2**-6}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


def trained(
    specs: list[RunSpec],
    dataset: TokenDataset,
    micro: int = 4,
    between: Callable[[Ensemble, State], None] = lambda ensemble, state: None,
    **options: Any,
) -> tuple[Tensor, State]:
    """The loss of every step and replica and the last state; `between` is called before every step."""
    ensemble = make_ensemble(specs, **options)
    state = ensemble.initial_state()
    losses = []
    for tokens, targets in batches_of(specs, dataset):
        between(ensemble, state)
        course = multiplier(specs[0].schedule, state.step, specs[0].steps)
        ensemble.train_step(state, tokens, targets, course, micro)
        losses.append(state.loss_sum.clone())
        state.loss_sum.zero_()
    return torch.stack(losses), state


def bits(tensors: dict[str, Tensor], r: int) -> dict[str, list[int]]:
    """A replica's numbers as integers, so that NaN equals NaN and 0 is not −0."""
    return {name: tensor[r].detach().view(torch.int32).flatten().tolist() for name, tensor in tensors.items()}


def relative(found: Tensor, truth: Tensor) -> float:
    found, truth = found.detach().double(), truth.detach().double()
    return float((found - truth).norm() / truth.norm())


def mixed(dataset: TokenDataset, steps: int = 30) -> list[RunSpec]:
    """nGPT and νGPT with other learning rates, multipliers, decay, seeds and base constants in one ensemble."""
    rate = BELOW_OPTIMUM["nugpt"]
    return [
        make_spec(dataset, "nugpt", 2, lr=rate, steps=steps),
        make_spec(dataset, "ngpt", 2, lr=rate / 4, steps=steps, seed=1),
        make_spec(
            dataset, "nugpt", 2, lr=rate / 2, steps=steps, multipliers={"output": 2.0, "s_z": 0.25, "input": 1.5}
        ),
        make_spec(dataset, "completep", 2, lr=rate, steps=steps, seed=2, weight_decay=0.1),
    ]


def baselines(dataset: TokenDataset, steps: int = 30) -> list[RunSpec]:
    rate = BELOW_OPTIMUM["prenorm-completep"]
    return [
        make_spec(dataset, "prenorm-completep", 2, lr=rate, steps=steps),
        make_spec(dataset, "prenorm-completep", 2, lr=rate / 2, steps=steps, seed=1, weight_decay=0.5),
        make_spec(dataset, "prenorm-completep", 2, lr=rate / 4, steps=steps, multipliers={"hidden": 2.0}),
    ]


@pytest.mark.parametrize(("make", "attention"), [(mixed, "folded"), (baselines, "folded"), (baselines, "plain")])
def test_replicas_equal_single_runs(dataset: TokenDataset, make: Callable[..., list[RunSpec]], attention: str) -> None:
    specs = make(dataset)
    losses, state = trained(specs, dataset, attention=attention)
    assert len({tuple(row) for row in losses.T.tolist()}) == len(specs), "two replicas trained alike"
    for r, spec in enumerate(specs):
        alone, single = trained([spec], dataset, attention=attention)
        # Only the order of sums inside a matrix product differs: float32's 1e-7, grown a little over 30 steps.
        assert torch.allclose(losses[:, r], alone[:, 0], rtol=1e-5, atol=0)
        for name, weights in single.params.items():
            assert relative(state.params[name][r], weights[0]) < 1e-5, name


def ordinary(spec: RunSpec, dataset: TokenDataset, clip: float | None = None) -> tuple[list[float], dict[str, Tensor]]:
    """The training loop that a user would write around `build`, `adamw` and `retract_`."""
    model = build(spec.model)
    resolved, roles = spec.resolved(), spec.model.roles
    initialize_(model, spec.seed, resolved, roles)
    optimizer = adamw(model, resolved, roles)
    numbers, losses = gains(model, resolved), []
    for step in range(spec.steps):
        inputs, targets = map(torch.from_numpy, dataset.batch(spec.seed, step, spec.batch, spec.model.seq_len))
        loss = model(inputs, numbers, targets)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        set_schedule_(optimizer, multiplier(spec.schedule, step, spec.steps))
        optimizer.step()
        retract_(model.named_parameters(), roles)
        losses.append(loss.item())
    return losses, dict(model.named_parameters())


@pytest.mark.parametrize(("make", "clip"), [(mixed, None), (mixed, 0.5), (baselines, 0.5)])
def test_a_replica_equals_the_ordinary_training_loop(
    dataset: TokenDataset, make: Callable[..., list[RunSpec]], clip: float | None
) -> None:
    specs = [replace(spec, grad_clip=clip) for spec in make(dataset)]
    losses, state = trained(specs, dataset)
    for r, spec in enumerate(specs):
        expected, weights = ordinary(spec, dataset, clip)
        # Another attention kernel and another order inside Adam, and torch divides by the norm plus 1e-6 when it
        # clips; where a gradient is near zero Adam turns its rounding into a step of full size.
        assert torch.allclose(losses[:, r], torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=0)
        for name, truth in weights.items():
            assert relative(state.params[name][r], truth) < 1e-3, name


@pytest.mark.parametrize("table", TABLES)
def test_the_same_seeds_twice_give_the_same_bits(dataset: TokenDataset, table: str) -> None:
    specs = [make_spec(dataset, table, seed=seed, lr=0.5) for seed in (0, 1)]  # also where training is rough
    first, second = (trained(specs, dataset) for _ in range(2))
    assert first[0].tolist() == second[0].tolist()
    for r in range(2):
        assert bits(first[1].params, r) == bits(second[1].params, r)
        assert bits(first[1].second, r) == bits(second[1].second, r)


def planted(name: str, r: int, value: float, at: int) -> Callable[[Ensemble, State], None]:
    """Put a number into one place of one replica's parameter before step `at`."""

    def plant(ensemble: Ensemble, state: State) -> None:
        if state.step == at:
            with torch.no_grad():
                state.params[name][r].flatten()[3] = value

    return plant


@pytest.mark.parametrize(
    ("make", "name", "value", "clip"),
    [
        (mixed, "E_out.weight", math.nan, None),
        (mixed, "blocks.0.alpha_A.stored", math.inf, 1.0),
        (baselines, "blocks.1.mlp.W_u.weight", math.nan, 1.0),
        (baselines, "blocks.0.norm_A.weight", math.inf, None),
    ],
)
def test_a_nan_in_one_replica_leaves_the_others_as_they_are(
    dataset: TokenDataset, make: Callable[..., list[RunSpec]], name: str, value: float, clip: float | None
) -> None:
    specs = [replace(spec, grad_clip=clip) for spec in make(dataset, steps=14)]
    losses, state = trained(specs, dataset)
    spoiled: list[dict[str, list[int]]] = []
    plant = planted(name, 1, value, at=7)

    def plant_and_keep(ensemble: Ensemble, state: State) -> None:
        plant(ensemble, state)
        if state.step == 7:
            spoiled.append(bits(state.params, 1))

    found, after = trained(specs, dataset, between=plant_and_keep)
    for r in (r for r in range(len(specs)) if r != 1):
        assert found[:, r].tolist() == losses[:, r].tolist()
        for kind in ("params", "first", "second"):
            assert bits(getattr(after, kind), r) == bits(getattr(state, kind), r)
    assert after.alive.tolist() == [r != 1 for r in range(len(specs))]
    assert after.died_at.tolist() == [7 if r == 1 else -1 for r in range(len(specs))]
    assert bits(after.params, 1) == spoiled[0], "the diverged replica moved"
    assert found[:7, 1].tolist() == losses[:7, 1].tolist()
    assert found[7:, 1].tolist() == [0.0] * 7  # nothing is added to the sum of a dead replica
    assert after.grad_norm.isfinite().all()


@pytest.mark.parametrize("table", TABLES)
def test_a_huge_learning_rate_in_one_replica_leaves_the_others_as_they_are(dataset: TokenDataset, table: str) -> None:
    calm = [make_spec(dataset, table, lr=BELOW_OPTIMUM[table], seed=seed) for seed in (0, 1)]
    losses, state = trained(calm, dataset)
    wild = make_spec(dataset, table, lr=1e39)  # more than float32 can hold: the first step makes it infinite
    found, after = trained([calm[0], wild, calm[1]], dataset)
    assert found[:, [0, 2]].tolist() == losses.tolist()
    for r, place in ((0, 0), (1, 2)):
        assert bits(after.params, place) == bits(state.params, r)
    assert after.alive.tolist() == [True, False, True]
    assert int(after.died_at[1]) == 1


def raise_loss(r: int, first: int, last: int) -> Callable[[Ensemble, State], None]:
    """Before steps first … last make a replica sure of the wrong tokens; before the others give it its own weights."""
    own: dict[str, Tensor] = {}

    def change(ensemble: Ensemble, state: State) -> None:
        scale = state.params["s_z.stored"]
        with torch.no_grad():
            if state.step == first:
                own["scale"] = scale[r].clone()
            if first <= state.step <= last:
                scale[r] = -40 * own["scale"]
            elif state.step == last + 1:
                scale[r] = own["scale"]

    return change


def test_a_loss_above_the_bound_for_long_is_divergence(dataset: TokenDataset) -> None:
    specs = [make_spec(dataset, lr=BELOW_OPTIMUM["nugpt"], steps=30, seed=seed) for seed in (0, 1, 2)]
    patience = 3  # a tenth of the run
    bound = math.log(MODEL.vocab_size) + 1
    calm, state = trained(specs, dataset)
    assert float(calm.max()) < bound

    found, after = trained(specs, dataset, between=raise_loss(1, 20, 29))
    high = found[20 : 20 + patience - 1, 1]
    assert bool((high > bound).all())
    assert after.alive.tolist() == [True, False, True]
    assert after.died_at.tolist() == [-1, 20 + patience - 1, -1]
    assert found[:, [0, 2]].tolist() == calm[:, [0, 2]].tolist()
    assert bits(after.params, 2) == bits(state.params, 2)

    found, after = trained(specs, dataset, between=raise_loss(1, 20, 20 + patience - 2))  # one step less
    assert int((found[:, 1] > bound).sum()) == patience - 1
    assert after.alive.tolist() == [True, True, True]


@pytest.mark.parametrize("make", [mixed, baselines])
def test_gradients_do_not_hang_on_the_pieces_of_the_batch(
    dataset: TokenDataset, make: Callable[..., list[RunSpec]]
) -> None:
    specs = make(dataset)
    ensemble = make_ensemble(specs)
    state = ensemble.initial_state()
    tokens, targets = batches_of(specs, dataset)[0]
    losses, grads = ensemble._gradients(state.params, tokens, targets, 4)
    for micro in (1, 2, 3):  # 3: pieces of three and one, which must be weighted by their size
        pieces, parts = ensemble._gradients(state.params, tokens, targets, micro)
        assert torch.allclose(pieces, losses, rtol=1e-6, atol=0)
        for name, whole, part in zip(ensemble.names, grads, parts, strict=True):
            for r in range(len(specs)):
                # Sums of 64 tokens in another order, in float32.
                assert relative(part[r], whole[r]) < 1e-5, name


def test_training_in_pieces_gives_the_same_losses(dataset: TokenDataset) -> None:
    specs = mixed(dataset, steps=20)[:3]
    whole, _ = trained(specs, dataset)
    pieces, _ = trained(specs, dataset, micro=3)
    # Adam turns the rounding of near-zero gradients into steps of full size, so 1e-5 grows over 20 steps.
    assert torch.allclose(pieces, whole, rtol=1e-4, atol=0)


def test_each_replica_is_clipped_by_its_own_norm_as_torch_does_it(dataset: TokenDataset) -> None:
    ensemble = make_ensemble(baselines(dataset))
    tokens, targets = batches_of(ensemble.specs, dataset)[0]
    _, grads = ensemble._gradients(ensemble.initial_state().params, tokens, targets, 4)
    norms = [float(torch.cat([g[r].flatten() for g in grads]).double().norm()) for r in range(3)]
    for clip in (min(norms) / 2, sorted(norms)[1] * 0.999, max(norms) * 2):
        specs = [replace(spec, grad_clip=clip) for spec in baselines(dataset)]
        clipped = make_ensemble(specs)
        state = clipped.initial_state()
        clipped.train_step(state, tokens, targets, 1.0, 4)
        assert torch.allclose(
            state.grad_norm, torch.tensor(norms), rtol=1e-5
        )  # the norm before clipping is what is kept
        for r in range(3):
            parameters = [torch.nn.Parameter(torch.zeros_like(g[r])) for g in grads]
            for parameter, g in zip(parameters, grads, strict=True):
                parameter.grad = g[r].clone()
            torch.nn.utils.clip_grad_norm_(parameters, clip)
            for name, parameter in zip(clipped.names, parameters, strict=True):
                assert parameter.grad is not None
                # After one step the first moment is (1 − β₁) times the gradient. torch adds 1e-6 to the norm.
                assert relative(state.first[name][r], 0.1 * parameter.grad) < 1e-5, name


def test_replicas_of_a_seed_see_the_same_tokens_and_those_of_another_do_not(dataset: TokenDataset) -> None:
    from nugpt.engines.lab.loop import _batches

    specs = [make_spec(dataset, seed=seed, lr=lr) for seed, lr in ((3, 0.1), (0, 0.1), (3, 0.2))]
    for chosen in (specs, specs[:1], specs[::2]):
        for begin in (0, 17):
            batches = list(_batches(chosen, dataset, begin, torch.device("cpu")))
            assert len(batches) == 24 - begin
            for step, pair in enumerate(batches, begin):
                for r, spec in enumerate(chosen):
                    expected = dataset.batch(spec.seed, step, spec.batch, spec.model.seq_len)
                    for found, truth in zip(pair, expected, strict=True):
                        assert found[r].tolist() == truth.tolist()


def test_vectors_stay_on_the_sphere_and_the_error_says_how_well(dataset: TokenDataset) -> None:
    specs = mixed(dataset)
    _, state = trained(specs, dataset)
    errors = make_ensemble(specs).norm_error(state)
    # A float32 length of a vector of 24 to 64 numbers is right to a few units of the last place.
    assert float(errors.max()) < 1e-6
    with torch.no_grad():
        state.params["blocks.1.mlp.W_oMLP.weight"][2] *= 1.25
    assert make_ensemble(specs).norm_error(state).tolist() == pytest.approx([0.0, 0.0, 0.25, 0.0], abs=1e-6)


def test_bfloat16_products_keep_float32_masters(dataset: TokenDataset) -> None:
    specs = mixed(dataset, steps=15)[:2]
    wide, _ = trained(specs, dataset)
    narrow, state = trained([replace(spec, precision="bfloat16") for spec in specs], dataset)
    assert {p.dtype for p in state.params.values()} == {torch.float32}
    # A relative error of 2^-9 per product, so about a percent of a loss near 3 after a forward pass of two layers.
    assert torch.allclose(narrow, wide, rtol=0.03)
    assert narrow.tolist() != wide.tolist()


@pytest.mark.parametrize("role", RESCALER_ROLES)
def test_rescalers_are_not_rounded_with_the_matrices(dataset: TokenDataset, role: str) -> None:
    spec = replace(mixed(dataset)[0], precision="bfloat16")
    ensemble = make_ensemble([spec])
    plain = {name: p.bfloat16().float() for name, p in ensemble.initial_state().params.items()}
    # By at most a quarter of the distance between neighbouring bfloat16 numbers, so that rounding would undo it.
    moved = {name: p * (1 + 2**-10) if spec.model.roles(name).role == role else p for name, p in plain.items()}
    tokens, targets = next(iter(batches_of([spec], dataset)))
    losses = [ensemble.token_losses(params, tokens, targets) for params in (plain, moved)]
    assert not torch.equal(*losses)


@pytest.mark.skipif(" " in torch.__file__, reason="Inductor cannot link against a torch whose path has a space")
@pytest.mark.slow
def test_eager_and_compiled_agree(dataset: TokenDataset) -> None:
    specs = mixed(dataset, steps=12)[:2]
    eager, state = trained(specs, dataset)
    compiled, after = trained(specs, dataset, compiled=True)
    # Fused kernels sum in another order; the rest is as for pieces of a batch.
    assert torch.allclose(compiled, eager, rtol=1e-4, atol=0)
    for name, weights in state.params.items():
        assert relative(after.params[name], weights) < 1e-3, name


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_chunked_loss_never_holds_the_logits_of_a_batch(
    dataset: TokenDataset, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    model = replace(MODEL, vocab_size=4096, seq_len=64)
    base = replace(make_spec(dataset).base, extent=replace(make_spec(dataset).base.extent, batch_tokens=512))
    specs = [make_spec(dataset, model=model, base=base, batch=8, seed=seed) for seed in range(replicas)]
    tokens, targets = batches_of([replace(spec, steps=1) for spec in specs], dataset)[0]
    all_logits = replicas * 512 * 4096
    budget = all_logits // 16
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", budget)
    found = {}
    for loss in ("plain", "chunked"):
        ensemble = make_ensemble(specs, loss=loss)
        state = ensemble.initial_state()
        with Largest() as largest:
            found[loss] = ensemble._gradients(state.params, tokens, targets, 8)
        # Matrices and their gradients are smaller than a chunk, so what is largest are logits.
        assert replicas * 4096 * model.d_model < budget
        assert largest.numel <= budget if loss == "chunked" else largest.numel >= all_logits
    assert torch.allclose(found["plain"][0], found["chunked"][0], rtol=1e-6)
    for plain, chunked in zip(found["plain"][1], found["chunked"][1], strict=True):
        assert relative(chunked, plain) < 1e-5


def test_the_paper_s_vocabulary_is_chunked_in_the_published_settings() -> None:
    # 64 sequences of 4096 tokens at V = 100,352 would be 98 GiB of float32 logits; a chunk has 1 GiB.
    assert cross_entropy.CHUNK_LOGITS * 4 == 2**30
    assert 10 * cross_entropy.CHUNK_LOGITS < 8 * 4096 * 100_352


def test_a_replica_s_table_is_its_own(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = mixed(dataset)
    ensemble = make_ensemble(specs)
    for r, spec in enumerate(specs):
        resolved = spec.resolved()
        for role in load_table("nugpt").rows:
            lr, eps, decay = (float(x[r]) for x in ensemble.settings[role])
            assert lr == pytest.approx(resolved[role].lr, rel=1e-6)
            assert eps == pytest.approx(resolved[role].eps, rel=1e-6)
            assert decay == pytest.approx(resolved[role].weight_decay, rel=1e-6)
        for name in ensemble.gains._fields:
            assert float(getattr(ensemble.gains, name)[r]) == pytest.approx(resolved.gains[name], rel=1e-6)


def test_a_step_sends_no_number_that_would_wait_for_the_device(
    dataset: TokenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [make_spec(dataset, steps=3)]
    ensemble = make_ensemble(specs)
    state, batches = ensemble.initial_state(), batches_of(specs, dataset)
    sent, tensor = [], torch.tensor

    def noted(data: Any, **options: Any) -> Tensor:
        if options.get("device") is not None:
            sent.append(data)
        return tensor(data, **options)

    monkeypatch.setattr(torch, "tensor", noted)
    for tokens, targets in batches:
        ensemble.train_step(state, tokens, targets, 1.0, specs[0].batch)
    assert state.step == 3
    assert not sent


@pytest.mark.usefixtures("fresh_compiler")
def test_what_is_compiled_for_earlier_models_leaves_later_ones_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.engines.lab import ensemble

    # As inductor gets it, run by torch itself; beyond the limit it would fall back to what was written, in silence.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    one, alive = torch.ones(2), torch.ones(2, dtype=torch.bool)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for width in range(8, 19):  # as many models, of six kinds of tensors each
            update = ensemble._compile(ensemble._update_)
            for rows in range(2, 8):
                tensors = (torch.ones(2, rows, width) for _ in range(4))
                update(*tensors, alive, one, torch.tensor(1.0), one, one, one, (0.9, 0.95), 2)


def test_an_ensemble_leaves_with_its_last_reference(dataset: TokenDataset) -> None:
    """Nothing in it refers back to it, or a GPU's memory would stay taken until Python's collector comes by."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        ensemble = make_ensemble([make_spec(dataset)])
        gone = weakref.ref(ensemble)
        del ensemble
        assert gone() is None
    finally:
        gc.enable()
