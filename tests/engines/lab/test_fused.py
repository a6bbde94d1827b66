"""Training by fused kernels against training by the definitions: the same steps, shapes and replicas."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.small import make_dataset, make_spec
from torch import Tensor

from nugpt.engines.lab import Options, execute, probe
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.engines.lab.recorded import RecordedAlignment
from nugpt.measure.decoder import DecoderAlignment, Parameters
from nugpt.spec import load_table
from nugpt.spec.model import ModelConfig
from nugpt.spec.resolve import Base, Extent
from nugpt.spec.run import RunSpec
from nugpt.store import Store

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("mended_interpreter")]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is defined

TABLES = {"normalized": "nugpt", "prenorm": "prenorm-completep"}
SHAPES = {
    "padded heads": ModelConfig(2, 2, 12, 50, 16, d_mlp=40),
    "groups of queries": ModelConfig(2, 4, 6, 60, 16, n_kv_heads=2, d_mlp=40),
    "plain": ModelConfig(2, 4, 6, 60, 16, n_kv_heads=2, d_mlp=40, architecture="prenorm"),
}


def specs_of(model: ModelConfig, batch: int, precision: str = "float32", clip: float | None = None) -> list[RunSpec]:
    base, table = Base.of(Extent.of(model, 10, batch)), load_table(TABLES[model.architecture])
    rates = ((2**-7, 0), (2**-6, 1), (2**-5, 0))
    return [
        RunSpec(model, table, base, lr, 10, batch, "0" * 16, precision=precision, seed=seed, grad_clip=clip)
        for lr, seed in rates
    ]


def batches(model: ModelConfig, batch: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (3, batch, model.seq_len)
    pairs = [[torch.randint(model.vocab_size, shape, generator=generator) for _ in range(2)] for _ in range(steps)]
    return [(x.to(DEVICE), y.to(DEVICE)) for x, y in pairs]


def train(specs: list[RunSpec], kernels: str, steps: int, micro: int) -> tuple[Ensemble, State, list[Tensor]]:
    ensemble = Ensemble(specs, DEVICE, "plain", "plain", False, kernels)
    state = ensemble.initial_state()
    losses = []
    for tokens, targets in batches(specs[0].model, specs[0].batch, steps):
        ensemble.train_step(state, tokens, targets, 0.7, micro)
        losses.append(state.loss_sum.clone())
    return ensemble, state, losses


@pytest.mark.parametrize(
    ("shape", "micro", "spare", "attention"),
    [
        ("padded heads", 3, False, "fastest"),
        ("groups of queries", 2, False, "fastest"),
        ("plain", 3, False, "fastest"),
        ("padded heads", 3, True, "fastest"),
        ("plain", 2, True, "fastest"),
        ("groups of queries", 3, True, "short"),
        ("plain", 3, False, "short"),
    ],
)
def test_fused_steps_equal_plain_steps(
    shape: str, micro: int, spare: bool, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spare:
        monkeypatch.setattr("nugpt.engines.lab.fused.MOST_KEPT", 0)
    if attention != "fastest":
        monkeypatch.setattr("nugpt.engines.lab.fused.fastest", lambda *shape: attention)
    model = SHAPES[shape]
    specs = specs_of(model, 3, clip=0.5)
    plain, plain_state, plain_losses = train(specs, "plain", 3, micro)
    fused, fused_state, fused_losses = train(specs, "fused", 3, micro)
    assert fused.fused is not None
    assert fused.fused.program.spare == spare
    assert attention in ("fastest", fused.fused.program.attention)
    for a, b in zip(plain_losses, fused_losses, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5)  # float32 on both sides: the order of sums
    for name in plain.names:
        error = (plain_state.params[name] - fused_state.params[name]).norm() / plain_state.params[name].norm()
        assert float(error) < 1e-4, name  # Adam's first steps have the gradient's sign: a tiny one may turn
    torch.testing.assert_close(plain_state.grad_norm, fused_state.grad_norm, rtol=1e-4, atol=0)
    (tokens, targets) = batches(model, 3, 1)[0]
    torch.testing.assert_close(
        plain.token_losses(fused_state.params, tokens, targets).detach(),
        fused.token_losses(fused_state.params, tokens, targets),
        rtol=1e-5,
        atol=1e-5,
    )
    assert float(fused.norm_error(fused_state).max()) < 1e-6


def test_compiling_ahead_reaches_the_last_kernel_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import adam

    specs = specs_of(SHAPES["padded heads"], 3)
    ensemble, state, _ = train(specs, "fused", 1, 2)
    assert ensemble.fused is not None

    def held() -> list[Tensor]:
        groups = (state.params, state.first, state.second)
        counters = (state.alive, state.died_at, state.high, state.loss_sum, state.grad_norm)
        copies = [x for block in ensemble.fused.program.copies for x in vars(block).values()] if ensemble.fused else []
        values = (*(y for group in groups for y in group.values()), *counters, *copies)
        return [x.detach().clone() for x in values]

    before, asked, warmup = held(), list[object](), type(adam._adam_rows).warmup
    monkeypatch.setattr(
        type(adam._adam_rows), "warmup", lambda kernel, *a, **k: (asked.append(kernel), warmup(kernel, *a, **k))[1]
    )
    ensemble.fused._compile(state)
    assert adam._adam_rows in asked
    assert all(torch.equal(a, b) for a, b in zip(before, held(), strict=True))


def test_what_is_done_while_kernels_compile_is_done_once_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    specs, done, order = specs_of(SHAPES["padded heads"], 3), list[str](), list[str]()
    ensembles = [Ensemble(specs, DEVICE, "plain", "plain", False, "fused") for _ in range(2)]

    def fails() -> None:
        assert gone_through.wait(60), "kernels are gone through beside it, not after it"
        assert not gone_on.wait(1), "nothing goes on before it has ended"
        done.append(threading.current_thread().name)
        order.append("fails")
        raise RuntimeError("short of memory")

    gone_through, gone_on, fused = threading.Event(), threading.Event(), ensembles[1].fused
    assert fused is not None
    run, choose = fused._run, fused.program.choose_attention

    def told(state: State, judge: Any) -> None:
        order.append(judge.__name__)
        run(state, judge)
        gone_through.set()

    monkeypatch.setattr(fused, "_run", told)
    monkeypatch.setattr(fused.program, "choose_attention", lambda *a: (gone_on.set(), choose(*a))[1])
    fused.meanwhile = fails
    states = [ensemble.initial_state() for ensemble in ensembles]
    for tokens, targets in batches(specs[0].model, 3, 2):
        for ensemble, state in zip(ensembles, states, strict=True):
            ensemble.train_step(state, tokens, targets, 0.7, 3)
    before, after = order[: order.index("fails")], order[order.index("fails") + 1 :]
    assert {*before} == {"_unjudged"}
    assert {*after} >= {"judge_"}, "it has ended before the first step is taken"
    assert len(done) == 1
    assert done[0] != threading.current_thread().name
    assert fused.waited_s > 0  # `fails` outlives the going through
    one, other = states
    for again in (1, 3):  # another micro-batch, for which all is bound and compiled anew
        ensembles[1].train_step(ensembles[1].initial_state(), *batches(specs[0].model, 3, 1)[0], 0.7, again)
    assert len(done) == 1
    assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)


def test_a_run_rehearses_its_measurement_where_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, asked, numbers = make_dataset(tmp_path / "data"), list[Tensor](), DecoderAlignment.numbers

    def counted(decoder: DecoderAlignment, now: Parameters, start: Parameters, *rest: Any) -> Tensor:
        asked.append(found := numbers(decoder, now, start, *rest))
        return found

    monkeypatch.setattr(DecoderAlignment, "numbers", counted)
    monkeypatch.setattr(probe, "is_worth_recording", lambda *_: True)
    monkeypatch.setattr(
        probe, "RecordedAlignment", partial(RecordedAlignment, record=lambda run: (lambda: None, run()))
    )
    spec = make_spec(dataset, steps=2)
    options = Options(measure=("alignment",), measure_points=1, kernels="fused", device=DEVICE.type)
    (record,) = execute([spec], Store(tmp_path / "runs"), dataset, options)
    assert record.status == "done"
    assert [record.carried_by[x] for x in ("kernels", "loss", "compile")] == ["fused", "fused", False]
    assert record.carried_by["attention"] in ("efficient", "host")  # of float32, on a GPU and elsewhere
    assert [bool(found[:-2].isnan().all()) for found in asked] == [True, False]  # step 0 against itself, then step 2


def test_a_nan_stays_in_its_replica() -> None:
    specs = specs_of(SHAPES["padded heads"], 3)
    _, clean, _ = train(specs, "fused", 3, 3)
    ensemble = Ensemble(specs, DEVICE, "plain", "plain", False, "fused")
    state = ensemble.initial_state()
    for step, (tokens, targets) in enumerate(batches(specs[0].model, 3, 3)):
        if step == 1:
            with torch.no_grad():
                state.params["E_in.weight"][1, int(tokens[1, 0, 0])] = float("nan")
        ensemble.train_step(state, tokens, targets, 0.7, 3)
    assert state.died_at.tolist() == [-1, 1, -1]
    for name, p in clean.params.items():
        assert torch.equal(p[[0, 2]], state.params[name][[0, 2]]), name


def test_weights_changed_from_outside_are_seen() -> None:
    specs = specs_of(ModelConfig(1, 2, 12, 50, 8, d_mlp=40), 2)
    ensemble, state, _ = train(specs, "fused", 1, 2)
    plain = Ensemble(specs, DEVICE, "plain", "plain", False, "plain")
    (tokens, targets) = batches(specs[0].model, 2, 1)[0]
    name = "blocks.0.mlp.W_u.weight"

    def assert_the_step_sees_its_weights() -> None:
        state.loss_sum.zero_()
        expected = plain.token_losses(state.params, tokens, targets).detach().mean(1)
        ensemble.train_step(state, tokens, targets, 0.7, 5)  # pieces larger than the batch are the batch
        torch.testing.assert_close(state.loss_sum.float(), expected, rtol=0, atol=1e-5)

    with torch.no_grad():
        state.params[name].neg_()  # in place
    assert_the_step_sees_its_weights()
    state.params[name] = state.params[name].detach().roll(1, 1).requires_grad_()  # another tensor
    assert_the_step_sees_its_weights()
    ensemble.token_losses(plain.initial_state().params, tokens, targets)  # other weights in between
    assert_the_step_sees_its_weights()


def test_tokens_beyond_sixteen_bits_are_told_apart() -> None:
    model = ModelConfig(1, 2, 6, 2**16 + 40, 2, d_mlp=24)
    found = {}
    for kernels in ("fused", "plain"):
        ensemble = Ensemble(specs_of(model, 1)[:1], DEVICE, "plain", "plain", False, kernels)
        tokens = torch.tensor([[[2**16 + 39, 39]]], device=DEVICE)
        found[kernels] = ensemble.token_losses(ensemble.initial_state().params, tokens, tokens.flip(-1)).flatten()
    assert torch.allclose(found["fused"], found["plain"], atol=1e-4)
    assert abs(found["plain"][0] - found["plain"][1]) > 1e-3


def test_a_subset_goes_on_as_if_alone() -> None:
    specs = specs_of(SHAPES["padded heads"], 3)
    whole, state, _ = train(specs, "fused", 1, 3)
    smaller, part = whole.subset(state, [2])
    tokens, targets = batches(specs[0].model, 3, 2)[1]
    whole.train_step(state, tokens, targets, 0.7, 3)
    smaller.train_step(part, tokens[2:], targets[2:], 0.7, 3)
    for name, p in state.params.items():
        torch.testing.assert_close(p[2], part.params[name][0], rtol=0, atol=1e-5)  # other products for one replica
