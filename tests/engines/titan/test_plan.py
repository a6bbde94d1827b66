"""Plans for meshes that no machine here has: sizes against closed forms, and a step against a deeper one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.titan.ranks import command, fork

from nugpt.spec import preset
from nugpt.spec.model import parameter_shapes
from nugpt.spec.parametrization import parametrization
from nugpt.spec.run import RunSpec

pytestmark = pytest.mark.titan

GIB = 2**30


def planned(tmp_path: Path, *words: str) -> tuple[int, Any]:
    status, out, err = command(["titan", "plan", *words], tmp_path / "plan")
    assert "Traceback" not in err, err
    return status, json.loads(out) if "--json" in words and out else out + err


def state_bytes(name: str, shard: int, tp: int) -> int:
    """16 bytes per parameter of rank 0, counted by hand: both cut matrices, tensor parallelism alone cuts vectors."""
    whole_everywhere = ("alpha_A.stored", "alpha_M.stored")
    _, model = preset(name)
    numbers = 0
    for parameter, shape in parameter_shapes(model).items():
        size = 1
        for n in shape:
            size *= n
        if parameter.endswith(".stored"):
            numbers += size if parameter.endswith(whole_everywhere) else size // tp
        else:
            rows = shape[0] if "W_O" in parameter or "W_oMLP" in parameter else shape[0] // tp
            columns = shape[1] // tp if "W_O" in parameter or "W_oMLP" in parameter else shape[1]
            numbers += -(-rows // shard) * columns  # rank 0's rows: uneven ones are rounded up
    return 16 * numbers


@pytest.mark.parametrize(
    ("name", "gpus", "shard", "tp"),
    [("paper-l12h40", 8, 8, 1), ("paper-l12h40", 512, 64, 8), ("paper-l128h12", 256, 64, 4)],
)
def test_the_largest_models_of_the_paper(name: str, gpus: int, shard: int, tp: int, tmp_path: Path) -> None:
    status, found = planned(tmp_path, "--preset", name, "--gpus", str(gpus), "--json")
    assert status == 0
    best = found[-1]
    assert (best["replicate"], best["shard"], best["tp"]) == (1, shard, tp)
    assert best["state_gib"] * GIB == state_bytes(name, shard, tp)
    assert best["local_batch"] * shard == 64
    _, model = preset(name)
    hidden_states = 4 * model.seq_len * model.d_model * model.n_layers * best["micro_batch"]  # every block keeps one
    assert best["step_gib"] * GIB > hidden_states
    assert best["total_gib"] == best["state_gib"] + best["step_gib"] <= 80


def test_a_larger_batch_has_room_for_more_ranks(tmp_path: Path) -> None:
    words = ("--preset", "paper-l128h12", "--gpus", "512", "--batch", "512", "--json")
    status, (best,) = planned(tmp_path, *words)
    assert status == 0
    assert (best["shard"], best["tp"], best["local_batch"]) == (512, 1, 1)
    assert best["state_gib"] * GIB == state_bytes("paper-l128h12", 512, 1)


def test_an_odd_number_of_sequences_takes_its_place_too(tmp_path: Path) -> None:
    words = ("--preset", "paper-l12h12", "--gpus", "8", "--tp", "1", "--activations", "none", "--json")
    takes = {}
    for each in (1, 2, 3):
        status, (found,) = planned(tmp_path, *words, "--batch", str(8 * each), "--micro-batch", str(each))
        assert status == 0
        takes[each] = found["step_gib"]
    assert takes[2] - takes[1] > 1
    # Each sequence as much as the one before, but for the pieces in which the loss is taken.
    assert takes[3] - takes[2] == pytest.approx(takes[2] - takes[1], rel=0.2)


def test_little_memory_is_met_by_small_pieces_then_by_recomputation(tmp_path: Path) -> None:
    words = ("--preset", "paper-l12h12", "--gpus", "8", "--tp", "1", "--json")
    status, found = planned(tmp_path, *words, "--memory", "9")
    assert status == 0
    (first, *_, last) = found
    assert (first["activations"], first["micro_batch"], first["fits"]) == ("none", 1, False)
    assert (last["activations"], last["fits"]) == ("selective", True)
    assert last["total_gib"] <= 9 < first["total_gib"]
    status, (only,) = planned(tmp_path, *words, "--memory", "30", "--activations", "none")
    assert status == 0
    assert first["total_gib"] < only["total_gib"] <= 30
    more = str(2 * only["micro_batch"])  # the next size that divides a rank's 8 sequences
    status, (larger,) = planned(tmp_path, *words, "--memory", "30", "--activations", "none", "--micro-batch", more)
    assert (status, larger["fits"]) == (1, False)


def test_what_fits_nowhere_is_said_with_status_1(tmp_path: Path) -> None:
    words = ("--preset", "paper-l12h12", "--gpus", "1", "--memory", "4", "--tp", "1", "--activations", "full")
    status, found = planned(tmp_path, *words)
    assert status == 1
    assert "none fits" in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--preset", "paper-l128h12", "--gpus", "512"), "512 GPUs have no mesh for this run: with tp 1 a step has 64"),
        (
            ("--preset", "paper-l12h12", "--gpus", "8", "--tp", "5"),
            "tp 5 × replicate 1 is 5, but must divide the 8 ranks",
        ),
        (("--gpus", "8"), "give either --recipe FILE or --preset NAME"),
        (("--preset", "paper-l12h12", "--gpus", "0"), "gpus is 0"),
        (("--preset", "paper-l12h12", "--gpus", "8", "--batch", "0"), "batch is 0"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    status, said = planned(tmp_path, *words)
    assert status == 2
    assert message in said
    assert said.count("\n") == 1


def _steps_of_depths(result: str) -> None:
    from nugpt.engines.titan.options import TitanOptions
    from nugpt.engines.titan.plan import _begin, _measured, _peak

    _begin(8)
    scale, model = preset("lab-l5h4")
    extent = scale.base.extent
    table = parametrization("nugpt")
    spec = RunSpec(model, table, scale.base, 1.0, extent.steps, scale.batch, "none", precision="bfloat16")
    found = {}
    for kind in ("none", "full"):
        options = TitanOptions(activations=kind, micro_batch=1)
        found[kind] = (_peak(spec, options, 8), _measured(spec, options, 8))
    Path(result).write_text(json.dumps(found))


def test_a_deep_models_step_follows_from_two_shallow_ones(tmp_path: Path) -> None:
    fork(_steps_of_depths, str(tmp_path / "result")).join(200)
    for kind, (estimated, measured) in json.loads((tmp_path / "result").read_text()).items():
        # Not exact: the allocations of a block do not all live to the same moment.
        assert estimated == pytest.approx(measured, rel=0.03), kind
