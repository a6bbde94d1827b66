"""What the user calls a source, as a list of inputs: the embedded corpus, files by suffix, the Hugging Face hub."""

import glob
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nugpt.data.embedded import embedded_files
from nugpt.data.hub import HubName, hub_fingerprint, parse_hub, pinned
from nugpt.data.manifest import SourceFacts, digest
from nugpt.data.shards import file_sha256

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".html", ".htm", ".xml", ".css", ".csv", ".toml", ".yaml", ".yml"),
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".js", ".ts", ".sh", ".sql"),
)
LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
GLOB_CHARACTERS = "*?["
# Text is hashed as fast as a disk reads with a few threads; more would only compete with each other.
HASH_THREADS = 4


@dataclass(frozen=True)
class Input:
    """One file (or one data set of the hub) and how to read it."""

    path: str
    kind: str  # text, lines, parquet, topics or hub
    source: str  # the source name of a document that does not name its own
    group: int  # which tally counts its lines
    size: int
    compression: str | None = None
    hub: HubName | None = None


@dataclass(frozen=True)
class Listing:
    """All inputs in the order they are read, the names of their tallies, and what the manifest says of each source."""

    inputs: tuple[Input, ...]
    groups: tuple[str, ...]
    facts: tuple[SourceFacts, ...]

    @property
    def fingerprint(self) -> str:
        """The hash of every input's content and kind, in order."""
        return digest([[one.kind, one.fingerprint] for one in self.facts])


@dataclass(frozen=True)
class _Found:
    """A source before its inputs have been hashed."""

    name: str
    kind: str
    files: tuple[tuple[Path, str, str], ...] = ()  # path, the name of its tally, source name
    hub: HubName | None = None


def list_sources(sources: Sequence[str], sha256: Callable[[Path], str] = file_sha256) -> Listing:
    """Find and fingerprint the inputs of all sources."""
    if not sources:
        raise ValueError("no source was given; name `embedded`, files, directories or hf:NAME")
    inputs: list[Input] = []
    groups: list[str] = []
    facts: list[SourceFacts] = []
    for found in map(_find, sources):
        members, hashes = _hub_input(found) if found.hub else _file_inputs(found, sha256)
        # A tally counts one file of lines or rows, or all the text files of a source together.
        labels = list(dict.fromkeys(label for _, label in members))
        inputs += [_with_group(one, len(groups) + labels.index(label)) for one, label in members]
        groups += labels
        size = sum(one.size for one, _ in members)
        facts.append(SourceFacts(found.name, found.kind, len(members), size, digest(hashes)))
    return Listing(tuple(inputs), tuple(groups), tuple(facts))


def _with_group(one: Input, group: int) -> Input:
    return Input(one.path, one.kind, one.source, group, one.size, one.compression, one.hub)


def _find(source: str) -> _Found:
    if source == "embedded":
        return _Found(source, source, tuple((path, name, name) for path, name in embedded_files()))
    if source.startswith("hf:"):
        hub = parse_hub(source)
        return _Found(hub.label, "hub", hub=hub)
    path = Path(source).expanduser()
    if path.is_dir():
        name = path.resolve().name
        files = [one for one in _walk(path) if file_kind(one)]
        if not files:
            raise ValueError(f"{source} holds no file to read; known are {', '.join(known_suffixes())}")
        return _Found(name, "directory", tuple((one, _label(one, path, name), name) for one in files))
    if path.is_file():
        name = path.name.split(".")[0] or path.name
        return _Found(path.name, "file", ((_readable(path), path.name, name),))
    if any(character in source for character in GLOB_CHARACTERS):
        matches = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
        files = [_readable(one) for one in matches if one.is_file()]
        if not files:
            raise ValueError(f"{source} matches no file")
        root = Path(os.path.commonpath([one.resolve().parent for one in files]))
        return _Found(path.name, "glob", tuple((one, _label(one, root, root.name), root.name) for one in files))
    raise ValueError(f"no source {source}; give `embedded`, hf:NAME, or a file, directory or pattern that exists")


def _walk(directory: Path) -> list[Path]:
    def refuse(error: OSError) -> None:  # os.walk would leave out in silence what may not be read
        raise error

    found = []
    for root, directories, files in os.walk(directory, onerror=refuse):
        directories[:] = [one for one in directories if not one.startswith(".")]
        found += [Path(root, one) for one in files if not one.startswith(".")]
    return sorted(found, key=lambda one: one.relative_to(directory).as_posix())


def _label(path: Path, root: Path, name: str) -> str:
    if file_kind(path) == "text":
        return f"{name} (text)"
    return path.resolve().relative_to(root.resolve()).as_posix()


def _readable(path: Path) -> Path:
    if file_kind(path) is None:
        raise ValueError(f"{path} has no suffix that says how to read it; known are {', '.join(known_suffixes())}")
    return path


def known_suffixes() -> list[str]:
    """Return the suffixes of files that can be read, compressed or not."""
    return [*LINES_SUFFIXES, ".parquet", *TEXT_SUFFIXES, *(f"X{one}" for one in COMPRESSIONS)]


def file_kind(path: Path) -> str | None:
    """Say how a file is read, by its suffix: text, lines, parquet, or None where the suffix is unknown."""
    suffix = _suffix(path)
    if suffix in TEXT_SUFFIXES:
        return "text"
    if suffix in LINES_SUFFIXES:
        return "lines"
    return "parquet" if suffix == ".parquet" and _compression(path) is None else None


def _compression(path: Path) -> str | None:
    return COMPRESSIONS.get(path.suffix.lower())


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if _compression(path) else path).suffix.lower()


def _file_inputs(found: _Found, sha256: Callable[[Path], str]) -> tuple[list[tuple[Input, str]], list[list[object]]]:
    members: list[tuple[Input, str]] = []
    hashes: list[list[object]] = []
    with ThreadPoolExecutor(HASH_THREADS) as threads:
        checksums = list(threads.map(sha256, [path for path, _, _ in found.files]))
    for (path, label, source), checksum in zip(found.files, checksums, strict=True):
        # Python's documentation lies in a module as one literal; each topic of it is a document.
        kind = "topics" if label == "documentation" and found.kind == "embedded" else file_kind(path)
        assert kind is not None, path
        members.append((Input(str(path), kind, source, 0, path.stat().st_size, _compression(path)), label))
        hashes.append([kind, source, _compression(path), checksum])
    return members, hashes


def _hub_input(found: _Found) -> tuple[list[tuple[Input, str]], list[list[object]]]:
    assert found.hub is not None
    hub = pinned(found.hub)
    # A stream does not say how long it is.
    return [(Input(hub.name, "hub", found.name, 0, 0, hub=hub), found.name)], [hub_fingerprint(hub)]
