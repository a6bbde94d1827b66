"""Is prepared data what its manifest says: sizes in a moment, checksums and document ends on request."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nugpt.data.manifest import SHARD_NAME, SPLITS, Counts, Manifest, Shard, read_manifest
from nugpt.data.shards import document_map, file_sha256, shard_files, size_problem, token_map
from nugpt.data.tokenizer import TOKENIZER_FILE, stored_tokenizer


def verify(path: str | Path) -> list[str]:
    """Return every problem of a prepared directory, a line each; an empty list is a sound data set."""
    directory = Path(path).expanduser()
    try:
        manifest = read_manifest(directory)
    except ValueError as error:
        return [str(error)]
    return full_problems(directory, manifest)


def size_problems(directory: Path, manifest: Manifest) -> list[str]:
    """Return what can be seen without reading the shards."""
    return [
        *_count_problems(directory, manifest),
        *_tokenizer_problems(directory, manifest),
        *_sizes(directory, manifest),
    ]


def full_problems(directory: Path, manifest: Manifest) -> list[str]:
    """Return what can be seen by reading every byte."""
    problems = [*size_problems(directory, manifest), *_stray_files(directory, manifest)]
    sources: dict[str, dict[int, Counts]] = {split: {} for split in SPLITS}
    for split in SPLITS:
        for shard in manifest.split(split).shards:
            found = list(_shard_problems(directory, shard, manifest, sources[split]))
            problems += found
    if not problems:
        problems += _source_problems(directory, manifest, sources)
    return problems


def _sizes(directory: Path, manifest: Manifest) -> Iterator[str]:
    itemsize = np.dtype(manifest.dtype).itemsize
    for split in SPLITS:
        for shard in manifest.split(split).shards:
            for path, size, _ in shard_files(directory, shard, itemsize):
                if problem := size_problem(path, size):
                    yield problem


def _count_problems(directory: Path, manifest: Manifest) -> Iterator[str]:
    for split in SPLITS:
        part = manifest.split(split)
        if sum((shard.counts for shard in part.shards), Counts()) != part.counts:
            yield f"{directory}: the manifest's {split} counts are not the sum of its shards"
        if sum((getattr(source, split) for source in manifest.sources), Counts()) != part.counts:
            yield f"{directory}: the manifest's {split} counts are not the sum of its sources"


def _tokenizer_problems(directory: Path, manifest: Manifest) -> Iterator[str]:
    facts = manifest.tokenizer
    try:
        found = stored_tokenizer(directory, facts.end_of_text)
    except ValueError as error:
        yield str(error)
        return
    if (found.hash, found.n_ids, found.eot) != (facts.hash, facts.n_ids, facts.eot):
        yield f"{directory / TOKENIZER_FILE} is not the tokenizer the shards were made with"
    elif (found.vocab_size, found.dtype.str) != (facts.vocab_size, manifest.dtype):
        yield f"{directory}: the manifest's vocabulary or token type does not fit its tokenizer"


def _stray_files(directory: Path, manifest: Manifest) -> Iterator[str]:
    known = {shard.name for split in SPLITS for shard in manifest.split(split).shards}
    for path in sorted(directory.iterdir()):
        if path.suffix in (".bin", ".docs") and SHARD_NAME.fullmatch(path.stem) and path.stem not in known:
            yield f"{path} is a shard the manifest does not know"


def _shard_problems(directory: Path, shard: Shard, manifest: Manifest, sources: dict[int, Counts]) -> Iterator[str]:
    intact = True
    for path, size, checksum in shard_files(directory, shard, np.dtype(manifest.dtype).itemsize):
        if size_problem(path, size):
            intact = False  # reported with the sizes
        elif file_sha256(path) != checksum:
            intact = False
            yield f"{path} is damaged: its checksum is not the one the manifest records"
    if not intact:
        return
    documents = document_map(directory, shard)
    ends, lengths = documents["end"], np.diff(documents["end"], prepend=np.uint64(0)).astype(np.int64)
    if lengths.min() < 1 or ends[-1] != shard.counts.tokens or documents["source"].max() >= len(manifest.sources):
        yield f"{directory / shard.name}.docs has document ends or sources that cannot be"
        return
    tokens = token_map(directory, shard, manifest.dtype)
    if (tokens[ends - np.uint64(1)] != manifest.tokenizer.eot).any():
        yield f"{directory / shard.name}.bin has documents that do not end with end-of-text"
    for place in np.unique(documents["source"]).tolist():
        mine = documents["source"] == place
        sources[place] = sources.get(place, Counts()) + Counts(int(mine.sum()), int(lengths[mine].sum()))


def _source_problems(directory: Path, manifest: Manifest, found: dict[str, dict[int, Counts]]) -> Iterator[str]:
    for split in SPLITS:
        for place, source in enumerate(manifest.sources):
            counts, said = found[split].get(place, Counts()), getattr(source, split)
            if (counts.documents, counts.tokens) != (said.documents, said.tokens):
                yield f"{directory}: the manifest's {split} counts of source {source.name!r} are not the shards'"
