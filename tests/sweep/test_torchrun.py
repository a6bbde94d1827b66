"""The script of one run on many nodes, with programs of a cluster that only note what they are asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("name", "requeued"), [("USR1", "requeue 17\n"), ("TERM", "")], ids=["notice", "cancelled"])
@pytest.mark.parametrize("when", ["before the step", "as the step begins", "when it trains"])
def test_a_signal_asks_the_ranks_to_save_whenever_it_comes(tmp_path: Path, name: str, requeued: str, when: str) -> None:
    run, programs = tmp_path / "run", tmp_path / "bin"
    for folder in (run, programs):
        folder.mkdir()
    (run / "stop").touch()  # of an earlier turn
    notes = {"srun": SRUN.format(run=run), "scontrol": f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\n'}
    for program, text in notes.items():
        (programs / program).write_text(text)
        (programs / program).chmod(0o755)
    script = job_script(run, Nodes(2, 2), "python", ["-m", "training"], SlurmOptions(), gpus=False)
    place = "\nsrun --kill-on-bad-exit" if when == "before the step" else "\nstep=$!"
    assert script.count(place) == 1
    sent = f"kill -{name} $$"
    if when == "when it trains":
        sent = f"(until [ -e {run}/begun ]; do sleep 0.01; done; sleep 0.2; {sent}) &"
        place = "\nsrun --kill-on-bad-exit"
    job = tmp_path / "job.sh"
    job.write_text(script.replace(place, f"\n{sent}{place}"))
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "host"}
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | slurm
    assert subprocess.run(["bash", str(job)], env=environment, cwd=tmp_path, timeout=60).returncode == 0
    asked = (tmp_path / "asked").read_text().splitlines(keepends=True)
    assert "".join(line for line in asked if not line.startswith("show hostnames")) == requeued


def test_what_is_not_to_be_queued_again_does_not_ask_for_it(tmp_path: Path) -> None:
    options = SlurmOptions(requeue=False)
    one = job_script(tmp_path, Nodes(2, 2), "python", ["-m", "training"], options, gpus=False)
    many = batch_script(tmp_path, ["worker"], options)
    for script in (one, many):
        assert "#SBATCH --no-requeue" in script
        assert "scontrol requeue" not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
