"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from nugpt.store.atomic import check_writable, read_json, write_bytes, write_json


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "record.json"
    write_bytes(path, b"old")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"nugpt.store.atomic.os.{failing}", full)
    with pytest.raises(OSError, match="No space left") as refusal:
        write_bytes(path, b"new")
    assert refusal.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_made_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "record.json"
    with pytest.raises(FileNotFoundError) as refusal:
        write_bytes(path, b"new")
    assert str(refusal.value) == f"[Errno 2] No such file or directory: '{path}'"


def test_what_was_written_is_read_back_and_replaces_what_was_there(tmp_path: Path) -> None:
    value = {"η": [0.1, 1e-300, 2**53 + 1, None, True], "text": "naïve \u2028 🙂"}
    write_json(tmp_path / "a.json", {"old": "and much longer than what replaces it" * 100})
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_such_number(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"loss": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b'{"loss": 1.', b"", b"\xff\xfe{}", b'{"a": 1} and more'])
def test_half_a_document_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "half.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"half\.json"):
        read_json(tmp_path / "half.json")


def test_whether_a_folder_or_a_file_can_be_written_is_found_out_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    for path in (tmp_path, tmp_path / "new" / "newer", tmp_path / "file"):
        check_writable(path, "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that nobody can write to")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^store is '/proc/runs', but cannot be written: no such file or directory$"):
        check_writable(Path("/proc/runs"), "store")
