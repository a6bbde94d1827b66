"""The script of one run on many nodes, with programs of a cluster that only note what they are asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nugpt.sweep.executors.slurm import SlurmOptions, batch_script
from nugpt.sweep.executors.torchrun import Nodes, job_script

# The step, as rank 0 does, removes the file of the turn before once it has begun, and then saves and ends at the file;
# the other call asks for a node's name.
SRUN = """#!/bin/bash
if [ "$1" != --kill-on-bad-exit=1 ]; then echo host; exit; fi
sleep 0.5; rm -f {run}/stop; touch {run}/begun
for _ in $(seq 3000); do if [ -e {run}/stop ]; then exit 0; fi; sleep 0.01; done
exit 7
"""


def started(folder: Path, name: str, when: str) -> subprocess.Popen[bytes]:
    """The script, in a folder with its programs, to which this signal comes then."""
    run, programs = folder / "run", folder / "bin"
    for made in (run, programs):
        made.mkdir(parents=True)
    (run / "stop").touch()  # of an earlier turn
    notes = {"srun": SRUN.format(run=run), "scontrol": f'#!/bin/bash\necho "$@" >> {folder}/asked\n'}
    for program, text in notes.items():
        (programs / program).write_text(text)
        (programs / program).chmod(0o755)
    script = job_script(run, Nodes(2, 2), "python", ["-m", "training"], SlurmOptions(), gpus=False)
    place = "\nstep=$!" if when == "as the step begins" else "\nsrun --kill-on-bad-exit"
    assert script.count(place) == 1
    sent = f"kill -{name} $$"
    if when == "when it trains":
        sent = f"(until [ -e {run}/begun ]; do sleep 0.01; done; sleep 0.2; {sent}) &"
    job = folder / "job.sh"
    job.write_text(script.replace(place, f"\n{sent}{place}"))
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "host"}
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | slurm
    return subprocess.Popen(["bash", str(job)], env=environment, cwd=folder)


def test_a_time_limit_of_part_of_a_minute_is_written_as_sbatch_takes_it() -> None:
    options = SlurmOptions(time_limit="8.75")
    script = job_script(Path("run"), Nodes(2, 2), "python", ["-m", "training"], options, gpus=False)
    assert "#SBATCH --time=8:45" in script.splitlines()


def ended(folder: Path, job: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The job's status, and what was asked of the cluster beside the names of its nodes."""
    status, asked = job.wait(timeout=60), (folder / "asked").read_text().splitlines(keepends=True)
    return status, "".join(line for line in asked if not line.startswith("show hostnames"))


def test_a_signal_asks_the_ranks_to_save_whenever_it_comes(tmp_path: Path) -> None:
    moments = ("before the step", "as the step begins", "when it trains")
    wanted = {(name, when): asked for name, asked in (("USR1", "requeue 17\n"), ("TERM", "")) for when in moments}
    folders = {case: tmp_path / str(i) for i, case in enumerate(wanted)}
    jobs = {case: started(folder, *case) for case, folder in folders.items()}  # all at once: they mostly wait
    try:
        found = {case: ended(folders[case], job) for case, job in jobs.items()}
    finally:
        for job in jobs.values():
            job.kill()
    assert found == {case: (0, asked) for case, asked in wanted.items()}


def test_what_is_not_to_be_queued_again_does_not_ask_for_it(tmp_path: Path) -> None:
    options = SlurmOptions(requeue=False)
    one = job_script(tmp_path, Nodes(2, 2), "python", ["-m", "training"], options, gpus=False)
    many = batch_script(tmp_path, ["worker"], options)
    for script in (one, many):
        assert "#SBATCH --no-requeue" in script
        assert "scontrol requeue" not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
