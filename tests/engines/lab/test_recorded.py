"""A recorded measurement is the direct one to the bit; what cannot be recorded is measured all the same.

A CUDA graph needs a GPU (tests/engines/test_gpu.py). Its place is taken by a tape of the same kind: the operations that
were run once, done again on the same tensors without any Python of ours.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core import small
from tests.engines.small import Gone, directory_of, gone_at, make_dataset, make_spec, result_of, train
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nugpt.data import TokenDataset
from nugpt.engines.lab import Options, execute, probe, recorded
from nugpt.engines.lab.ensemble import Ensemble
from nugpt.engines.lab.recorded import RecordedAlignment, is_worth_recording, recorded_bytes
from nugpt.measure.decoder import DecoderAlignment
from nugpt.spec.model import total_parameters
from nugpt.spec.run import Start
from nugpt.store import Store, latest_checkpoint

BOTH = ("alignment", "lerp")


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Tape(TorchDispatchMode):
    """Every operation that makes numbers, with the tensors it was given and those it made."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view or func is torch.ops.aten.lift_fresh.default:
            self.done.append((func, args, kwargs or {}, tensors_in(made)))
        return made

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self.done:
            for place, value in zip(made, tensors_in(func(*args, **kwargs)), strict=True):
                place.copy_(value)


def taped(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    with Tape() as tape:
        numbers = run()
    numbers.fill_(torch.nan)  # recording runs nothing that counts
    return tape.replay, numbers


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as on a GPU, a tape for the graph."""
    monkeypatch.setattr(probe, "is_worth_recording", lambda *_: True)
    monkeypatch.setattr(probe, "RecordedAlignment", partial(RecordedAlignment, record=taped))


@pytest.mark.parametrize("record", [None, taped], ids=["buffers", "tape"])
@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_replicas_after_each_other_are_what_they_are_directly(architecture: str, record: Any) -> None:
    config = small.config(architecture)
    decoder, tokens, targets = DecoderAlignment(config), small.tokens(), small.tokens(1)
    recording = RecordedAlignment(decoder, tokens, targets, record)
    models = [small.model(config, seed, torch.float32) for seed in range(4)]
    weights = [{name: p.detach() for name, p in model.named_parameters()} for model in models]
    gains = [small.gains(models[0], torch.float32, factor) for factor in (1.0, 1.5)]
    seen = []
    for now, start, of in [(0, 1, 0), (2, 3, 1), (3, 1, 0), (0, 1, 1), (0, 1, 0)]:
        given = weights[now].__getitem__, weights[start].__getitem__, gains[of]
        numbers = recording.numbers(*given).clone()
        assert same(numbers, decoder.numbers(*given, tokens, targets))
        assert recording.measure(*given) == decoder.measure(*given, tokens, targets)
        assert recording.is_recorded == (record is not None)
        seen.append(numbers)
    assert same(seen[0], seen[-1])
    assert all(not same(seen[0], other) for other in seen[1:-1])  # each of them is seen


def test_the_first_measurement_is_eager_and_recording_happens_once() -> None:
    config = small.config()
    model = small.model(config, dtype=torch.float32)
    params = {name: p.detach() for name, p in model.named_parameters()}
    calls = []

    def counted(run: Callable[[], Tensor]) -> Any:
        calls.append(run)
        return taped(run)

    recording = RecordedAlignment(DecoderAlignment(config), small.tokens(), small.tokens(), counted)
    given = params.__getitem__, params.__getitem__, small.gains(model, torch.float32)
    first = recording.measure(*given)
    assert not calls
    assert not recording.is_recorded
    assert first.loss is not None
    assert [recording.measure(*given) for _ in range(3)] == [first] * 3
    assert len(calls) == 1


def test_nothing_waits_for_the_device_or_comes_from_the_host() -> None:
    config = small.config()
    params = {name: p.detach() for name, p in small.model(config, dtype=torch.float32).named_parameters()}
    decoder, gains = DecoderAlignment(config), small.gains(small.model(config), torch.float32)
    given = params.__getitem__, params.__getitem__, gains, small.tokens(), small.tokens()
    decoder.numbers(*given)
    with Tape() as tape:
        decoder.numbers(*given)
    done = {func.overloadpacket for func, *_ in tape.done}
    aten = torch.ops.aten
    # A tensor from Python's numbers, a number of the device, sizes that depend on values: what no graph can hold.
    assert not done & {aten.lift_fresh, aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.unique_dim}
    assert aten.mm in done


def test_a_tape_tells_what_no_graph_can_hold() -> None:
    with Tape() as tape:
        float(torch.tensor([1.0, 2.0]).sum())
    assert {torch.ops.aten.lift_fresh, torch.ops.aten._local_scalar_dense} <= {f.overloadpacket for f, *_ in tape.done}


def test_a_rehearsal_is_a_measurement_that_leaves_nothing(
    dataset: TokenDataset, on_tape: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(dataset)
    ensemble = Ensemble([spec], torch.device("cpu"), "sdpa", "chunked", False, "plain")
    state, probing = ensemble.initial_state(), probe.Probe(spec, dataset, Options(measure=BOTH), {})
    before, random = {name: value.clone() for name, value in state.params.items()}, torch.get_rng_state()
    probing.begin(ensemble, state)
    rehearsal = probing.rehearsal(ensemble, state)
    assert rehearsal is not None
    found = DecoderAlignment(spec.model).read(rehearsal())  # type: ignore[arg-type]
    assert found.loss == found.loss_0  # of step 0 against itself, which has no exponents
    assert {value for of in found.joint.values() for layers in of.values() for value in layers} == {None}
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in state.params.items())
    assert (probing.measured_by, probing.seconds) == (None, 0.0)
    gone = weakref.ref(ensemble)
    del ensemble
    assert gone() is None, "a rehearsal that waits keeps no ensemble"
    ensemble = Ensemble([spec], torch.device("cpu"), "sdpa", "chunked", False, "plain")
    assert probe.Probe(spec, dataset, Options(measure=("lerp",)), {}).rehearsal(ensemble, state) is None
    monkeypatch.setattr(probe, "is_worth_recording", lambda *_: False)
    assert probing.rehearsal(ensemble, state) is None


@pytest.mark.usefixtures("on_tape")
def test_runs_are_measured_as_without_it_and_trained_as_if_unmeasured(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [make_spec(dataset, table, 2, lr=2**-5, seed=seed) for table, seed in (("nugpt", 0), ("ngpt", 1))]
    random = torch.get_rng_state()
    records = train(specs, tmp_path / "recorded", dataset, measure=BOTH)
    assert torch.equal(torch.get_rng_state(), random)
    assert [record.carried_by["measured_by"] for record in records] == ["graph", "graph"]
    monkeypatch.setattr(probe, "is_worth_recording", is_worth_recording)
    records = train(specs, tmp_path / "direct", dataset, measure=BOTH)
    assert [record.carried_by["measured_by"] for record in records] == ["eager", "eager"]
    records = train(specs, tmp_path / "unmeasured", dataset, measure=())
    assert [record.carried_by["measured_by"] for record in records] == [None, None]
    for spec in specs:
        found = [result_of(directory_of(spec, tmp_path / name)) for name in ("recorded", "direct", "unmeasured")]
        assert found[0] == found[1]
        found[0]["metrics"] = [row for row in found[0]["metrics"] if row["kind"] not in BOTH]
        assert found[0] == found[2]


@pytest.mark.usefixtures("on_tape")
@pytest.mark.parametrize("at", [2, 16])
def test_a_resumed_run_measures_the_same(at: int, dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, lr=lr) for lr in (2**-4, 2**-6)]
    train(specs, tmp_path / "whole", dataset, measure=BOTH)
    with pytest.raises(Gone):
        train(specs, tmp_path / "cut", dataset, gone_at(at), measure=BOTH)
    train(specs, tmp_path / "cut", dataset, measure=BOTH)
    for spec in specs:
        assert result_of(directory_of(spec, tmp_path / "cut")) == result_of(directory_of(spec, tmp_path / "whole"))


@pytest.mark.usefixtures("on_tape")
def test_what_remains_of_an_ensemble_is_measured_on(dataset: TokenDataset, tmp_path: Path) -> None:
    bad, good = (make_spec(dataset, "ngpt", lr=lr) for lr in (1e39, 2**-6))
    records = train([bad, good], tmp_path / "both", dataset, measure=BOTH)
    assert [record.status for record in records] == ["diverged", "done"]
    train([good], tmp_path / "alone", dataset, measure=BOTH)
    both, alone = (directory_of(good, tmp_path / name).read_metrics(("alignment",)) for name in ("both", "alone"))
    assert [row["step"] for row in both] == [row["step"] for row in alone]
    assert [row["loss_0"] for row in both] == [row["loss_0"] for row in alone]


def test_given_weights_are_step_0(dataset: TokenDataset, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = make_spec(dataset, lr=2**-4)
    train([first], tmp_path, dataset)
    given = latest_checkpoint(directory_of(first, tmp_path).checkpoints)
    assert given is not None
    from_given = replace(first, seed=7, start=Start("weights", given.hash))
    specs = [from_given, make_spec(dataset, lr=2**-4, seed=8)]  # its neighbour begins where its seed says
    options = Options(device="cpu", measure=("alignment",))
    execute(specs, Store(tmp_path / "direct"), dataset, options, starts={given.hash: given})
    request.getfixturevalue("on_tape")
    execute(specs, Store(tmp_path / "recorded"), dataset, options, starts={given.hash: given})
    for spec in specs:
        direct, again = (directory_of(spec, tmp_path / name).read_metrics() for name in ("direct", "recorded"))
        assert again == direct
        assert any(row["kind"] == "alignment" for row in again)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_what_cannot_be_recorded_is_measured_directly_for_good(
    error: type[RuntimeError], dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(dataset, lr=2**-4)
    train([spec], tmp_path / "direct", dataset, measure=BOTH)
    tried = []

    def refused(run: Callable[[], Tensor]) -> Any:
        tried.append(run)
        raise error("not now")

    monkeypatch.setattr(probe, "is_worth_recording", lambda *_: True)
    monkeypatch.setattr(probe, "RecordedAlignment", partial(RecordedAlignment, record=refused))
    (record,) = train([spec], tmp_path / "refused", dataset, measure=BOTH)
    assert len(tried) == 1
    assert record.carried_by["measured_by"] == "eager"
    assert result_of(directory_of(spec, tmp_path / "refused")) == result_of(directory_of(spec, tmp_path / "direct"))


def test_it_is_recorded_on_a_gpu_with_room_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    config, tokens = small.config(), 100
    assert not is_worth_recording(config, tokens, torch.device("cpu"))
    free = 0
    monkeypatch.setattr(recorded.torch.cuda, "mem_get_info", lambda _: (free, 1 << 40))
    free = 11 * recorded_bytes(config, tokens)
    assert is_worth_recording(config, tokens, torch.device("cuda"))
    free = 9 * recorded_bytes(config, tokens)
    assert not is_worth_recording(config, tokens, torch.device("cuda"))
    free = 1 << 40
    assert not is_worth_recording(config, 2**24, torch.device("cuda"))  # the loss would go by chunks


class Live(TorchDispatchMode):
    """The most bytes that were alive at once of what operations made."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known, self.now, self.peak = {x.untyped_storage()._cdata for x in known}, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tensors_in(made):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return made

    def _gone(self, storage: int, size: int) -> None:
        self.known.discard(storage)
        self.now -= size


@pytest.mark.parametrize("vocabulary", [64, 8192])
@pytest.mark.parametrize("architecture", ["normalized", "prenorm"])
def test_it_takes_about_the_memory_that_is_said(architecture: str, vocabulary: int) -> None:
    config = small.config(architecture, n_heads=8, n_kv_heads=8, d_mlp=0, vocab_size=vocabulary)
    model = small.model(config, dtype=torch.float32)
    params = {name: p.detach() for name, p in model.named_parameters()}
    tokens, gains = small.tokens(batch=8, time=64), small.gains(model, torch.float32)
    decoder = DecoderAlignment(config)
    with Live([*params.values(), tokens, *gains]) as live:
        decoder.numbers(params.__getitem__, params.__getitem__, gains, tokens, tokens)
    said = recorded_bytes(config, tokens.numel()) - 2 * 4 * total_parameters(config)
    # Not above it, and not far below: a CPU keeps no logits beside those of which it takes the log-sum-exp, a GPU does.
    assert said / 2 < live.peak < said
