"""`nugpt measure`: from scratch, from a store, and what is wrong with what the user gave."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.small import make_dataset
from tests.report.small import fill, study_plans

from nugpt.cli.main import main
from nugpt.cli.measure import _answers, _grouped, _print_group
from nugpt.cli.measured_runs import say_unmeasured
from nugpt.cli.progress import _numbers
from nugpt.engines import lab
from nugpt.fit.alignment import AlignmentRun
from nugpt.spec import load_table
from nugpt.spec.run import Start
from nugpt.store import Store

_ANY = AlignmentRun("any", 48, 1, 0, 4, {}, ())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data")).path


@pytest.fixture
def nugpt(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: Any) -> tuple[int, str, str]:
        try:
            status = main([str(word) for word in words])
        except SystemExit as left:
            status = int(left.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def small(data: Path) -> list[str]:
    """Models of which a width of four heads trains in a second; the base has the small sequence too."""
    return ["--data", str(data), "--seq-len", "128", "--batch", "2", "--base-batch", "2", "--steps", "4"]


@pytest.fixture(scope="module")
def store(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three widths, measured, and one run that was not."""
    root = tmp_path_factory.mktemp("store") / "runs"
    words = ["--store", str(root), *small, "--lr", "0.01"]
    assert main(["measure", "align", *words, "--heads", "1", "2", "3", "--n-layers", "1"]) == 0
    assert main(["train", *words, "--n-layers", "1", "--n-heads", "1", "--seed", "5"]) == 0
    return root


def test_align_prints_the_slope_and_what_it_means(store: Path, nugpt: Any) -> None:
    ids = [run.path.name for run in Store(store).runs()]
    status, out, err = nugpt("measure", "align", "--store", store, "--runs", *ids)
    assert status == 0
    assert "widths 48, 96, 144, 1 seed, 3 runs" in out
    assert "slope over widths" in out
    assert "1 of 4 runs were not measured" in err


def test_every_interval_is_of_the_level_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    layers = {"W_q": [0.6, 0.7, 0.9], "E_out": [0.8]}
    row = {"step": 1, **dict.fromkeys(("alpha", "omega", "nu"), layers)}
    run = AlignmentRun("any", 48, 3, 0, 4, {"W_q": 48, "E_out": 48}, ({**row, "per_token": row},))
    shown = []
    for level in (0.6, 0.99):
        _print_group("any", [run], _answers([run], level), level)
        shown.append([line for line in capsys.readouterr().out.splitlines() if line.startswith(" hidden")])
    assert len(shown[0]) == 3 + 3  # α, ω, ν; three weightings
    for narrow, wide in zip(*shown, strict=True):
        if "(" in wide:  # no loss is known here, so nothing is weighted by it
            assert narrow != wide
    assert sum("(" in line for line in shown[0]) == 3 + 2


def test_a_width_without_a_measurement_leaves_its_own_column_empty(capsys: pytest.CaptureFixture[str]) -> None:
    layers = {"W_q": [0.6], "E_out": [0.8]}

    def run(width: int, seed: int, step: int) -> AlignmentRun:
        row = {"step": step, **dict.fromkeys(("alpha", "omega", "nu"), layers)}
        return AlignmentRun(
            f"{width}-{seed}", width, 1, seed, 40, dict.fromkeys(layers, width), ({**row, "per_token": row},)
        )

    runs = [run(48, 0, 40), run(96, 0, 1), run(144, 0, 1), run(192, 0, 1), run(192, 1, 1)]
    _print_group("any", runs, _answers(runs, 0.9), 0.9)
    out = capsys.readouterr().out
    first = next(line for line in out.splitlines() if line.split()[:2] == ["hidden", "first"])
    assert first.split()[3:7] == ["–", "0.600", "0.600", "0.600"]  # of width 48 only the end was measured
    assert "slopes are of seeds that were measured at every width; not of width 192 seed 1" in out


def test_runs_that_diverged_are_said_to_have(small: list[str], nugpt: Any, tmp_path: Path) -> None:
    words = [
        "--store",
        tmp_path,
        "--heads",
        "1",
        "--n-layers",
        "1",
        "--lr",
        "1e5",
        "--parametrization",
        "prenorm-completep",
    ]
    status, _, err = nugpt("measure", "align", *small, *words)
    assert status == 2
    assert "none of the 1 run asked for is done (1 diverged); a smaller --lr may train" in err


def test_runs_that_are_left_out_are_named_beside_those_that_are_not(
    small: list[str], nugpt: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*small, "--store", str(tmp_path), "--n-layers", "1", "--lr", "0.01"]
    assert main(["measure", "align", *words, "--heads", "1", "2"]) == 0
    assert "diverged" not in capsys.readouterr().err
    (wide,) = [run for run in Store(tmp_path).runs() if run.spec().model.d_model == 96]
    record = wide.record()
    assert record is not None
    wide.write_record(replace(record, status="diverged", val_loss=None, val_loss_ema=None, diverged_at=2, lerp={}))
    status, out, err = nugpt("measure", "align", *words, "--heads", "1", "2")
    assert status == 0
    assert "widths 48," in out
    assert "1 run diverged (width 96): a smaller --lr may train\n" in err
    names = [run.path.name for run in Store(tmp_path).runs()]
    _, _, err = nugpt("measure", "lerp", "--store", tmp_path, "--runs", *names)
    assert err == "1 run diverged (layers 1)\n"
    wide.write_record(replace(record, status="stopped", val_loss=None, val_loss_ema=None, lerp={}))
    _, _, err = nugpt("measure", "lerp", "--store", tmp_path, "--runs", *names)
    assert err == "1 run was stopped as hopeless\n"
    (wide.path / "record.json").unlink()
    _, _, err = nugpt("measure", "lerp", "--store", tmp_path, "--runs", *names)
    assert err == "1 run is not done yet\n"


def test_what_is_trained_and_where_is_said_first(small: list[str], nugpt: Any, tmp_path: Path) -> None:
    words = ["measure", "lerp", *small, "--lr", "0.01", "--n-heads", "1", "--layers", "1", "2", "--store"]
    status, _, err = nugpt(*words, tmp_path / "new")
    assert status == 0
    told = f"training 2 models of 4 steps in {tmp_path / 'new'}; --plan or --runs reads runs of a store instead"
    assert err.splitlines()[0] == told
    _, _, err = nugpt(*words, tmp_path / "new")
    assert "training" not in err  # they are there
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    status, _, err = nugpt(*words, tmp_path / "texts")
    assert status == 2
    assert err == (
        f"nugpt: error: {tmp_path / 'texts'} has files but is no store: give a store, or the name of a new folder\n"
    )
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["a.txt"]


def test_a_measurement_that_is_stopped_says_so_in_one_line(
    small: list[str], nugpt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*_: Any, **__: Any) -> None:
        raise lab.Interrupted(3, signal.SIGTERM)

    monkeypatch.setattr(lab, "execute", stops)
    status, out, err = nugpt("measure", "align", *small, "--heads", "1", "--store", tmp_path, "--lr", "0.01")
    assert (status, out) == (128 + signal.SIGTERM, "")
    assert err.splitlines()[-1] == "stopped after step 3; the state is saved, the same command goes on from there"


def test_runs_from_given_weights_are_no_repetitions_of_those_from_none(store: Path) -> None:
    spec = next(run.spec() for run in Store(store).runs())
    begun = replace(spec, start=Start("weights", "0123456789abcdef"))
    assert len(_grouped([(spec, _ANY), (replace(spec, seed=3), _ANY)])) == 1
    assert len(_grouped([(spec, _ANY), (begun, _ANY)])) == 2
    assert len(_grouped([(spec, _ANY), (replace(spec, val_windows=3), _ANY)])) == 2  # nor are these of each other


def test_align_as_json(store: Path, nugpt: Any) -> None:
    ids = [run.path.name for run in Store(store).runs() if run.read_metrics(("alignment",))]
    status, out, _ = nugpt("measure", "align", "--store", store, "--runs", *ids, "--json")
    (group,) = json.loads(out)
    assert status == 0
    assert {run["width"] for run in group["runs"]} == {48, 96, 144}
    assert [(one["part"], one["weighting"]) for one in group["implied"]] == [
        (part, weighting) for part in ("hidden", "output") for weighting in ("uniform", "loss", "first")
    ]
    hidden = group["implied"][0]
    assert len(hidden["at_widths"]) == 3
    assert 0.3 < hidden["slope"]["value"] < 1.2
    low, high = hidden["slope"]["interval"]
    assert low < hidden["slope"]["value"] < high


def test_align_suggests_a_table_that_sweep_accepts(store: Path, small: list[str], nugpt: Any, tmp_path: Path) -> None:
    ids = [run.path.name for run in Store(store).runs() if run.read_metrics(("alignment",))]
    file = tmp_path / "mine.toml"
    figures = tmp_path / "figures"
    words = ["--store", store, "--runs", *ids, "--suggest", file, "--out", figures, "--formats", "svg"]
    status, _, err = nugpt("measure", "align", *words)
    assert status == 0
    assert "η_hidden ∝ m_width^(" in err
    hidden, output = err.splitlines()[-2:]  # how well it is known
    assert hidden.startswith("hidden: ")
    assert output.startswith("output: ")
    assert all("slope over widths" in line and " to " in line for line in (hidden, output))
    table = load_table(str(file))
    assert table.name == "mine"
    assert table.rows["input"] == load_table("nugpt").rows["input"]
    assert file.read_text(encoding="utf-8").startswith("# Width exponents of η_hidden and η_output as measured")
    names = sorted(path.name for path in figures.iterdir())
    assert names == ["alignment-layers.svg", "alignment-loss.svg", "alignment-steps.svg"]
    sweep = ["sweep", "--name", "with-mine", *small, "--parametrization", file, "--store", tmp_path / "runs"]
    status, out, _ = nugpt(*sweep, "--log2-lr", "-7")
    assert status == 0
    assert "plan with-mine: 1 curve, 1 run" in out


def test_a_run_that_is_named_twice_is_refused_however_it_is_named(store: Path, nugpt: Any) -> None:
    run = next(Store(store).runs())
    name = run.path.name
    for again in (name, name[:15], str(run.path)):
        status, out, err = nugpt("measure", "lerp", "--store", store, "--runs", name, again)
        said = f"nugpt: error: --runs names the run {name} twice, the second time as {again!r}: name it once\n"
        assert (status, out, err) == (2, "", said)


def test_a_run_that_was_not_measured_is_trained_again_on_request(store: Path, nugpt: Any) -> None:
    (bare,) = [run for run in Store(store).runs() if not run.read_metrics(("alignment",))]
    record = (bare.path / "record.json").read_bytes()
    words = ["measure", "align", "--store", store, "--runs", bare.path.name]
    status, _, err = nugpt(*words)
    assert status == 2
    assert "none of these runs was measured: train with --measure alignment, or give --again" in err
    metrics = bare.metrics.read_bytes()
    status, out, _ = nugpt(*words, "--again")
    assert status == 0
    assert "width 48" in out
    assert (bare.path / "record.json").read_bytes() == record
    bare.metrics.write_bytes(metrics)  # as the other tests have it


def test_where_no_record_says_where_the_data_lay_other_data_are_refused(
    store: Path, data: Path, nugpt: Any, tmp_path: Path
) -> None:
    (bare,) = [run for run in Store(store).runs() if not run.read_metrics(("alignment",))]
    shutil.copytree(store, tmp_path / "here")
    file = tmp_path / "here" / bare.path.name / "record.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    del record["carried_by"]["data"]  # as in an archive that a machine's paths were taken out of
    file.write_text(json.dumps(record), encoding="utf-8")
    words = ["measure", "align", "--store", tmp_path / "here", "--runs", bare.path.name, "--again"]
    status, _, err = nugpt(*words)
    assert status == 2
    assert f"was trained on data with the content hash {bare.spec().data}, but" in err
    assert "give --data" in err
    assert nugpt(*words, "--data", data)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["align", "--weighting", "los"], "weighting is 'los', but must be one of uniform, loss, first"),
        (["align", "--level", "2"], "level is 2.0, but must be"),
        (["align", "--runs", "ffff"], "no run in"),
        (["align", "--plan", "no-such"], "has no plan 'no-such'"),
        (["align", "--runs", "a", "--plan", "b"], "--runs and --plan exclude each other"),
        (
            ["align", "--runs", "a", "--heads", "1", "2"],
            "heads is (1, 2), but --runs and --plan read runs that a store",
        ),
        (["align", "--plan", "b", "--seq-len", "64"], "seq_len is 64, but --runs and --plan read runs"),
        (["align", "--plan", "b", "--again", "--lr", "0.1"], "lr is 0.1, but --runs and --plan read runs"),
        (["lerp", "--runs", "a", "--data", "there"], "data is 'there', but --runs and --plan read runs"),
        (["lerp", "--plan", "b", "--device", "cpu"], "device is 'cpu', but --runs and --plan read runs"),
        (["align", "--preset", "paper-l12h12"], "--lr is needed"),
        (["align", "--suggest", "mine.txt"], "suggest is mine.txt, but must end in .toml"),
        (["align", "--suggest", "mine.toml", "--heads", "1", "2", "2"], "--heads has 2 widths, but --suggest"),
        (["align", "--suggest", "no-such/mine.toml"], "suggest is no-such/mine.toml, but no-such is no folder"),
        (["align", "--out", "figures", "--formats", "gif"], "format is 'gif', but must be one of"),
        (["align", "--n-heads", "4"], "n_heads is 4, but these are runs of several sizes: name them with --heads"),
        (["align", "--d-mlp", "128"], "d_mlp is 128, but over widths it must grow with d_model"),
        (["align", "--seed"], "seed is (), but must be whole numbers, each named once"),
        (["lerp", "--seed", "1", "1"], "seed is (1, 1), but must be whole numbers, each named once"),
        (["coords", "--seed", "1", "1"], "seed is (1, 1), but must be whole numbers, each named once"),
        (["lerp", "--n-layers", "4"], "n_layers is 4, but these are runs of several sizes: name them with --layers"),
        (["lerp", "--parametrization", "prenorm-completep"], "parametrization is 'prenorm-completep', but LERP is of"),
        (["lerp", "--plan", "no-such"], "has no plan 'no-such'"),
        (["coords", "--parametrization", "prenorm-completep"], "but must be for normalized"),
        (["coords", "--alignment", "2"], "alignment is 2.0, but must be a number from 0.5 to 1"),
        (["coords", "--steps", "0"], "steps is 0, but must be a whole number of at least 1"),
        (["coords", "--scale", "huge"], "unknown scale 'huge'"),
        (["coords", "--parametrization", "missing.toml"], "does not exist"),
        (["coords", "--name", "a/b", "--store", "kept"], "name is 'a/b', but must be letters"),
        (["coords", "--name", "a/b", "--out", "plots"], "name is 'a/b', but must be letters"),
        (["coords", "--heads", "1"], "--heads is 1, but a slope over width needs at least 3 sizes"),
        (["coords", "--heads", "1", "1", "2"], "--heads is 1 1 2, but a slope over width needs at least 3 sizes"),
        (["coords", "--layers", "2", "4"], "--layers is 2 4, but a slope over depth needs at least 3 sizes"),
        (["coords", "--lr", "1e6", "--steps", "3"], "the steps are too large, give --lr below 1e+06"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], message: str, store: Path, data: Path, nugpt: Any, tmp_path: Path
) -> None:
    more = ["--store", store] if words[0] != "coords" else ["--data", data]
    more = [*more, "--data", data] if words[0] == "align" and "--preset" in words else more
    status, out, err = nugpt("measure", *words, *more)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()  # found out before anything is trained
    assert line.startswith("nugpt: error: ")
    assert message in line


def test_suggesting_from_too_few_widths_is_refused(store: Path, nugpt: Any, tmp_path: Path) -> None:
    measured = [run for run in Store(store).runs() if run.read_metrics(("alignment",))]
    narrow = [run.path.name for run in measured if run.spec().model.n_heads == 1]
    words = ["measure", "align", "--store", store, "--runs", *narrow, "--suggest", tmp_path / "mine.toml"]
    status, _, err = nugpt(*words)
    assert status == 2
    assert "1 of the 3 widths that a slope needs, and a table is derived from a slope" in err
    assert not (tmp_path / "mine.toml").exists()
    status, _, err = nugpt(*words[:-1], tmp_path / "mine.txt")
    assert status == 2
    assert "must end in .toml" in err


def test_lerp_prints_every_layer_and_the_law(small: list[str], nugpt: Any, tmp_path: Path) -> None:
    words = [
        "measure",
        "lerp",
        "--store",
        tmp_path,
        *small,
        "--lr",
        "0.01",
        "--n-heads",
        "1",
        "--layers",
        "1",
        "2",
        "4",
    ]
    status, out, _ = nugpt(*words)
    assert status == 0
    assert "end, block 4" in out
    assert "alpha_A, depths 1, 2, 4: spread over components" in out
    assert "mean ∝ depth^" in out
    ids = [run.path.name for run in Store(tmp_path).runs()]
    status, out, _ = nugpt("measure", "lerp", "--store", tmp_path, "--runs", *ids, "--json")
    values = json.loads(out)
    assert status == 0
    assert {one["layers"] for one in values["runs"]} == {1, 2, 4}
    assert all(one["during"] for one in values["runs"])
    assert -1.5 < values["laws"][0]["exponent"] < -0.5  # νGPT starts at depth^-1 and has hardly moved


def test_coords_names_a_planted_mistake_and_passes_nugpt(data: Path, nugpt: Any, tmp_path: Path) -> None:
    words = ["measure", "coords", "--data", data, "--heads", "1", "2", "3", "--layers", "1", "2", "3"]
    words += ["--steps", "2", "--windows", "2"]
    status, out, _ = nugpt(*words, "--store", tmp_path, "--out", tmp_path / "plots", "--formats", "svg")
    assert status == 0, out
    assert "no exponent is at fault" in out, out
    assert (tmp_path / "coords" / "nugpt.json").is_file()
    assert (tmp_path / "plots" / "coords-nugpt.svg").is_file()
    (tmp_path / "wrong.toml").write_text(
        'name = "wrong"\nextends = "nugpt"\n[rows.hidden]\nlr = { width = "-1/4" }\n', encoding="utf-8"
    )
    status, out, _ = nugpt(*words, "--parametrization", tmp_path / "wrong.toml", "--json")
    values = json.loads(out)
    assert status == 1
    (mistake,) = values["mistakes"]
    assert (mistake["role"], mistake["cell"], mistake["axis"]) == ("hidden", "lr", "width")
    assert mistake["wanted"] == pytest.approx(-0.75, abs=0.05)
    assert "hidden.lr: exponent of width is -1/4" in mistake["text"]


def test_coords_with_large_steps_asks_for_smaller_ones_and_blames_nothing(data: Path, nugpt: Any) -> None:
    words = ["measure", "coords", "--data", data, "--heads", "1", "2", "3", "--layers", "1", "2", "3"]
    status, out, err = nugpt(*words, "--steps", "2", "--windows", "2", "--seed", "0", "--lr", "1")
    assert status == 2
    assert "mistake" not in out
    told = err.splitlines()[-1]
    assert told.startswith("not decided here: the steps are too large for a power law")
    assert "hidden matrices by 1." in told
    assert "at width 48, depth" in told
    assert told.endswith("give --lr below 1")


def test_coords_looks_around_the_base_that_was_asked_for(data: Path, nugpt: Any) -> None:
    words = ["measure", "coords", "--base", "tiny-l1h1", "--steps", "1", "--seed", "0", "--windows", "1", "--json"]
    _, out, _ = nugpt(*words, "--data", data, "--layers", "1", "2", "3")
    sizes = {one["axis"]: [x for x, _ in one["sizes"]] for one in json.loads(out)["slopes"]}
    assert sizes == {"width": [48, 96, 192], "depth": [1, 2, 3]}


def test_trackers_are_given_the_averages() -> None:
    exponents = {"W_q": [0.5, 0.7], "W_O": [None, 0.6], "E_out": [0.9]}
    row = {"step": 3, "kind": "alignment", "loss": 5.0, "loss_0": 6.0, "per_token": {}}
    row |= dict.fromkeys(("alpha", "omega", "nu"), exponents)
    flat = _numbers(row)
    assert flat["alignment/nu_hidden"] == pytest.approx(0.6)
    assert flat["alignment/nu_output"] == 0.9
    assert "loss" not in flat  # of the fixed batch, not of training
    alpha = {"mean": 0.1, "std": 0.02, "mean_by_block": [0.1], "std_by_block": [0.02]}
    assert _numbers({"step": 1, "kind": "lerp", "alpha_A": alpha, "alpha_M": alpha})["alpha_M/std"] == 0.02


def test_a_study_says_which_of_its_runs_were_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plan,) = study_plans("alignment_val", scale="tiny")
    fill(Store(tmp_path), [plan])  # as another plan left them: done, without a row of alignment
    say_unmeasured(plan, tmp_path)
    said = capsys.readouterr().err
    assert said.startswith("2 runs had ended before they were to be measured: ")
    assert f"nugpt measure align --store {tmp_path} --plan alignment_val-tiny --again" in said
    for spec in plan.specs():
        Store(tmp_path).run(spec).append_metrics([{"step": 1, "kind": "alignment"}])
    say_unmeasured(plan, tmp_path)
    assert capsys.readouterr().err == ""
