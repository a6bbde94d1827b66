"""`nugpt bench` as a user types it, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from nugpt.bench import data, profile, steps, timing
from nugpt.bench.floor import counts, floor_ms
from nugpt.cli.bench import INSTEAD, Bench, Section, _show
from nugpt.cli.data import SECTIONS
from nugpt.cli.main import main
from nugpt.engines.lab.options import Options
from nugpt.spec.model import ModelConfig


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    def shapes(architecture: str) -> list[steps.Shape]:
        return [steps.Shape("small", ModelConfig(1, 2, 8, 32, 16, d_mlp=24, architecture=architecture), 2)]

    monkeypatch.setattr(steps, "host_shapes", shapes)


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "lab", "kernels", "--device", "cpu", "--runs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "ceilings: product" in printed
    assert "νGPT" in printed
    assert "small: νGPT runs at" in printed
    assert "kernels: there is no CUDA device" in printed
    (ours,) = (line.split() for line in printed.splitlines() if "νGPT" in line and "–" in line)
    assert ours[-2:] == ["plain", "folded"]  # which kernels and which attention ran


def test_a_cpu_times_its_own_shapes_once_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", "lab", "--device", "cpu", "--runs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "paper, lab: there is no CUDA device: small shapes, a CPU's and not the paper's" in printed
    assert printed.count("small: νGPT runs at") == 1
    assert main(["bench", "paper", "lab", "--device", "cpu", "--runs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["paper"] == found["lab"] == {"not_run": INSTEAD}
    assert [row["shape"] for row in found["cpu"]] == ["small"] * 2


def test_the_table_of_data_has_every_way_of_loading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"tokens_per_second": 2e6, "tokens_per_second_prefetched": 3e6}
    found = {"prepare": {"tokens_per_second": 1e6}, "load": rates}
    monkeypatch.setattr(data, "bench_data", lambda: found)
    assert main(["bench", "kernels", "data", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[-1] for line in printed.splitlines() if ",000,000" in line] == [
        "1,000,000",
        "2,000,000",
        "3,000,000",
    ]


def test_kernels_that_cannot_run_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    found = Bench()._measure("kernels", torch.device("cuda"), Options(), {"copy_tbps": 1.0})
    assert found == {"not_run": "Triton is not installed"}


def test_a_shape_that_does_not_fit_is_named_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = steps.host_shapes

    class Small(steps.Trained):
        def __init__(self, shape: steps.Shape, *rest: Any) -> None:
            if shape.name == "large":
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(shape, *rest)

    monkeypatch.setattr(steps, "host_shapes", lambda of: [*shapes(of), replace(shapes(of)[0], name="large")])
    monkeypatch.setattr(steps, "Trained", Small)
    out = tmp_path / "bench.json"
    assert main(["bench", "lab", "--device", "cpu", "--runs", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "small: νGPT runs at" in printed
    assert "cpu, large νGPT: the device has too little memory" in printed
    assert [row["shape"] for row in json.loads(out.read_text())["cpu"]] == ["small", "small", "large", "large"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_shape_that_fails_is_named_with_its_error_and_leaves_the_others(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = steps.host_shapes

    class Failing(steps.Trained):
        def __init__(self, shape: steps.Shape, *rest: Any) -> None:
            if shape.name == "odd":
                raise RuntimeError("no kernel for it\n  at all")
            super().__init__(shape, *rest)

    monkeypatch.setattr(steps, "host_shapes", lambda of: [replace(shapes(of)[0], name="odd"), *shapes(of)])
    monkeypatch.setattr(steps, "Trained", Failing)
    monkeypatch.setattr(profile, "Trained", Failing)
    out = tmp_path / "bench.json"
    more = ["--json"] if as_json else []
    assert main(["bench", "lab", "--device", "cpu", "--runs", "1", "--profile", "--out", str(out), *more]) == 1
    shown = capsys.readouterr()
    errors = [line for line in shown.err.splitlines() if line.startswith("nugpt: error: ")]
    assert errors == [
        f"nugpt: error: {of}, odd {model}: RuntimeError: no kernel for it at all"
        for of in ("cpu", "profile of cpu")
        for model in ("νGPT", "plain")
    ]
    found = json.loads(out.read_text())
    for section in ("cpu", "profile"):
        assert [(row["shape"], "failed" in row, "ms" in row) for row in found[section]] == [
            *[("odd", True, False)] * 2,
            *[("small", False, True)] * 2,
        ]
    assert json.loads(shown.out) == found if as_json else "small: νGPT runs at" in shown.out


def test_what_was_measured_before_a_failure_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError("the disk has gone")

    monkeypatch.setattr(data, "bench_data", fails)
    out = tmp_path / "bench.json"
    with pytest.raises(RuntimeError, match="the disk has gone"):
        main(["bench", "lab", "data", "--device", "cpu", "--runs", "1", "--json", "--out", str(out)])
    kept = json.loads(out.read_text())
    assert [row["architecture"] for row in kept["cpu"]] == ["normalized", "prenorm"]
    assert json.loads(capsys.readouterr().out) == kept
    assert list(tmp_path.iterdir()) == [out]


def test_a_row_of_a_gpu_has_its_floor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ms = {"median": 2.0, "low": 1.0, "high": 3.0}
    row = {"architecture": "normalized", "ms": ms, "ms_per_replica": 2.0, "tokens_per_ms": 1.0, "tflops": 1.0}
    row |= {
        "diverged": 0,
        "peak_bytes": None,
        "first_step_s": 1.0,
        "compile": False,
        "kernels": "fused",
        "attention": "short",
    }

    def rows(pairs: list[Any], *_: Any) -> Iterator[list[Any]]:
        for pair in pairs:
            yield [row | {"shape": shape.name} for shape in pair]

    monkeypatch.setattr(steps, "bench_pair", rows)
    ceilings = {"product_tflops": 770.0, "copy_tbps": 4.23}
    found = [row for pair in Bench()._steps("lab", torch.device("cuda"), Options(), ceilings) for row in pair]
    assert found[2]["shape"] == "d_model 192, R = 8"
    assert found[2]["floor_ms"] == pytest.approx(floor_ms(counts(steps.lab_shapes("normalized")[1]), ceilings))
    _show("lab", found)
    line = next(line for line in capsys.readouterr().out.splitlines() if "d_model 192, R = 8" in line)
    assert f"{found[2]['floor_ms']:.2f}" in line.split()


def test_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "lab", "--device", "cpu", "--runs", "1", "--profile"]) == 0
    printed = capsys.readouterr().out
    assert "cpu, small: ms a step" in printed
    totals = [line.split() for line in printed.splitlines() if line.split()[:1] == ["all"]]
    assert len(totals) == 1
    assert all(float(total) > 0 for total in totals[0][1:])
    assert main(["bench", "lab", "--device", "cpu", "--runs", "1", "--profile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["profile"]
    assert [(row["section"], row["architecture"]) for row in found] == [("cpu", "normalized"), ("cpu", "prenorm")]


def test_json_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    command = ["bench", "lab", "--device", "cpu", "--runs", "2", "--json", "--out", str(out)]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    assert [row["architecture"] for row in found["cpu"]] == ["normalized", "prenorm"]
    assert all(row["ms"]["runs"] == 2 for row in found["cpu"])
    assert found["environment"]["torch"]
    assert found["options"] == {"kernels": "auto", "attention": None, "runs": 2, "compiled": False, "profile": False}
    assert main(command) == 2  # what is there is not overwritten
    assert str(out) in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runs", "0"],
        ["--device", "tpu"],
        ["--kernels", "quick"],
        ["--kernels", "fused"],  # this machine has no GPU
        ["--out", "no-such-folder/bench.json"],
        ["--out", ""],
        ["--out", f"{'x' * 250}.json"],  # a name that no file system takes with the temporary one around it
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(timing, "ceilings", lambda device: pytest.fail("measured before the mistake was seen"))
    assert main(["bench", "lab", *arguments, *([] if "--device" in arguments else ["--device", "cpu"])]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nugpt: error: ")
    assert error.count("\n") == 1
    assert (arguments[1] or "''") in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["kernels", "--kernels", "plain"], ["'plain'", "paper and lab", "sections are kernels"]),
        (["paper", "lab", "--compiled"], ["compiled is for kernels", "sections are paper, lab"]),
        (["kernels", "--attention", "flash"], ["'flash'", "paper and lab", "sections are kernels"]),
        (["lab", "--device", "cpu", "--attention", "flash"], ["'flash'", "the device is cpu"]),
        (["lab", "--device", "cpu", "--attention", "quick"], ["'quick'", "short, flash, cudnn, efficient"]),
        (["kernels", "--profile"], ["profile is for paper and lab", "sections are kernels"]),
        (["data", "kernels"], ["'kernels' is a section", "nugpt bench kernels data"]),
    ],
)
def test_an_option_or_section_that_would_be_ignored_is_refused(
    command: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "ceilings", lambda device: pytest.fail("measured before the mistake was seen"))
    assert main(["bench", *command]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words)


def test_the_sections_are_those_that_data_alone_knows() -> None:
    assert {*SECTIONS, "data"} == {*get_args(Section)}


@pytest.mark.gpu
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def shapes(architecture: str) -> list[steps.Shape]:
        return [steps.Shape("small", ModelConfig(2, 4, 48, 8192, 512, architecture=architecture), 8, 4)]

    monkeypatch.setattr(steps, "lab_shapes", shapes)
    for attention in ("short", "cudnn", "flash", "efficient"):
        command = ["bench", "lab", "--device", "cuda", "--runs", "5", "--attention", attention, "--profile", "--json"]
        assert main(command) == 0
        found = json.loads(capsys.readouterr().out)
        for row, where, own in zip(found["lab"], found["profile"], ("lerp", "add, norm"), strict=True):
            assert row["attention"] == attention
            assert len(row["ms"]["each"]) == 5
            assert row["floor_ms"] < row["ms"]["low"]
            assert {"matrix products", "attention", "Adam, retraction, copy", own} <= set(where["ms"])
            assert sum(where["ms"].values()) == pytest.approx(where["total_ms"])
            # A step is one graph: its kernels fill most of its time, and there is only one at a time.
            assert 0.5 < where["total_ms"] / row["ms"]["median"] < 1.2
    assert main(["bench", "paper", "--device", "cuda", "--attention", "short"]) == 2
    assert "12 × 10 heads of 128 has 4096" in capsys.readouterr().err
