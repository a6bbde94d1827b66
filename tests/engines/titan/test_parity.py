"""The same losses as the lab engine, whatever the mesh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engines.small import directory_of, train
from tests.engines.titan.ranks import STEPS, Place, make_run, rows, run

from nugpt.data import TokenDataset
from nugpt.spec.run import RunSpec
from nugpt.store import RunDirectory

pytestmark = pytest.mark.titan

# Sums in another order differ by a few units in the last place of a loss near 6 (4.8e-7 each), and 20 steps add to it.
SAME = 1e-5
ON_THE_SPHERE = 1e-6  # a few units in the last place of a length of 1

MESHES: dict[str, tuple[int, tuple[str, ...]]] = {
    "one rank": (1, ()),
    "fsdp": (2, ()),
    "tp": (2, ("--tp", "2")),
    "fsdp × tp": (4, ("--tp", "2")),
    "replicas × fsdp, recomputing, in pieces": (4, ("--replicate", "2", "--activations", "full", "--micro-batch", "1")),
    "fsdp, recomputing some, in pieces": (2, ("--activations", "selective", "--micro-batch", "1")),
}


@pytest.fixture(scope="module")
def lab(dataset: TokenDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The lab engine's run of each spec, made when first asked for."""
    store = tmp_path_factory.mktemp("lab")
    made: dict[str, Any] = {}

    def of(spec: RunSpec) -> RunDirectory:
        if spec.hash not in made:
            made[spec.hash] = train([spec], store, dataset)
        return directory_of(spec, store)

    return {"of": of}


def assert_same(ours: RunDirectory, labs: RunDirectory, loss: float = SAME) -> None:
    for kind, names in {"train": ("loss", "lr_multiplier"), "validation": ("val_loss", "val_loss_ema")}.items():
        mine, theirs = rows(ours, kind), rows(labs, kind)
        assert list(mine) == list(theirs)
        for step, row in theirs.items():
            for name in names:
                assert mine[step][name] == pytest.approx(row[name], abs=loss), (kind, step, name)
    for step, row in rows(labs, "train").items():
        # A derivative feels the difference of the weights more than the loss does, whose slope it is.
        assert rows(ours, "train")[step]["grad_norm"] == pytest.approx(row["grad_norm"], rel=10 * loss)
    for step, row in rows(labs, "validation").items():
        assert rows(ours, "validation")[step]["val_loss_by_source"] == pytest.approx(
            row["val_loss_by_source"], abs=loss
        )


@pytest.mark.parametrize("mesh", MESHES)
def test_same_losses_as_the_lab_engine(mesh: str, place: Place, dataset: TokenDataset, lab: dict[str, Any]) -> None:
    spec = make_run(dataset)
    ranks, more = MESHES[mesh]
    assert run(place.arguments(spec, "runs", *more), ranks, place.root / "log") == [0] * ranks
    ours, labs = place.directory(spec, "runs"), lab["of"](spec)
    assert len(rows(ours, "train")) == STEPS
    assert_same(ours, labs)
    assert max(row["norm_error"] for row in rows(ours, "train").values()) < ON_THE_SPHERE
    mine, theirs = ours.record(), labs.record()
    assert mine is not None
    assert theirs is not None
    assert (mine.status, mine.steps, mine.tokens, mine.flops) == (
        theirs.status,
        theirs.steps,
        theirs.tokens,
        theirs.flops,
    )
    assert mine.val_loss == pytest.approx(theirs.val_loss, abs=SAME)
    assert mine.resolved == theirs.resolved
    for role in ("alpha_A", "alpha_M"):
        assert mine.lerp[role]["mean_by_block"] == pytest.approx(theirs.lerp[role]["mean_by_block"], abs=SAME)
    assert mine.carried_by["engine"] == "titan"
    assert mine.carried_by["ranks"] == ranks
    assert mine.carried_by["device_s"] == pytest.approx(ranks * mine.wall_s)


def test_the_plain_transformer_with_normed_keys_on_a_full_mesh(
    place: Place, dataset: TokenDataset, lab: dict[str, Any]
) -> None:
    # Off the sphere nothing holds rounding errors back: at the other tests' rate they reach 1.3e-5 by step 14.
    changes = {"lr": 2**-6, "grad_clip": 0.5}
    spec = replace(make_run(dataset, table="prenorm-completep", architecture="prenorm-qknorm"), **changes)
    assert run(place.arguments(spec, "runs", "--tp", "2"), 4, place.root / "log") == [0] * 4
    assert_same(place.directory(spec, "runs"), lab["of"](spec))


def test_compiled_blocks_under_tensor_parallelism(place: Place, dataset: TokenDataset, lab: dict[str, Any]) -> None:
    spec = make_run(dataset, validations=1)
    assert run(place.arguments(spec, "runs", "--tp", "2", "--compile"), 2, place.root / "log") == [0, 0]
    assert_same(place.directory(spec, "runs"), lab["of"](spec))


def numbers_in(values: Any, path: str = "") -> dict[str, float]:
    """Every number within nested values, by its path."""
    if isinstance(values, dict):
        return {k: v for key, inner in values.items() for k, v in numbers_in(inner, f"{path}/{key}").items()}
    if isinstance(values, list):
        return {k: v for i, inner in enumerate(values) for k, v in numbers_in(inner, f"{path}/{i}").items()}
    return {path: values} if isinstance(values, (int, float)) else {}


def test_measurements_on_gathered_weights_at_a_schedule(place: Place, dataset: TokenDataset) -> None:
    spec = make_run(dataset)
    measures = ("--measure", "alignment", "lerp", "--measure-points", "5", "--measure-windows", "4")
    assert run(place.arguments(spec, "runs", "--tp", "2", *measures), 4, place.root / "log") == [0] * 4
    train([spec], place.root / "lab", dataset, measure=("alignment", "lerp"), measure_points=5, measure_windows=4)
    ours, labs = place.directory(spec, "runs"), place.directory(spec, "lab")
    for kind in ("lerp", "alignment"):
        mine, theirs = rows(ours, kind), rows(labs, kind)
        assert list(mine) == list(theirs)
        assert len(mine) == 5
        for step, row in theirs.items():
            found = numbers_in(row)
            assert len(found) > 8
            for name, number in found.items():
                # After one step Δh is small, and an exponent is a logarithm of it: it feels the last places most.
                assert numbers_in(mine[step])[name] == pytest.approx(number, abs=1e-3), (kind, step, name)


def test_products_in_bfloat16_with_float32_masters(place: Place, dataset: TokenDataset, lab: dict[str, Any]) -> None:
    spec = make_run(dataset, precision="bfloat16")
    assert run(place.arguments(spec, "runs"), 2, place.root / "log") == [0, 0]
    ours = place.directory(spec, "runs")
    # bfloat16 has 8 bits: logits near 6 are off by about 0.01, their mean over 64 tokens by a few thousandths.
    assert_same(ours, lab["of"](spec), loss=5e-3)
    # Weights of 0.1 in bfloat16 would be off the sphere by up to 2e-3: the masters are not.
    assert max(row["norm_error"] for row in rows(ours, "train").values()) < ON_THE_SPHERE
    in_float32 = make_run(dataset)
    assert rows(ours, "train")[STEPS]["loss"] != pytest.approx(
        rows(lab["of"](in_float32), "train")[STEPS]["loss"], abs=SAME
    )
