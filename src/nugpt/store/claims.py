"""Who works on a run: numbered claim files, so that of many workers on a shared file system exactly one gets it.

A claim is a file made with O_EXCL. Its holder touches it while it works; a claim that nobody has touched for a while is
stale, and whoever makes the file of the next number has the run from then on. The earlier holder, should it wake up,
sees the later number before it writes anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nugpt.store.atomic import write_json
from nugpt.store.run_directory import ENDED, RunDirectory

_NAME = re.compile(r"claim-(\d{6})\.json")


class LostClaim(Exception):
    """Another worker took the run over, because this one did not touch its claim for too long."""


@dataclass(frozen=True)
class Claim:
    """One worker's hold on one run."""

    run: RunDirectory
    number: int
    token: str  # numbers begin again when a run has ended: the token is what no other claim has

    @property
    def path(self) -> Path:
        """The claim's file."""
        return _claim_path(self.run, self.number)

    @property
    def name(self) -> str:
        """What another process of the same holder knows the claim by."""
        return f"{self.number}-{self.token}"

    @classmethod
    def named(cls, run: RunDirectory, name: str) -> Claim:
        """The claim on this run that has this name."""
        match = re.fullmatch(r"(\d+)-([0-9a-f]+)", name)
        if match is None:
            raise ValueError(f"claim is {name!r}, but must be a number, a hyphen and a token")
        return cls(run, int(match[1]), match[2])

    def beat(self) -> None:
        """Say that the holder is alive."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path)

    def is_held(self) -> bool:
        """Whether no other worker has taken the run over."""
        return _numbers(self.run)[-1:] == [self.number] and _content(self.path).get("token") == self.token

    def check(self) -> None:
        """Raise when the run has been taken over."""
        if not self.is_held():
            raise LostClaim(f"run {self.run.path.name} was taken over by another worker")

    def check_for_holder(self) -> None:
        """The same for a process that works for the holder: it has no business either when its holder has died."""
        self.check()
        if _is_dead(_content(self.path)):
            raise LostClaim(f"the worker that held run {self.run.path.name} is no more")

    def release(self) -> None:
        """Give the run back unfinished: the next worker need not wait until the claim is stale."""
        with contextlib.suppress(LostClaim):
            self.check()
            write_json(self.path, {"released": True})

    def let_go(self) -> None:
        """Finish a run that has ended, give any other back."""
        if self.run.has_ended() and self.is_held():
            self.finish()
        else:
            self.release()

    def finish(self) -> None:
        """Remove the run's claim files: its record is there, and nobody claims it again."""
        for number in _numbers(self.run):
            with contextlib.suppress(FileNotFoundError):
                _claim_path(self.run, number).unlink()


def claim(
    run: RunDirectory, stale_after: float, ended: Collection[str] = ENDED, now: float | None = None
) -> Claim | None:
    """A hold on this run, or none when it has ended with one of these statuses or another worker has it."""
    if run.has_ended(ended):
        return None
    numbers = _numbers(run)
    if numbers and holder_state(run, stale_after, now) == "running":
        return None
    number = (numbers[-1] if numbers else 0) + 1
    token = uuid.uuid4().hex
    about = {"token": token, "host": socket.gethostname(), "since": time.time(), **_process()}
    try:
        descriptor = os.open(_claim_path(run, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(about, file)
    held = Claim(run, number, token)
    if run.has_ended(ended):  # finished between the first look and the claim
        held.finish()
        return None
    return held


def newest_claim(run: RunDirectory) -> Claim | None:
    """The claim that counts, be its holder alive or not; none when nobody has claimed the run or it was given back."""
    numbers = _numbers(run)
    token = _content(_claim_path(run, numbers[-1])).get("token") if numbers else None
    return None if token is None else Claim(run, numbers[-1], token)


def holder_state(run: RunDirectory, stale_after: float, now: float | None = None) -> str:
    """`running`, `stale`, or `none` when nobody holds the run."""
    numbers = _numbers(run)
    if not numbers:
        return "none"
    path = _claim_path(run, numbers[-1])
    try:
        touched, content = path.stat().st_mtime, _content(path)
    except FileNotFoundError:
        return "none"
    if content.get("released"):
        return "none"
    if _is_dead(content):
        return "stale"
    now = file_system_time(run.path.parent) if now is None else now
    return "running" if now - touched <= stale_after else "stale"


def file_system_time(directory: Path) -> float:
    """The time by the clock that dates the store's files, which may be another machine's."""
    probe = directory / f".clock-{uuid.uuid4().hex}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # a store that one may only read, or whose disk is full, can still be looked at
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


class Heartbeat:
    """A thread that touches the claims it is given until it is left."""

    def __init__(self, stale_after: float) -> None:
        self._interval = stale_after / 5
        self._claims: tuple[Claim, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="nugpt-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def hold(self, claims: Iterable[Claim]) -> None:
        """Touch these from now on, and no others."""
        self._claims = tuple(claims)

    def _beat(self) -> None:
        while not self._stop.wait(self._interval):
            for held in self._claims:
                with contextlib.suppress(OSError):  # a file system that is away for a moment is no reason to die
                    held.beat()


def _process() -> dict[str, Any]:
    """What names this process: its number, when it began, and the machine and name space in which the number counts."""
    return {"pid": os.getpid(), "began": _began(os.getpid()), "machine": _machine()}


def _machine() -> str | None:
    """This boot of this machine and its process name space; none where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _began(pid: int) -> str | None:
    """When a process of this machine began, in clock ticks since boot; none when it is no more."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if values[0] in "ZX" else values[19]  # a zombie has ended, though its parent has not looked yet
    except (OSError, IndexError):
        return None


def _is_dead(content: dict[str, Any]) -> bool:
    """Whether the claim's holder was a process of this machine that is no more: no need to wait for it."""
    machine = _machine()
    if machine is None or content.get("machine") != machine or not isinstance(content.get("pid"), int):
        return False
    return _began(content["pid"]) != content.get("began")


def _claim_path(run: RunDirectory, number: int) -> Path:
    return run.path / f"claim-{number:06d}.json"


def _numbers(run: RunDirectory) -> list[int]:
    try:
        names = os.listdir(run.path)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def _content(path: Path) -> dict[str, Any]:
    """What the claim says; one that is being written or is no more says nothing."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, FileNotFoundError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def holding(runs: Iterable[RunDirectory], stale_after: float = 300.0) -> Iterator[Callable[[], None]]:
    """Hold these runs while inside, refused when another process has one; gives the guard to call before writing."""
    claims: list[Claim] = []
    try:
        for run in runs:
            if run.has_ended(("done", "diverged")):
                continue
            held = claim(run, stale_after, ended=("done", "diverged"))
            if held is None and not run.has_ended(("done", "diverged")):
                raise ValueError(f"run {run.path} is being trained by another process: wait for it, or end it")
            if held is not None:
                claims.append(held)
        with Heartbeat(stale_after) as heart:
            heart.hold(claims)

            def guard() -> None:
                for held in claims:
                    held.check()

            yield guard
    finally:
        for held in claims:
            held.let_go()
