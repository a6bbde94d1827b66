"""What is wrong is said once, in a line of rank 0's; every rank ends with status 2, and none hangs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.titan.ranks import Place, free_port, make_run, run, said, start_rank

from nugpt.data import TokenDataset
from nugpt.spec.run import RunSpec

pytestmark = pytest.mark.titan


def other_rate(place: Place, spec: RunSpec) -> list[str]:
    words = place.arguments(spec, "runs")
    values = json.loads(place.recipe(spec).read_text())
    values["resolved"]["rows"]["hidden"]["lr"] *= 2
    Path(words[words.index("--recipe") + 1]).write_text(json.dumps(values))
    return words


def missing_shard(place: Place, spec: RunSpec) -> list[str]:
    copy = place.root / "data"
    shutil.copytree(place.data, copy)
    shard = next(path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size > 10_000)
    shard.unlink()
    return Place(place.root, copy).arguments(spec, "runs")


def file_for_store(place: Place, spec: RunSpec) -> list[str]:
    (place.root / "runs").write_text("a file where the store should be")
    return place.arguments(spec, "runs")


MISTAKES: dict[str, tuple[Callable[[Place, RunSpec], list[str]], str]] = {
    "a recipe that is none": (lambda p, s: [*p.arguments(s, "runs"), "--recipe", str(p.data)], "is no file"),
    "a recipe whose numbers are not its table's": (other_rate, "as the learning rate of hidden"),
    "a mesh that does not divide the key-value heads": (
        lambda p, s: [*p.arguments(s, "runs"), "--tp", "4"],
        "tp is 4, but must divide n_kv_heads, which is 2",
    ),
    "a mesh that does not divide the ranks": (
        lambda p, s: [*p.arguments(s, "runs"), "--tp", "3"],
        "tp 3 × replicate 1 is 3, but must divide the 4 ranks",
    ),
    "a missing shard": (missing_shard, "missing"),
    "no data": (lambda p, s: [*p.arguments(s, "runs"), "--data", str(p.root / "nowhere")], "nowhere"),
    "a store that is a file": (file_for_store, "runs"),
    "an unknown attention": (lambda p, s: [*p.arguments(s, "runs"), "--attention", "fast"], "attention is 'fast'"),
    "an unknown option": (lambda p, s: [*p.arguments(s, "runs"), "--tensor", "4"], "--tensor"),
    "fused kernels under tensor parallelism": (
        lambda p, s: [*p.arguments(s, "runs"), "--kernels", "fused", "--tp", "2"],
        "kernels is 'fused', but tp is 2",
    ),
    "no CUDA": (lambda p, s: [*p.arguments(s, "runs"), "--device", "cuda"], "no CUDA device is visible"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_of_rank_0(mistake: str, place: Place, dataset: TokenDataset) -> None:
    spec = make_run(dataset)
    make, words = MISTAKES[mistake]
    assert run(make(place, spec), 4, place.root / "log") == [2] * 4
    first, *others = said(place.root / "log", 4)
    assert first.startswith("nugpt: error: ")
    assert first.count("\n") == 1
    assert words in first
    assert others == ["", "", ""]
    assert not (place.root / "runs").is_dir() or not list((place.root / "runs").glob("*/metrics.jsonl"))


@pytest.mark.parametrize("mistake", ["an unknown attention", "an unknown option"])
def test_no_rank_leaves_before_rank_0_has_said_why(mistake: str, place: Place, dataset: TokenDataset) -> None:
    words, port, log = MISTAKES[mistake][0](place, make_run(dataset)), free_port(), place.root / "log"
    late = start_rank(words, 1, 2, port, log)  # torchrun ends rank 0 as soon as this one has left
    late.join(3)
    assert late.is_alive()
    first = start_rank(words, 0, 2, port, log)
    for process in (first, late):
        process.join(60)
    assert [first.exitcode, late.exitcode] == [2, 2]


def test_a_batch_that_the_ranks_do_not_divide(place: Place, dataset: TokenDataset) -> None:
    spec = make_run(dataset)
    assert run(place.arguments(spec, "runs"), 3, place.root / "log") == [2] * 3
    assert "a step has 4 sequences, but the 3 data-parallel ranks must divide them" in said(place.root / "log", 3)[0]


def test_a_run_that_another_process_trains_is_refused(place: Place, dataset: TokenDataset) -> None:
    from nugpt.store import Store
    from nugpt.store.claims import holding

    spec = make_run(dataset)
    with holding([Store(place.root / "runs").run(spec)]):
        assert run(place.arguments(spec, "runs"), 2, place.root / "log") == [2, 2]
    first, second = said(place.root / "log", 2)
    assert "is being trained by another process" in first
    assert first.count("\n") == 1
    assert second == ""


def test_a_diverged_run_is_a_result(place: Place, dataset: TokenDataset) -> None:
    spec = make_run(dataset, table="prenorm-completep", multipliers={"norm": 1e30})
    assert run(place.arguments(spec, "runs"), 2, place.root / "log") == [1, 1]
    record = place.directory(spec, "runs").record()
    assert record is not None
    assert (record.status, record.val_loss) == ("diverged", None)
    assert record.diverged_at is not None
    assert record.steps == record.diverged_at
    last = place.directory(spec, "runs").read_metrics()[-1]
    assert last["diverged_at"] == record.diverged_at
    assert run(place.arguments(spec, "runs"), 2, place.root / "again") == [1, 1]  # and is not tried again
