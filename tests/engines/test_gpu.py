"""What must hold on a GPU: kernels against float64, replicas that never touch each other, and the same losses twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

    from nugpt.data import TokenDataset
    from nugpt.spec.run import RunSpec

pytestmark = pytest.mark.gpu


def relative_error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    from nugpt.data import cached_embedded

    return cached_embedded("bytes", cache=tmp_path_factory.mktemp("data"))


def specs_of(
    dataset: TokenDataset, heads: int, lrs: list[float], precision: str, steps: int = 60, seq_len: int = 128
) -> list[RunSpec]:
    from nugpt.spec import load_table, preset
    from nugpt.spec.run import RunSpec

    scale, model = preset(f"lab-l4h{heads}")
    model = replace(model, vocab_size=dataset.vocab_size, seq_len=seq_len)
    base = replace(scale.base, extent=replace(scale.base.extent, batch_tokens=8 * seq_len))
    common: dict[str, Any] = {"steps": steps, "batch": 8, "data": dataset.content_hash, "precision": precision}
    return [RunSpec(model, load_table("nugpt"), base, lr, **common) for lr in lrs]


def train(
    dataset: TokenDataset, specs: list[RunSpec], kernels: str, spoil: int | None = None, wait: bool = False
) -> tuple[Tensor, Any]:
    """The loss of every step and replica, and the last state; `spoil` plants a NaN in one replica after ten steps."""
    import torch

    from nugpt.engines.lab.ensemble import Ensemble
    from nugpt.engines.lab.loop import _batches

    device = torch.device("cuda")
    how = {"plain": (False, "plain"), "compiled": (True, "plain"), "fused": (False, "fused")}[kernels]
    ensemble = Ensemble(specs, device, "folded", "chunked", *how)
    state = ensemble.initial_state()
    losses = []
    for tokens, targets in _batches(specs, dataset, 0, device):
        ensemble.train_step(state, tokens, targets, 1.0, specs[0].batch)
        losses.append(state.loss_sum.clone())
        state.loss_sum.zero_()
        if spoil is not None and state.step == 10:
            with torch.no_grad():
                state.params["blocks.1.mlp.W_u.weight"][spoil, 3, 5] = float("nan")
        if wait:
            torch.cuda.synchronize()
    return torch.stack(losses).cpu(), state


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 64, 4, 48), (1, 77, 3, 102), (2, 128, 2, 128), (1, 33, 5, 6)])
def test_folded_attention_equals_the_definition_in_float64(shape: tuple[int, int, int, int], dtype_name: str) -> None:
    import torch

    from nugpt.kernels.attention import folded, plain

    dtype = getattr(torch, dtype_name)
    torch.manual_seed(0)
    inputs = [torch.randn(3, *shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    scale = shape[-1] ** -0.5
    found = torch.func.vmap(lambda q, k, v: folded(q, k, v, scale, None))(*inputs)
    truth = plain(*exact, scale, None)
    weights = torch.randn_like(truth)
    found_grads = torch.autograd.grad((found.double() * weights).sum(), inputs)
    true_grads = torch.autograd.grad((truth * weights).sum(), exact)
    # bf16 has 8 bits of mantissa: 2^-9 per rounding, a few of them on the way; float32 kernels may use tf32 products.
    bound = 1e-2 if dtype is torch.bfloat16 else 2e-3
    assert relative_error(found, truth) < bound
    for g, t in zip(found_grads, true_grads, strict=True):
        assert relative_error(g, t) < bound


@pytest.mark.parametrize("kernels", ["compiled", "fused"])
def test_a_nan_in_one_replica_leaves_the_others_bitwise_unchanged(dataset: TokenDataset, kernels: str) -> None:
    import torch

    specs = specs_of(dataset, 2, [2**-7, 2**-7.5, 2**-8, 2**-8.5], "bfloat16")
    clean, clean_state = train(dataset, specs, kernels)
    spoiled, state = train(dataset, specs, kernels, spoil=1)
    others = [0, 2, 3]
    assert clean.isfinite().all()
    assert torch.equal(clean[:, others], spoiled[:, others])
    for name, p in clean_state.params.items():
        assert torch.equal(p[others], state.params[name][others]), name
    assert state.died_at.tolist() == [-1, 10, -1, -1]


@pytest.mark.parametrize("kernels", ["compiled", "fused"])
def test_the_same_seeds_give_the_same_losses_twice(dataset: TokenDataset, kernels: str) -> None:
    import torch

    specs = specs_of(dataset, 4, [2**-7, 2**-8], "bfloat16")
    first, _ = train(dataset, specs, kernels)
    again, _ = train(dataset, specs, kernels)
    difference = float((first - again).abs().max())
    print(f"largest difference of any loss between two runs: {difference:.3g}")
    assert torch.equal(first[0], again[0])  # the forward pass has a fixed order
    # Flash attention's backward and the embedding's gradient add in an order that varies: rounding, then its growth.
    assert difference < 0.02


@pytest.mark.parametrize(("kernels", "seq_len"), [("compiled", 128), ("fused", 128), ("fused", 2048)])
def test_deterministic_mode_gives_the_same_losses_to_the_bit(dataset: TokenDataset, kernels: str, seq_len: int) -> None:
    """Of short sequences by `short`, of long ones by flash attention."""
    import os

    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    specs = specs_of(dataset, 4, [2**-7, 2**-8], "bfloat16", seq_len=seq_len)
    torch.use_deterministic_algorithms(True)
    try:
        first, _ = train(dataset, specs, kernels)
        again, _ = train(dataset, specs, kernels)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, again)


@pytest.mark.parametrize("kernels", ["compiled", "fused"])
def test_nine_small_replicas_need_no_waiting_between_steps(dataset: TokenDataset, kernels: str) -> None:
    lrs = [2 ** (-6 - k / 4) for k in range(9)]
    specs = specs_of(dataset, 2, lrs, "bfloat16", steps=300)
    hurried, state = train(dataset, specs, kernels)
    waited, _ = train(dataset, specs, kernels, wait=True)
    assert hurried.isfinite().all()
    assert bool(state.alive.all())
    assert float((hurried - waited).abs().max()) < 0.1  # rounding's growth over 300 steps at the largest rates


@pytest.mark.parametrize("kernels", ["plain", "compiled", "fused"])
def test_python_never_waits_for_a_step(dataset: TokenDataset, kernels: str) -> None:
    import torch

    from nugpt.engines.lab.ensemble import Ensemble
    from nugpt.engines.lab.loop import _batches

    specs, device = specs_of(dataset, 2, [2**-7, 2**-8], "bfloat16", steps=12), torch.device("cuda")
    how = {"plain": (False, "plain"), "compiled": (True, "plain"), "fused": (False, "fused")}[kernels]
    ensemble = Ensemble(specs, device, "folded", "chunked", *how)
    state = ensemble.initial_state()
    try:
        for tokens, targets in _batches(specs, dataset, 0, device):
            if state.step == 6:  # compiled, and captured where it is
                torch.cuda.set_sync_debug_mode("error")
            ensemble.train_step(state, tokens, targets, 1.0, specs[0].batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == 12


@pytest.mark.parametrize("kernels", ["compiled", "fused"])
def test_fast_and_eager_training_agree(dataset: TokenDataset, kernels: str) -> None:
    specs = specs_of(dataset, 2, [2**-10, 2**-11], "float32", steps=200)
    fast, _ = train(dataset, specs, kernels)
    eager, _ = train(dataset, specs, "plain")
    # float32 on both sides, learning rates below the optimum: what differs is the order of sums.
    assert float((fast - eager).abs().max()) < 2e-3


def test_fused_training_in_bfloat16_agrees_with_the_definitions(dataset: TokenDataset) -> None:
    specs = specs_of(dataset, 4, [2**-8, 2**-9], "bfloat16", steps=200)
    fused, _ = train(dataset, specs, "fused")
    plain, _ = train(dataset, specs, "plain")
    assert float((fused - plain)[:20].abs().max()) < 0.01  # a few roundings of 2^-9
    # And no bias at the end. By then equal trainings drift apart: on a CPU, by the definitions alone, weights that
    # differed by up to 2^-10 of themselves at the start moved these means by up to 0.020 and 0.004 in six tries. Each
    # bound is three times that: the lower learning rate, which drifts less, is what would show a bias.
    highest, lowest = (fused - plain)[-50:].mean(0).abs().tolist()
    assert highest < 0.06
    assert lowest < 0.012


@pytest.mark.parametrize("kernels", ["plain", "fused"])
def test_replicas_equal_single_runs(dataset: TokenDataset, kernels: str) -> None:
    specs = specs_of(dataset, 2, [2**-9, 2**-10, 2**-11], "float32", steps=30)
    together, _ = train(dataset, specs, kernels)
    for r, spec in enumerate(specs):
        alone, _ = train(dataset, [spec], kernels)
        assert float((alone[:, 0] - together[:, r]).abs().max()) < 1e-4  # another kernel for another batch of products


def test_a_run_on_the_gpu_is_recorded_as_such(dataset: TokenDataset, tmp_path: Path) -> None:
    from nugpt.engines.lab import Options, execute
    from nugpt.store import Store

    (spec,) = specs_of(dataset, 2, [2**-7], "bfloat16", steps=40)
    (record,) = execute([spec], Store(tmp_path), dataset, Options())
    assert record.status == "done"
    assert record.val_loss is not None
    assert record.val_loss < 4.5  # a unigram model of bytes is near 3.4; log V is 5.95
    assert record.carried_by["device_type"] == "cuda"
    assert record.carried_by["kernels"] == "fused"
    assert record.carried_by["attention"] in ("flash", "cudnn", "short")
    assert record.carried_by["compile"] is False


def test_a_recorded_measurement_is_the_eager_one(dataset: TokenDataset) -> None:
    import torch

    from nugpt.engines.lab.ensemble import Ensemble
    from nugpt.engines.lab.evaluate import ValidationSet
    from nugpt.engines.lab.loop import _batches
    from nugpt.engines.lab.recorded import RecordedAlignment
    from nugpt.measure.decoder import DecoderAlignment
    from nugpt.spec import load_table

    device = torch.device("cuda")
    one, other = specs_of(dataset, 2, [2**-7, 2**-8], "bfloat16")
    specs = [one, replace(other, table=load_table("ngpt"), seed=1)]
    ensemble = Ensemble(specs, device, "folded", "chunked", compiled=False, kernels="fused")
    state = ensemble.initial_state()
    found = ValidationSet.of(dataset, one.model.seq_len, 4)
    batch = found.inputs.to(device), found.targets.to(device)
    decoder = DecoderAlignment(one.model)
    recording = RecordedAlignment(decoder, *batch)
    starts = [{name: p[r].detach().clone() for name, p in state.params.items()} for r in range(2)]
    kept = [starts[0], {name: value.cpu() for name, value in starts[1].items()}]  # as where the device has no room
    random, seen = torch.cuda.get_rng_state(), []
    for tokens, targets in _batches(specs, dataset, 0, device):
        ensemble.train_step(state, tokens, targets, 1.0, one.batch)
        for r in range(2) if state.step in (1, 2, 3, 4, 20, 60) else ():
            now = {name: p[r].detach() for name, p in state.params.items()}
            gains = type(ensemble.gains)(*(g[r] for g in ensemble.gains))
            eager = decoder.numbers(now.__getitem__, starts[r].__getitem__, gains, *batch)
            again = recording.numbers(now.__getitem__, kept[r].__getitem__, gains)
            # The same kernels on the same numbers; 1e-6 is the last digit that a row shows.
            torch.testing.assert_close(again, eager, atol=1e-6, rtol=1e-6, equal_nan=True)
            assert recording.measure(now.__getitem__, kept[r].__getitem__, gains).loss is not None
            seen.append(again.clone())
    assert recording.is_recorded
    assert len(seen) == 12
    assert all(not torch.equal(seen[0], later) for later in seen[1:])
    assert torch.equal(torch.cuda.get_rng_state(), random)


def test_measuring_by_a_graph_leaves_training_as_it_is(dataset: TokenDataset, tmp_path: Path) -> None:
    import os

    import torch
    from tests.engines.small import directory_of, last_tensors

    from nugpt.engines.lab import Options, execute
    from nugpt.store import Store

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    specs = specs_of(dataset, 2, [2**-7, 2**-8], "bfloat16", steps=40)
    try:
        for name, measure in (("measured", ("alignment", "lerp")), ("unmeasured", ())):
            options = Options(deterministic=True, measure=measure, measure_points=8)
            records = execute(specs, Store(tmp_path / name), dataset, options)
            assert [record.carried_by["measured_by"] for record in records] == ["graph" if measure else None] * 2
            for record in records:
                print(f"{name}: {record.carried_by['measured_s']:.3f} s of {record.carried_by['device_s']:.3f} s")
    finally:
        torch.use_deterministic_algorithms(False)
    for spec in specs:
        measured, unmeasured = (
            last_tensors(directory_of(spec, tmp_path / name)) for name in ("measured", "unmeasured")
        )
        assert measured.keys() == unmeasured.keys()
        assert all(torch.equal(value, unmeasured[name]) for name, value in measured.items())


def test_a_graph_that_cannot_be_recorded_leaves_the_device_as_it_was() -> None:
    import subprocess
    import sys

    program = """
import torch
from nugpt.engines.lab.recorded import recorded_graph
x = torch.arange(1000.0, device="cuda")
before = torch.cuda.current_stream()
try:
    recorded_graph(lambda: x + float(x.sum()))  # it waits for the device
except RuntimeError:
    pass
else:
    raise SystemExit("it was recorded")
assert torch.cuda.current_stream() == before
assert float(x.double() @ x.double()) == 332833500.0
y = [torch.full((1 << 24,), float(i), device="cuda") for i in range(8)]
del y
torch.cuda.empty_cache()
assert float((2 * x).sum()) == 999000.0
replay, made = recorded_graph(lambda: 3 * x)
x.fill_(1.0)
replay()
assert float(made.sum()) == 3000.0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
