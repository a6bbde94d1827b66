"""From specs to records: what is done is not done again, what was interrupted goes on, what diverged is a result."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.small import (
    MODEL,
    Gone,
    checkpoint_names,
    contents,
    directory_of,
    gone_at,
    last_tensors,
    make_dataset,
    make_spec,
    result_of,
    train,
)

from nugpt.core.init import initial_values
from nugpt.data import TokenDataset, open_dataset
from nugpt.engines.lab import Interrupted, Options, execute
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.engines.lab.loop import Progress
from nugpt.spec import Schedule
from nugpt.spec.model import parameter_shapes, total_parameters
from nugpt.spec.record import RunRecord, device_seconds
from nugpt.spec.run import RunSpec, Start
from nugpt.store import RunDirectory, Store, latest_checkpoint
from nugpt.store.checkpoint import steps_in


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


def rows(spec: RunSpec, store: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in directory_of(spec, store).read_metrics() if row["kind"] == kind]


# --- records


def test_a_record_says_what_was_done_and_by_what(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, layers=2, lr=2**-4)
    (record,) = train([spec], tmp_path, dataset, micro_batch=3)
    assert (record.hash, record.status, record.steps, record.diverged_at) == (spec.hash, "done", 24, None)
    assert record.tokens == 24 * 4 * 16
    d, d_mlp, layers = 24, 64, 2
    # Per block W_q and W_O of d², W_k and W_v of half that (one key-value head of two), three of the MLP, and s_qk,
    # s_u, s_ν, α_A, α_M; the unembedding; and 6·layers·d·sequence for attention.
    block = 3 * d * d + 3 * d * d_mlp + 12 + 2 * d_mlp + 2 * d
    assert record.flops == record.tokens * (6 * (layers * block + d * 384) + 6 * layers * d * 16)
    assert record.resolved == spec.resolved().to_dict() | {"betas": list(spec.table.betas)}
    assert record.carried_by["micro_batch"] == 3
    assert record.carried_by["device_type"] == "cpu"
    assert [record.carried_by[x] for x in ("kernels", "attention", "loss")] == ["plain", "folded", "chunked"]
    assert record.carried_by["compile"] is False
    assert record.carried_by["replicas"] == 1
    assert record.wall_s > 0
    weights = last_tensors(directory_of(spec, tmp_path))
    for role in ("alpha_A", "alpha_M"):
        gain = spec.resolved().gains[role]
        blocks = [(gain * weights[f"blocks.{i}.{role}.stored"].double()).abs() for i in range(layers)]
        assert record.lerp[role]["mean"] == pytest.approx(float(torch.cat(blocks).mean()), rel=1e-6)
        assert record.lerp[role]["std"] == pytest.approx(float(torch.cat(blocks).std(correction=0)), rel=1e-5)
        assert record.lerp[role]["mean_by_block"] == pytest.approx([float(b.mean()) for b in blocks], rel=1e-6)
    assert record.train_loss == rows(spec, tmp_path, "train")[-1]["loss"]
    assert record.val_loss == rows(spec, tmp_path, "validation")[-1]["val_loss"]


def test_rows_are_means_over_their_interval(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, lr=2**-4)
    train([spec], tmp_path / "each", dataset)
    train([spec], tmp_path / "fifth", dataset, log_every=5)
    each, fifth = rows(spec, tmp_path / "each", "train"), rows(spec, tmp_path / "fifth", "train")
    assert [row["step"] for row in fifth] == [5, 10, 15, 20, 24]
    begin = 0
    for row in fifth:
        losses = [other["loss"] for other in each[begin : row["step"]]]
        assert row["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)
        assert row["grad_norm"] == each[row["step"] - 1]["grad_norm"]
        begin = row["step"]
    # The cosine is 1 at the first step and exactly a tenth at the last.
    assert [row["lr_multiplier"] for row in (each[0], each[-1])] == [1.0, pytest.approx(0.1, abs=1e-12)]


def test_what_is_done_is_not_touched_again(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    records = train(specs, tmp_path, dataset)
    before = contents(tmp_path)
    assert train(specs, tmp_path, dataset) == records
    assert train(specs[::-1], tmp_path, dataset) == records[::-1]
    assert contents(tmp_path) == before


def test_what_carries_a_run_is_no_part_of_its_name(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset)
    with pytest.raises(Gone):
        train([spec], tmp_path, dataset, gone_at(12))
    train([spec], tmp_path, dataset, micro_batch=1, attention="plain", loss="plain", keep=1)
    assert [path.name for path in tmp_path.iterdir()] == [spec.hash]
    assert checkpoint_names(directory_of(spec, tmp_path)) == ["step-000000024"]


def test_a_run_given_twice_is_trained_once(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset)
    train([spec], tmp_path / "once", dataset)
    first, second = train([spec, spec], tmp_path / "twice", dataset)
    assert first == second
    assert result_of(directory_of(spec, tmp_path / "twice")) == result_of(directory_of(spec, tmp_path / "once"))


def test_nothing_to_do_is_nothing_done(dataset: TokenDataset, tmp_path: Path) -> None:
    assert execute([], Store(tmp_path / "runs"), dataset) == []
    assert not (tmp_path / "runs").exists()


def test_runs_of_other_shapes_are_refused(dataset: TokenDataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run them apart"):
        train([make_spec(dataset), make_spec(dataset, steps=25)], tmp_path, dataset)


def test_an_observer_hears_of_each_run_under_its_own_number(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1, 2)]
    train(specs[:1], tmp_path, dataset)
    heard: list[tuple[int, dict[str, Any]]] = []
    train(specs, tmp_path, dataset, Progress(rows=lambda replica, row: heard.append((replica, row))))
    for number, spec in enumerate(specs):
        told = [row for replica, row in heard if replica == number]
        assert told == ([] if number == 0 else directory_of(spec, tmp_path).read_metrics())


# --- interruption


@pytest.mark.parametrize("log_every", [1, 5])
def test_going_on_is_as_if_never_interrupted(dataset: TokenDataset, tmp_path: Path, log_every: int) -> None:
    specs = [make_spec(dataset, "nugpt"), make_spec(dataset, "ngpt", seed=1, lr=2**-4)]
    train(specs, tmp_path / "whole", dataset, log_every=log_every)
    begun: list[tuple[int, int]] = []
    for step in (3, 11, 15, 18, 24):
        with pytest.raises(Gone):
            train(specs, tmp_path / "parts", dataset, gone_at(step), log_every=log_every)

    def start(step: int, steps: int) -> None:
        begun.append((step, steps))
        for spec in specs:  # what was written after the checkpoint is gone before anything new is written
            assert all(row["step"] <= step for row in directory_of(spec, tmp_path / "parts").read_metrics())

    train(specs, tmp_path / "parts", dataset, Progress(start=start), log_every=log_every)
    assert begun == [(16, 24)]
    for spec in specs:
        assert result_of(directory_of(spec, tmp_path / "parts")) == result_of(directory_of(spec, tmp_path / "whole"))


def test_a_spoiled_newest_checkpoint_costs_steps_and_nothing_else(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    train(specs, tmp_path / "whole", dataset)
    with pytest.raises(Gone):
        train(specs, tmp_path / "spoiled", dataset, gone_at(20))
    newest = directory_of(specs[1], tmp_path / "spoiled").checkpoints / "step-000000016"
    content = bytearray((newest / "optimizer.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "optimizer.safetensors").write_bytes(content)
    begun: list[int] = []
    with pytest.warns(RuntimeWarning, match="step-000000016"):
        train(specs, tmp_path / "spoiled", dataset, Progress(start=lambda step, steps: begun.append(step)))
    assert sorted(begun) == [8, 16]  # the other does not lose what it has
    for spec in specs:
        assert result_of(directory_of(spec, tmp_path / "spoiled")) == result_of(directory_of(spec, tmp_path / "whole"))
        assert checkpoint_names(directory_of(spec, tmp_path / "spoiled")) == ["step-000000016", "step-000000024"]


def test_all_checkpoints_spoiled_means_from_the_start(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset)
    train([spec], tmp_path / "whole", dataset)
    with pytest.raises(Gone):
        train([spec], tmp_path / "spoiled", dataset, gone_at(20))
    for state in directory_of(spec, tmp_path / "spoiled").checkpoints.glob("*/state.json"):
        state.write_text("{")
    with pytest.warns(RuntimeWarning):
        train([spec], tmp_path / "spoiled", dataset)
    assert result_of(directory_of(spec, tmp_path / "spoiled")) == result_of(directory_of(spec, tmp_path / "whole"))


def test_a_new_run_does_not_hold_back_one_that_was_interrupted(dataset: TokenDataset, tmp_path: Path) -> None:
    old, new = make_spec(dataset), make_spec(dataset, seed=1)
    train([old], tmp_path / "whole", dataset)
    train([new], tmp_path / "whole", dataset)
    with pytest.raises(Gone):
        train([old], tmp_path / "parts", dataset, gone_at(20))
    begun: list[int] = []
    train([new, old], tmp_path / "parts", dataset, Progress(start=lambda step, steps: begun.append(step)))
    assert sorted(begun) == [0, 16]
    for spec in (old, new):
        assert result_of(directory_of(spec, tmp_path / "parts")) == result_of(directory_of(spec, tmp_path / "whole"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_at_once(dataset: TokenDataset, tmp_path: Path, number: signal.Signals) -> None:
    spec = make_spec(dataset)
    train([spec], tmp_path / "whole", dataset)
    handler = signal.getsignal(number)

    def send(step: int) -> None:
        if step == 11:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="step 11") as stopped:
        train([spec], tmp_path / "parts", dataset, Progress(step=send))
    assert stopped.value.signal_number == number
    assert signal.getsignal(number) == handler
    assert checkpoint_names(directory_of(spec, tmp_path / "parts")) == ["step-000000008", "step-000000011"]
    train([spec], tmp_path / "parts", dataset)
    assert result_of(directory_of(spec, tmp_path / "parts")) == result_of(directory_of(spec, tmp_path / "whole"))


def test_a_full_disk_leaves_the_checkpoint_before(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(dataset)
    train([spec], tmp_path / "whole", dataset)
    import safetensors.torch

    save_file, saves = safetensors.torch.save_file, 0

    def full(tensors: Any, path: Path) -> None:
        nonlocal saves
        saves += 1
        if saves > 3:  # the second file of the second checkpoint
            path.write_bytes(b"half")
            raise safetensors.SafetensorError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(OSError, match=r"step-000000016.*No space left"):
            train([spec], tmp_path / "full", dataset)
    assert checkpoint_names(directory_of(spec, tmp_path / "full")) == ["step-000000008"]
    train([spec], tmp_path / "full", dataset)
    assert result_of(directory_of(spec, tmp_path / "full")) == result_of(directory_of(spec, tmp_path / "whole"))


def clocked(monkeypatch: pytest.MonkeyPatch, each: int = 1) -> Callable[[int], Progress]:
    """A clock that a step takes a second on, or `each`, and nothing else any; progress that is gone at a step."""
    from nugpt.engines.lab import loop

    seconds = itertools.count(step=each)
    now = [next(seconds)]
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(now[0]))

    def until(step: int) -> Progress:
        def tick(at: int) -> None:
            now[0] = next(seconds)
            if at == step:
                raise Gone

        return Progress(step=tick)

    return until


def test_the_time_of_an_ensemble_is_that_of_the_runs_in_it(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = clocked(monkeypatch)
    specs = [make_spec(dataset, seed=seed) for seed in range(4)]
    with pytest.raises(Gone):
        train(specs, tmp_path, dataset, until(9))  # the checkpoint is of step 8; what came after it is lost
    records = [train([spec], tmp_path, dataset, until(-1))[0] for spec in specs]  # and then one by one
    assert [record.wall_s for record in records] == [24.0] * 4
    assert [device_seconds(record) for record in records] == [8 / 4 + 16] * 4


def test_a_dead_run_s_time_is_no_survivor_s(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = clocked(monkeypatch)
    calm = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    records = train([calm[0], make_spec(dataset, lr=1e39), calm[1]], tmp_path, dataset, until(-1))
    assert [record.status for record in records] == ["done", "diverged", "done"]
    assert [device_seconds(record) for record in records] == pytest.approx([2 / 3 + 22 / 2, 2 / 3, 2 / 3 + 22 / 2])


def test_a_checkpoint_that_does_not_tell_its_share_of_time_goes_on(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.engines.lab import loop

    until, saved = clocked(monkeypatch), loop.save_checkpoint

    def older(path: Path, step: int, model: Any, optimizer: Any, small: dict[str, Any], keep: int) -> Path:
        return saved(path, step, model, optimizer, {k: v for k, v in small.items() if k != "device_s"}, keep)

    specs = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    with monkeypatch.context() as before:
        before.setattr(loop, "save_checkpoint", older)
        with pytest.raises(Gone):
            train(specs, tmp_path, dataset, until(9))
    records = train(specs, tmp_path, dataset, until(-1))
    assert [device_seconds(record) for record in records] == [12.0, 12.0]


# --- divergence


@pytest.mark.parametrize("table", ["nugpt", "prenorm-completep"])
def test_a_diverged_run_is_a_record_and_no_matter_to_its_neighbours(
    dataset: TokenDataset, tmp_path: Path, table: str
) -> None:
    calm = [make_spec(dataset, table, seed=seed) for seed in (0, 1)]
    wild = make_spec(dataset, table, lr=1e39)
    train(calm, tmp_path / "calm", dataset)
    records = train([calm[0], wild, calm[1]], tmp_path / "wild", dataset)
    assert [record.status for record in records] == ["done", "diverged", "done"]
    for spec in calm:
        assert result_of(directory_of(spec, tmp_path / "wild")) == result_of(directory_of(spec, tmp_path / "calm"))
    record = records[1]
    assert (record.diverged_at, record.steps, record.tokens) == (1, 1, 64)
    assert (record.val_loss, record.val_loss_ema, record.train_loss) == (None, None, None)
    assert record.val_loss_by_source == {}
    written = rows(wild, tmp_path / "wild", "train")
    assert [row["step"] for row in written] == [1, 2]  # it is over when it is found dead
    assert "loss" in written[0]
    assert "loss" not in written[1]
    assert written[1]["diverged_at"] == 1
    assert rows(wild, tmp_path / "wild", "validation") == []


def test_an_ensemble_of_the_dead_ends_early(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, lr=1e39, steps=200)
    steps: list[int] = []
    (record,) = train([spec], tmp_path, dataset, Progress(step=steps.append))
    assert (record.status, record.diverged_at) == ("diverged", 1)
    assert max(steps) < 10
    before = contents(tmp_path)
    train([spec], tmp_path, dataset)  # a diverged run is a result: it is not tried again
    assert contents(tmp_path) == before


def spoil_after(step: int, r: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a NaN in a replica's α_A when it has taken so many steps."""
    take = Ensemble.train_step

    def spoiling(self: Ensemble, state: State, *args: Any) -> None:
        take(self, state, *args)
        if state.step == step:
            with torch.no_grad():
                state.params["blocks.0.alpha_A.stored"][r] = math.nan

    monkeypatch.setattr(Ensemble, "train_step", spoiling)


def test_weights_that_go_bad_at_the_last_step_are_not_given_an_older_loss(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    train(specs, tmp_path / "calm", dataset)
    spoil_after(24, 1, monkeypatch)
    records = train(specs, tmp_path / "spoiled", dataset)
    assert [record.status for record in records] == ["done", "diverged"]
    assert (records[1].val_loss, records[1].diverged_at, records[1].steps) == (None, 24, 24)
    assert len(rows(specs[1], tmp_path / "spoiled", "validation")) == 3
    kept = directory_of(specs[0], tmp_path / "spoiled")
    assert result_of(kept) == result_of(directory_of(specs[0], tmp_path / "calm"))


def test_a_diverged_replica_is_frozen_through_interruptions(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    spoil_after(10, 1, monkeypatch)
    often = {"log_every": 20, "checkpoint_every": 3}  # so that it is dead for a while before its record is written
    train(specs, tmp_path / "whole", dataset, **often)
    for step in (14, 17):
        with pytest.raises(Gone):
            train(specs, tmp_path / "parts", dataset, gone_at(step), **often)
    frozen = latest_checkpoint(directory_of(specs[1], tmp_path / "parts").checkpoints)
    assert frozen is not None
    assert (frozen.step, frozen.state["counters"]["died_at"]) == (15, 10)
    records = train(specs, tmp_path / "parts", dataset, **often)
    assert [(record.status, record.diverged_at) for record in records] == [("done", None), ("diverged", 10)]
    for spec in specs:
        assert result_of(directory_of(spec, tmp_path / "parts")) == result_of(directory_of(spec, tmp_path / "whole"))
    last = last_tensors(directory_of(specs[1], tmp_path / "parts"))
    for name, tensor in frozen.model.items():
        assert torch.equal(last[name].view(torch.int32), tensor.view(torch.int32)), name


# --- beginning elsewhere


def finished(dataset: TokenDataset, store: Path, **changes: Any) -> tuple[RunSpec, Any]:
    spec = make_spec(dataset, "ngpt", schedule=Schedule("constant"), steps=12, lr=2**-4, **changes)
    train([spec], store, dataset)
    found = latest_checkpoint(directory_of(spec, store).checkpoints)
    assert found is not None
    return spec, found


def test_starting_from_weights_takes_the_weights_alone(dataset: TokenDataset, tmp_path: Path) -> None:
    first, found = finished(dataset, tmp_path)
    before = contents(tmp_path)
    spec = make_spec(dataset, seed=5, steps=6, start=Start("weights", found.hash))
    assert spec.hash not in {first.hash, replace(spec, start=None).hash}
    seen: list[State] = []

    class Watching(Ensemble):
        def train_step(self, state: State, *args: Any) -> None:
            if not seen:
                assert state.step == 0
                assert all(torch.equal(state.params[name][0], found.model[name]) for name in found.model)
                assert all(not x.any() for x in (*state.first.values(), *state.second.values()))
            seen.append(state)
            super().train_step(state, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nugpt.engines.lab.loop.Ensemble", Watching)
        (record,) = execute([spec], Store(tmp_path), dataset, Options(log_every=1), starts={found.hash: found})
    assert (record.steps, len(seen)) == (6, 6)
    # It begins about where the other ended, not at log V.
    ended = rows(first, tmp_path, "train")[-1]["loss"]
    assert rows(spec, tmp_path, "train")[0]["loss"] == pytest.approx(ended, abs=0.5)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_taken_to_a_longer_horizon_is_as_if_it_had_been_that_long(
    dataset: TokenDataset, tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    # nGPT and a constant schedule: neither table nor schedule then depends on the length of the run.
    whole = [make_spec(dataset, "ngpt", schedule=Schedule("constant"), lr=2**-4, seed=seed) for seed in seeds]
    train(whole, tmp_path / "whole", dataset)
    starts, longer = {}, []
    for spec in whole:
        first, found = finished(dataset, tmp_path / "parts", seed=spec.seed)
        starts[found.hash] = found
        longer.append(replace(spec, start=Start("extend", found.hash, found.step)))
        assert longer[-1].hash not in {first.hash, spec.hash}
    before = contents(tmp_path / "parts")
    with pytest.raises(Gone):  # interrupted on the way, too
        execute(
            longer, Store(tmp_path / "parts"), dataset, Options(log_every=1, checkpoint_every=8), gone_at(18), starts
        )
    records = execute(
        longer, Store(tmp_path / "parts"), dataset, Options(log_every=1, checkpoint_every=8), None, starts
    )
    for spec, long, record in zip(whole, longer, records, strict=True):
        expected, got = (
            result_of(directory_of(*where)) for where in ((spec, tmp_path / "whole"), (long, tmp_path / "parts"))
        )
        assert got["tensors"] == expected["tensors"]
        assert [row for row in expected["metrics"] if row["step"] > 12 and row["kind"] == "train"] == rows(
            long, tmp_path / "parts", "train"
        )
        assert record.val_loss == expected["record"]["val_loss"]
        assert record.steps == 24
    after = contents(tmp_path / "parts")
    assert {name: after[name] for name in before} == before


def test_a_start_that_does_not_fit_or_was_not_given_is_one_line(dataset: TokenDataset, tmp_path: Path) -> None:
    _, found = finished(dataset, tmp_path)
    spec = make_spec(dataset, start=Start("weights", found.hash))
    with pytest.raises(ValueError, match=found.hash):
        train([spec], tmp_path, dataset)
    deeper = replace(spec, model=replace(MODEL, n_layers=2))
    with pytest.raises(ValueError, match=r"blocks\.1\."):
        execute([deeper], Store(tmp_path), dataset, starts={found.hash: found})
    wider = replace(spec, model=replace(MODEL, vocab_size=512))
    with pytest.raises(ValueError, match=r"E_in.*\(384, 24\).*\(512, 24\)"):
        execute([wider], Store(tmp_path), dataset, starts={found.hash: found})


def test_a_fresh_run_begins_at_its_seed_s_own_values(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, seed=11)
    with pytest.raises(Gone):
        train([spec], tmp_path, dataset, gone_at(2), checkpoint_every=1)
    # lr is so small that one step cannot hide other initial values.
    tiny = replace(spec, lr=1e-12)
    with pytest.raises(Gone):
        train([tiny], tmp_path, dataset, gone_at(2), checkpoint_every=1)
    first = last_tensors(directory_of(tiny, tmp_path))
    expected = initial_values(parameter_shapes(MODEL).items(), 11, tiny.resolved(), MODEL.roles)
    for name, value in expected.items():
        assert torch.allclose(first[name], value, atol=1e-6), name


# --- data


def test_data_of_another_content_is_refused(dataset: TokenDataset, tmp_path: Path) -> None:
    other = make_dataset(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=f"{other.content_hash}.*{dataset.content_hash}"):
        train([make_spec(dataset)], tmp_path / "runs", other)
    assert not (tmp_path / "runs").exists()


def test_data_with_a_flipped_byte_is_refused_by_the_name_of_its_shard(tmp_path: Path) -> None:
    data = make_dataset(tmp_path)
    shard = data.path / "train-00001.bin"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-00001\.bin"):
        open_dataset(data.path)


def test_a_vocabulary_too_small_for_the_data_is_refused(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, model=replace(MODEL, vocab_size=256))
    with pytest.raises(ValueError, match=r"256.*384"):
        train([spec], tmp_path, dataset)


def test_no_device_is_found_out_before_anything_is_written(dataset: TokenDataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cuda:99"):
        train([make_spec(dataset)], tmp_path / "runs", dataset, device="cuda:99")
    assert not (tmp_path / "runs").exists()


def test_every_row_is_plain_json(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset), make_spec(dataset, lr=1e39)]
    train(specs, tmp_path, dataset)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    for spec in specs:
        for line in directory_of(spec, tmp_path).metrics.read_text().splitlines():
            json.loads(line, parse_constant=refuse)
        json.loads((tmp_path / spec.hash / "record.json").read_text(), parse_constant=refuse)


def test_a_signal_at_the_last_step_is_heeded_once_the_record_is_there(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset)

    def ask(step: int) -> None:
        if step == spec.steps:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted) as stopped:  # or a worker would go on to its next runs
        train([spec], tmp_path, dataset, Progress(step=ask))
    assert stopped.value.signal_number == signal.SIGTERM
    record = directory_of(spec, tmp_path).record()
    assert record is not None
    assert record.status == "done"
    assert record.steps == spec.steps


def test_rows_are_safe_before_a_checkpoint_or_a_record_stands_for_them(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.engines.lab import loop

    spec = make_spec(dataset)
    rows_of = Store(tmp_path).run(spec)
    seen: list[tuple[str, int]] = []

    def noted(name: str, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            seen.append((name, len(rows_of.read_metrics())))
            return original(*args, **options)

        return call

    monkeypatch.setattr(RunDirectory, "sync_metrics", noted("safe", RunDirectory.sync_metrics))
    monkeypatch.setattr(RunDirectory, "write_record", noted("record", RunDirectory.write_record))
    monkeypatch.setattr(loop, "save_checkpoint", noted("checkpoint", loop.save_checkpoint))
    execute([spec], Store(tmp_path), dataset, Options(device="cpu", checkpoint_every=8))
    published = [event for event in seen if event[0] != "safe"]
    assert [name for name, _ in published] == ["checkpoint"] * 3 + ["record"]
    assert len({rows for _, rows in published}) == 3  # the last checkpoint and the record stand for the same rows
    for event in published:
        before = seen[seen.index(event) - 1]
        assert before == ("safe", event[1])


def test_a_run_whose_last_checkpoint_is_not_wanted_ends_the_same(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset)
    options = Options(device="cpu", checkpoint_every=8, keep=5)
    records, steps = [], []
    for wanted in (True, False):
        store = Store(tmp_path / str(wanted))
        (record,) = execute([spec], store, dataset, replace(options, last_checkpoint=wanted))
        records.append(replace(record, wall_s=0.0, carried_by={}))
        steps.append(steps_in(store.run(spec).checkpoints))
    assert records[0] == records[1]
    assert steps == [[8, 16, 24], [8, 16]]


def test_killed_before_its_record_a_run_without_a_last_checkpoint_goes_back(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [make_spec(dataset, seed=seed) for seed in (0, 1)]
    options = Options(device="cpu", checkpoint_every=8, last_checkpoint=False)
    expected = execute(specs, Store(tmp_path / "undisturbed"), dataset, options)
    store, written = Store(tmp_path / "killed"), RunDirectory.write_record
    calls = itertools.count()

    def killed(self: RunDirectory, record: RunRecord) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        written(self, record)

    monkeypatch.setattr(RunDirectory, "write_record", killed)
    with pytest.raises(KeyboardInterrupt):
        execute(specs, store, dataset, options)
    assert [store.run(spec).has_ended() for spec in specs] == [True, False]
    found = execute(specs, store, dataset, options)
    for a, b in zip(expected, found, strict=True):
        assert (a.val_loss, a.train_loss, a.steps) == (b.val_loss, b.train_loss, b.steps)


def test_checkpoints_lie_a_minute_apart_unless_asked_for_by_steps(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.engines.lab import loop

    spec = make_spec(dataset)
    saved: list[int] = []
    original = loop._save

    def note(state: Any, *rest: Any) -> None:
        saved.append(state.step)
        original(state, *rest)

    monkeypatch.setattr(loop, "_save", note)
    monkeypatch.setattr(loop.time, "monotonic", lambda: 0.0)  # the run takes no time at all
    loop.execute([spec], Store(tmp_path / "at once"), dataset, Options(device="cpu"))
    assert saved == [24]
    saved.clear()
    loop.execute([spec], Store(tmp_path / "asked for"), dataset, Options(device="cpu", checkpoint_every=8))
    assert saved == [8, 16, 24]
    saved.clear()
    until = clocked(monkeypatch, each=120)
    loop.execute([spec], Store(tmp_path / "slowly"), dataset, Options(device="cpu"), until(-1))
    assert saved == list(range(3, 25, 3))  # ten per run, as near as 24 steps allow


def test_checkpoints_take_a_thirtieth_of_the_time_at_most(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.engines.lab import loop

    spec, saved, now = make_spec(dataset), list[int](), [0.0]

    def slow(state: Any, *rest: Any) -> None:
        saved.append(state.step)
        now[0] += 10.0

    def tick(step: int) -> None:
        now[0] += 61.0

    def run(store: str) -> list[int]:
        saved.clear()
        loop.execute(
            [spec], Store(tmp_path / store), dataset, Options(device="cpu", last_checkpoint=False), Progress(step=tick)
        )
        return list(saved)

    monkeypatch.setattr(loop, "_save", slow)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    # At every third step one may be saved: the first after a minute, then each five minutes after the one before.
    assert run("a small model") == [3, 9, 15, 21]
    size = 12 * total_parameters(spec.model)
    monkeypatch.setattr(loop, "SAVED_BYTES_PER_S", size / 20)  # by count it takes 20 s: the first after ten minutes
    assert run("a large one") == [12, 18]


def test_a_divergence_does_not_put_off_the_checkpoint_of_the_living(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.engines.lab import loop

    calm, wild = make_spec(dataset), make_spec(dataset, lr=1e39)
    until, saved, original = clocked(monkeypatch, each=20), list[tuple[int, str]](), loop._save

    def note(state: Any, r: int, run: Any, keep: int) -> None:
        saved.append((state.step, run.spec.hash))
        original(state, r, run, keep)

    monkeypatch.setattr(loop, "_save", note)
    options = Options(device="cpu", last_checkpoint=False)
    records = execute([calm, wild], Store(tmp_path), dataset, options, until(-1))
    assert [record.status for record in records] == ["done", "diverged"]
    # A minute is three steps; that the other was found dead after two of them changes nothing.
    assert saved == [(step, calm.hash) for step in range(3, 24, 3)]
