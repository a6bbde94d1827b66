"""Whatever holds results, as a store to read: a store is one; an archive is unpacked, and goes with the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from nugpt.store.archive import is_archive
from nugpt.store.run_directory import Store
from nugpt.store.transfer import read_pack

_unpacked: dict[tuple[object, ...], Store] = {}  # by the archive as it is: one that has grown is another


def opened(path: Path) -> Store:
    """The store of this path, or the one that an archive there stands for; of that, nothing written to it lasts."""
    if not is_archive(path):
        store, inside = Store(path), path / "runs"
        if Store(inside).is_begun() and not store.is_begun():  # as quickstart lays it down
            raise ValueError(f"{path} is no store, but holds one: give {inside}")
        return store
    files = [(file.as_posix(), file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(path.rglob("*.json*"))]
    key = (path.resolve(), *files)
    if key not in _unpacked:
        root = Path(tempfile.mkdtemp(prefix="nugpt-archive-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        _unpack(path, root)
        _unpacked[key] = Store(root, archive=path)
    return _unpacked[key]


def _unpack(folder: Path, root: Path) -> None:
    """Plain files: they need not outlive this process, so none is forced to disk."""
    packed = read_pack(folder)
    files = {f"{name}/{member}": content for name, run in packed.runs.items() for member, content in run.files.items()}
    files |= {
        f"plans/{name}/{member}": text for name, members in packed.plans.items() for member, text in members.items()
    }
    files |= {f"coords/{name}.json": content for name, content in packed.coords.items()}
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
