"""Timing of steps: what is counted, and that the two models of a pair are of one shape."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from torch import Tensor

from nugpt.bench import kernels, steps, timing
from nugpt.bench.steps import Shape, bench_pair, host_shapes, lab_shapes, paper_shapes
from nugpt.bench.timing import ceilings, environment, timed
from nugpt.engines.lab import device
from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.engines.lab.options import Options
from nugpt.spec.model import ModelConfig, flops_per_token

CPU = torch.device("cpu")


def test_the_median_and_the_spread_of_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = iter([0.0, 0.005, 1.0, 1.001, 2.0, 2.003, 3.0, 3.009])  # 5, 1, 3 and 9 ms
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(stamps))
    calls = []
    found = timed(lambda: calls.append(1), CPU, runs=4, warm_up=2)
    assert len(calls) == 6
    assert found.figures()["runs"] == 4
    assert found.figures()["each"] == pytest.approx([5.0, 1.0, 3.0, 9.0])
    assert (found.median, found.low, found.high) == pytest.approx((4.0, 1.0, 9.0))


def test_figures_follow_from_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(1, 2, 8, 32, 16, d_mlp=24)
    pair = (
        Shape("small", model, 2, 3),
        Shape("small", ModelConfig(**(model.to_dict() | {"architecture": "prenorm"})), 2, 3),
    )
    said: list[str] = []
    ((ours, plain),) = bench_pair([pair], CPU, Options(device="cpu"), 3, said.append)
    assert said == [f"small: νGPT {ours['ms']['median']:.2f} ms, plain {plain['ms']['median']:.2f} ms"]
    assert ours["ms"]["runs"] == plain["ms"]["runs"] == 3
    assert (ours["architecture"], plain["architecture"]) == ("normalized", "prenorm")
    tokens, ms = 3 * 2 * 16, ours["ms"]["median"]
    assert ours["tokens_per_step"] == tokens
    assert ours["tokens_per_ms"] == pytest.approx(tokens / ms)
    assert ours["ms_per_replica"] == pytest.approx(ms / 3)
    assert ours["tflops"] == pytest.approx(tokens * flops_per_token(model) / (ms * 1e-3) / 1e12)
    assert ours["against_plain"] == pytest.approx(plain["ms"]["median"] / ms)
    assert ours["kernels"] == "plain"
    assert 2.0 < ours["loss"] < 5.0  # log 32 is 3.5: steps were really taken
    assert ours["diverged"] == plain["diverged"] == 0


def test_a_replica_that_diverged_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    from nugpt.cli.bench import _show_steps

    trained = steps.Trained(replace(pair_of("s")[0], replicas=3), CPU, Options(device="cpu"))
    with torch.no_grad():
        trained.state.params["E_in.weight"][1] = float("nan")
    trained.time(2)
    row = trained.row()
    assert row["diverged"] == 1
    _show_steps("lab", [row | {"floor_ms": None, "share_of_ceiling": 0.5}])
    assert "s νGPT: 1 of 3 replicas diverged" in capsys.readouterr().out


def pair_of(name: str, batch: int = 2) -> tuple[Shape, Shape]:
    model = ModelConfig(1, 2, 8, 32, 16, d_mlp=24)
    return Shape(name, model, batch), Shape(name, ModelConfig(**(model.to_dict() | {"architecture": "prenorm"})), batch)


def test_both_models_see_the_same_batches_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[bytes]] = {"normalized": [], "prenorm": []}
    step = Ensemble.train_step

    def noted(self: Ensemble, state: State, tokens: Tensor, *rest: Any) -> None:
        seen[self.config.architecture].append(tokens.numpy().tobytes())
        step(self, state, tokens, *rest)

    monkeypatch.setattr(Ensemble, "train_step", noted)
    list(bench_pair([pair_of("s")], CPU, Options(device="cpu"), 4))
    assert len(set(seen["normalized"])) == len(seen["normalized"]) == 1 + steps.WARM_UP + 4 + 2  # halves begin with one
    assert len(set(seen["prenorm"])) == len(seen["prenorm"]) == 1 + steps.WARM_UP + 4 + 1
    assert seen["prenorm"] == seen["normalized"][:-1]


def test_where_both_do_not_fit_they_are_timed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Tight(steps.Trained):
        def __init__(self, shape: Shape, *rest: Any) -> None:
            made.append(shape.model.architecture)
            if made == ["normalized", "prenorm"]:
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(shape, *rest)

    monkeypatch.setattr(steps, "Trained", Tight)
    ((ours, plain),) = bench_pair([pair_of("s")], CPU, Options(device="cpu"), 3)
    assert made == ["normalized", "prenorm"] * 2
    assert [ours["ms"]["runs"], plain["ms"]["runs"]] == [3, 3]


def test_a_model_that_does_not_fit_is_named_and_the_rest_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []  # models that are still there when another is tried
    alive: list[weakref.ref[Any]] = []

    class Small(steps.Trained):
        def __init__(self, shape: Shape, *rest: Any) -> None:
            held.append(sum(made() is not None for made in alive))
            alive.append(weakref.ref(self))
            if shape.name == "large" and shape.model.architecture == "prenorm":
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(shape, *rest)

    monkeypatch.setattr(steps, "Trained", Small)
    said: list[str] = []
    pairs = [pair_of(name) for name in ("first", "large", "last")]
    first, large, last = bench_pair(pairs, CPU, Options(device="cpu"), 1, said.append)
    assert [row["ms"]["runs"] for row in (*first, large[0], *last)] == [1] * 5
    assert large[1] == {"shape": "large", "architecture": "prenorm", "replicas": 1, "not_run": steps.TOO_LITTLE}
    assert "against_plain" not in large[0]
    assert said[1].endswith("plain does not fit")
    assert held == [0, 1, 0, 1, 0, 0, 0, 1]  # nothing is left of a pair, or of a model that did not fit


def test_a_model_that_fails_is_named_and_the_rest_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(steps.Trained):
        def __init__(self, shape: Shape, *rest: Any) -> None:
            if shape.name == "odd" and shape.model.architecture == "prenorm":
                raise RuntimeError("no kernel\nfor it")
            super().__init__(shape, *rest)

    monkeypatch.setattr(steps, "Trained", Failing)
    said: list[str] = []
    pairs = [pair_of(name) for name in ("first", "odd", "last")]
    first, odd, last = bench_pair(pairs, CPU, Options(device="cpu"), 1, said.append)
    assert [row["ms"]["runs"] for row in (*first, odd[0], *last)] == [1] * 5
    assert not any("failed" in row for row in (*first, odd[0], *last))
    assert odd[1]["failed"] == "RuntimeError: no kernel for it"
    assert "in __init__" in odd[1]["traceback"]
    assert "ms" not in odd[1]
    assert said[1].endswith("plain failed")


def test_two_models_that_fail_only_together_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_timed_together", lambda *_: (_ for _ in ()).throw(RuntimeError("both")))
    ((ours, plain),) = bench_pair([pair_of("s")], CPU, Options(device="cpu"), 1)
    assert ours["failed"] == plain["failed"] == "RuntimeError: both"
    assert [ours["ms"]["runs"], plain["ms"]["runs"]] == [1, 1]


def test_a_shape_at_which_a_kernel_fails_is_named_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(shape: Shape, *_: object) -> Iterator[dict[str, Any]]:
        yield {"kernel": "first", "shape": shape.name}
        if shape.name == "odd":
            raise RuntimeError("no kernel for it")

    monkeypatch.setattr(kernels, "_rows", rows)
    shapes = [pair_of(name)[0] for name in ("odd", "last")]
    odd, last = kernels.bench_kernels(CPU, 1.0, 1, shapes=shapes)
    assert [row.get("kernel") for row in (*odd, *last)] == ["first", None, "first"]
    assert odd[1]["failed"] == "RuntimeError: no kernel for it"
    assert odd[1]["shape"] == kernels._label(shapes[0])


@pytest.mark.parametrize("shapes", [paper_shapes, lab_shapes, host_shapes])
def test_both_models_of_a_pair_have_the_same_shape(shapes: object) -> None:
    assert callable(shapes)
    for ours, plain in zip(shapes("normalized"), shapes("prenorm"), strict=True):
        assert (ours.name, ours.batch, ours.replicas) == (plain.name, plain.batch, plain.replicas)
        differing = {k for k, v in ours.model.to_dict().items() if plain.model.to_dict()[k] != v}
        assert differing == {"architecture"}


def test_ceilings_are_rates() -> None:
    found = ceilings(CPU)
    assert 1e-4 < found["product_tflops"] < 10
    assert 1e-4 < found["copy_tbps"] < 10


def test_no_launch_is_part_of_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are timed as the twins of kernels are: queued, so that the device never waits for Python."""
    works: list[Any] = []

    def queued(work: Any, device: torch.device) -> timing.Timing:
        works.append(work())
        return timing.Timing.of([2.0])

    monkeypatch.setattr(timing, "timed_queued", queued)
    found = ceilings(CPU)
    assert found == {"product_tflops": 2 * 1024**3 / 2e9, "copy_tbps": 8 * 2**24 / 2e9}
    assert [tuple(work.shape) for work in works] == [(1024, 1024), (2**24,)]


def test_the_record_says_when_and_on_which_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cpu_name", lambda: "A chip")
    before = datetime.now(UTC).replace(microsecond=0)
    found = environment(CPU)
    assert before <= datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert found["date"].endswith("+00:00")
    assert found["device"] == "A chip"
    assert found["threads"] == torch.get_num_threads()
