"""The validation loss: a fixed set, in all and per source, its EMA, and when it is taken."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.small import (
    MODEL,
    SOURCES,
    directory_of,
    last_tensors,
    make_dataset,
    make_ensemble,
    make_spec,
    train,
)
from torch.nn import functional

from nugpt.core.init import build, gains
from nugpt.data import TokenDataset
from nugpt.engines.lab.evaluate import ValidationSet, validate
from nugpt.engines.lab.generate import load_trained
from nugpt.spec.run import RunSpec


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(dataset: TokenDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RunSpec], Path]:
    store = tmp_path_factory.mktemp("runs")
    specs = [
        make_spec(dataset, "nugpt", lr=2**-4, validations=7),
        make_spec(dataset, "ngpt", lr=2**-5, seed=1, validations=7),
    ]
    train(specs, store, dataset, micro_batch=3)
    return specs, store


def window_losses(spec: RunSpec, store: Path, dataset: TokenDataset, windows: int) -> tuple[np.ndarray, np.ndarray]:
    """Loss and source of every validation token by the plain model, from its logits in float64."""
    model = build(spec.model, attention="plain", loss="plain")
    weights = last_tensors(directory_of(spec, store))
    model.load_state_dict({name: weights[name] for name, _ in model.named_parameters()})
    model = model.double()
    numbers = gains(model, spec.resolved())
    data = dataset.validation(spec.model.seq_len, windows)
    with torch.no_grad():
        logits = model.logits(model(torch.from_numpy(data.inputs), numbers), numbers)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), torch.from_numpy(data.targets).flatten(), reduction="none"
        )
    return losses.numpy(), data.sources.flatten()


def test_it_is_what_the_plain_model_says_of_the_fixed_set(
    dataset: TokenDataset, finished: tuple[list[RunSpec], Path]
) -> None:
    specs, store = finished
    for spec in specs:
        record = directory_of(spec, store).record()
        assert record is not None
        losses, sources = window_losses(spec, store, dataset, spec.val_windows)
        assert len(losses) == 12 * 16
        # float32 against float64: a few units of the seventh digit.
        assert record.val_loss == pytest.approx(losses.mean(), rel=1e-5)
        for number, name in enumerate(SOURCES):
            assert record.val_loss_by_source[name] == pytest.approx(losses[sources == number].mean(), rel=1e-5)


def test_sources_weighted_by_their_tokens_make_the_whole(
    dataset: TokenDataset, finished: tuple[list[RunSpec], Path]
) -> None:
    specs, store = finished
    sources = dataset.validation(16, 12).sources
    shares = {name: float((sources == number).mean()) for number, name in enumerate(SOURCES)}
    assert all(0.05 < share < 0.9 for share in shares.values())
    for spec in specs:
        for row in directory_of(spec, store).read_metrics():
            if row["kind"] == "validation":
                mean = sum(shares[name] * loss for name, loss in row["val_loss_by_source"].items())
                assert row["val_loss"] == pytest.approx(mean, rel=1e-12)


def test_the_ema_begins_at_its_first_value(finished: tuple[list[RunSpec], Path]) -> None:
    specs, store = finished
    for spec in specs:
        rows = [row for row in directory_of(spec, store).read_metrics() if row["kind"] == "validation"]
        losses = np.array([row["val_loss"] for row in rows])
        for n in range(len(losses)):
            # Written out: 0.95^n of the first, and 0.05·0.95^(n−k) of each later one.
            weights = np.array([0.95**n] + [0.05 * 0.95 ** (n - k) for k in range(1, n + 1)])
            assert weights.sum() == pytest.approx(1)
            assert rows[n]["val_loss_ema"] == pytest.approx(float(weights @ losses[: n + 1]), rel=1e-12)
        record = directory_of(spec, store).record()
        assert record is not None
        assert record.val_loss_ema == rows[-1]["val_loss_ema"]
        assert record.val_loss == rows[-1]["val_loss"]


@pytest.mark.parametrize(
    ("validations", "expected"),
    [(1, [24]), (3, [8, 16, 24]), (5, [5, 10, 15, 20, 24]), (24, [*range(1, 25)]), (1000, [*range(1, 25)])],
)
def test_it_is_taken_evenly_and_at_the_end(
    dataset: TokenDataset, tmp_path: Path, validations: int, expected: list[int]
) -> None:
    spec = make_spec(dataset, validations=validations, val_windows=1)
    train([spec], tmp_path, dataset, log_every=24, checkpoint_every=24)
    rows = directory_of(spec, tmp_path).read_metrics()
    assert [row["step"] for row in rows if row["kind"] == "validation"] == expected


def test_pieces_and_replicas_do_not_matter(dataset: TokenDataset) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1, 2)]
    data = ValidationSet.of(dataset, 16, 12)
    ensemble = make_ensemble(specs)
    whole = validate(ensemble, ensemble.initial_state(), data, 12)
    for micro in (1, 5):
        assert validate(ensemble, ensemble.initial_state(), data, micro).mean == pytest.approx(whole.mean, rel=1e-6)
    for spec, mean in zip(specs, whole.mean, strict=True):
        alone = make_ensemble([spec])
        assert validate(alone, alone.initial_state(), data, 12).mean == pytest.approx([mean], rel=1e-6)
    again = validate(ensemble, ensemble.initial_state(), data, 12)
    assert again == whole


def test_it_changes_nothing(dataset: TokenDataset) -> None:
    ensemble = make_ensemble([make_spec(dataset)])
    state = ensemble.initial_state()
    before = {name: tensor.detach().clone() for name, tensor in state.params.items()}
    validate(ensemble, state, ValidationSet.of(dataset, 16, 4), 4)
    assert all(torch.equal(state.params[name], before[name]) for name in before)
    assert all(tensor.grad is None for tensor in state.params.values())
    assert (state.step, state.logged) == (0, 0)


def test_more_windows_than_there_are_means_all(dataset: TokenDataset) -> None:
    every = dataset.validation(16)
    found = ValidationSet.of(dataset, 16, 10**9)
    assert found.inputs.tolist() == every.inputs.tolist()
    assert len(found.inputs) == (dataset.manifest.validation.counts.tokens - 1) // 16


def test_an_untrained_model_knows_nothing(dataset: TokenDataset) -> None:
    ensemble = make_ensemble([make_spec(dataset, table) for table in ("nugpt", "ngpt")])
    found = validate(ensemble, ensemble.initial_state(), ValidationSet.of(dataset, 16, 64), 64)
    # Logits are products of unit vectors of 24 numbers times s_z,init, 1 or √2: of size 0.2 to 0.3, some of which is
    # left in the mean over the few bytes that text is made of.
    assert found.mean == pytest.approx([math.log(MODEL.vocab_size)] * 2, abs=0.2)


def test_the_checkpoint_that_is_loaded_is_the_model_that_was_validated(
    dataset: TokenDataset, finished: tuple[list[RunSpec], Path]
) -> None:
    specs, store = finished
    for spec in specs:
        trained = load_trained(directory_of(spec, store))
        data = dataset.validation(16, spec.val_windows)
        with torch.no_grad():
            loss = trained.model(torch.from_numpy(data.inputs), trained.gains, torch.from_numpy(data.targets))
        record = directory_of(spec, store).record()
        assert record is not None
        assert float(loss) == pytest.approx(record.val_loss, rel=1e-5)
        assert replace(trained.spec) == spec
        assert trained.step == 24
