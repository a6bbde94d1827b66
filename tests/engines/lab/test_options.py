"""What carries a run: checked when it is given, with a line that says what would be right."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from nugpt.engines.lab import Options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("micro_batch", 0),
        ("checkpoint_every", -1),
        ("keep", 0),
        ("log_every", 0),
        ("threads", 0),
        ("attention", "flash9"),
        ("loss", "fused9"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name) as error:
        Options(**{name: value})
    assert repr(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "mps", "meta", "cpu:3:4", "cuda:99"])
def test_a_device_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="device is") as error:
        Options(device=name).torch_device()
    assert repr(name) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_device_and_compiling_by_default() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert Options().torch_device().type == expected
    assert Options(device="cpu").torch_device() == torch.device("cpu")
    for device in (torch.device("cpu"), torch.device("cuda")):
        assert Options().compiles(device) is (device.type == "cuda")
        assert Options(compile=True).compiles(device) is True
        assert Options(compile=False).compiles(device) is False


@pytest.mark.parametrize(
    ("kernels", "compile", "device", "architecture", "triton", "expected"),
    [
        ("auto", None, "cuda", "normalized", True, "fused"),
        ("auto", None, "cuda", "prenorm", True, "fused"),
        ("auto", None, "cuda", "prenorm-qknorm", True, "plain"),
        ("auto", None, "cuda", "normalized", False, "plain"),
        ("auto", None, "cpu", "normalized", True, "plain"),
        ("auto", True, "cuda", "normalized", True, "plain"),  # to compile is to want the plain functions
        ("plain", None, "cuda", "normalized", True, "plain"),
        ("fused", None, "cuda", "normalized", True, "fused"),
    ],
)
def test_which_kernels_run(
    kernels: str,
    compile: bool | None,
    device: str,
    architecture: str,
    triton: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if triton else None)
    options = Options(kernels=kernels, compile=compile)
    found = options.kernels_on(torch.device(device), architecture)
    assert found == expected
    assert options.compiles(torch.device(device), found) is (found == "plain" and (compile or device == "cuda"))


def test_whoever_asks_for_a_plain_function_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    cuda = torch.device("cuda")
    for asked in (Options(attention="sdpa"), Options(attention="plain"), Options(loss="plain")):
        assert asked.kernels_on(cuda, "normalized") == "plain"
    assert Options(attention="folded", loss="chunked").kernels_on(cuda, "normalized") == "fused"
    assert Options(kernels="fused", compile=False).kernels_on(cuda, "normalized") == "fused"
    with pytest.raises(ValueError, match="kernels is 'fused', but compile is asked for, and they are not"):
        Options(kernels="fused", compile=True).kernels_on(cuda, "normalized")
    with pytest.raises(ValueError, match="kernels is 'fused', but attention 'sdpa' is one of the plain functions"):
        Options(kernels="fused", attention="sdpa").kernels_on(cuda, "normalized")
    with pytest.raises(ValueError, match="kernels is 'fused', but loss 'plain' is one of the plain functions"):
        Options(kernels="fused", loss="plain").kernels_on(cuda, "normalized")


def test_fused_kernels_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Triton is not installed"):
        Options(kernels="fused").kernels_on(torch.device("cuda"), "normalized")
    with pytest.raises(ValueError, match="'prenorm-qknorm'"):
        Options(kernels="fused").kernels_on(torch.device("cuda"), "prenorm-qknorm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="the device is cpu, and they need a GPU"):
        Options(kernels="fused").kernels_on(torch.device("cpu"), "normalized")
    with pytest.raises(ValueError, match="'quick', but must be one of auto, plain, fused"):
        Options(kernels="quick")
