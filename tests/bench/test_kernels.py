"""What `nugpt bench kernels` times: twins that give the same, and every kernel of a training step."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.kernels.fused.tensors import DEVICE
from torch import Tensor

from nugpt.bench import steps
from nugpt.bench.steps import Shape, Trained
from nugpt.engines.lab.options import Options
from nugpt.spec.model import ModelConfig

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("mended_interpreter")]

MODULES = ("adam", "add_norm", "embedding", "heads", "lerp", "loss", "short", "short_backward", "swiglu", "tile")
SMALL = Shape("small", ModelConfig(1, 2, 16, 40, 8, d_mlp=24), 3, 2)
# What a fused call gives beside what its twin gives: how many tensors.
BESIDE = {"linear cross-entropy, both ways": 1}
# The interpreter has no products of bfloat16, which `short` needs; on a GPU it is for nothing else.
LOW, BOUND = (torch.bfloat16, 3e-2) if DEVICE == "cuda" else (torch.float32, 1e-5)


def tensors_in(found: object) -> Iterator[Tensor]:
    """Every tensor of nested tuples, in order."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, (tuple, list)):
        for part in found:
            yield from tensors_in(part)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are launched."""
    from nugpt.kernels.fused.launch import launch

    names: set[str] = set()

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        names.add(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    for module in MODULES:
        monkeypatch.setattr(importlib.import_module(f"nugpt.kernels.fused.{module}"), "launch", noted)
    return names


def by_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """As inductor gets it, run by torch itself: the same graph, without a compiler."""
    return torch.compile(function, dynamic=False, fullgraph=True, backend="aot_eager")


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("of", "number"), [("cases", 18), ("compiled_cases", 9)])
def test_a_case_and_its_twin_give_the_same(of: str, number: int) -> None:
    from nugpt.bench import kernels

    given = {"compiled_cases": {"twin": by_dynamo}}.get(of, {})
    names = []
    for case in getattr(kernels, of)(SMALL, torch.device(DEVICE), LOW, **given):
        names.append(case.name)
        truth = [x.detach().clone() for x in tensors_in(case.plain())]
        found = list(tensors_in(case.fused()))
        assert truth, case.name
        assert len(found) == len(truth) + BESIDE.get(case.name, 0), case.name
        for mine, theirs in zip(found, truth, strict=False):
            assert mine.numel() == theirs.numel(), case.name
            difference = (mine.reshape(-1).double() - theirs.reshape(-1).double()).norm()
            assert float(difference / theirs.double().norm()) < BOUND, case.name
        assert case.bytes > 0
    assert len(set(names)) == len(names) == number


@pytest.mark.gpu
def test_operations_between_products_are_timed_as_compiled_too() -> None:
    from nugpt.bench.kernels import bench_kernels, compiled_cases

    (rows,) = bench_kernels(torch.device("cuda"), 4.0, 2, compiled=True, shapes=[SMALL])
    with_time = {row["kernel"] for row in rows if row["compiled_ms"] is not None}
    assert with_time == {case.name for case in compiled_cases(SMALL, torch.device("cuda"))}
    assert all(row["ms"]["median"] > 0 and row["plain_ms"]["median"] > 0 for row in rows)


def test_every_kernel_of_a_step_is_timed(launched: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.bench.kernels import cases
    from nugpt.kernels.fused import loss

    monkeypatch.setattr(steps, "WARM_UP", 0)
    for architecture in ("normalized", "prenorm"):
        model = ModelConfig(**(SMALL.model.to_dict() | {"architecture": architecture}))
        Trained(Shape("small", model, 1), torch.device(DEVICE), Options(device=DEVICE, kernels="fused"))
    of_steps = set(launched)
    assert len(of_steps) > 12
    launched.clear()
    for whole in (16384, 16):  # rows of logits at once, and in pieces
        monkeypatch.setattr(loss, "WHOLE_ROW", whole)
        for case in cases(SMALL, torch.device(DEVICE), LOW):
            case.fused()
    assert of_steps <= launched
    assert {"_short_forward", "_short_queries", "_short_keys", "_long_softmax_in_place"} <= launched


def test_tokens_are_as_frequent_as_in_text_and_their_rows_are_read_once() -> None:
    from nugpt.bench.kernels import Operands, cases
    from nugpt.engines.lab.fused_step import TOKENS

    shape = Shape("wordy", ModelConfig(1, 2, 16, 40, 500, d_mlp=24), 4, 2)
    tokens = Operands(shape, torch.device(DEVICE), LOW).ids()
    assert tokens.shape == (2, 2000)
    assert tokens.dtype is TOKENS  # as in a step
    assert tokens.is_contiguous()
    first = 1 / sum(1 / k for k in range(1, 41))  # 0.23 of all, where it would be 0.025 of tokens drawn evenly
    assert abs(float((tokens == 0).double().mean()) - first) < 5 * (first * (1 - first) / 4000) ** 0.5
    few = Shape("few", ModelConfig(1, 2, 16, 40, 8, d_mlp=24), 1, 2)
    named = sum(len(set(of)) for of in Operands(few, torch.device(DEVICE), LOW).ids().tolist())
    (lookup,) = (case for case in cases(few, torch.device(DEVICE), LOW) if case.name == "embedding")
    assert lookup.bytes == 6 * 2 * 8 * 32 + 4 * named * 32


def test_the_shapes_take_both_ways_of_the_loss() -> None:
    from nugpt.bench.kernels import kernel_shapes
    from nugpt.kernels.fused.loss import WHOLE_ROW

    shapes = kernel_shapes()
    assert [(s.replicas, s.model.d_model) for s in shapes] == [(1, 1280), (1, 1224), (8, 192), (8, 768)]
    assert {s.model.vocab_size > WHOLE_ROW for s in shapes} == {True, False}


def test_the_attention_kernels_to_choose_from_are_those_there_are() -> None:
    from nugpt.kernels.fused.attention import KERNELS

    assert {*steps.ATTENTION} == {"short", *KERNELS} - {"host"}


class Fused(Options):
    """As on a GPU that has the fused kernels."""

    def kernels_on(self, device: torch.device, architecture: str) -> str:
        return "fused"


def test_a_shape_that_short_attention_does_not_take_is_named() -> None:
    cuda, shapes = torch.device("cuda"), steps.lab_shapes("normalized")
    steps.check_attention("short", shapes, cuda, Fused())
    steps.check_attention("cudnn", steps.paper_shapes("normalized"), cuda, Fused())
    with pytest.raises(ValueError, match=r"'short'.*1024.*12 × 10 heads of 128 has 4096"):
        steps.check_attention("short", [*shapes, *steps.paper_shapes("normalized")], cuda, Fused())


def test_attention_that_is_asked_for_is_taken_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.engines.lab import fused

    monkeypatch.setattr(steps, "WARM_UP", 0)
    monkeypatch.setattr(fused, "fastest", lambda *_: pytest.fail("the fastest was looked for"))
    name = "efficient" if DEVICE == "cuda" else "host"
    options = Options(device=DEVICE, kernels="fused")
    trained = Trained(Shape("small", SMALL.model, 1), torch.device(DEVICE), options, name)
    trained.time(1)
    assert trained.row()["attention"] == name


def test_attention_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import attention

    def fails(*_: object) -> None:
        raise RuntimeError("no plan supports the graph")

    monkeypatch.setitem(attention.KERNELS, "cudnn", (fails, fails))
    options = Options(device=DEVICE, kernels="fused")
    with pytest.raises(ValueError, match=r"'cudnn', but it fails at small: no plan supports the graph"):
        Trained(Shape("small", SMALL.model, 1), torch.device(DEVICE), options, "cudnn")
