"""`nugpt store pack`, `merge`, `prune`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from nugpt.cli.hints import required
from nugpt.cli.show import counted
from nugpt.spec import checks

if TYPE_CHECKING:
    from nugpt.store.transfer import Merged

PACKED = (".tar.gz", ".tgz")


def check_unpacked(file: Path) -> None:
    """Tell of a file that `nugpt store pack` made what makes a store of it."""
    if file.name.endswith(PACKED) and file.is_file():
        raise ValueError(
            f"{file} is a packed store: `nugpt store merge {shlex.quote(str(file))} --store NEW` makes a store of it"
        )


@dataclass(frozen=True)
class Pack:
    """Write records and metrics of a store's ended runs, and its plans, to one small file; or add them to an archive.

    An archive is a folder of plain text to keep beside code: of the metrics what answers are made from, and no place of
    this machine.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """The file to write, such as results.tar.gz; or an archive's folder, such as results/mine, a name without a dot."""
    store: Path = Path("runs")
    """The store to pack."""

    def run(self) -> int:
        """Pack."""
        from nugpt.store import Store
        from nugpt.store.archive import pack_folder
        from nugpt.store.transfer import pack

        checks.folder(self.store, "store")
        if self.file.is_dir() or not self.file.suffix:
            return _say_merged(f"{self.file}", pack_folder(Store(self.store), self.file))
        if not self.file.name.endswith(PACKED):
            raise ValueError(f"file is {str(self.file)!r}, but must end in {' or '.join(PACKED)}, which it will be")
        count = pack(Store(self.store), self.file)
        print(f"{counted(count, 'run')} in {self.file}, {self.file.stat().st_size:,} bytes")
        return 0


@dataclass(frozen=True)
class Merge:
    """Add what others packed to a store; nothing there is overwritten, and a disagreement is named (exit status 1)."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, required("PATH …")]
    """Files and archives made by `nugpt store pack`."""
    store: Path = Path("runs")
    """The store to add to, or an archive."""

    def run(self) -> int:
        """Merge."""
        from nugpt.store import Store
        from nugpt.store.archive import is_archive, merge_folder
        from nugpt.store.transfer import merge

        checks.folder(self.store, "store")
        if not self.files:
            raise ValueError("no file to merge: give files made by `nugpt store pack`")
        status = 0
        for file in self.files:
            # Told file by file: the next one may be refused.
            merged = merge_folder(file, self.store) if is_archive(self.store) else merge(file, Store(self.store))
            status = max(status, _say_merged(str(file), merged))
        return status


def _say_merged(what: str, merged: Merged) -> int:
    """What was added, and every disagreement; 1 where there is one."""
    print(f"{what}: {counted(merged.added, 'run')} added, {merged.same} were there already")
    for conflict in merged.conflicts:
        print(f"nugpt: conflict, left as it is: {conflict}", file=sys.stderr)
    return 1 if merged.conflicts else 0


@dataclass(frozen=True)
class Prune:
    """Drop the checkpoints of the plans' finished runs; records and metrics stay, and so does what `train` made."""

    store: Path = Path("runs")
    """The store to prune."""
    keep: tuple[str, ...] = ()
    """Runs whose checkpoints to keep, by the first digits of their hashes."""
    all: bool = False
    """Also of runs that belong to no plan."""

    def run(self) -> int:
        """Prune."""
        from nugpt.store import Store
        from nugpt.store.plans import plans
        from nugpt.store.transfer import prunable, prune

        checks.folder(self.store, "store")
        if not self.store.is_dir():
            raise ValueError(f"store {self.store} does not exist")
        store = Store(self.store)
        kept = frozenset(store.find(name).path.name for name in self.keep)
        planned = None if self.all else frozenset(spec.hash for directory in plans(store) for spec in directory.specs())
        print(f"{prune(store, kept, planned):,} bytes of checkpoints dropped")
        left = prunable(store, kept)
        loose = [run for run in left if planned is not None and run.path.name not in planned]
        if loose:
            print(f"{counted(len(loose), 'run')} of no plan with checkpoints: --all drops them too")
        if stuck := len(left) - len(loose):
            what = f"checkpoints of {counted(stuck, 'run')} in {self.store} could not be removed"
            print(f"nugpt: error: {what}: is it yours to write to?", file=sys.stderr)
            return 1
        return 0
