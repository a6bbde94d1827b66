"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from nugpt.spec.checks import written_as


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, force it to disk, and give it its name."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with written_as(path):
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def check_writable(path: Path, where: str) -> None:
    """Find out before the work whether its end can be written: to this file, or into this folder once it is made."""
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    try:
        if there.is_dir():
            with tempfile.TemporaryFile(dir=there):  # gone when it is closed, whatever happens
                pass
        else:
            with open(there, "r+b"):
                pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ValueError(f"{where} is {str(path)!r}, but cannot be written: {why}") from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically; not-a-number and infinity are refused."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """A JSON document as files of ours hold it."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """The JSON document in this file; a line that names the file when it is not one."""
    try:
        return json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a whole JSON document: {error}") from None


def sync_file(path: Path) -> None:
    """Force a file that another library wrote to disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Force a directory's entries to disk, where the system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
