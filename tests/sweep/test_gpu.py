"""On a GPU: a plan with more replicas than fit is done all the same, each run once, and no number is tried twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

FIT = 5.5  # replicas that are left room for
RUNS = 16


@pytest.mark.parametrize(
    "carried", [{"kernels": "plain", "compile": False}, {"kernels": "fused"}], ids=["plain", "fused"]
)
def test_more_replicas_than_fit_are_halved_and_every_run_is_done_once(carried: dict[str, Any], tmp_path: Path) -> None:
    import torch

    from nugpt.data import cached_embedded
    from nugpt.engines.lab import Options
    from nugpt.engines.lab.engine import LabEngine
    from nugpt.spec import load_table, preset
    from nugpt.spec.plan import Curve, Plan, Policy
    from nugpt.spec.run import RunSpec
    from nugpt.store import Store
    from nugpt.store.plans import PlanDirectory
    from nugpt.sweep.state import plan_state
    from nugpt.sweep.worker import WorkerOptions, work

    dataset = cached_embedded("bytes", cache=tmp_path / "data")
    scale, model = preset("lab-l4h8")
    model = replace(model, vocab_size=dataset.vocab_size)
    common: dict[str, Any] = {"precision": "bfloat16", "validations": 1, "val_windows": 8}
    spec = RunSpec(model, load_table("nugpt"), scale.base, 1.0, 6, scale.batch, dataset.content_hash, **common)
    curve = Curve({}, spec, tuple(-10 + k / 4 for k in range(RUNS // 2)), (0, 1))
    directory = PlanDirectory.of(Store(tmp_path / "runs"), Plan("plan", (curve,), Policy(extend=0)))
    sizes: list[tuple[int, bool]] = []  # of every ensemble tried, and whether it could be trained

    class Watched(LabEngine):
        def execute(self, specs: list[RunSpec], *rest: Any) -> Any:
            sizes.append((len(specs), False))
            records = super().execute(specs, *rest)
            sizes[-1] = (len(specs), True)
            return records

    engine = Watched(dataset, Options(device="cuda:0", **carried))
    device = torch.device("cuda:0")
    one = engine._measure(spec, device)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + FIT * one) / total, device)
    said: list[str] = []
    try:
        # What is free by the driver knows nothing of the limit: the measure says that all of them fit.
        assert engine.capacity(spec, RUNS) == RUNS
        outcome = work(directory, engine, WorkerOptions(), say=said.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    print(f"{one / 2**20:.0f} MiB a replica; ensembles tried: {sizes}")
    assert (outcome.done, outcome.failed) == (RUNS, 0), said
    (state,) = plan_state(directory.plan(), directory, 300.0)
    assert {place.state for place in state.places} == {"done"}
    ended = Counter(line.split()[1] for line in said if line.endswith(" done"))
    assert ended == {place.spec.hash: 1 for place in state.places}
    assert not list(directory.store.root.glob("*/failures.jsonl"))
    refused = [size for size, trained in sizes if not trained]
    assert refused[0] == RUNS
    assert refused == sorted(set(refused), reverse=True)  # none twice
    assert all(size < min(refused) for size, trained in sizes if trained)
    assert max(size for size, trained in sizes if trained) >= 2  # one fits by far: halving stopped where it should
