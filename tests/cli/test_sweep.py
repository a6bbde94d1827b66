"""`nugpt sweep`: the plan as printed, what may vary, how mistakes read, and a plan run to its end in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.engines.small import make_dataset
from tests.sweep.small import make_directory, make_plan, record_of

from nugpt.cli import launch
from nugpt.cli.main import main
from nugpt.cli.sweep import log2_lrs
from nugpt.spec.plan import Plan
from nugpt.spec.run import run_flops
from nugpt.store import Store
from nugpt.store.claims import claim
from nugpt.store.plans import Addition, PlanDirectory
from nugpt.sweep.executors import local
from nugpt.sweep.executors.local import run_local
from nugpt.sweep.state import plan_state


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data")).path


def arguments(data: Path, store: Path, *more: str, name: str = "mine") -> list[str]:
    """One layer, one head of 48 dimensions, vocabulary 384; a run is 20 steps of 8 sequences of 16 tokens."""
    shape = ["--preset", "tiny-l1h1", "--seq-len", "16", "--batch", "8", "--base-batch", "1", "--steps", "20"]
    often = ["--validations", "4", "--val-windows", "8", "--log-every", "1", "--checkpoint-every", "5"]
    where = ["--data", str(data), "--store", str(store), "--device", "cpu", "--threads", "1"]
    return ["sweep", "--name", name, *shape, *often, *where, *more]


def printed_plan(words: list[str], capsys: pytest.CaptureFixture[str]) -> Plan:
    assert main([*words, "--json"]) == 0
    return Plan.from_dict(json.loads(capsys.readouterr().out))


def one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The complaint about a mistake: one line, and exit status 2."""
    assert main(words) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    return line


# Worked by hand from the shapes, d = 48 and d_MLP = 128:
# 4·48² + 3·48·128 in the matrices, 48 + 2·128 + 2·48 in the vectors, 48·384 in the output.
MATRICES_AND_VECTORS = 9_216 + 18_432 + 48 + 256 + 96 + 18_432
FLOPS_PER_TOKEN = 6 * MATRICES_AND_VECTORS + 6 * 1 * 48 * 16
TOKENS_PER_RUN = 20 * 8 * 16


def test_the_plan_shows_counts_tokens_and_flops(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(data, tmp_path / "runs", "--log2-lr", "-8:-4:0.5", "--seed", "0", "1", "2")) == 0
    printed = capsys.readouterr().out
    runs = 9 * 3
    assert TOKENS_PER_RUN == 2_560
    assert FLOPS_PER_TOKEN == 283_488
    assert f"plan mine: 1 curve, {runs} runs" in printed
    (row,) = [line.split() for line in printed.splitlines() if line.strip().startswith("parametrization=nugpt")]
    tokens, flops = f"{runs * TOKENS_PER_RUN:.3g}", f"{runs * TOKENS_PER_RUN * FLOPS_PER_TOKEN:.3g}"
    assert row == ["parametrization=nugpt", "48", "1", "20", "8", "-8", "…", "-4", "(9)", "3", "27", tokens, flops]
    assert f"all: {tokens} tokens, {flops} FLOPs, about " in printed
    assert "as first measured on one core" in printed
    assert "no run to go by yet" in printed
    assert "up to 4 points beyond an edge" in printed
    assert not (tmp_path / "runs").exists()  # printing runs nothing and leaves nothing


def test_the_policy_is_stated(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--extend", "2", "--refine", "0.5", "0.25", "--stop-hopeless"]
    assert main(arguments(data, tmp_path / "runs", *more)) == 0
    printed = capsys.readouterr().out
    assert "up to 2 points beyond an edge, then 0.5 octave around the optimum, then 0.25 octave" in printed
    assert "hopeless runs are stopped: 0.7 nats above the best at 2 validations after 30 % of the run" in printed
    assert main(arguments(data, tmp_path / "runs", "--extend", "0")) == 0
    printed = capsys.readouterr().out
    assert "grows" not in printed
    assert "hopeless" not in printed


def test_the_time_is_estimated_from_the_stores_own_runs(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.sweep.small import make_spec, record_of

    store = Store(tmp_path / "runs")
    noted: dict[str, float]
    for seed, (wall, noted) in enumerate([(1.0, {}), (9.0, {"device_s": 1.0}), (4.0, {})]):
        spec = make_spec(seed=seed)
        carried = {"device_type": "cpu", "replicas": 2, **noted}
        store.run(spec).write_record(record_of(spec, flops=1e9, wall_s=wall, carried_by=carried))
    more = ["--log2-lr", "-8", "-7", "--seed", *map(str, range(100)), "--workers", "1"]
    assert main(arguments(data, tmp_path / "runs", *more)) == 0
    # The median run's share was a second, for so many FLOPs; the engine had noted it.
    seconds = 200 * TOKENS_PER_RUN * FLOPS_PER_TOKEN / run_flops(spec)
    assert f"about {seconds / 60:.0f} min (by 3 runs of this store)" in capsys.readouterr().out


def test_a_plan_that_has_begun_says_what_is_left(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(data, tmp_path / "runs", "--log2-lr", "-8", "-7", "--steps", "500000", "--workers", "1")
    plan = printed_plan(words, capsys)
    assert main(words) == 0
    assert "have ended" not in capsys.readouterr().out
    # Another plan has trained one of the two runs, at the rate of a core as first measured.
    first, second = plan.specs()
    seconds = run_flops(first) / 30e9
    store, carried = Store(tmp_path / "runs"), {"device_type": "cpu", "device_s": seconds}
    store.run(first).write_record(record_of(first, flops=run_flops(first), carried_by=carried))
    assert main(words) == 0
    there = f"have ended in {tmp_path / 'runs'}; the rest takes about"
    assert f"\n1 of 2 runs {there} {seconds / 60:.0f} min\n" in capsys.readouterr().out
    # The plan itself has begun, its grid has grown by a run, and one that was stopped goes on: no rule stops runs.
    (curve,) = plan.curves
    PlanDirectory.of(store, plan).add([Addition(curve.key, -6.0, "edge")])
    store.run(second).write_record(record_of(second, status="stopped", carried_by=carried))
    assert main(words) == 0
    assert f"\n1 of 3 runs (the grid has grown by 1) {there} {2 * seconds / 60:.0f} min" in capsys.readouterr().out


def test_what_refining_takes_is_estimated_too(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments(data, tmp_path / "runs", "--log2-lr", "-8:-4:1", "--steps", "50000", "--workers", "1")
    assert main([*words, "--refine", "0.25"]) == 0
    printed = capsys.readouterr().out
    run = 50_000 * 8 * 16 * FLOPS_PER_TOKEN / 30e9  # seconds, at the rate of a core as first measured
    assert f"about {5 * run / 60:.0f} min (as first measured on one core" in printed
    # Four new points: a quarter and a half octave on either side of the middle, which is there already.
    assert f"refining takes about {4 * run / 60:.0f} min more" in printed


def test_every_field_of_a_run_may_vary(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["n_heads=1,2", "parametrization=ngpt,nugpt", "multiplier.output=0.25,1", "steps=10,20"]
    plan = printed_plan(arguments(data, tmp_path, "--log2-lr", "-6", "--vary", *vary), capsys)
    assert len(plan.curves) == 16
    for curve in plan.curves:
        spec, label = curve.spec, dict(curve.label)
        assert list(label) == ["n_heads", "parametrization", "multiplier.output", "steps"]
        assert (spec.model.n_heads, spec.model.d_model) == (label["n_heads"], 48 * label["n_heads"])
        assert spec.table.name == label["parametrization"]
        assert spec.multipliers["output"] == label["multiplier.output"]
        assert spec.steps == label["steps"]
        assert spec.lr == 2**-6
    assert len({spec.hash for spec in plan.specs()}) == 16
    for word, field, values in (
        ("weight-decay=0,0.1", "weight_decay", [0.0, 0.1]),
        ("precision=float32,bfloat16", "precision", ["float32", "bfloat16"]),
        ("grad_clip=1,2", "grad_clip", [1.0, 2.0]),
        ("val_windows=4,8", "val_windows", [4, 8]),
    ):
        plan = printed_plan(arguments(data, tmp_path, "--vary", word), capsys)
        assert [getattr(curve.spec, field) for curve in plan.curves] == values
    plan = printed_plan(arguments(data, tmp_path, "--vary", "schedule=cosine,linear", "warmup=0,5"), capsys)
    assert [(c.spec.schedule.kind, c.spec.schedule.warmup) for c in plan.curves] == [
        ("cosine", 0), ("cosine", 5), ("linear", 0), ("linear", 5)
    ]  # fmt: skip
    plan = printed_plan(arguments(data, tmp_path, "--vary", "parametrization=nugpt,prenorm-completep"), capsys)
    assert [curve.spec.model.architecture for curve in plan.curves] == ["normalized", "prenorm"]


def test_json_names_every_run_and_is_all_that_is_printed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(data, tmp_path, "--log2-lr", "-8:-6:1", "--seed", "3", "5", "--json")
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    plan = Plan.from_dict(printed)
    assert printed["runs"] == [spec.hash for spec in plan.specs()]
    assert [(x, seed) for x, seed in plan.curves[0].runs()] == [(x, s) for x in (-8, -7, -6) for s in (3, 5)]


def test_learning_rates_are_numbers_or_ranges_with_both_ends() -> None:
    assert log2_lrs(("-8:-7:0.25",)) == (-8.0, -7.75, -7.5, -7.25, -7.0)
    assert log2_lrs(("-3", "-8:-7:1", "-7", "0.5")) == (-3.0, -8.0, -7.0, 0.5)
    assert log2_lrs(("-1:0:0.1",))[-1] == pytest.approx(0.0)
    assert len(log2_lrs(("-1:0:0.1",))) == 11  # though ten tenths are a little less than one
    assert log2_lrs(("-5:-5:1",)) == (-5.0,)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--log2-lr", "fast"], "'fast'"),
        (["--log2-lr", "-4:-8:1"], "'-4:-8:1', but FIRST must not be above LAST: -8:-4:1"),
        (["--log2-lr", "-8:-4:0"], "'-8:-4:0', but STEP must be above 0"),
        (["--log2-lr", "-8:-4"], "'-8:-4'"),
        (["--log2-lr", "-8:-4:nan"], "'-8:-4:nan'"),
        (["--log2-lr", "0:1:1e-9"], "'0:1:1e-9'"),
        (["--log2-lr", "inf"], "inf"),
        (["--log2-lr", "99"], "99"),
        (["--log2-lr"], "log2_lr is empty"),
        (["--seed"], "seed is ()"),
        (["--seed", "1", "1"], "seed is (1, 1)"),
        (["--seed", "-1"], "seed is -1"),
        (["--vary", "n_heads"], "'n_heads'"),
        (["--vary", "n_heads="], "'n_heads='"),
        (["--vary", "n_heads=two"], "n_heads is 'two'"),
        (["--vary", "n_heads=1.5"], "n_heads is '1.5'"),
        (["--vary", "n_heads=1,,2"], "n_heads is ''"),
        (["--vary", "n_heads=0"], "n_heads is 0"),
        (["--vary", "n_heads=1,1"], "twice"),
        (["--vary", "n_heads=1", "n-heads=2"], "'n_heads' twice"),
        (["--vary", "colour=red"], "'colour', which a run does not have: it has preset, n_layers, n_heads"),
        (["--vary", "lr=0.1"], "'lr', which every curve has: give --log2-lr"),
        (["--vary", "seed=1,2"], "'seed', which every curve has: give --seed"),
        (["--vary", "data=a,b"], "a plan has one data set"),
        (["--vary", "parametrization=ngpt,nope"], "nope"),
        (["--vary", "multiplier.nose=2"], "'nose'"),
        (["--vary", "multiplier.output=big"], "multiplier.output is 'big'"),
        (["--vary", "weight_decay=lots"], "weight_decay is 'lots'"),
        (["--vary", "precision=float8"], "'float8'"),
        (["--vary", "batch=8,16"], '--parametrization with a TOML table of yours that extends it with batch = "1/2"'),
        (["--vary", "warmup=0,19,20"], "warmup is 20, but must be below the run's 20 steps"),
        (["--extend", "-1"], "extend is -1"),
        (["--spacing", "0"], "spacing is 0"),
        (["--refine", "0"], "refine is 0.0 octaves"),
        (["--refine", "9"], "refine is 9"),
        (["--name", "a/b"], "plan name 'a/b'"),
        (["--workers", "0"], "workers is 0"),
        (["--replicas", "0"], "replicas is 0"),
        (["--stale-after", "0"], "stale_after is 0"),
        (["--run", "--partition", "gpu"], "partition is 'gpu', but is for SLURM: give --executor slurm too"),
        (["--run", "--detach"], "detach is True, but is for SLURM"),
        (["--executor", "cloud"], "executor is 'cloud', but must be local or slurm"),
        (["--devices", "gpu"], "device is 'gpu'"),
        (["--devices", "cuda:99"], "device is 'cuda:99'"),
        (["--data", "/nowhere"], "/nowhere"),
        (["--vocab-size", "100"], "vocab_size is 100, but the data's tokenizer needs at least 384"),
        (["--titan", "0"], "titan is 0"),
        (["--titan-tp", "2"], "titan_tp is 2, but without --titan no run has several GPUs"),
        (["--titan-activations", "full"], "titan_activations is 'full', but without --titan"),
        (["--titan", "2", "--titan-tp", "0"], "titan_tp is 0"),
        (["--titan", "2", "--titan-activations", "some"], "activations is 'some', but must be one of none, selective"),
        (["--titan", "2", "--titan-tp", "2"], "tp is 2, but must divide n_heads, which is 1"),
        (["--titan", "3"], "a step has 8 sequences, but the 3 data-parallel ranks must divide them"),
        (["--titan", "2", "--titan-replicate", "4"], "tp 1 × replicate 4 is 4, but must divide the 2 ranks"),
        (["--titan", "2", "--micro-batch", "3"], "micro_batch is 3, but must divide the 4 sequences"),
        (["--titan", "2", "--keep", "1"], "keep is 1, but must be at least 2"),
        (["--titan", "2", "--deterministic"], "deterministic is asked for, but with --titan"),
        (["--titan", "2", "--stop-hopeless"], "with --titan none is: leave out --stop-hopeless"),
        (["--titan", "2", "--replicas", "4"], "replicas is 4, but with --titan"),
        (["--titan", "2", "--workers", "2"], "workers is 2, but with --titan"),
        (
            ["--titan", "8", "--executor", "slurm", "--gpus-per-task", "4"],
            "gpus_per_task is 4, but with --titan 8 a task needs one per process",
        ),
        (["--titan", "8", "--gpus-per-task", "4"], "gpus_per_task is 4, but is for SLURM"),
        (["--titan", "2", "--devices", "cpu", "cpu"], "devices is 'cpu cpu', but with --titan must be cpu or cuda"),
        (
            ["--titan", "2", "--kernels", "fused", "--compile", "True"],
            "compile is asked for, and they are not compiled",
        ),
        (["--kernels", "fused", "--compile", "True"], "compile is asked for, and they are not compiled"),
        (["--kernels", "fused", "--loss", "plain"], "loss 'plain' is one of the plain functions"),
        (["--kernels", "fused"], "kernels is 'fused', but "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_runs_nothing(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    word: str,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert word in one_line([*arguments(data, tmp_path / "runs", *more), "--run"], capsys)
    assert not (tmp_path / "runs").exists()


def test_a_plan_for_a_cluster_is_not_begun_where_there_is_none(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for more, word in (([], "sbatch on PATH"), (["--sbatch=qos"], "sbatch option 'qos'")):
        words = [*arguments(data, tmp_path / "runs"), "--executor", "slurm", "--run", *more]
        assert word in one_line(words, capsys)
        assert not (tmp_path / "runs").exists()


def test_ranks_on_a_cpu_or_with_as_many_gpus_as_they_are_may_be_a_task() -> None:
    for gpus in (None, 0, 2, 4):
        launch.Execution(executor="slurm", titan=2, gpus_per_task=gpus).check()


def test_devices_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    cases: list[tuple[launch.Execution, str, list[str]]] = [
        (launch.Execution(), "auto", ["cuda:0", "cuda:1"]),
        (launch.Execution(), "cpu", ["cpu", "cpu"]),  # though there are GPUs
        (launch.Execution(), "cuda:1", ["cuda:1"]),
        (launch.Execution(workers=3), "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        (launch.Execution(workers=1), "cpu", ["cpu"]),
        (launch.Execution(devices=("cuda:1",), workers=2), "auto", ["cuda:1", "cuda:1"]),
        (launch.Execution(devices=("cpu",)), "cuda", ["cpu", "cpu"]),
    ]
    for execution, device, expected in cases:
        assert launch.default_devices(execution, device) == expected


def start(words: list[str], **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "nugpt", *words], **options)  # type: ignore[call-overload]


def places(store: Path, name: str = "mine") -> dict[str, str]:
    directory = PlanDirectory(store / "plans" / name)
    return {p.spec.hash: p.state for curve in plan_state(directory.plan(), directory, 60.0) for p in curve.places}


def logs(store: Path, name: str = "mine") -> str:
    return "".join(path.read_text() for path in sorted((store / "plans" / name / "logs").iterdir()))


def test_a_plan_runs_to_its_end_with_plain_lines_and_again_does_nothing(data: Path, tmp_path: Path) -> None:
    grid = ["--log2-lr", "-8", "-6", "--seed", "0", "1", "--extend", "0"]
    words = arguments(data, tmp_path / "runs", *grid, "--workers", "1", "--run")
    done = subprocess.run([sys.executable, "-m", "nugpt", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(places(tmp_path / "runs").values()) == ["done"] * 4
    assert done.stderr.startswith("0 of 4 runs\n")
    assert done.stderr.endswith("4 of 4 runs\n")
    assert "\x1b" not in done.stdout + done.stderr  # no colours and no moving about where it is not a terminal
    (row,) = [line for line in done.stdout.splitlines() if "4/4" in line]
    assert row.strip().startswith("parametrization=nugpt")
    assert sorted(re.findall(r"^run (\w+) done$", logs(tmp_path / "runs"), re.M)) == sorted(places(tmp_path / "runs"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/record.json")}
    again = subprocess.run([sys.executable, "-m", "nugpt", *words, "--json"], capture_output=True, text=True)
    assert again.returncode == 0
    assert len(json.loads(again.stdout)["runs"]) == 4  # one document, though the plan was run
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/record.json")} == before


def test_another_plan_of_the_same_name_is_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs"
    PlanDirectory.of(Store(store), printed_plan(arguments(data, store, "--log2-lr", "-8"), capsys))
    for more in ([], ["--json"], ["--run"]):  # printed it would look as if it could be run
        assert main([*arguments(data, store, "--log2-lr", "-7"), *more]) == 2
        shown = capsys.readouterr()
        assert not shown.out
        assert "plan 'mine'" in shown.err
        assert "is not the one asked for" in shown.err
    assert list(places(store).values()) == ["missing"]


def test_a_terminal_shows_a_live_table(data: Path, tmp_path: Path) -> None:
    words = arguments(data, tmp_path / "runs", "--log2-lr", "-8", "-6", "--extend", "0", "--workers", "1", "--run")
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = start(words, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # how a terminal says that nobody is left at its other end
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert "\x1b[?25l" in text  # the cursor is hidden while the table is drawn anew ...
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # ... and shown again at the end
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for cell in ("curve", "best log2 η", "90 % interval", "verdict", "0/2 (2 missing)", "2/2", "0 of 2 runs"):
        assert cell in plain
    assert list(places(tmp_path / "runs").values()) == ["done"] * 2


def test_what_is_under_way_counts_by_its_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_directory(tmp_path, make_plan(log2_lrs=(-8, -7)))
    plan, clock = directory.plan(), iter([0.0, 0.0, 30.0, 40.0, 50.0])
    monkeypatch.setattr(launch.time, "monotonic", lambda: next(clock))
    first, second = (directory.store.run(spec) for spec in plan.specs())

    def at(step: int) -> None:
        (first.checkpoints / f"step-{step:09d}").mkdir(parents=True)

    assert claim(first, 300.0) is not None
    with launch.plan_view(plan, directory, 300.0) as watch:
        watch()
        at(50)  # of a hundred: a quarter of two runs in thirty seconds
        watch()
        at(51)  # not yet another tenth: no line
        watch()
        second.write_record(record_of(plan.specs()[1]))
        watch()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["0 of 2 runs", "0 of 2 runs, 25 %, about 90 s left", "1 of 2 runs, 76 %, about 16 s left"]


def test_ctrl_c_lets_the_workers_save_and_the_same_command_goes_on(data: Path, tmp_path: Path) -> None:
    more = ["--log2-lr", "-8", "-6", "--extend", "0", "--steps", "4000", "--checkpoint-every", "4000", "--workers", "1"]
    words = arguments(data, tmp_path / "runs", *more, "--run")
    process = start(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not list((tmp_path / "runs").glob("*/metrics.jsonl")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert b"interrupted: the workers have saved, the same command goes on" in stderr
    assert "the state is saved" in logs(tmp_path / "runs")
    assert set(places(tmp_path / "runs").values()) == {"interrupted"}  # begun, saved, and held by nobody
    for run in Store(tmp_path / "runs").runs():
        assert 0 < run.newest_step() < 4000


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ((), "no worker had begun"),
        ((143, 143), "the workers have saved"),
        ((143, 0), "the workers have saved"),
        ((143, -9), "1 of 2 workers ended without saving"),
        ((-15,), "1 of 1 worker ended without saving"),
        ((1, 2), "2 of 2 workers ended without saving"),
    ],
)
def test_what_is_said_of_an_interruption_follows_the_workers_statuses(statuses: tuple[int, ...], words: str) -> None:
    line = launch._interrupted(statuses, Path("logs"))
    assert line.startswith(f"interrupted: {words}")
    assert "the same command goes on" in line


def lay_down(store: Path, capsys: pytest.CaptureFixture[str], data: Path) -> PlanDirectory:
    return PlanDirectory.of(Store(store), printed_plan(arguments(data, store, "--log2-lr", "-8"), capsys))


def test_a_worker_that_is_killed_is_started_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = lay_down(tmp_path / "runs", capsys, data)
    code = "import os, sys; n = open(sys.argv[1], 'a'); n.write('x'); n.close(); os.kill(os.getpid(), 9)"
    dying = [sys.executable, "-c", code, str(tmp_path / "starts")]
    ended = run_local(directory, [dying, [sys.executable, "-c", ""]], lambda: None, poll=0.01)
    assert ended.statuses == (-9, 0)
    assert not ended.interrupted
    assert (tmp_path / "starts").read_text() == "xxxx"  # once, and three times more


def test_a_worker_that_trains_at_the_time_limit_is_asked_to_save_and_leave(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = lay_down(tmp_path / "runs", capsys, data)
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); signal.pause()"
    ended = run_local(directory, [[sys.executable, "-c", code]], lambda: None, poll=0.01, until=time.time() + 1)
    assert ended.out_of_time
    assert not ended.interrupted
    assert ended.complaints == ()  # it did what it was told


def test_what_a_worker_complains_of_is_passed_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = lay_down(tmp_path / "runs", capsys, data)
    for code, complaints in (
        (
            "import sys; print('all is well'); print('nugpt: error: no such thing'); sys.exit(2)",
            ["nugpt: error: no such thing"],
        ),
        (
            "import sys; print('run ab failed: E: x'); print('0 runs ended, 1 failed'); sys.exit(1)",
            ["run ab failed: E: x"],
        ),
        ("raise RuntimeError('boom')", ["RuntimeError: boom"]),
        ("print('nugpt: error: of no matter')", []),
    ):
        ended = run_local(directory, [[sys.executable, "-c", code]], lambda: None, poll=0.01)
        assert list(ended.complaints) == complaints  # of this start: the log holds those of earlier ones too


WAITS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [1, 2, 3], ids=["the first", "the last", "one that was killed"])
def test_a_signal_while_a_worker_is_begun_reaches_it_and_those_before(
    number: signal.Signals,
    at: int,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = lay_down(tmp_path / "runs", capsys, data)
    begun: list[subprocess.Popen[bytes]] = []
    start = local._start

    def interrupted(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        begun.append(start(command, log))
        if len(begun) == at:
            os.kill(os.getpid(), number)
        return begun[-1]

    def nothing(number: int, frame: object) -> None:  # where it is not heeded the test fails, and not all tests end
        pass

    monkeypatch.setattr(local, "_start", interrupted)
    once = "import os, signal, sys; os.mkdir(sys.argv[1]) if (first := not os.path.exists(sys.argv[1])) else 0"
    killed = [
        sys.executable,
        "-c",
        f"{once}; os.kill(os.getpid(), 9) if first else signal.pause()",
        str(tmp_path / "k"),
    ]
    before = signal.signal(number, nothing)
    try:
        ended = run_local(directory, [WAITS, WAITS if at < 3 else killed], lambda: None, 0.01, time.time() + 20)
    finally:
        signal.signal(number, before)
        for process in begun:
            process.kill()
    assert ended.interrupted
    assert not ended.out_of_time
    assert len(begun) == at  # none is begun after it
    assert [process.returncode for process in begun] == ([-15] * at if at < 3 else [-15, -9, -15])


def test_workers_are_asked_to_leave_when_nobody_can_watch_them_any_more(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = lay_down(tmp_path / "runs", capsys, data)
    code = """
import pathlib, signal, sys, time
def leave(number, frame):
    pathlib.Path(sys.argv[1]).write_text("asked")
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(100)
"""
    sign = tmp_path / "sign"

    def watch() -> None:
        while not sign.exists() or sign.read_text() != "ready":
            time.sleep(0.001)
        raise ValueError("a record cannot be read")

    with pytest.raises(ValueError, match="cannot be read"):
        run_local(directory, [[sys.executable, "-c", code, str(sign)]], watch, poll=0.01)
    while sign.read_text() != "asked":
        time.sleep(0.001)


def test_a_mistake_that_only_a_worker_finds_reaches_the_user(data: Path, tmp_path: Path) -> None:
    words = arguments(data, tmp_path / "runs", "--log2-lr", "-8", "--extend", "0", "--workers", "1")
    printed = subprocess.run([sys.executable, "-m", "nugpt", *words, "--json"], capture_output=True, text=True)
    (name,) = json.loads(printed.stdout)["runs"]
    (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / name / "spec.json").write_text("{")
    done = subprocess.run([sys.executable, "-m", "nugpt", *words, "--run"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{name}/spec.json" in done.stderr
    assert "Traceback" not in done.stderr
