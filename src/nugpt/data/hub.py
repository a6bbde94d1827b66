"""Data sets of the Hugging Face hub, streamed with `datasets`; a local directory of the same layout works as well."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nugpt.data.shards import file_sha256
from nugpt.spec.checks import one_line


@dataclass(frozen=True)
class HubName:
    """A data set by name, revision, subset and split."""

    name: str
    revision: str | None
    subset: str | None
    split: str

    @property
    def label(self) -> str:
        """A short name that does not say where a local copy lies."""
        name = Path(self.name).resolve().name if Path(self.name).is_dir() else self.name
        return ":".join([name, *([self.subset] if self.subset else [])])


def parse_hub(source: str) -> HubName:
    """Read hf:NAME[@REVISION][:SUBSET[:SPLIT]]."""
    name, *rest = source.removeprefix("hf:").split(":")
    if not name or len(rest) > 2:
        raise ValueError(f"{source} should read hf:NAME[@REVISION][:SUBSET[:SPLIT]]")
    subset, split = (*rest, "", "")[:2]
    revision = None
    if not Path(name).is_dir():
        name, _, revision = name.partition("@")
    return HubName(name, revision or None, subset or None, split or "train")


def local_files(hub: HubName) -> list[Path]:
    """Return the files of a data set that is a local directory, in order."""
    root = Path(hub.name)
    return sorted(path for path in root.rglob("*") if path.is_file() and not _hidden(path.relative_to(root)))


def _hidden(name: Path) -> bool:
    return any(part.startswith(".") for part in name.parts)


def hub_fingerprint(hub: HubName) -> list[object]:
    """Return what fixes the content: the commit on the hub, or the files' checksums."""
    if Path(hub.name).is_dir():
        files = [[path.relative_to(hub.name).as_posix(), file_sha256(path)] for path in local_files(hub)]
        return ["local", hub.subset, hub.split, files]
    return ["hub", hub.name, hub.subset, hub.split, hub.revision]


def pinned(hub: HubName) -> HubName:
    """Return the name with the commit that its revision stands for now, so that all reading is of one state."""
    return hub if Path(hub.name).is_dir() else replace(hub, revision=hub_commit(hub))


def hub_commit(hub: HubName) -> str:
    """Ask the hub which commit a data set's revision stands for."""
    _datasets()
    import huggingface_hub

    try:
        commit = huggingface_hub.HfApi().dataset_info(hub.name, revision=hub.revision).sha
    except Exception as error:  # a network has many ways to fail, and the hub's library a class for each
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"the Hugging Face hub could not be asked for {hub.name}: {first[0]}") from None
    if not commit:
        raise ValueError(f"the Hugging Face hub names no commit for {hub.name}")
    return commit


def hub_examples(
    hub: HubName, columns: tuple[str, str], offset: int, state: dict[str, Any] | None
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Stream examples after the first `offset`, each with a function that returns the state to go on from."""
    data = _open(hub)
    text_column, source_column = columns
    names = data.column_names
    if names is not None:
        if text_column not in names:
            raise ValueError(f"hf:{hub.name} has no column {text_column}; it has {', '.join(names)}")
        data = data.select_columns([name for name in names if name in (text_column, source_column)])
    if state is not None:
        data.load_state_dict(json.loads(json.dumps(state)))
    elif offset:
        data = data.skip(offset)
    for example in data:
        yield example, data.state_dict


def _open(hub: HubName) -> Any:
    datasets = _datasets()
    try:
        return datasets.load_dataset(hub.name, hub.subset, split=hub.split, revision=hub.revision, streaming=True)
    except (ValueError, OSError) as error:
        raise ValueError(f"hf:{hub.name} cannot be opened: {one_line(error)}") from None


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError("a source hf:… needs the package datasets: pip install 'nugpt[data]'") from None
    return datasets
