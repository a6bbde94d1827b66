"""A plan of the titan engine from the command line: its options reach the records, and `fit` and `report` read them."""

from __future__ import annotations

import json

import pytest
from tests.engines.titan.ranks import Place, command, make_run, rows, run, said

from nugpt.data import TokenDataset
from nugpt.spec.plan import Curve, Plan, Policy
from nugpt.store import RunDirectory, Store
from nugpt.store.plans import PlanDirectory

pytestmark = pytest.mark.titan


@pytest.mark.timeout(200)
def test_options_and_mesh_reach_the_records(
    place: Place, dataset: TokenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ["--preset", "tiny-l1h2", "--seq-len", "16", "--batch", "8", "--base-batch", "1", "--steps", "20"]
    where = ["--data", str(place.data), "--store", str(place.root / "runs"), "--device", "cpu"]
    mesh = ["--titan", "2", "--titan-tp", "2", "--titan-activations", "full", "--micro-batch", "4"]
    carried = ["--measure", "alignment", "--measure-points", "2", "--attention", "plain", "--loss", "plain"]
    carried += ["--log-every", "10", "--threads", "1"]
    words = ["sweep", "--name", "mine", *shape, *where, *mesh, *carried, "--log2-lr", "-6", "--extend", "0", "--run"]
    status, _, err = command(words, place.root / "log")
    assert status == 0, err
    (directory,) = Store(place.root / "runs").runs()
    record = directory.record()
    assert record is not None
    found = record.carried_by
    assert (found["engine"], found["ranks"]) == ("titan", 2)
    assert found["mesh"] == {"replicate": 1, "shard": 1, "tp": 2}
    assert (found["activations"], found["micro_batch"], found["attention"]) == ("full", 4, "plain")
    assert (found["measure"], found["threads"]) == (["alignment"], 1)
    assert len(rows(directory, "train")) == 2
    assert rows(directory, "alignment")
    (log,) = (place.root / "runs" / "plans" / "mine" / "logs").iterdir()
    assert "redistributing" not in log.read_text()  # what torch has to say of it is said for every rank


def test_fit_and_report_read_the_records(place: Place, dataset: TokenDataset) -> None:
    log2_lrs = (-5.0, -4.0, -3.0, -2.0, -1.0, 0.0)
    plan = Plan("mine", (Curve({"engine": "titan"}, make_run(dataset), log2_lrs, (0,)),), Policy(extend=0))
    PlanDirectory.of(Store(place.root / "runs"), plan)
    losses: dict[float, float] = {}
    for log2_lr, spec in zip(log2_lrs, plan.specs(), strict=True):
        assert run(place.arguments(spec, "runs"), 1, place.root / spec.hash) == [0], said(place.root / spec.hash, 1)
        record = RunDirectory(place.root / "runs" / spec.hash).record()
        assert record is not None
        assert record.val_loss is not None
        losses[log2_lr] = record.val_loss
    status, out, err = command(["fit", str(place.root / "runs"), "--json"], place.root / "fit")
    assert (status, err) == (0, "")
    (curve,) = json.loads(out)["mine"]["curves"]
    best = min(losses, key=losses.__getitem__)
    assert sorted(curve["runs"]) == sorted(spec.hash for spec in plan.specs())
    assert (curve["label"], curve["verdict"]) == ({"engine": "titan"}, "enclosed")
    assert abs(curve["log2_lr"] - best) < 1  # the grid's spacing: a smooth minimum lies between the best's neighbours
    assert curve["loss"] == pytest.approx(losses[best], abs=0.1)  # the parabola's vertex beside the best of its points
    report = ["report", str(place.root / "runs"), "--out", str(place.root / "report"), "--formats", "svg", "--json"]
    status, out, err = command(report, place.root / "told")
    assert (status, err) == (0, "")
    page = (place.root / "report" / "report.html").read_text(encoding="utf-8")
    assert all(spec.hash in page for spec in plan.specs())
