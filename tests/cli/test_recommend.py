"""`nugpt recommend` and `nugpt transfer-test`, on stores with planted optima and cliffs."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_fit import OFFSETS, SEEDS, lay_down, rows_of, width_curve, write_csv

from nugpt.cli.main import main
from nugpt.cli.own_runs import ModelColumns
from nugpt.cli.own_sweep import own_sweep
from nugpt.cli.shape import BaseShape
from nugpt.fit.measured import group_key
from nugpt.spec import Extent, flops_per_token, load_table, preset, resolve
from nugpt.spec.plan import Curve, Plan
from nugpt.spec.recipe import read_recipe, rules
from nugpt.spec.run import RunSpec
from nugpt.store import Store
from nugpt.store.plans import PlanDirectory


def no_drift(curve: Curve) -> float:
    return -7.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """νGPT over three widths and, in another plan that shares a curve, three lengths; nGPT drifts over width."""
    root = tmp_path_factory.mktemp("recommend") / "runs"
    lay_down(root, "widths", [width_curve(heads) for heads in (2, 1, 4)], no_drift)
    lay_down(root, "lengths", [width_curve(2, steps=steps) for steps in (100, 200, 400)], no_drift)
    curves = [width_curve(heads, "ngpt") for heads in (1, 2, 4)]
    lay_down(root, "ngpt", curves, lambda curve: -7.0 - 0.5 * math.log2(curve.spec.model.n_heads))
    return root


TARGET = ("--n-heads", "8", "--n-layers", "2", "--steps", "800")


def recommended(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["recommend", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_leans_to_the_safe_side_of_the_planted_optimum(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = recommended(capsys, "--from", str(store), *TARGET)
    # The less is known, the more it leans; here optima are known so well that a hundredth of an octave is all of it.
    assert found["log2_lr"] < found["plain_log2_lr"] + 0.01
    assert found["plain_log2_lr"] == pytest.approx(-7.0, abs=0.1)  # optima known to a few hundredths of an octave
    assert found["interval"][0] < -7.0 < found["interval"][1]
    assert found["expected_nats"] < found["plain_expected_nats"] + 1e-6  # the search is as fine as that
    assert found["lr"] == pytest.approx(2 ** found["log2_lr"], rel=1e-11)
    nats = {cost["octaves"]: cost["nats"] for cost in found["costs"]}
    assert nats[1.0] is None or nats[1.0] > nats[-1.0] > nats[0.0]
    reach = {r["axis"]: r for r in found["reach"]}
    assert (reach["width"]["measured"], reach["steps"]["measured"], reach["layers"]["measured"]) == (True, True, False)
    assert (reach["width"]["beyond"], reach["steps"]["beyond"]) == (1.0, 1.0)
    (crossed,) = found["warnings"]
    assert crossed.startswith(
        "how far η* moves was seen over width at steps 100 (3.0 octaves from the target's) and over "
    )
    # Five curves of νGPT: one is shared by both plans and counts once; nGPT's runs are no part of its tuning.
    assert found["tuning_flops"] == 1e9 * 5 * len(OFFSETS) * len(SEEDS) == 1e9 * len(found["runs"])


@pytest.mark.parametrize(
    ("there", "said", "way_out"),
    [
        ("{", "not a whole JSON document", "; restore it, or move it away: the run can then be done again"),
        # A result that is whole: to be done again is the last that its owner would want.
        ('{"format": 2}', "record has format 2, but this version reads 1", ": use the version of nugpt that wrote it"),
    ],
)
def test_every_command_says_the_way_out_of_a_record_that_it_cannot_read(
    there: str, said: str, way_out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    lay_down(root, "widths", [width_curve(2)], no_drift)
    path = sorted(root.glob("*/record.json"))[0]
    path.write_text(there, encoding="utf-8")
    for words in (
        ["fit", str(root)],
        ["recommend", "--from", str(root), *TARGET],
        ["transfer-test", str(root)],
        ["status", "--store", str(root)],
        ["report", str(root), "-o", str(tmp_path / "report"), "--formats", "svg"],
    ):
        assert main(words) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nugpt: error: ")]
        assert line.startswith(f"nugpt: error: {path}: {said}")
        assert line.endswith(way_out)
    path.rename(tmp_path / "away.json")
    assert main(["fit", str(root)]) == 0
    assert main(["status", "--store", str(root)]) == 0
    assert "1 missing" in capsys.readouterr().out


def test_the_printed_rows_are_those_of_resolve(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = recommended(capsys, "--from", str(store), *TARGET)
    run = RunSpec.from_dict(found["run"])
    expected = resolve(load_table("nugpt"), run.base, Extent.of(run.model, 800, 4), found["lr"])
    assert found["resolved"] == json.loads(json.dumps(expected.to_dict()))
    assert (run.model.n_heads, run.model.n_layers, run.steps) == (8, 2, 800)
    assert main(["recommend", "--from", str(store), *TARGET, "--tflops", "2"]) == 0
    shown = capsys.readouterr()
    for row in expected.rows.values():
        assert f"{row.lr:.6g}" in shown.out
    assert re.findall("warning: (.*)", shown.err) == found["warnings"]
    flops = flops_per_token(run.model) * 800 * 4 * 16
    assert f"{flops:.3g} FLOPs" in shown.out
    assert "GPU-hours at 2 TFLOP/s" in shown.out
    assert "of the target" in shown.out


def test_the_loss_to_expect_is_printed_with_its_interval_or_with_what_is_missing(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = recommended(capsys, "--from", str(store), *TARGET)["loss"]
    low, high = found["interval"]
    # All were laid down with the same best loss, 3 nats; a law of loss falls, if by next to nothing.
    assert 2.8 < low < found["nats"] < high < 3.03
    assert (found["sizes"], found["why_not"]) == (5, None)
    assert main(["recommend", "--from", str(store), *TARGET]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("loss "))
    said = f"{found['nats']:.3f} at the best η, 90% interval {low:.3f} … {high:.3f}, by a law through 5 sizes"
    assert line == f"loss     {said}"
    there = ["recommend", "--from", str(store), "--n-heads", "4", "--steps", "100"]
    assert main(there) == 0
    assert ", as found there\n" in capsys.readouterr().out
    assert main([*there, "--n-layers", "4"]) == 0
    assert "\nloss     no forecast: layers was swept at 2 only\n" in capsys.readouterr().out
    assert main(["recommend", "--lr", "0.005", "--preset", "paper-l12h40", "--steps", "80000"]) == 0
    assert "\nloss " not in capsys.readouterr().out


def test_warnings_go_to_standard_error(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--from", str(store), "--n-heads", "8", "--n-layers", "8", "--steps", "100"]) == 0
    shown = capsys.readouterr()
    assert "layers was swept at 2 only" in shown.err
    assert main(["recommend", "--from", str(store), *TARGET, "--parametrization", "ngpt"]) == 0
    assert "η* drifts along width" in capsys.readouterr().err


def test_a_preset_may_name_the_target(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scale, model = preset("tiny-l2h2")
    spec = RunSpec(model=model, table=load_table("nugpt"), base=scale.base, lr=1.0, steps=120, batch=16, data="d")
    lay_down(tmp_path, "tiny", [Curve({"table": "nugpt"}, spec, (-7.0,), (0,))], no_drift)
    found = recommended(capsys, "--from", str(tmp_path), "--preset", "tiny-l4h4")
    assert found["run"]["model"] == preset("tiny-l4h4")[1].to_dict()


def test_a_preset_brings_its_sequence_and_leaves_the_vocabulary_of_the_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scale, model = preset("tiny-l2h2")
    mine = replace(model, seq_len=64, vocab_size=640)
    spec = RunSpec(model=mine, table=load_table("nugpt"), base=scale.base, lr=1.0, steps=120, batch=32, data="d")
    lay_down(tmp_path, "mine", [Curve({"table": "nugpt"}, spec, (-7.0,), (0,))], no_drift)
    found = recommended(capsys, "--from", str(tmp_path), "--preset", "tiny-l4h4")["run"]
    assert found["model"] == replace(preset("tiny-l4h4")[1], vocab_size=640).to_dict()
    assert (found["model"]["seq_len"], found["batch"], found["steps"]) == (128, 16, 120)  # as many tokens a step
    found = recommended(capsys, "--from", str(tmp_path), "--preset", "tiny-l4h4", "--seq-len", "64")["run"]
    assert (found["model"]["seq_len"], found["batch"]) == (64, 32)


def test_from_a_bare_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--lr", "0.005", "--preset", "paper-l12h40", "--steps", "80000", "--tflops", "400")
    found = recommended(capsys, *words)
    scale, model = preset("paper-l12h40")
    expected = resolve(load_table("nugpt"), scale.base, Extent.of(model, 80_000, 64), 0.005)
    assert found["resolved"] == json.loads(json.dumps(expected.to_dict()))
    assert found["interval"] is None
    assert found["run"]["lr"] == 0.005
    assert found["gpu_hours"] == pytest.approx(flops_per_token(model) * 80_000 * 64 * 4096 / 400e12 / 3600)
    assert found["tuning_flops"] is None
    assert main(["recommend", *words]) == 0
    assert "no sweep" in capsys.readouterr().err


def test_another_batch_with_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--lr", "0.01", "--preset", "tiny-l2h2", "--batch", "64", "--batch-exponent", "1/2")
    found = recommended(capsys, *words, "--steps", "120")
    assert found["resolved"]["lr_base"] == pytest.approx(0.02)  # (64/16)^(1/2)
    assert found["run"]["table"]["batch"] == "1/2"


@pytest.mark.parametrize("form", ["json", "titan", "toml"])
def test_a_recipe_that_is_written_is_read_back(
    form: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = recommended(capsys, "--from", str(store), *TARGET)
    words = ["recommend", "--from", str(store), *TARGET, "--emit", form]
    assert main(words) == 0
    printed = capsys.readouterr().out
    file = tmp_path / f"recipe.{'toml' if form == 'toml' else 'json'}"
    assert main([*words, "--out", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == printed
    assert main([*words, "--out", str(file)]) == 2, "it is there now"
    assert f"{file} exists and is not overwritten: name a new file, or remove that one first" in capsys.readouterr().err
    other = tmp_path / f"recipe.{'json' if form == 'toml' else 'toml'}"
    assert main([*words, "--out", str(other)]) == 2
    assert f"must end in {file.suffix}" in capsys.readouterr().err
    assert not other.exists()
    assert main([*words, "--out", str(tmp_path / "nowhere" / file.name)]) == 2
    assert "lies in a folder that does not exist" in capsys.readouterr().err
    values = tomllib.loads(printed) if form == "toml" else json.loads(printed)
    run = read_recipe(values)
    assert run == RunSpec.from_dict(facts["run"])
    for key in ("format", "kind", "run", "resolved", "recommended"):
        assert key in values
    for key in ("model", "table", "base", "lr", "steps", "batch", "schedule", "data", "seed"):
        assert key in values["run"]
    assert values["resolved"]["gains"] == facts["resolved"]["gains"]
    assert values["recommended"]["runs"] == facts["runs"]


def test_a_recipe_of_a_bare_learning_rate_has_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--lr", "0.01", "--preset", "tiny-l2h4", "--emit", "titan"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["run"]["data"] is None
    assert read_recipe(values, data="f" * 16).model == preset("tiny-l2h4")[1]


def test_rules_are_written(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = recommended(capsys, "--from", str(store), *TARGET)
    assert main(["recommend", "--from", str(store), *TARGET, "--emit", "rules"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written == rules(RunSpec.from_dict(facts["run"]))
    hidden = [rule for rule in written["rules"] if rule["role"] == "hidden"]
    assert {rule["lr"] for rule in hidden} == {facts["resolved"]["rows"]["hidden"]["lr"]}


def test_it_may_be_kept_in_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_down(tmp_path, "one", [width_curve(2)], no_drift)
    assert main(["recommend", "--from", str(tmp_path), "--n-heads", "4", "--keep"]) == 0
    kept = json.loads((tmp_path / "recommendation.json").read_text(encoding="utf-8"))
    assert read_recipe(kept).model.n_heads == 4
    assert "nothing here shows" in capsys.readouterr().err
    for heads in ("4", "8", "4"):  # the same again, another, and the first again
        assert main(["recommend", "--from", str(tmp_path), "--n-heads", heads, "--keep"]) == 0
    assert "the one before is now recommendation-2.json" in capsys.readouterr().err
    there = {path.name: read_recipe(json.loads(path.read_text())) for path in tmp_path.glob("recommendation*.json")}
    assert {name: run.model.n_heads for name, run in there.items()} == {
        "recommendation.json": 4,
        "recommendation-1.json": 4,
        "recommendation-2.json": 8,
    }


def test_smaller_sizes_are_held_against_larger_ones(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sizes,) = recommended(capsys, "--from", str(store), "--backtest")["groups"].values()
    rows = {(one["size"]["width"] / 24, one["size"]["steps"]): one for one in sizes["sizes"]}
    assert list(rows) == [(2, 100), (2, 200), (2, 400), (4, 100)]
    assert all(one["agrees"] for one in rows.values())
    assert sizes["tally"]["agree"] == sizes["tally"]["sizes"] == 4
    # Below width 2 at 400 steps lie three sizes, below any other fewer.
    assert [at for at, one in rows.items() if one["loss"] is not None] == [(2, 400)]
    said, found = rows[2, 400]["loss"]["said"], rows[2, 400]["loss"]["found"]
    assert said["sizes"] == 3
    assert rows[2, 400]["loss"]["inside"] is (said["interval"][0] <= found["nats"] <= said["interval"][1]) is True
    assert found["interval"][0] < found["nats"] < found["interval"][1]
    assert found["nats"] == pytest.approx(3.0, abs=0.02)
    off = abs(found["nats"] - said["nats"])
    assert (sizes["tally"]["losses"], sizes["tally"]["losses_inside"]) == (1, 1)
    assert sizes["tally"]["loss_off"] == pytest.approx(off)
    assert main(["recommend", "--from", str(store), "--backtest"]) == 0
    line = f"loss at the best η: said of 1, 1 of them found within the interval, {off:.3f} nats off on average"
    assert line in capsys.readouterr().out.splitlines()
    assert main(["recommend", "--from", str(store), "--backtest", "--parametrization", "ngpt"]) == 0
    shown = capsys.readouterr().out
    first, second = (line.split() for line in shown.splitlines() if line.split()[:1] in (["48"], ["96"]))
    # Octaves off, as planted, less what νGPT's exponents say of nGPT; before it stand the size's four numbers and twice
    # an optimum and its interval's three.
    assert float(first[12]) == pytest.approx(-0.5 + 0.625, abs=0.1)
    assert (first[13], second[13]) == ("yes", "yes")
    paid, kept = (float(word) for word in first[15:17])
    assert kept > 4 * paid, "half an octave costs more than an eighth"
    assert "2 of 2 agree within their 90% intervals taken together; paid 0." in shown
    assert "keeping the best η of the nearest smaller size would have cost 0." in shown


def test_one_size_has_none_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_down(tmp_path, "one", [width_curve(2)], no_drift)
    assert main(["recommend", "--from", str(tmp_path), "--backtest"]) == 2
    assert "no size of nugpt has an enclosed optimum and, below it, another" in capsys.readouterr().err


# A file of the store's runs: the base that they have there, and columns for what varies.
BASE = ("--base", "tiny-l2h2", "--base-head-dim", "24", "--base-seq-len", "16", "--base-steps", "100")
BASE += ("--base-batch", "4", "--vocab-size", "384")
SIZED = (
    "--lr-column",
    "learning_rate",
    "--loss-column",
    "val/loss",
    "--seed-column",
    "seed",
    "--status-column",
    "State",
)
SIZED += ("--group-column", "method", "--width-column", "d_model", "--steps-column", "steps")


@pytest.fixture(scope="module")
def file(store: Path) -> Path:
    path = store.with_name("exported.csv")
    write_csv(path, rows_of(store))
    return path


def leaves(values: Any, without: Sequence[str], at: str = "") -> dict[str, Any]:
    """Every number and word of nested values, by where it stands."""
    if not isinstance(values, (dict, list)):
        return {at: values}
    items = values.items() if isinstance(values, dict) else enumerate(values)
    return {k: v for key, one in items if key not in without for k, v in leaves(one, without, f"{at}/{key}").items()}


@pytest.mark.parametrize("table", ["nugpt", "ngpt"])
def test_a_file_of_runs_is_carried_over_as_the_store_that_has_them(
    table: str, store: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TARGET, "--parametrization", table)
    theirs = recommended(capsys, "--from", str(store), *words)
    ours = recommended(capsys, "--from", str(file), *SIZED, "--group", table, *BASE, *words)
    told_otherwise = ("run", "runs", "nearest", "tuning_flops", "tuning_share")
    assert leaves(ours, told_otherwise) == pytest.approx(leaves(theirs, told_otherwise))
    run = RunSpec.from_dict(theirs["run"])
    assert RunSpec.from_dict(ours["run"]) == replace(
        run, data=ours["run"]["data"], validations=ours["run"]["validations"], val_windows=ours["run"]["val_windows"]
    )
    # As if each had gone to its end: three seeds at each learning rate, five curves of νGPT and three of nGPT.
    sizes = [(2, 100), (1, 100), (4, 100), *(((2, 200), (2, 400)) if table == "nugpt" else ())]
    each = [flops_per_token(replace(run.model, n_heads=h, n_kv_heads=0, d_mlp=0)) * s * 4 * 16 for h, s in sizes]
    assert ours["tuning_flops"] == pytest.approx(sum(each) * len(OFFSETS) * len(SEEDS))
    assert ours["runs"] == []


def test_the_sizes_of_a_file_are_held_against_one_another(
    store: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = recommended(capsys, "--from", str(store), "--backtest")["groups"]
    ours = recommended(capsys, "--from", str(file), *SIZED, "--group", "nugpt", *BASE[:-2], "--backtest")["groups"]
    assert leaves(ours, ("from",)) == pytest.approx(leaves(theirs, ("from",)), abs=1e-9)


def test_what_no_column_of_a_file_says_is_the_base_s_or_the_target_s(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--from", str(file), *SIZED, "--group", "nugpt", *BASE, *TARGET, "--n-kv-heads", "4", "--d-mlp", "768")
    found = recommended(capsys, *words)
    model = found["run"]["model"]
    assert (model["n_kv_heads"], model["d_mlp"], model["vocab_size"], model["seq_len"]) == (4, 768, 384, 16)
    assert found["loss"]["why_not"] is None, "the file's runs have the target's proportions"
    assert found["run"]["data"] == "unspecified"
    swept = {one["axis"]: one["swept"] for one in found["reach"]}
    assert swept == {"width": [24, 96], "layers": [2, 2], "steps": [100, 400], "batch": [64, 64]}


def test_rows_of_a_file_that_do_not_count_are_told(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(store)
    rows[0]["State"] = "crashed"
    write_csv(tmp_path / "runs.csv", rows)
    assert main(["recommend", "--from", str(tmp_path / "runs.csv"), *SIZED, "--group", "nugpt", *BASE, *TARGET]) == 0
    assert "nugpt: warning: left out: 1 did not end\n" in capsys.readouterr().err


def own_rows(store: Path, **more: Callable[[int], Any]) -> list[dict[str, Any]]:
    """νGPT's runs over width, with columns of their d_model."""
    rows = [row for row in rows_of(store) if row["method"] == "nugpt" and row["steps"] == 100]
    return [row | {name: of(row["d_model"]) for name, of in more.items()} for row in rows]


PLAIN = (*SIZED[:8], *BASE, "--n-heads", "8", "--steps", "100")  # the columns that say sizes go by their names


def test_heads_and_mlp_of_a_file_s_rows_are_heeded(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    write_csv(path, own_rows(store, n_heads=lambda d: d // 24, d_mlp=lambda d: 4 * d))
    found = recommended(capsys, "--from", str(path), *PLAIN)
    assert found["run"]["model"]["d_mlp"] == 4 * 8 * 24
    assert found["loss"]["why_not"] is None, "the target has the proportions of the file's runs"
    assert found["reach"][0]["swept"] == [24, 96]
    write_csv(path, own_rows(store, Heads=lambda d: d // 24, hidden=lambda d: 3 * d))
    named = ("--heads-column", "Heads", "--d-mlp-column", "hidden")
    assert recommended(capsys, "--from", str(path), *PLAIN, *named)["run"]["model"]["d_mlp"] == 3 * 8 * 24


def test_a_size_under_another_name_is_told_as_not_read(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else runs of all widths would be taken for runs of the base."""
    path = tmp_path / "runs.csv"
    write_csv(path, [{f"config.{k}" if k == "d_model" else k: v for k, v in row.items()} for row in own_rows(store)])
    told = "nugpt: warning: not read: column config.d_model, of 3 values (--width-column config.d_model reads it)"
    assert main(["recommend", "--from", str(path), *PLAIN]) == 0
    assert told in capsys.readouterr().err.splitlines()
    assert main(["recommend", "--from", str(path), *PLAIN, "--width-column", "config.d_model"]) == 0
    assert "not read" not in capsys.readouterr().err


def test_heads_of_64_go_with_the_d_mlp_of_rows_or_target(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"d_model": row["d_model"] // 24 * 64} for row in own_rows(store)]
    path = tmp_path / "runs.csv"
    words = ["--from", str(path), *PLAIN, "--base-head-dim", "64"]
    write_csv(path, rows)
    assert main(["recommend", *words]) == 2
    assert "d_mlp is not given, and 8/3 of d_model = 128 is not a whole number" in capsys.readouterr().err
    model = recommended(capsys, *words, "--d-mlp", "1536")["run"]["model"]
    assert (model["head_dim"], model["n_heads"], model["d_mlp"]) == (64, 8, 1536)
    write_csv(path, [row | {"n_heads": row["d_model"] // 64, "d_mlp": 3 * row["d_model"]} for row in rows])
    assert recommended(capsys, *words)["run"]["model"]["d_mlp"] == 1536


def test_a_backtest_of_heads_of_64_needs_no_d_mlp(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"d_model": row["d_model"] // 24 * 64} for row in own_rows(store)]
    path = tmp_path / "runs.csv"
    words = ["--from", str(path), *SIZED[:8], *BASE[:-2], "--base-head-dim", "64", "--backtest"]
    write_csv(path, rows)
    found = recommended(capsys, *words)["groups"]["nugpt"]
    assert [one["size"]["width"] for one in found["sizes"]] == [128, 256]
    for ratio in (3, 4):  # no size is said otherwise
        write_csv(path, [row | {"d_mlp": ratio * row["d_model"]} for row in rows])
        assert recommended(capsys, *words)["groups"]["nugpt"] == found
    write_csv(path, rows)
    columns = ModelColumns(lr_column="learning_rate", loss_column="val/loss", seed_column="seed")
    base = BaseShape("tiny-l2h2", base_head_dim=64, base_steps=100, base_batch=4)
    curves, _ = own_sweep(path, columns, load_table("nugpt"), base, {}, mlp_needed=False)
    assert len({group_key(one.spec) for one in curves if one.spec is not None}) == 1, "losses of all sizes are compared"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"n_heads": lambda d: d // 12}, ["n_heads is 2 at d_model 24", "makes heads of 12", "24: --base-head-dim"]),
        ({"head_dim": lambda d: 12}, ["head_dim is 12 in ", "the base's heads have 24: --base-head-dim"]),
        (
            {"d_mlp": lambda d: 4 * d if d > 24 else 48},
            ["d_mlp of the target is not given, and was 2, 4 times d_model"],
        ),
    ],
)
def test_rows_whose_heads_or_mlp_do_not_fit_are_refused(
    more: dict[str, Callable[[int], Any]],
    told: Sequence[str],
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_csv(tmp_path / "runs.csv", own_rows(store, **more))
    assert main(["recommend", "--from", str(tmp_path / "runs.csv"), *PLAIN]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    for text in told:
        assert text in shown


def test_an_exponent_of_batch_is_heeded_for_a_file_in_which_it_was_swept(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    write_csv(path, own_rows(store, batch=lambda d: d // 12))
    assert main(["recommend", "--from", str(path), *PLAIN, "--batch", "4"]) == 2
    assert "no batch exponent" in capsys.readouterr().err
    exponent = ("--batch-exponent", "1/2")
    found = recommended(capsys, "--from", str(path), *PLAIN, "--batch", "16", *exponent)
    assert found["run"]["table"]["batch"] == "1/2"
    assert {one["axis"]: one["swept"] for one in found["reach"]}["batch"] == [32, 128]
    sizes = recommended(capsys, "--from", str(path), *SIZED[:8], *BASE[:-2], "--backtest", *exponent)["groups"]["nugpt"]
    assert len(sizes["sizes"]) == 2


MISTAKES = {
    "backtest without a store": (["--lr", "0.1", "--backtest"], ["--backtest", "--from"]),
    "backtest of a target": (["--from", "STORE", "--backtest", "--n-heads", "8"], ["n_heads is 8", "leave it out"]),
    "backtest of a base": (["--from", "STORE", "--backtest", "--base-steps", "9"], ["base_steps is 9", "swept sizes"]),
    "backtest forced": (["--from", "STORE", "--backtest", "--force"], ["force is True", "leave it out"]),
    "backtest of no group": (["--from", "STORE", "--backtest", "--group", "x"], ["group is 'x'", "has nugpt"]),
    "no such group": (["--from", "STORE", *TARGET, "--group", "mine"], ["group is 'mine'", "has nugpt"]),
    "a group of no store": (["--lr", "0.1", "--group", "nugpt"], ["group is 'nugpt'", "--from"]),
    "a plan of no store": (["--lr", "0.1", "--plan", "widths"], ["plan is 'widths'", "--from"]),
    "a loss of no store": (["--lr", "0.1", "--loss", "val_loss"], ["loss is 'val_loss'", "--from"]),
    "a base of a store": (["--from", "STORE", *TARGET, "--base", "tiny-l2h2"], ["base is 'tiny-l2h2'", "leave it out"]),
    "a scale of a store": (["--from", "STORE", *TARGET, "--rescaler-scale", "0.1"], ["rescaler_scale is 0.1"]),
    "two forms": (["--lr", "0.1", "--emit", "toml", "--json"], ["emit is 'toml'", "--json"]),
    "neither": ([], ["give either --from", "or --lr"]),
    "both": (["--from", "STORE", "--lr", "0.1"], ["give either --from", "or --lr"]),
    "no store": (["--from", "nowhere"], ["nowhere is no store"]),
    "a file without a base": (["--from", "FILE", *TARGET], ["base is not given", "runs.csv", "--base names a preset"]),
    "a file without steps": (["--from", "FILE", "--base", "tiny-l2h2"], ["base_steps is not given", "--steps-column"]),
    "a base of a length that its runs do not say": (
        ["--from", "FILE", "--base", "tiny-l2h2", "--steps-column", "d"],
        ["base_steps is not given", "give --base-steps"],
    ),
    "a file without a batch": (
        ["--from", "FILE", "--base", "tiny-l2h2", "--base-steps", "9"],
        ["base_batch is not given", "--base-batch", "--batch-column"],
    ),
    "a file without such a column": (["--from", "FILE", *BASE, "--width-column", "x"], ["width column is 'x'", "lr, "]),
    "a file of another width": (["--from", "FILE", *BASE, "--width-column", "d"], ["d is 100 in", "multiple", "24"]),
    "a file of half a layer": (
        ["--from", "FILE", *BASE, "--layers-column", "half"],
        ["half is 2.5 in", "whole number"],
    ),
    "a file of several groups": (["--from", "FILE", *BASE, "--group-column", "g"], ["2 groups (a, b)", "--group"]),
    "a file without a group": (
        ["--from", "FILE", *BASE, "--group-column", "g", "--group", "c"],
        ["group is 'c'", "'a', 'b'"],
    ),
    "a file without groups": (["--from", "FILE", *BASE, "--group", "c"], ["group is 'c'", "--group-column"]),
    "a file and a plan": (["--from", "FILE", *BASE, "--plan", "x"], ["plan is 'x'", "has no plans"]),
    "a file and a loss": (["--from", "FILE", *BASE, "--loss", "val_loss"], ["loss is 'val_loss'", "--loss-column"]),
    "a file that keeps": (["--from", "FILE", *BASE, "--keep"], ["--keep puts the recipe into a store"]),
    "backtest of a file's target": (["--from", "FILE", "--backtest", "--n-heads", "8"], ["n_heads is 8", "leave it"]),
    "columns of a store": (["--from", "STORE", *TARGET, "--lr-column", "x"], ["lr_column is 'x'", "is a store"]),
    "columns of a rate": (["--lr", "0.1", "--width-column", "x"], ["width_column is 'x'", "no file of runs"]),
    "a packed store": (["--from", "PACKED", *TARGET], ["runs.tar.gz is a packed store: `nugpt store merge "]),
    "unknown table": (["--from", "STORE", *TARGET, "--parametrization", "completep"], ["'completep'", "ngpt, nugpt"]),
    "unknown plan": (["--from", "STORE", *TARGET, "--plan", "depths"], ["'depths'", "lengths, ngpt, widths"]),
    "heads not given": (["--from", "STORE", "--steps", "100"], ["n_heads", "1, 2, 4"]),
    "steps not given": (["--from", "STORE", "--n-heads", "8"], ["steps", "100, 200, 400"]),
    "too wide": (["--from", "STORE", "--n-heads", "80", "--steps", "100"], ["width is 1920", "--force"]),
    "too long": (["--from", "STORE", "--n-heads", "4", "--steps", "10000"], ["steps is 10000", "at most 4"]),
    "too wide from a rate": (["--lr", "0.1", "--preset", "tiny-l2h64"], ["width is 3072"]),
    "heads": (["--from", "STORE", "--n-heads", "0", "--steps", "100"], ["n_heads is 0"]),
    "steps": (["--from", "STORE", "--n-heads", "4", "--steps", "0"], ["steps is 0"]),
    "batch": (["--from", "STORE", *TARGET, "--batch", "8"], ["no batch exponent", "(--batch-exponent 1/2"]),
    "batch exponent": (["--from", "STORE", *TARGET, "--batch-exponent", "half"], ["'half'", "1/2"]),
    "batch exponent beyond use": (["--from", "STORE", *TARGET, "--batch-exponent", "1e99999999"], ["'1e99999999'"]),
    "head dimension": (["--from", "STORE", "--preset", "tiny-l2h4", "--steps", "100"], ["head_dim 48", "24"]),
    "lr": (["--lr", "-1", "--preset", "tiny-l2h4"], ["lr is -1.0"]),
    "preset": (["--lr", "0.1", "--preset", "small"], ["'small'"]),
    "emit": (["--lr", "0.1", "--emit", "yaml"], ["'yaml'", "toml, json, titan, rules"]),
    "out alone": (["--lr", "0.1", "--out", "x.json"], ["x.json", "--emit"]),
    "keep without a store": (["--lr", "0.1", "--keep"], ["--keep", "--from"]),
    "tflops": (["--lr", "0.1", "--tflops", "0"], ["tflops is 0.0"]),
    "level": (["--lr", "0.1", "--level", "2"], ["level is 2.0"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_status_2_and_one_line(mistake: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, named = MISTAKES[mistake]
    file = store.with_name("runs.csv")
    file.write_text("lr,loss,d,half,g\n0.1,3.0,100,2.5,a\n0.1,3.0,100,2.5,b\n", encoding="utf-8")
    packed = store.with_name("runs.tar.gz")
    packed.touch()
    places = {"STORE": str(store), "FILE": str(file), "PACKED": str(packed)}
    assert main(["recommend", *(places.get(word, word) for word in words)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    for text in named:
        assert text in shown.err


def test_a_limit_can_be_forced(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = recommended(capsys, "--from", str(store), "--n-heads", "80", "--steps", "100", "--force")
    assert found["reach"][0]["beyond"] > 4
    assert found["warnings"]


def gate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["transfer-test", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_gate_opens_where_nothing_moves_and_shuts_where_something_does(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = gate(capsys, str(store), "--group", "nugpt")
    assert (status, found["answer"]) == (0, "holds")
    assert [(t["plan"], t["test"]) for t in found["tests"]] == [
        ("lengths", "drift of η*"),
        ("lengths", "regret at 200"),
        ("lengths", "regret at 400"),
        ("widths", "drift of η*"),
        ("widths", "regret at 24"),
        ("widths", "regret at 96"),
    ]
    status, found = gate(capsys, str(store), "--group", "ngpt")
    assert (status, found["answer"]) == (1, "does not hold")
    assert {t["verdict"] for t in found["tests"]} == {"does not hold"}
    assert gate(capsys, str(store))[0] == 1
    assert gate(capsys, str(store), "--plan", "widths")[0] == 0
    # Bounds that even nGPT keeps: its drift is half an octave per octave.
    assert gate(capsys, str(store), "--group", "ngpt", "--max-drift", "1", "--max-regret", "1")[0] == 0


def test_what_is_not_decided_shuts_the_gate_unless_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_down(tmp_path, "two", [width_curve(heads) for heads in (1, 2)], no_drift)  # a slope needs three sizes
    for extra, expected in (((), 1), (("--allow-undecided",), 0)):
        status, found = gate(capsys, str(tmp_path), *extra)
        assert (status, found["answer"]) == (expected, "not decided here")
    assert main(["transfer-test", str(tmp_path)]) == 1
    assert "not decided here" in capsys.readouterr().out


def test_one_size_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_down(tmp_path, "one", [width_curve(2)], no_drift)
    assert gate(capsys, str(tmp_path)) == (1, gate(capsys, str(tmp_path), "--allow-undecided")[1])
    assert main(["transfer-test", str(tmp_path)]) == 1
    assert "no group of runs has two sizes" in capsys.readouterr().out


def test_ones_own_runs_pass_the_same_gate(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for row in rows_of(store) if row["method"] == "ngpt"]
    write_csv(tmp_path / "runs.csv", rows)
    columns = (
        "--lr-column",
        "learning_rate",
        "--loss-column",
        "val/loss",
        "--size-column",
        "d_model",
        "--seed-column",
        "seed",
    )
    status, found = gate(capsys, str(tmp_path / "runs.csv"), *columns)
    assert (status, found["answer"]) == (1, "does not hold")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["STORE", "--max-drift", "0"], "max_drift is 0.0"),
        (["STORE", "--max-regret", "nan"], "max_regret is nan"),
        (["STORE", "--group", "llama"], "group is 'llama', but there are nugpt, ngpt"),
        (["nowhere"], "nowhere is no store"),
        (["STORE", "--level", "0.1"], "level is 0.1"),
    ],
)
def test_a_mistake_at_the_gate(words: list[str], named: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transfer-test", *(str(store) if word == "STORE" else word for word in words)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert named in shown.err


def test_a_plan_without_results_recommends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PlanDirectory.of(Store(tmp_path), Plan("new", (width_curve(2),)))
    assert main(["recommend", "--from", str(tmp_path), "--n-heads", "4"]) == 2
    assert "no ended run" in capsys.readouterr().err
