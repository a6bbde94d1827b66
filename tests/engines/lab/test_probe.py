"""Measuring while training: nothing of the result changes, and a resumed run measures as an uninterrupted one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engines.small import Gone, directory_of, gone_at, last_tensors, make_dataset, make_spec, result_of, train

from nugpt.core.init import gains, initial_value, initial_values
from nugpt.data import TokenDataset
from nugpt.engines.lab import Options, execute, loop, probe
from nugpt.engines.lab.evaluate import ValidationSet
from nugpt.engines.lab.loop import Progress
from nugpt.engines.lab.remeasure import ASIDE, remeasure
from nugpt.measure.decoder import DecoderAlignment
from nugpt.measure.schedule import default_sampling, measured_steps
from nugpt.spec.model import parameter_shapes
from nugpt.spec.run import RunSpec, Start
from nugpt.store import Store, latest_checkpoint

BOTH = ("alignment", "lerp")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


def measured(spec: RunSpec, store: Path, kind: str = "alignment") -> list[dict[str, Any]]:
    return directory_of(spec, store).read_metrics((kind,))


def test_losses_weights_and_record_are_the_same_to_the_bit(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, layers=2, lr=2**-4, seed=seed) for seed in (0, 1)]
    train(specs, tmp_path / "plain", dataset, measure=())
    train(specs, tmp_path / "measured", dataset, measure=BOTH)
    for spec in specs:
        plain, watched = (result_of(directory_of(spec, tmp_path / name)) for name in ("plain", "measured"))
        assert {row["kind"] for row in plain["metrics"]} == {"train", "validation"}
        watched["metrics"] = [row for row in watched["metrics"] if row["kind"] not in BOTH]
        assert watched == plain


def test_it_is_measured_at_log_spaced_steps_and_timed(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset)
    (record,) = train([spec], tmp_path, dataset, measure=BOTH, measure_points=4)
    for kind in BOTH:
        assert [row["step"] for row in measured(spec, tmp_path, kind)] == [1, 3, 8, 24]
    assert record.carried_by["measured"] == list(BOTH)
    assert 0 < record.carried_by["measured_s"] < record.wall_s
    (other,) = train([make_spec(dataset, seed=1)], tmp_path, dataset, measure=BOTH)
    points = default_sampling(24, 4, 16).points
    assert [row["step"] for row in measured(make_spec(dataset, seed=1), tmp_path)] == [*measured_steps(24, points)]
    assert other.status == "done"


def test_the_wait_for_a_rehearsal_is_shared_by_the_runs_that_go_on() -> None:
    directory = SimpleNamespace(append_metrics=lambda rows, sync: None)
    runs: list[Any] = [SimpleNamespace(number=i, measured_s=1.0, ended=i == 3, directory=directory) for i in range(4)]
    ensemble: Any = SimpleNamespace(fused=SimpleNamespace(waited_s=6.0))
    state: Any = SimpleNamespace(alive=torch.tensor([True, False, True, True]))
    quick: Any = SimpleNamespace(seconds=0.0, rows=lambda *_: [], measured_by=None)
    for _ in range(2):
        loop._measured_rows(quick, ensemble, state, runs, Progress())
        assert [run.measured_s for run in runs] == [4.0, 1.0, 4.0, 1.0]  # once: 6 s of two runs


def test_a_row_is_what_the_checkpoint_says_against_the_initial_values(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, layers=2, lr=2**-4)
    train([spec], tmp_path, dataset, measure=("alignment",), measure_windows=3)
    row = measured(spec, tmp_path)[-1]
    now = last_tensors(directory_of(spec, tmp_path))
    resolved = spec.resolved()
    start = initial_values(parameter_shapes(spec.model).items(), spec.seed, resolved, spec.model.roles)
    batch = ValidationSet.of(dataset, spec.model.seq_len, 3)
    decoder = DecoderAlignment(spec.model)
    factors = gains(decoder.model, resolved)
    found = decoder.measure(now.__getitem__, start.__getitem__, factors, batch.inputs, batch.targets)
    assert row == {"step": 24, "kind": "alignment", **found.to_row()}
    assert row["loss"] < row["loss_0"]


def test_lerp_at_the_end_is_what_the_record_says(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, layers=3, lr=2**-4)
    (record,) = train([spec], tmp_path, dataset)  # by default
    rows = measured(spec, tmp_path, "lerp")
    assert {role: rows[-1][role] for role in ("alpha_A", "alpha_M")} == record.lerp
    first = rows[0]["alpha_A"]
    init = spec.resolved().rows["alpha_A"].init
    assert first["mean"] != record.lerp["alpha_A"]["mean"]
    assert init is not None
    assert first["mean"] == pytest.approx(init, rel=0.5)
    assert len(first["mean_by_block"]) == 3


@pytest.mark.parametrize("at", [5, 16])
def test_a_resumed_run_measures_the_same(at: int, dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, layers=2, lr=lr) for lr in (2**-4, 2**-6)]
    train(specs, tmp_path / "whole", dataset, measure=BOTH)
    with pytest.raises(Gone):
        train(specs, tmp_path / "cut", dataset, gone_at(at), measure=BOTH)
    train(specs, tmp_path / "cut", dataset, measure=BOTH)
    for spec in specs:
        assert result_of(directory_of(spec, tmp_path / "cut")) == result_of(directory_of(spec, tmp_path / "whole"))


def test_step_0_is_copied_at_a_start_and_made_again_on_resuming(
    dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(dataset, lr=2**-4)
    made: list[str] = []

    def counted(name: str, *rest: Any) -> torch.Tensor:
        made.append(name)
        return initial_value(name, *rest)

    monkeypatch.setattr(probe, "initial_value", counted)
    train([spec], tmp_path / "whole", dataset, measure=BOTH)
    assert not made
    with pytest.raises(Gone):
        train([spec], tmp_path / "cut", dataset, gone_at(16), measure=BOTH)
    train([spec], tmp_path / "cut", dataset, measure=BOTH)
    assert sorted(made) == sorted(parameter_shapes(spec.model))  # once each
    assert measured(spec, tmp_path / "cut") == measured(spec, tmp_path / "whole")


def test_a_replica_is_measured_as_if_it_were_alone(dataset: TokenDataset, tmp_path: Path) -> None:
    specs = [make_spec(dataset, table, lr=2**-5, seed=seed) for table in ("nugpt", "ngpt") for seed in (0, 1)]
    train(specs, tmp_path / "all", dataset, measure=BOTH)
    for spec in specs:
        train([spec], tmp_path / "one", dataset, measure=BOTH)
        together, alone = measured(spec, tmp_path / "all"), measured(spec, tmp_path / "one")
        assert together[0]["alpha"]["E_out"] == pytest.approx(alone[0]["alpha"]["E_out"], abs=1e-5)
        assert together[0]["loss_0"] == alone[0]["loss_0"]


def test_what_diverged_is_not_measured_any_more(dataset: TokenDataset, tmp_path: Path) -> None:
    bad = make_spec(dataset, "ngpt", lr=1e39)
    good = make_spec(dataset, "ngpt", lr=2**-6)
    records = train([bad, good], tmp_path, dataset, measure=BOTH)
    assert [record.status for record in records] == ["diverged", "done"]
    died = records[0].diverged_at
    assert died is not None
    assert all(row["step"] <= died + 1 for kind in BOTH for row in measured(bad, tmp_path, kind))
    assert measured(good, tmp_path)[-1]["step"] == 24


def test_the_baseline_has_exponents_and_no_lerp(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, "prenorm-completep", lr=2**-8)
    (record,) = train([spec], tmp_path, dataset, measure=BOTH)
    rows = measured(spec, tmp_path)
    assert rows[-1]["omega"]["W_v"][0] == pytest.approx(0.5, abs=0.2)
    assert not measured(spec, tmp_path, "lerp")
    assert record.lerp == {}


def test_what_is_measured_is_no_part_of_a_runs_name() -> None:
    assert "measure" not in RunSpec.__dataclass_fields__
    assert Options(measure=["lerp", "lerp"]).measure == ("lerp",)  # type: ignore[arg-type] # as JSON brings it
    with pytest.raises(ValueError, match="measure is 'lerb', but must be of alignment, lerp"):
        Options(measure=("lerb",))
    with pytest.raises(ValueError, match="measure_points is 0"):
        Options(measure_points=0)


def test_a_run_from_given_weights_is_measured_against_them(dataset: TokenDataset, tmp_path: Path) -> None:
    first = make_spec(dataset, lr=2**-4)
    train([first], tmp_path, dataset)
    given = latest_checkpoint(directory_of(first, tmp_path).checkpoints)
    assert given is not None
    spec = replace(first, seed=7, start=Start("weights", given.hash))
    options = Options(device="cpu", measure=("alignment",), measure_windows=2)
    execute([spec], Store(tmp_path), dataset, options, starts={given.hash: given})
    batch = ValidationSet.of(dataset, spec.model.seq_len, 2)
    decoder = DecoderAlignment(spec.model)
    factors = gains(decoder.model, spec.resolved())
    now = last_tensors(directory_of(spec, tmp_path))
    found = decoder.measure(now.__getitem__, given.model.__getitem__, factors, batch.inputs, batch.targets)
    assert measured(spec, tmp_path)[-1] == {"step": 24, "kind": "alignment", **found.to_row()}


def test_where_step_0_cannot_be_had_it_is_refused_before_anything_is_written(
    dataset: TokenDataset, tmp_path: Path
) -> None:
    options = Options(device="cpu", measure=("alignment",))
    extends = make_spec(dataset, steps=30, start=Start("extend", "0123456789abcdef", 24))
    with pytest.raises(ValueError, match="the run extends another, where its step 0 lies"):
        execute([extends], Store(tmp_path), dataset, options)
    begins = make_spec(dataset, start=Start("weights", "0123456789abcdef"))
    with pytest.raises(ValueError, match="needs checkpoint 0123456789abcdef"):
        execute([begins], Store(tmp_path), dataset, options)
    assert not list(tmp_path.iterdir())


def test_an_ended_run_is_measured_by_training_it_again(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, layers=2, lr=2**-4)
    train([spec], tmp_path / "later", dataset)
    before = result_of(directory_of(spec, tmp_path / "later"))
    options = Options(device="cpu", measure=("alignment",), log_every=1)
    remeasure([spec], Store(tmp_path / "later"), dataset, options)
    train([spec], tmp_path / "at once", dataset, measure=("alignment",))
    assert measured(spec, tmp_path / "later") == measured(spec, tmp_path / "at once")
    after = result_of(directory_of(spec, tmp_path / "later"))
    assert [row for row in after["metrics"] if row["kind"] != "alignment"] == before["metrics"]
    assert {**after, "metrics": ()} == {**before, "metrics": ()}
    assert [row["step"] for row in after["metrics"]] == sorted(row["step"] for row in after["metrics"])
    assert not (tmp_path / "later" / ASIDE).exists()


def test_another_training_than_the_recorded_one_adds_nothing(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, lr=2**-4)
    (record,) = train([spec], tmp_path, dataset)
    assert record.val_loss is not None
    directory_of(spec, tmp_path).write_record(replace(record, val_loss=record.val_loss + 0.2))
    with pytest.raises(ValueError, match="it was not the same training, so nothing is kept"):
        remeasure([spec], Store(tmp_path), dataset, Options(device="cpu", measure=("alignment",)))
    assert not measured(spec, tmp_path)
    never = make_spec(dataset, lr=2**-5)
    with pytest.raises(ValueError, match="is not ended, but must be done"):
        remeasure([never], Store(tmp_path), dataset, Options(device="cpu"))


def test_bfloat16_training_is_measured_on_its_float32_masters(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, precision="bfloat16", lr=2**-5)
    train([spec], tmp_path, dataset, measure=("alignment",), measure_windows=2)
    now = last_tensors(directory_of(spec, tmp_path))
    assert all(tensor.dtype == torch.float32 for tensor in now.values())
    row = measured(spec, tmp_path)[-1]
    assert row["omega"]["E_out"][0] == pytest.approx(0.5, abs=0.1)
