"""What a prepared data set says about itself: counts, checksums and the hash that names its content."""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from nugpt.spec.checks import written_as

FORMAT = "nugpt-data"
VERSION = 1
MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "validation")
# A data set may come from a stranger: a shard is a plain name in its own directory.
SHARD_NAME = re.compile(r"(train|validation)-[0-9]{5,}")


@dataclass(frozen=True)
class Counts:
    """How much of something there is."""

    documents: int = 0
    tokens: int = 0  # each document's end-of-text included
    utf8_bytes: int = 0  # of the text alone, so that a loss in nats per token becomes bits per byte

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.documents + other.documents, self.tokens + other.tokens, self.utf8_bytes + other.utf8_bytes)


@dataclass(frozen=True)
class Shard:
    """One file of tokens, `NAME.bin`, and its documents' ends and sources, `NAME.docs`."""

    name: str
    counts: Counts
    tokens_sha256: str
    documents_sha256: str


@dataclass(frozen=True)
class Split:
    """The shards of train or validation, in order."""

    counts: Counts
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class SourceCounts:
    """A named source and its share of each split."""

    name: str
    train: Counts
    validation: Counts


@dataclass(frozen=True)
class Tally:
    """What one input held, line by line (a line is a row of a table, or a piece of a text file)."""

    input: str
    lines: int = 0
    empty: int = 0  # blank lines and documents without text: left out, not counted as malformed
    bad_json: int = 0
    no_text: int = 0  # the text column is missing or is not text
    bad_utf8: int = 0

    @property
    def malformed(self) -> int:
        """Lines that could not be used."""
        return self.bad_json + self.no_text + self.bad_utf8

    def plus(self, other: "Tally") -> "Tally":
        """Return the tally with another's lines counted too."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in TALLIED}
        return Tally(self.input, **sums)


TALLIED = ("lines", "empty", "bad_json", "no_text", "bad_utf8")


@dataclass(frozen=True)
class TokenizerFacts:
    """Which tokenizer made the ids."""

    spec: str
    n_ids: int
    vocab_size: int
    eot: int
    end_of_text: str | None  # None: plain bytes
    hash: str


@dataclass(frozen=True)
class SourceFacts:
    """One source as the user gave it, without the directory it lay in."""

    name: str
    kind: str
    files: int
    file_bytes: int
    fingerprint: str


@dataclass(frozen=True)
class Settings:
    """What changes the shards, beside sources and tokenizer."""

    val_fraction: float
    shard_tokens: int
    max_tokens: int | None
    text_column: str
    source_column: str


@dataclass(frozen=True)
class Manifest:
    """Everything there is to know about a prepared data set, without a word on where or when it was made."""

    content_hash: str
    dtype: str
    tokenizer: TokenizerFacts
    source_fingerprint: str
    inputs: tuple[SourceFacts, ...]
    settings: Settings
    train: Split
    validation: Split
    sources: tuple[SourceCounts, ...]
    tallies: tuple[Tally, ...]

    def split(self, name: str) -> Split:
        """Return the split of that name."""
        assert name in SPLITS, name
        return self.train if name == "train" else self.validation

    @property
    def malformed(self) -> int:
        """Input lines that could not be used."""
        return sum(tally.malformed for tally in self.tallies)

    def with_content_hash(self) -> "Manifest":
        """Return the manifest with the hash that follows from its content."""
        return replace(self, content_hash=content_hash(self))


def facts(manifest: Manifest) -> dict[str, Any]:
    """What a reader of results wants to know of the data that they were had on, as plain values without a place."""
    return {
        "inputs": [f"{one.name} ({one.kind})" for one in manifest.inputs],
        "tokens": manifest.train.counts.tokens,
        "validation_tokens": manifest.validation.counts.tokens,
        "sources": {source.name: source.train.tokens for source in manifest.sources},
        "tokenizer": PurePath(manifest.tokenizer.spec).name,
        "vocab_size": manifest.tokenizer.vocab_size,
    }


def canonical_json(value: Any) -> str:
    """Return JSON that is the same text for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any) -> str:
    """Return the sha256 of a JSON value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def content_hash(manifest: Manifest) -> str:
    """Return the hash of what training sees: tokens, document ends, sources and tokenizer."""
    shards = {
        name: [[s.tokens_sha256, s.documents_sha256, s.counts.tokens] for s in manifest.split(name).shards]
        for name in SPLITS
    }
    names = [source.name for source in manifest.sources]
    facts = manifest.tokenizer
    return digest(
        [FORMAT, VERSION, manifest.dtype, facts.hash, facts.n_ids, facts.vocab_size, facts.eot, names, shards]
    )


def manifest_text(manifest: Manifest) -> str:
    """Return the text of manifest.json, which ends with the hash of all that stands before."""
    fields = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    return json.dumps({**fields, "manifest_hash": digest(fields)}, indent=1) + "\n"


def read_manifest(directory: str | Path) -> Manifest:
    """Read and check manifest.json; whatever is wrong with it is a ValueError of one line."""
    path = Path(directory) / MANIFEST_FILE
    try:
        fields = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory} holds no {MANIFEST_FILE}; make one with `nugpt data prepare`") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON: prepare the data again") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of a prepared data set")
    if fields.get("version") != VERSION:
        raise ValueError(f"{path} has format version {fields.get('version')!r}; this nugpt reads version {VERSION}")
    if fields.pop("manifest_hash", None) != digest(fields):
        raise ValueError(f"{path} disagrees with its own hash: it was changed after it was written")
    try:
        manifest = manifest_from(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a manifest of version {VERSION}: {error}") from None
    if manifest.content_hash != content_hash(manifest):
        raise ValueError(f"{path} disagrees with itself: its content hash does not follow from its checksums")
    return manifest


def manifest_from(fields: dict[str, Any]) -> Manifest:
    """Return a manifest from its JSON."""
    return Manifest(
        content_hash=str(fields["content_hash"]),
        dtype=_one_of(fields["dtype"], ("<u2", "<u4")),
        tokenizer=TokenizerFacts(**fields["tokenizer"]),
        source_fingerprint=str(fields["source_fingerprint"]),
        inputs=tuple(SourceFacts(**one) for one in fields["inputs"]),
        settings=Settings(**fields["settings"]),
        train=_split(fields["train"]),
        validation=_split(fields["validation"]),
        sources=tuple(
            SourceCounts(str(one["name"]), Counts(**one["train"]), Counts(**one["validation"]))
            for one in fields["sources"]
        ),
        tallies=tuple(Tally(**one) for one in fields["tallies"]),
    )


def _split(fields: dict[str, Any]) -> Split:
    return Split(Counts(**fields["counts"]), tuple(shard_from(one) for one in fields["shards"]))


def shard_from(fields: dict[str, Any]) -> Shard:
    """Return a shard from its JSON."""
    if not SHARD_NAME.fullmatch(fields["name"]):
        raise ValueError(f"{fields['name']!r} is not the name of a shard")
    return Shard(**{**fields, "counts": Counts(**fields["counts"])})


def _one_of(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return str(value)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that its name only ever stands for the whole of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with written_as(path):
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)


def publish(temporary: Path, path: Path) -> None:
    """Give a finished and synced file its final name, for good."""
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
