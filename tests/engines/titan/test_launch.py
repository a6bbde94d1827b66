"""`nugpt launch`: what it prints, and a job on a real SLURM whose two nodes are this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.titan.ranks import Place, make_run, rows
from tests.sweep.test_slurm import (  # noqa: F401 - fixtures
    Cluster,
    _no_job_outlives_its_test,
    cluster,
    tell,
    until,
)

from nugpt.cli.main import main
from nugpt.data import TokenDataset
from nugpt.store import Store
from nugpt.sweep.executors.slurm import SlurmOptions
from nugpt.sweep.executors.torchrun import Nodes, job_script


def launch(place: Place, spec: object, *more: str) -> list[str]:
    recipe = place.recipe(spec)  # type: ignore[arg-type]
    return ["launch", "--recipe", str(recipe), "--data", str(place.data), "--store", str(place.root / "runs"), *more]


def test_the_command_for_this_machine(place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]) -> None:
    spec = make_run(dataset)
    assert main(launch(place, spec, "--gpus-per-node", "2", "--tp", "2", "--activations", "full")) == 0
    said = capsys.readouterr()
    assert "warning" not in said.err
    words = shlex.split(said.out)
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert "--nproc-per-node=2" in words
    after = words[words.index("nugpt.engines.titan") + 1 :]
    assert f"--recipe={place.root / spec.hash}.json" in after
    assert {"--tp=2", "--activations=full", f"--store={place.root / 'runs'}"} <= set(after)
    assert not (place.root / "runs").exists()  # printing writes nothing


def test_the_job_asks_for_what_was_asked_for(
    place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_run(dataset)
    sized = ("--nodes", "2", "--gpus-per-node", "2", "--cpus-per-task", "32", "--memory", "500G")
    slurm = ("--slurm", "--partition", "gpu", "--time-limit", "1-00:00:00", "--account", "me", "--sbatch=--qos=long")
    assert main(launch(place, spec, *sized, *slurm)) == 0
    text = capsys.readouterr().out
    asked = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        f"--job-name=nugpt-{spec.hash}",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=2",
        "--cpus-per-task=32",
        "--mem=500G",
        "--partition=gpu",
        "--time=1-00:00:00",
        "--account=me",
        f"--output=nugpt-{spec.hash}-%j.log",
        "--open-mode=append",
        "--signal=B:USR1@300",
        "--requeue",
        "--qos=long",
    ]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "--nnodes=2 --nproc-per-node=2" in text


def test_the_log_lies_in_a_folder_that_is_there_when_the_job_is_submitted(
    place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = launch(place, make_run(dataset), "--gpus-per-node", "2", "--slurm")
    assert main(words) == 0
    assert not (place.root / "runs").exists()  # printing writes nothing
    assert not Path(output_of(capsys.readouterr().out)).parent.name  # where sbatch is called
    submitted = place.root / "submitted"
    (place.root / "bin").mkdir()
    sbatch = place.root / "bin" / "sbatch"
    sbatch.write_text(f'#!/bin/bash\ncp "${{@: -1}}" {shlex.quote(str(submitted))}\necho 7\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    assert main([*words, "--submit"]) == 0
    log = Path(output_of(submitted.read_text()))
    assert log.name == "%j.log"
    assert log.parent == place.root / "runs" / make_run(dataset).hash / "slurm"
    assert log.parent.is_dir()


def test_without_slurm_nothing_is_submitted_and_no_run_is_left(
    place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place.root / "empty"))
    assert main(launch(place, make_run(dataset), "--gpus-per-node", "2", "--slurm", "--submit")) == 2
    assert capsys.readouterr().err == "nugpt: error: --submit needs the program sbatch on PATH\n"
    assert not (place.root / "runs").exists()


def output_of(script: str) -> str:
    (line,) = (line for line in script.splitlines() if line.startswith("#SBATCH --output="))
    return line.partition("=")[2].strip('"')


def test_options_of_the_engine_and_of_sbatch_may_be_repeated(
    place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--engine=--no-compile", "--engine=--log-every=5", "--sbatch=--qos=long", "--sbatch=--exclusive")
    assert main(launch(place, make_run(dataset), "--gpus-per-node", "2", "--slurm", *more)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"#SBATCH --qos=long", "#SBATCH --exclusive"} <= set(lines)
    (training,) = (line for line in lines if "nugpt.engines.titan" in line)
    assert training.endswith("--no-compile --log-every=5 &")


def test_missing_shards_are_found_before_anything_is_submitted(
    place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = place.root / "data"
    shutil.copytree(place.data, copy)
    (copy / "train-00000.bin").unlink()
    assert main(launch(Place(place.root, copy), make_run(dataset), "--gpus-per-node", "2", "--slurm")) == 2
    said = capsys.readouterr()
    assert "train-00000.bin is missing" in said.err
    assert said.out == ""


def test_a_run_of_a_store_can_be_launched_by_its_spec(
    place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_run(dataset)
    Store(place.root / "runs").run(spec)
    path = place.root / "runs" / spec.hash / "spec.json"
    where = ["--data", str(place.data), "--store", str(place.root / "runs"), "--gpus-per-node", "2", "--slurm"]
    assert main(["launch", "--recipe", str(path), *where]) == 0
    assert f"run={place.root / 'runs' / spec.hash}\n" in capsys.readouterr().out  # the same run, not another
    other = Store(place.root / "others").run(replace(spec, data="0123456789abcdef")).path / "spec.json"
    assert main(["launch", "--recipe", str(other), *where]) == 0
    assert "is of the data set 0123456789abcdef, and" in capsys.readouterr().err
    path.write_text("{}")
    assert main(["launch", "--recipe", str(path), *where]) == 2
    assert "spec.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--gpus-per-node", "3"), "a step has 4 sequences, but the 3 data-parallel ranks must divide them"),
        (("--gpus-per-node", "4", "--tp", "4"), "tp is 4, but must divide n_kv_heads, which is 2"),
        (("--gpus-per-node", "0"), "gpus_per_node is 0, but must be at least 1"),
        (("--nodes", "2", "--gpus-per-node", "1"), "without --slurm the command is for this machine alone"),
        (("--gpus-per-node", "1", "--partition", "a"), "partition is 'a', but without --slurm"),
        (("--gpus-per-node", "1", "--sbatch=--qos=long"), "sbatch is ('--qos=long',), but without --slurm"),
        (("--gpus-per-node", "1", "--notice", "60"), "notice is 60, but without --slurm"),
        (("--gpus-per-node", "1", "--submit"), "--submit needs --slurm"),
        (("--gpus-per-node", "1", "--slurm", "--time-limit", "soon"), "time_limit is 'soon'"),
        (("--gpus-per-node", "1", "--precision", "float16"), "precision is 'float16'"),
        (("--gpus-per-node", "1", "--data", "nowhere"), "nowhere"),
        (("--gpus-per-node", "1", "--engine=--fast"), "unrecognized arguments: --fast"),
        (("--gpus-per-node", "1", "--engine=--keep=1"), "keep is 1, but must be at least 2"),
        (("--gpus-per-node", "1", "--slurm", "--notice", "0"), "notice is 0, but must be at least 1 second"),
        (("--gpus-per-node", "1", "--slurm", "--notice", "-5"), "notice is -5, but must be at least 1 second"),
        (("--gpus-per-node", "1", "--notice", "0"), "notice is 0, but must be at least 1 second"),
        (("--gpus-per-node", "2", "--engine=--kernels=fused", "--engine=--tp=2"), "kernels is 'fused', but tp is 2"),
        (("--gpus-per-node", "2", "--engine=--kernels=fused", "--tp", "2"), "kernels is 'fused', but tp is 2"),
        (("--gpus-per-node", "2", "--engine=--kernels=fused", "--engine=--compile"), "they are not compiled"),
    ],
)
def test_mistakes_are_found_before_anything_is_submitted(
    more: tuple[str, ...], words: str, place: Place, dataset: TokenDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(launch(place, make_run(dataset), *more)) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_fused_kernels_may_be_asked_for_where_there_is_no_gpu(place: Place, dataset: TokenDataset) -> None:
    assert main(launch(place, make_run(dataset), "--gpus-per-node", "2", "--engine=--kernels=fused")) == 0


def test_a_job_without_gpus_asks_for_none(place: Place) -> None:
    assert "--gpus" not in job_script(place.root, Nodes(1, 2), "python", ["-m", "x"], SlurmOptions(), gpus=False)


@pytest.mark.slurm
@pytest.mark.titan
@pytest.mark.timeout(400)
def test_two_nodes_save_at_a_notice_and_go_on_when_queued_again(
    cluster: Cluster,  # noqa: F811
    place: Place,
    dataset: TokenDataset,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = replace(make_run(dataset), steps=300)
    where = ("--slurm", "--submit", "--partition", "low", "--nodes", "2", "--gpus-per-node", "1", "--device", "cpu")
    assert main(launch(place, spec, *where, "--cpus-per-task", "1", "--checkpoint-every", "1000")) == 0
    job = capsys.readouterr().out.split("job ")[1].split(":")[0]
    directory = place.directory(spec, "runs")
    until(lambda: directory.read_metrics()[5:], "the two nodes train together")
    tell("scancel", "--batch", "--signal=USR1", job)  # what the scheduler sends before the time limit
    log = directory.path / "slurm" / f"{job}.log"
    until(lambda: "the state is saved" in log.read_text(), "the notice is heeded")
    (checkpoint,) = directory.distributed.iterdir()
    saved = int(checkpoint.name.removeprefix("step-"))
    assert 0 < saved < 300
    until(lambda: "Restarts=1" in tell("scontrol", "show", "job", job), "the job is queued again")
    until(directory.record, "the run comes to its end", seconds=200)
    record = directory.record()
    assert record is not None
    assert (record.status, record.steps, record.carried_by["ranks"]) == ("done", 300, 2)
    assert list(rows(directory, "train")) == list(range(1, 301))  # every row once, though it was interrupted
    taken = [int(number) for number in re.findall(r"^step (\d+)/300  loss", log.read_text(), re.MULTILINE)]
    assert sorted(taken) == list(range(1, 301))  # none twice: the second turn went on where the first had saved
