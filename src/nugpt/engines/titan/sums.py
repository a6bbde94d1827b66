"""Sizes and checksums of a distributed checkpoint: written when all ranks have saved, checked before any of it is read.

They notice damage, not ill will: whoever can change a file can change its checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nugpt.data.shards import file_sha256
from nugpt.store.atomic import read_json, write_json
from nugpt.store.forms import SUMS

Sums = dict[str, dict[str, Any]]  # by file name: bytes, sha256


def sums_of(files: Iterable[Path]) -> Sums:
    """The size and checksum of each of these files."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in files}


def own_files(directory: Path, rank: int) -> list[Path]:
    """What this rank wrote of a checkpoint; rank 0 also counts what is not of one rank's."""
    return [
        path
        for path in sorted(directory.iterdir())
        if path.name.startswith(f"__{rank}_") or (rank == 0 and not path.name.startswith(("__", SUMS)))
    ]


def write_sums(directory: Path, parts: Iterable[Sums]) -> None:
    """Keep the sums of all ranks' parts beside the files."""
    write_json(directory / SUMS, {name: values for part in parts for name, values in part.items()})


def check_sums(directory: Path, part: int = 0, parts: int = 1) -> None:
    """Refuse a checkpoint that lost or changed a file; each of `parts` processes reads its share of the files.

    One without sums is let through: it is older than they are, or its process ended before it wrote them.
    """
    path = directory / SUMS
    if not path.is_file():
        return
    sums = read_json(path)
    if not isinstance(sums, dict) or not all(isinstance(one, dict) for one in sums.values()):
        raise ValueError(f"checkpoint file {path} holds no checksums")
    for number, (name, wanted) in enumerate(sorted(sums.items())):
        _check_size(directory / name, wanted)
        if number % parts == part and file_sha256(directory / name) != wanted.get("sha256"):
            raise ValueError(f"checkpoint file {directory / name} does not match its checksum")


def _check_size(path: Path, wanted: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise ValueError(f"checkpoint {path.parent} lacks {path.name}")
    if path.stat().st_size != wanted.get("bytes"):
        raise ValueError(
            f"checkpoint file {path} has {path.stat().st_size:,} bytes, but was written with {wanted.get('bytes')}"
        )
