"""`nugpt fit`: the same answers from a store, from a CSV file and from JSONL; mistakes in one line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fit.test_curves import OFFSETS, loss_at
from tests.fit.test_recommend import make_spec, record_of

from nugpt.cli.main import main
from nugpt.fit.points import Point
from nugpt.report.source import read_store
from nugpt.spec import load_table
from nugpt.spec.plan import Curve, Plan
from nugpt.spec.run import RunSpec
from nugpt.spec.study import Setting
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory
from nugpt.studies import plan as plan_of
from nugpt.studies import study
from nugpt.sweep.state import plan_noise, plan_state

SEEDS = (0, 1, 2)
WIDTHS = {1: 24, 2: 48, 4: 96}


def planted_points(optimum: float, salt: int, best: float = 3.0) -> list[Point]:
    """Three seeds on a grid around a planted optimum that is none of its points, with a cliff on the right."""
    rng = np.random.default_rng(salt)
    points = []
    for x in OFFSETS:
        for seed in SEEDS:
            height = loss_at(x)
            loss = best + height + 0.01 * (seed - 1) + rng.normal(0, 0.002)
            points.append(
                Point(optimum + x, loss if height < 2.5 else None, seed, "done" if height < 2.5 else "diverged")
            )
    return points


def lay_down(
    store: Path, name: str, curves: Sequence[Curve], optimum: Callable[[Curve], float], study: str | None = None
) -> None:
    """A plan and the records of all its runs, written as a sweep writes them."""
    made = []
    for i, curve in enumerate(curves):
        points = planted_points(optimum(curve), i)
        grid = tuple(sorted({point.log2_lr for point in points}))
        made.append((replace(curve, log2_lrs=grid, seeds=SEEDS), points))
    PlanDirectory.of(Store(store), Plan(name, tuple(curve for curve, _ in made), study=study))
    for curve, points in made:
        for point in points:
            spec = curve.run(point.log2_lr, point.seed)
            record = replace(record_of(spec, point), hash=spec.hash)
            Store(store).run(spec).write_record(record)


def width_curve(heads: int, table: str = "nugpt", **changes: Any) -> Curve:
    spec = make_spec(heads, table=load_table(table), **changes)
    return Curve({"table": table, "heads": heads}, spec, (-7.0,), (0,))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nGPT drifts over width by half an octave per octave, νGPT does not."""
    root = tmp_path_factory.mktemp("fit") / "runs"
    curves = [width_curve(heads, table) for table in ("ngpt", "nugpt") for heads in WIDTHS]

    def optimum(curve: Curve) -> float:
        heads = curve.spec.model.n_heads
        return -7.0 - (0.5 * math.log2(heads) if curve.label["table"] == "ngpt" else 0.0)

    lay_down(root, "widths", curves, optimum)
    return root


def fitted(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["fit", *words, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def rows_of(store: Path) -> list[dict[str, Any]]:
    """The store's runs as a user's own table would have them, losses as text."""
    rows = []
    for run in Store(store).runs():
        spec, record = run.spec(), run.record()
        assert record is not None
        loss = "NaN" if record.val_loss is None else repr(record.val_loss)
        rows.append(
            {"Name": run.path.name, "State": "finished", "learning_rate": repr(spec.lr), "val/loss": loss}
            | {"d_model": spec.model.d_model, "steps": spec.steps, "seed": spec.seed, "method": spec.table.name}
        )
    return rows


OWN = ("--lr-column", "learning_rate", "--loss-column", "val/loss", "--size-column", "d_model")
OWN += ("--seed-column", "seed", "--group-column", "method", "--status-column", "State")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8-sig", newline="") as file:  # with a byte-order mark, as spreadsheets write it
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


def test_a_store_gives_the_planted_answers(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = fitted(capsys, str(store))["widths"]
    for curve in answer["curves"]:
        heads, table = curve["label"]["heads"], curve["label"]["table"]
        truth = -7.0 - (0.5 * math.log2(heads) if table == "ngpt" else 0.0)
        assert curve["verdict"] == "enclosed"
        assert curve["interval"][0] <= truth <= curve["interval"][1]
        assert curve["log2_lr"] == pytest.approx(truth, abs=0.1)  # a grid of half an octave and little noise
        low, high = curve["edge"]["interval"]
        assert low < truth + 1 < high + 0.5
        assert len(curve["runs"]) == len(OFFSETS) * len(SEEDS)
        nats = {cost["octaves"]: cost["nats"] for cost in curve["sensitivity"]}
        assert nats[1.0] is None or nats[1.0] > 5 * nats[-1.0]
        assert nats[-1.0] == pytest.approx(loss_at(-1.0), rel=0.4)  # the interval's usual width there
    drift = {path["group"]: path["drift"] for path in answer["paths"]}
    assert drift["ngpt"]["slope"] == pytest.approx(-0.5, abs=0.1)
    assert drift["ngpt"]["no_drift"] == "does not hold"
    assert drift["nugpt"]["slope"] == pytest.approx(0.0, abs=0.1)
    regrets = {path["group"]: {r["size"]: r for r in path["regrets"]} for path in answer["paths"]}
    assert regrets["ngpt"][96]["nats"] == pytest.approx(loss_at(0.5), rel=0.6)  # its own interval is about as wide
    assert regrets["nugpt"][96]["interval"][1] < regrets["ngpt"][96]["nats"]
    assert [path["base"] for path in answer["paths"]] == [48, 48]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_ones_own_runs_give_the_same_answers(
    suffix: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = fitted(capsys, str(store))["widths"]
    file = tmp_path / f"runs{suffix}"
    rows = rows_of(store)
    if suffix == ".csv":
        write_csv(file, rows)
    else:
        text = "\n".join(json.dumps(row | {"val/loss": float(row["val/loss"])}) for row in rows)  # NaN, as W&B has it
        file.write_text(text + "\n\n", encoding="utf-8")
    found = fitted(capsys, str(file), *OWN)[file.name]
    by_place = {(c["label"]["method"], c["sizes"]["d_model"]): c for c in found["curves"]}
    assert len(by_place) == len(expected["curves"]) == 6
    for curve in expected["curves"]:
        own = by_place[curve["label"]["table"], WIDTHS[curve["label"]["heads"]]]
        assert own["verdict"] == curve["verdict"]
        # Rows come in another order, so that the last bits differ and with them what is drawn: 2048 draws' own error.
        assert own["log2_lr"] == pytest.approx(curve["log2_lr"], abs=0.01)
        assert own["interval"] == pytest.approx(curve["interval"], abs=0.02)
    slopes = {path["group"]: path["drift"]["slope"] for path in found["paths"]}
    assert slopes == pytest.approx({p["group"]: p["drift"]["slope"] for p in expected["paths"]}, abs=0.01)


def test_jsonl_may_nest_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"config": {"optim": {"lr": 2.0**p.log2_lr}}, "summary": {"loss": p.loss}} for p in planted_points(-6.0, 0)]
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (curve,) = fitted(capsys, str(file), "--lr-column", "config.optim.lr", "--loss-column", "summary.loss")[
        "runs.jsonl"
    ]["curves"]
    assert curve["log2_lr"] == pytest.approx(-6.0, abs=0.2)
    assert curve["label"] == {}


def test_losses_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [(2.0**p.log2_lr, f"{p.loss}", "finished") for p in planted_points(-6.0, 0) if p.loss is not None]
    bad = [(0.5, text, "finished") for text in ("nan", "Infinity", "diverged", "inf")]
    bad += [
        (0.5, "", "diverged"),
        (0.25, "", "finished"),
        (0.25, "9.0", "crashed"),
        (0.25, "", "running"),
        ("", "3.0", "done"),
    ]
    file = tmp_path / "runs.csv"
    write_csv(file, [dict(zip(("lr", "loss", "State"), row, strict=True)) for row in good + bad])
    found = fitted(capsys, str(file), "--status-column", "State")["runs.csv"]
    assert sorted(found["notes"]) == [
        "left out: 1 without a learning rate",
        "left out: 1 without a loss",
        "left out: 2 did not end",
    ]
    (curve,) = found["curves"]
    assert curve["verdict"] == "enclosed"
    assert curve["edge"]["interval"][1] <= -1.0  # 0.5 diverged
    assert curve["log2_lr"] == pytest.approx(-6.0, abs=0.2)


def test_a_row_twice_is_no_second_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"{2.0**p.log2_lr},{p.loss},run {i}" for i, p in enumerate(planted_points(-6.0, 0)) if p.seed == 0 and p.loss
    ]
    once, twice = tmp_path / "once.csv", tmp_path / "twice.csv"
    once.write_text("\n".join(["lr,loss,name", *rows]))
    twice.write_text("\n".join(["lr,loss,name", *rows, *rows]))
    alone, again = (fitted(capsys, str(file))[file.name] for file in (once, twice))
    assert alone["notes"] == []
    assert again["notes"] == [f"left out: {len(rows)} repeated"]
    assert again["curves"] == alone["curves"]
    twice.write_text("\n".join(["lr,loss,name", *rows, *(row.replace("run", "again") for row in rows)]))
    assert fitted(capsys, str(twice))["twice.csv"]["notes"] == [], "another run of the same loss is one"


def test_spaces_around_names_and_ends_of_lines_within_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = [(2.0**p.log2_lr, p.loss) for p in planted_points(-6.0, 0) if p.loss]
    spaced = tmp_path / "runs.csv"
    spaced.write_text(' lr , "val, loss", note\n' + "".join(f'{x} , {y} , "a\nb, c"\n' for x, y in points))
    (curve,) = fitted(capsys, str(spaced), "--loss-column", "val, loss")["runs.csv"]["curves"]
    lines = tmp_path / "runs.jsonl"  # ends of lines for some readers, but none of JSON's
    rows = [{"lr": x, "loss": y, "note": "a\u2028b\x85c"} for x, y in points]
    lines.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
    (same,) = fitted(capsys, str(lines))["runs.jsonl"]["curves"]
    assert curve["log2_lr"] == same["log2_lr"] == pytest.approx(-6.0, abs=0.2)


def test_the_tables_name_what_they_show(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(store)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "widths: 6 curves",
        "table=nugpt heads=4",
        "enclosed",
        "drift, octaves per octave",
        "regret of the base",
    ):
        assert text in shown
    assert "nan" not in shown
    assert "inf" not in shown.replace("interval", "")


def test_a_study_is_judged_by_its_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = study("steps-sweep-ngpt-ours")
    curves = plan_of(chosen, "tiny", Setting("0" * 16, 1024)).curves
    lay_down(tmp_path, "steps", curves, lambda c: -3.0 - math.log2(c.spec.steps / 20) / 3, study=chosen.id)
    answer = fitted(capsys, str(tmp_path))["steps"]
    (claim,) = answer["claims"]
    assert claim["claim"] == chosen.claims[0].text
    assert claim["answer"] == "holds"
    (law,) = answer["laws"]
    assert law["exponents"]["steps"] == pytest.approx(-1 / 3, abs=0.05)  # four optima known to a few hundredths
    assert main(["fit", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "steps^-0.3" in shown
    assert "holds" in shown
    told = "claims are judged by their rules, with intervals at 90%"
    assert told not in shown
    assert main(["fit", str(tmp_path), "--level", "0.5"]) == 0
    assert told in capsys.readouterr().out


def test_one_run_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.csv").write_text("lr,loss\n0.01,3.2\n")
    assert main(["fit", str(tmp_path / "runs.csv")]) == 0
    assert capsys.readouterr().out.startswith("runs.csv: 1 curve, 1 run that has ended, intervals at 90%\n")


def test_curves_at_one_learning_rate_have_no_optimum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("lr,loss,width\n0.01,3.0,64\n0.01,2.9,128\n")
    assert main(["fit", str(path), "--size-column", "width"]) == 0
    told = capsys.readouterr().out
    assert "in 2 curves runs at one learning rate have ended: there is no optimum to look for" in told
    assert "edge-censored" not in told
    assert "drift" not in told
    path.write_text(path.read_text() + "0.02,2.8,128\n0.04,2.9,128\n0.08,3.3,128\n")
    assert main(["fit", str(path), "--size-column", "width"]) == 0
    told = capsys.readouterr().out
    assert "in 1 curve runs at one learning rate have ended" in told
    assert "width=128" in told


def test_one_plan_of_several(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, at in (("a", -6.0), ("b", -7.0)):
        lay_down(tmp_path, name, [width_curve(2, data=name * 16)], lambda curve, at=at: at)  # type: ignore[misc]
    assert list(fitted(capsys, str(tmp_path))) == ["a", "b"]
    assert list(fitted(capsys, str(tmp_path), "--plan", "b")) == ["b"]


def lagging(store: Path, heads: int, seeds: Sequence[int]) -> Curve:
    """A curve whose final losses are best at −6 and whose averaged ones, 0.2 nats higher, at −6.5."""
    grid = tuple(-8.0 + 0.5 * i for i in range(8))
    curve = replace(width_curve(heads, validations=100), log2_lrs=grid, seeds=tuple(seeds))
    for (x, seed), spec in curve.runs(grid).items():
        record = record_of(spec, Point(x, 3.0 + 0.1 * (x + 6.0) ** 2, seed))
        record = replace(record, hash=spec.hash, val_loss_ema=3.2 + 0.1 * (x + 6.5) ** 2)
        Store(store).run(spec).write_record(record)
    return curve


@pytest.mark.parametrize("planned", [True, False])
def test_curves_side_by_side_are_read_from_one_loss(
    planned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seeds, loss, best in (("one", ((0,), (0,)), 3.2, -6.5), ("both", ((0, 1), (0,)), 3.0, -6.0)):
        root = tmp_path / name
        curves = [lagging(root, heads, of) for heads, of in zip((2, 4), seeds, strict=True)]
        if planned:
            PlanDirectory.of(Store(root), Plan("widths", tuple(curves)))
        (found,) = fitted(capsys, str(root)).values()
        for curve in found["curves"]:
            assert curve["loss"] == pytest.approx(loss, abs=0.01)
            assert curve["log2_lr"] == pytest.approx(best, abs=0.1)
        if planned:  # a report and what a sweep shows and refines by read the same
            directory = PlanDirectory(root / "plans" / "widths")
            shown = plan_state(directory.plan(), directory, 60.0)
            for state in shown:
                assert min(point.loss for point in state.points() if point.loss is not None) == pytest.approx(loss)
                seen, found_there = state.best(), state.optimum(plan_noise(shown))
                assert seen is not None
                assert (seen.log2_lr, seen.loss) == (best, pytest.approx(loss))
                assert found_there is not None
                assert found_there.log2_lr == pytest.approx(best, abs=0.15)
            source = read_store(Store(root), (), {}, tmp_path)
            runs = [run for curve in source.plans[0].curves for run in curve.runs]
            assert min(run.loss for run in runs if run.loss is not None) == pytest.approx(loss)
            assert {curve.measured.loss for curve in source.plans[0].curves} == {
                "val_loss" if name == "both" else "val_loss_ema"
            }
        wanted = {"val_loss": -6.0, "val_loss_ema": -6.5}
        for asked, at in wanted.items():
            (found,) = fitted(capsys, str(root), "--loss", asked).values()
            assert [curve["log2_lr"] for curve in found["curves"]] == [pytest.approx(at, abs=0.1)] * 2


def test_runs_of_no_plan_are_curves_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for heads in (2, 4):
        for point in planted_points(-6.0, heads):
            spec: RunSpec = replace(make_spec(heads), lr=2.0**point.log2_lr, seed=point.seed)
            Store(tmp_path).run(spec).write_record(replace(record_of(spec, point), hash=spec.hash))
    found = fitted(capsys, str(tmp_path))["runs of no plan"]
    assert [curve["label"]["heads"] for curve in found["curves"]] in ([2, 4], [4, 2])
    assert all(curve["log2_lr"] == pytest.approx(-6.0, abs=0.15) for curve in found["curves"])


def test_a_plan_that_has_only_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PlanDirectory.of(Store(tmp_path), Plan("new", (width_curve(2),)))
    assert fitted(capsys, str(tmp_path))["new"]["curves"] == []
    assert main(["fit", str(tmp_path)]) == 0
    assert "nothing to fit yet" in capsys.readouterr().out


GOOD = "lr,loss,width\n0.1,3.0,64\n0.2,2.9,64\n"
MISTAKES = {
    "nothing there": ("", ["nowhere"], ["nowhere is no store"]),
    "another kind of file": ("runs.txt", ["runs.txt"], ["'.txt'", ".csv or .jsonl"]),
    "a packed store": ("runs.tgz", ["runs.tgz"], ["runs.tgz is a packed store", "`nugpt store merge runs.tgz --store"]),
    "wrong column": ("runs.csv", ["runs.csv", "--lr-column", "eta"], ["'eta'", "columns lr, loss, width"]),
    "wrong size column": ("runs.csv", ["runs.csv", "--size-column", "heads"], ["size column is 'heads'", "width"]),
    "lr no number": ("lr.csv", ["lr.csv"], ["lr.csv:3: lr is 'fast'"]),
    "lr negative": ("negative.csv", ["negative.csv"], ["lr is '-0.1'", "above 0"]),
    "loss no number": ("loss.csv", ["loss.csv"], ["loss.csv:2: loss is 'low'"]),
    "unknown status": ("runs.csv", ["runs.csv", "--status-column", "width"], ["width is '64'", "finished"]),
    "no rows": ("empty.csv", ["empty.csv"], ["empty.csv has no rows"]),
    "no results": ("none.csv", ["none.csv"], ["no row has a result", "1 without a loss"]),
    "no JSON": ("runs.jsonl", ["runs.jsonl"], ["runs.jsonl:2", "JSON"]),
    "JSON but no object": ("list.jsonl", ["list.jsonl"], ["list.jsonl:1", "'[1, 2]'"]),
    "a plan of a file": ("runs.csv", ["runs.csv", "--plan", "x"], ["plan is 'x'", "has no plans"]),
    "a loss of a file": ("runs.csv", ["runs.csv", "--loss", "val_loss"], ["loss is 'val_loss'", "--loss-column"]),
    "a column of a store": ("", ["store", "--lr-column", "lr"], ["lr_column is 'lr'", "store is a store", "leave it"]),
    "another column": ("", ["store", "--seed-column", "seed"], ["seed_column is 'seed'", "store is a store"]),
    "unknown plan": ("", ["store", "--plan", "x"], ["no plan 'x'", "begun"]),
    "empty store": ("", ["empty-store"], ["no plan and no run"]),
    "level": ("runs.csv", ["runs.csv", "--level", "90"], ["level is 90.0"]),
    "loss of a store": ("", ["store", "--loss", "train_loss"], ["loss is 'train_loss'", "val_loss_ema"]),
    "format": ("runs.csv", ["runs.csv", "--out", "page", "--formats", "gif"], ["format is 'gif'", "pdf, svg, png"]),
    "out is a file": ("runs.csv", ["runs.csv", "--out", "runs.csv"], ["out is 'runs.csv'", "directory"]),
    "title of no page": ("runs.csv", ["runs.csv", "--title", "x"], ["title is 'x'", "--out"]),
    "a cell too many": (
        "long.csv",
        ["long.csv"],
        ["long.csv:3: the row '0.1,3,0,64' has 4 cells", "3 columns", "quote"],
    ),
    "a cell too few": ("short.csv", ["short.csv"], ["short.csv:2: the row '0.1,3.0' has 2 cells", "keep its comma"]),
    "semicolons": (
        "semi.csv",
        ["semi.csv"],
        ["semi.csv:1: the header 'lr;loss' is separated by ';'", "commas", "point"],
    ),
    "a column twice": ("twice.csv", ["twice.csv"], ["twice.csv:1", "'lr' 2 times"]),
    "an open quote": ("open.csv", ["open.csv"], ["open.csv:3: not a CSV file: a quote in its row is not closed"]),
    "a quote within a cell": ("quoted.csv", ["quoted.csv"], ["quoted.csv:2: not a CSV file: ',' expected after"]),
    "an object over several lines": ("lines.jsonl", ["lines.jsonl"], ["lines.jsonl:1: not a JSON object on one line"]),
    "not UTF-8": ("latin.csv", ["latin.csv"], ["latin.csv", "UTF-8"]),
}
FILES = {
    "runs.txt": GOOD,
    "runs.csv": GOOD,
    "lr.csv": "lr,loss\n0.1,3.0\nfast,3.0\n",
    "negative.csv": "lr,loss\n-0.1,3.0\n",
    "loss.csv": "lr,loss\n0.1,low\n",
    "empty.csv": "lr,loss\n",
    "none.csv": "lr,loss\n0.1,\n",
    "long.csv": "lr,loss,width\n0.2,2.9,64\n0.1,3,0,64\n",
    "short.csv": "lr,loss,width\n0.1,3.0\n",
    "semi.csv": "lr;loss\n0,1;3,0\n",
    "twice.csv": "lr,loss,lr\n0.1,3.0,7\n0.2,2.9,7\n",
    "runs.jsonl": '{"lr": 0.1, "loss": 3.0}\n{"lr": 0.2,\n',
    "open.csv": 'name,lr,loss\na,0.1,3.0\n"b,0.2,2.9\nc,0.3,3.1\n',
    "quoted.csv": 'name,lr,loss\n"a"b,0.1,3.0\n',
    "lines.jsonl": '{\n"lr": 0.1,\n"loss": 3.0\n}\n',
    "list.jsonl": "[1, 2]\n",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_status_2_and_one_line(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file, words, named = MISTAKES[mistake]
    PlanDirectory.of(Store(Path("store")), Plan("begun", (width_curve(2),)))
    Path("empty-store").mkdir()
    if file in FILES:
        Path(file).write_text(FILES[file], encoding="utf-8")
    elif file:
        Path(file).write_bytes("lr,loss\n0.1,3.0ü\n".encode("latin-1"))
    assert main(["fit", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    for text in named:
        assert text in shown.err


def test_the_same_figures_and_page_from_a_store_and_from_a_file(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "runs.csv", rows_of(store))
    assert main(["fit", str(tmp_path / "runs.csv"), *OWN, "--out", str(tmp_path / "own"), "--title", "My <b>runs"]) == 0
    assert main(["fit", str(store), "--out", str(tmp_path / "ours")]) == 0
    said = capsys.readouterr().out
    for made in (tmp_path / "own", tmp_path / "ours"):
        assert str(made / "report.html") in said
        kinds = {path.stem.split("-", 1)[-1].rsplit("widths-")[-1] for path in (made / "figures").iterdir()}
        assert {path.suffix for path in (made / "figures").iterdir()} == {".pdf", ".svg", ".png"}
        assert any("loss" in kind for kind in kinds)
        assert any("best-lr" in kind for kind in kinds)
    own, ours = ((tmp_path / name / "report.html").read_text() for name in ("own", "ours"))
    assert "My &lt;b&gt;runs" in own
    for answer in ("does not hold", "enclosed"):
        assert answer in own
        assert answer in ours
    # The same optimum stands on both: the runs are the same.
    for curve in fitted(capsys, str(store))["widths"]["curves"]:
        shown = f"{curve['log2_lr']:.2f}".replace("-", "−")
        assert shown in own
        assert shown in ours


def test_repeated_rows_count_once_and_rows_without_seeds_are_repeats(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sorted((row for row in rows_of(store) if row["method"] == "nugpt"), key=lambda row: int(row["seed"]))
    write_csv(tmp_path / "runs.csv", rows)
    write_csv(tmp_path / "twice.csv", [*rows, *rows])
    once, twice = (fitted(capsys, str(tmp_path / name), *OWN) for name in ("runs.csv", "twice.csv"))
    assert twice["twice.csv"]["curves"] == once["runs.csv"]["curves"]
    assert f"left out: {len(rows)} repeated" in twice["twice.csv"]["notes"]
    unseeded = [word for word in OWN if word not in ("--seed-column", "seed")]
    without = fitted(capsys, str(tmp_path / "runs.csv"), *unseeded)["runs.csv"]
    for seeded, other in zip(once["runs.csv"]["curves"], without["curves"], strict=True):
        assert other["interval"] == pytest.approx(seeded["interval"], abs=1e-9)  # the rows stand in the order of seeds


def test_a_column_that_tells_rows_apart_and_was_not_named_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else two widths would be averaged into one curve in silence."""
    file = tmp_path / "runs.csv"
    rows = [
        {
            "lr": 2.0**x,
            "loss": 3 + (x + 6) ** 2 / 10 + seed / 100 - d / 1000,
            "cfg.d_model": d,
            "Seed": seed,
            "batch": 32,
            "note": -x,
        }
        for x in (-8, -7, -6, -5, -4)
        for d in (192, 384)
        for seed in (0, 1)
    ]
    write_csv(file, rows)
    seed = "not read: column Seed, of 2 values (--seed-column Seed reads it)"
    assert fitted(capsys, str(file))["runs.csv"]["notes"] == [
        "not read: column cfg.d_model, of 2 values (--size-column cfg.d_model reads it)",
        seed,
    ]
    assert fitted(capsys, str(file), "--size-column", "cfg.d_model")["runs.csv"]["notes"] == [seed]
    named = ("--seed-column", "Seed", "--size-column", "note")
    told = fitted(capsys, str(file), *named)["runs.csv"]["notes"]
    assert "not read: column cfg.d_model, of 2 values (--group-column cfg.d_model reads it)" in told
    assert any(note.startswith("averaged: 10 ") for note in told), "what it would have prevented"
    told = fitted(capsys, str(file), *named, "--group-column", "batch")["runs.csv"]["notes"]
    assert "not read: column cfg.d_model, of 2 values" in told
    assert not any("Seed" in note for note in told)


def test_an_export_with_dotted_columns(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shape of a W&B export: config.* and summary.* as columns, its own words for how a run ended."""
    rows = [
        {
            "name": row["Name"],
            "state": "crashed" if i == 0 else "finished",
            "config.lr": row["learning_rate"],
            "config.width": row["d_model"],
            "config.seed": row["seed"],
            "summary.val/loss": row["val/loss"],
        }
        for i, row in enumerate(row for row in rows_of(store) if row["method"] == "nugpt")
    ]
    write_csv(tmp_path / "export.csv", rows)
    named = ("--lr-column", "config.lr", "--loss-column", "summary.val/loss", "--size-column", "config.width")
    named += ("--seed-column", "config.seed", "--status-column", "state")
    found = fitted(capsys, str(tmp_path / "export.csv"), *named)["export.csv"]
    assert found["notes"] == ["left out: 1 did not end"]
    assert [curve["verdict"] for curve in found["curves"]] == ["enclosed"] * len(WIDTHS)


def test_blank_lines_quoted_commas_and_columns_without_a_name_are_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('\n,lr,loss,note,\n0,0.1,3.0,"a, b",\n\n1,0.2,,,\n2,0.2,2.9,,\n', encoding="utf-8")
    (found,) = fitted(capsys, str(path)).values()
    assert found["notes"] == ["left out: 1 without a loss"]
    assert len(found["curves"]) == 1


def test_blanks_around_a_quoted_cell_are_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        '"lr" ,"loss"\t, "of, all" \r\n"0.1" , "3.0",a \n0.2,2.9 ,"a" \n0.4,"3.0" ,"b ,  ""c"", d"\n', encoding="utf-8"
    )
    found = fitted(capsys, str(path), "--group-column", "of, all")["runs.csv"]
    assert [curve["label"] for curve in found["curves"]] == [{"of, all": "a"}, {"of, all": 'b ,  "c", d'}]


def test_groups_of_ones_own_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["lr,loss,seed,method"]
    for method, best in (("old", 3.0), ("new", 2.9)):
        rows += [
            f"{2**p.log2_lr:.17g},{'NaN' if p.loss is None else p.loss},{p.seed},{method}"
            for p in planted_points(-7.0, 1, best)
        ]
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(rows) + "\n")
    command = ["fit", str(table), "--seed-column", "seed", "--group-column", "method"]
    assert main([*command, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs.csv"]["comparisons"]
    assert (found["group"], found["less"], found["seeds"]) == ("old", "new", 3)
    assert found["interval"][0] < 0.1 < found["interval"][1]
    assert main([*command, "--out", str(tmp_path / "page"), "--formats", "svg"]) == 0
    assert "best loss of one group less that of another" in capsys.readouterr().out
    assert "Best losses compared" in (tmp_path / "page" / "report.html").read_text()
