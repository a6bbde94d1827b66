"""Sources to shards: read, encode on every core, write, and go on after a kill where the last whole shard ended."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nugpt.data.encode import HASH_RANGE, Document, Encoded, SplitRule, block_documents
from nugpt.data.manifest import (
    FORMAT,
    MANIFEST_FILE,
    SHARD_NAME,
    SPLITS,
    VERSION,
    Counts,
    Manifest,
    Settings,
    Shard,
    SourceCounts,
    Split,
    Tally,
    TokenizerFacts,
    manifest_text,
    read_manifest,
    shard_from,
    write_atomically,
)
from nugpt.data.readers import Block, Columns, Position, read_blocks
from nugpt.data.shards import ShardWriter, file_sha256, shard_files, size_problem
from nugpt.data.sources import Input, Listing, list_sources
from nugpt.data.tokenizer import (
    TOKENIZER_FILE,
    Tokenizer,
    bpe_size,
    load_tokenizer,
    stored_tokenizer,
    train_bpe,
)
from nugpt.data.workers import Job, encode_in_order
from nugpt.spec import checks

DEFAULT_SHARD_TOKENS = 1 << 26
DEFAULT_VAL_FRACTION = 0.005
EMBEDDED_VAL_FRACTION = 0.02  # the corpus is small: a tenth of a megabyte would say little
BLOCK_BYTES = (4 << 10, 1 << 20)  # the least and the most
BPE_SAMPLE_BYTES = 32 << 20
# So many documents are looked at before the work begins, to see that one of them is validation.
SCAN_DOCUMENTS, SCAN_BYTES = 4096, 64 << 20
MALFORMED_AFTER_LINES = 1000
MAX_SOURCE_NAMES = 1000
# With more processes than this, all of them together could need more than a gigabyte.
MAX_DEFAULT_WORKERS = 6
# Less input than this is encoded before a second process has started.
BYTES_PER_WORKER = 4 << 20
PROGRESS_DIRECTORY, LOCK_FILE, PLAN_FILE, HASHES_FILE = ".nugpt-progress", ".lock", "plan.json", "inputs.json"


@dataclass(frozen=True)
class Progress:
    """How far preparing has come."""

    stage: str  # tokenizer or encode
    counts: Counts
    shards: int
    fraction: float | None  # of the input, None where its size is unknown


@dataclass
class Ledger:
    """What has been counted up to a block; stored with each finished part."""

    tallies: list[Tally]
    shards: dict[str, list[Shard]] = field(default_factory=lambda: {name: [] for name in SPLITS})
    sources: dict[str, dict[str, Counts]] = field(default_factory=dict)

    @property
    def counts(self) -> Counts:
        """Everything counted so far."""
        return sum((self.split_counts(name) for name in SPLITS), Counts())

    def split_counts(self, split: str) -> Counts:
        """What one split holds so far."""
        return sum((counts[split] for counts in self.sources.values()), Counts())

    def source_places(self, names: Sequence[str]) -> list[int]:
        """Return the place of each source name, in order of first appearance."""
        for name in names:
            self.sources.setdefault(name, {split: Counts() for split in SPLITS})
        if len(self.sources) > MAX_SOURCE_NAMES:
            raise ValueError(
                f"the source column names more than {MAX_SOURCE_NAMES} sources (the last one {names[-1]!r}); "
                "name another column, or '' for none"
            )
        known = list(self.sources)
        return [known.index(name) for name in names]


@dataclass(frozen=True)
class Plan:
    """What is to be made, and where."""

    directory: Path
    listing: Listing
    tokenizer: str
    given: Tokenizer | None  # None: it will be trained
    settings: Settings

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a later call to go on, or to find its work done."""
        return _identity(self.listing.fingerprint, self.tokenizer, self.given.hash if self.given else "", self.settings)

    @property
    def work(self) -> Path:
        """Where unfinished files lie."""
        return self.directory / PROGRESS_DIRECTORY

    @property
    def columns(self) -> Columns:
        """Where a row keeps its text and its source."""
        return Columns(self.settings.text_column, self.settings.source_column)

    @property
    def block_bytes(self) -> int:
        """Blocks no larger than a shard, so that small shards can be had."""
        return min(max(self.settings.shard_tokens, BLOCK_BYTES[0]), BLOCK_BYTES[1])

    def blocks(self, inputs: Sequence[Input], start: Position) -> Iterator[Block]:
        """Read blocks from a position on."""
        return read_blocks(inputs, self.columns, self.block_bytes, start)


def prepare(
    sources: Sequence[str],
    tokenizer: str | Path,
    out: str | Path,
    *,
    val_fraction: float | None = None,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    max_tokens: int | None = None,
    text_column: str = "text",
    source_column: str = "source",
    end_of_text: str | None = None,
    workers: int | None = None,
    force: bool = False,
    wait: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Manifest:
    """Write token shards and a manifest into a directory, or finish what an earlier call began there."""
    if val_fraction is None:
        val_fraction = EMBEDDED_VAL_FRACTION if list(sources) == ["embedded"] else DEFAULT_VAL_FRACTION
    settings = Settings(val_fraction, shard_tokens, max_tokens, text_column, source_column)
    _check(settings, workers)
    directory = Path(out).expanduser()
    checks.folder(directory, "out")
    hashes = _KnownHashes(directory / PROGRESS_DIRECTORY / HASHES_FILE)
    # Loaded before anything is read, so that a mistake shows at once.
    given = load_tokenizer(tokenizer, end_of_text) if bpe_size(str(tokenizer)) is None else None
    plan = Plan(directory, list_sources(sources, hashes), str(tokenizer), given, settings)
    with _locked(directory, wait):
        _refuse_foreign(directory)
        if force:
            _clear(directory)
        found = _finished(plan)
        return found if found else _make(plan, hashes, workers, report)


def _check(settings: Settings, workers: int | None) -> None:
    if not 0 <= settings.val_fraction < 1:
        raise ValueError(f"val_fraction is {settings.val_fraction}; it must lie in [0, 1)")
    if settings.shard_tokens < 1:
        raise ValueError(f"shard_tokens is {settings.shard_tokens}; it must be at least 1")
    if settings.max_tokens is not None and settings.max_tokens < 1:
        raise ValueError(f"max_tokens is {settings.max_tokens}; it must be at least 1")
    if not settings.text_column:
        raise ValueError("text_column is empty; name the column that holds the text")
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")


def _make(plan: Plan, hashes: "_KnownHashes", workers: int | None, report: Callable[[Progress], None]) -> Manifest:
    stored = _stored_plan(plan)
    if stored is None:
        _clear(plan.directory)
        plan.work.mkdir(exist_ok=True)
    try:
        if stored is None:
            report(Progress("tokenizer", Counts(), 0, None))
            stored = _begin(plan, hashes)
        encoder = stored_tokenizer(plan.directory, stored["end_of_text"])
        if encoder.hash != stored["tokenizer_hash"]:
            raise ValueError(f"{plan.directory / TOKENIZER_FILE} was changed; ask to begin anew (--force)")
        rule = SplitRule(_threshold(plan.settings.val_fraction), stored["extra"])
        job = Job(str(plan.directory), stored["end_of_text"], plan.columns, rule)
        ledger = _write_parts(plan, job, encoder, _worker_count(plan, workers), report)
    except ValueError:
        # A refused source leaves nothing behind, so that the mended one may go into the same directory.
        if not any(plan.work.glob("part-*.json")):
            _clear(plan.directory)
        raise
    manifest = _manifest(plan, encoder, ledger)
    write_atomically(plan.directory / MANIFEST_FILE, manifest_text(manifest).encode())
    shutil.rmtree(plan.work)
    return manifest


def kept_shards(directory: str | Path) -> tuple[int, int]:
    """Training shards and their tokens that an unfinished call left behind, which the same call does not make again."""
    shards = []
    for path in (Path(directory).expanduser() / PROGRESS_DIRECTORY).glob("part-*.json"):
        shards += [shard_from(one) for one in json.loads(path.read_bytes())["shards"]["train"]]
    return len(shards), sum(shard.counts.tokens for shard in shards)


# --- what was there before ---


def _identity(fingerprint: str, spec: str, tokenizer_hash: str, settings: Settings) -> dict[str, Any]:
    # A tokenizer that is made here is known by how it is made, one that is given by what it is.
    made = spec == "bytes" or spec.startswith("bpe:")
    return {
        "version": VERSION,
        "source": fingerprint,
        "tokenizer": spec if made else tokenizer_hash,
        "settings": asdict(settings),
    }


def _refuse_foreign(directory: Path) -> None:
    """Refuse a directory with files that preparing did not make."""
    names = {one.name for one in directory.iterdir()} - {LOCK_FILE}
    if MANIFEST_FILE in names:
        ours = f'"{FORMAT}"'.encode() in (directory / MANIFEST_FILE).read_bytes()
    else:
        ours = PROGRESS_DIRECTORY in names or not names
    if not ours:
        raise ValueError(f"{directory} is not empty and holds no prepared data; choose another directory")


def _finished(plan: Plan) -> Manifest | None:
    """Return the manifest of the same data made before, or None where there is work to do; refuse other data."""
    directory = plan.directory
    if not (directory / MANIFEST_FILE).exists():
        return None
    manifest = read_manifest(directory)
    facts = manifest.tokenizer
    made = _identity(manifest.source_fingerprint, facts.spec, facts.hash, manifest.settings)
    _refuse_different(directory, made, plan.identity)
    itemsize = np.dtype(manifest.dtype).itemsize
    shards = [shard for name in SPLITS for shard in manifest.split(name).shards]
    for path, size, _ in (one for shard in shards for one in shard_files(directory, shard, itemsize)):
        if problem := size_problem(path, size):
            raise ValueError(f"{problem}; ask to begin anew (--force)")
    shutil.rmtree(plan.work, ignore_errors=True)  # a kill just after the manifest was written leaves it
    return manifest


def _refuse_different(directory: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    different = [key for key in now if before.get(key) != now[key]]
    if different:
        detail = "; ".join(_difference(before.get(key), now[key]) for key in different if key != "source")
        raise ValueError(
            f"{directory} holds data made with another {' and '.join(different)}{f' ({detail})' if detail else ''}; "
            "choose another directory, or ask to overwrite (--force)"
        )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(
            f"{key} {before.get(key)} there, {now[key]} asked" for key in now if before.get(key) != now[key]
        )
    return f"{before} there, {now} asked"


def _stored_plan(plan: Plan) -> dict[str, Any] | None:
    try:
        stored: dict[str, Any] = json.loads((plan.work / PLAN_FILE).read_bytes())
    except FileNotFoundError:
        return None
    _refuse_different(plan.directory, stored["identity"], plan.identity)
    return stored


def _clear(directory: Path) -> None:
    """Remove what preparing makes, and nothing else; the manifest first, so that no half data set is left with one."""
    (directory / MANIFEST_FILE).unlink(missing_ok=True)
    for path in directory.iterdir():
        if path.name == TOKENIZER_FILE or (path.suffix in (".bin", ".docs") and SHARD_NAME.fullmatch(path.stem)):
            path.unlink()
    shutil.rmtree(directory / PROGRESS_DIRECTORY, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path, wait: bool) -> Iterator[None]:
    """Make the directory and keep two processes from preparing into it; what is refused leaves nothing new behind."""
    new = [path for path in (directory / LOCK_FILE, directory, *directory.parents) if not path.exists()]
    with _held(directory, wait):
        try:
            yield
        except ValueError:
            with contextlib.suppress(OSError):  # up to the first that is not empty
                for path in new:
                    path.unlink() if path.name == LOCK_FILE else path.rmdir()
            raise


@contextlib.contextmanager
def _held(directory: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a directory, which is made first; the system drops the lock of a process that dies."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not a POSIX system: the user sees to it
        yield
        return
    path = directory / LOCK_FILE
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise ValueError(f"{directory} is being prepared by another process; wait for it") from None
        there = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
        if there:
            yield
    if not there:  # another was refused meanwhile, and took the file away
        with _held(directory, wait):
            yield


class _KnownHashes:
    """Checksums of input files, remembered while a file's size and time stay, so that going on need not read all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            self._known = json.loads(path.read_bytes())

    def __call__(self, path: Path) -> str:
        facts = path.stat()
        key, stamp = str(path.resolve()), [facts.st_size, facts.st_mtime_ns]
        known = self._known.get(key)
        if known is None or known[:2] != stamp:
            self._known[key] = known = [*stamp, file_sha256(path)]
        return str(known[2])

    def save(self) -> None:
        """Keep the checksums for the next call."""
        write_atomically(self._path, json.dumps(self._known).encode())


# --- before the first token: tokenizer and split ---


def _begin(plan: Plan, hashes: _KnownHashes) -> dict[str, Any]:
    """Make the tokenizer, look for a validation document, and write down what this directory is for."""
    hashes.save()
    rule = _split_rule(plan)
    encoder = plan.given or train_bpe(_sample(plan, rule), bpe_size(plan.tokenizer) or 0)
    if encoder.text:
        write_atomically(plan.directory / TOKENIZER_FILE, encoder.text.encode())
    stored = {
        "identity": plan.identity,
        "extra": rule.extra,
        "end_of_text": encoder.end_of_text,
        "tokenizer_hash": encoder.hash,
    }
    write_atomically(plan.work / PLAN_FILE, json.dumps(stored).encode())
    return stored


def _threshold(val_fraction: float) -> int:
    return int(val_fraction * HASH_RANGE)


def _split_rule(plan: Plan) -> SplitRule:
    """Return the rule that puts at least one document into validation, if any is wanted at all."""
    threshold = _threshold(plan.settings.val_fraction)
    if not threshold:
        return SplitRule(0)
    smallest: int | None = None
    size = 0
    for number, document in enumerate(_documents(plan, plan.listing.inputs)):
        # A byte-level tokenizer makes no more tokens than bytes: what is counted here comes before the cap on tokens.
        size += len(document.utf8) + 1
        if number and (number >= SCAN_DOCUMENTS or size > min(SCAN_BYTES, plan.settings.max_tokens or SCAN_BYTES)):
            break
        smallest = document.hash if smallest is None else min(smallest, document.hash)
        if smallest < threshold:
            return SplitRule(threshold)
    return SplitRule(threshold, smallest)


def _documents(plan: Plan, inputs: Sequence[Input]) -> Iterator[Document]:
    for block in plan.blocks(inputs, Position()):
        yield from block_documents(block, plan.columns)[0]


def _sample(plan: Plan, rule: SplitRule) -> Iterator[str]:
    """Yield training documents from the beginning of every input, up to the cap on bytes."""
    inputs = plan.listing.inputs
    share = fair_share([one.size if one.size else BPE_SAMPLE_BYTES for one in inputs], BPE_SAMPLE_BYTES)
    for one in inputs:
        size = 0
        for document in _documents(plan, [one]):
            if size >= share:
                break
            if not rule.is_validation(document.hash):
                size += len(document.utf8)
                yield document.text


def fair_share(sizes: Sequence[int], total: int) -> int:
    """Return the most that any input may give so that together they give no more than the total."""
    left, share = total, total
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return max(1, share)
        left -= size
    return total


# --- the work ---


def _worker_count(plan: Plan, workers: int | None) -> int:
    if workers is not None:
        return workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    size = sum(one.size for one in plan.listing.inputs)
    unknown = any(one.kind == "hub" for one in plan.listing.inputs)
    return min(cores, MAX_DEFAULT_WORKERS, cores if unknown else 1 + size // BYTES_PER_WORKER)


def _write_parts(plan: Plan, job: Job, encoder: Tokenizer, workers: int, report: Callable[[Progress], None]) -> Ledger:
    """Write part after part, each the shards between two commits, from where the last one ended."""
    ledger, number, position = _committed(plan, encoder)
    _sweep(plan, ledger, number)
    if position is None:
        return ledger
    blocks = plan.blocks(plan.listing.inputs, position)
    total = sum(one.size for one in plan.listing.inputs)
    before = np.cumsum([0, *(one.size for one in plan.listing.inputs)])
    writers = _writers(plan, number)
    encoded_blocks = encode_in_order(blocks, job, workers)
    try:
        for block, encoded in encoded_blocks:
            kept = _within_cap(encoded, ledger.counts.tokens, plan.settings.max_tokens)
            _count_lines(ledger, block.group, encoded.tally)
            _add(ledger, writers, encoded, kept)
            if kept < len(encoded.lengths):
                break
            if writers["train"].counts.tokens >= plan.settings.shard_tokens:
                _commit(plan, ledger, writers, number, block.after)
                number += 1
                writers = _writers(plan, number)
            here = min(block.after.input, len(plan.listing.inputs) - 1)
            fraction = (before[here] + block.done * (before[here + 1] - before[here])) / total if total else None
            report(Progress("encode", ledger.counts, number, fraction))
        for tally in ledger.tallies:
            _refuse_malformed(tally)
        _refuse_empty(ledger, plan.settings)
        _commit(plan, ledger, writers, number, None)
    finally:
        encoded_blocks.close()
        for writer in writers.values():
            writer.abandon()
    return ledger


def _writers(plan: Plan, number: int) -> dict[str, ShardWriter]:
    return {split: ShardWriter(plan.directory, plan.work, f"{split}-{number:05d}") for split in SPLITS}


def _within_cap(encoded: Encoded, tokens: int, max_tokens: int | None) -> int:
    """Return how many documents fit under the cap on tokens."""
    if max_tokens is None:
        return len(encoded.lengths)
    return int(np.searchsorted(tokens + np.cumsum(encoded.lengths), max_tokens, side="right"))


def _count_lines(ledger: Ledger, group: int, tally: Tally) -> None:
    ledger.tallies[group] = ledger.tallies[group].plus(tally)
    if ledger.tallies[group].lines >= MALFORMED_AFTER_LINES:
        _refuse_malformed(ledger.tallies[group])


def _refuse_malformed(tally: Tally) -> None:
    if 2 * tally.malformed > tally.lines:
        raise ValueError(
            f"{tally.input} is mostly malformed: of {tally.lines} lines {tally.bad_json} are not JSON, "
            f"{tally.no_text} have no text and {tally.bad_utf8} are not UTF-8; {_remedy(tally)}"
        )


def _remedy(tally: Tally) -> str:
    """What would be right instead of most of the malformed lines."""
    if tally.bad_json >= max(tally.no_text, tally.bad_utf8):
        return "each line must be an object of JSON by itself: an array, or an object over several lines, is not read"
    return "is the text column right?" if tally.no_text >= tally.bad_utf8 else "convert it to UTF-8"


def _refuse_empty(ledger: Ledger, settings: Settings) -> None:
    if ledger.split_counts("train").documents:
        if settings.val_fraction and not ledger.split_counts("validation").documents:
            raise ValueError("no validation document fits in max_tokens; raise it, or give a val_fraction of 0")
        return
    if ledger.counts.documents:
        raise ValueError(
            "all documents have the same text or too few fit: nothing is left to train on beside validation; "
            "give more text, or a val_fraction of 0"
        )
    raise ValueError(
        "the sources hold no document"
        + (f" that fits in max_tokens {settings.max_tokens}" if settings.max_tokens else "")
    )


def _add(ledger: Ledger, writers: dict[str, ShardWriter], encoded: Encoded, kept: int) -> None:
    lengths, validation, utf8_bytes = encoded.lengths[:kept], encoded.validation[:kept], encoded.utf8_bytes[:kept]
    tokens = encoded.tokens[: lengths.sum()]
    used = encoded.sources[:kept]
    # Only sources of documents that were kept are named, in order of first appearance.
    appearing = list(dict.fromkeys(used.tolist()))
    places = dict(zip(appearing, ledger.source_places([encoded.names[one] for one in appearing]), strict=True))
    sources = np.array([places[one] for one in used.tolist()], np.int64)
    names = list(ledger.sources)
    for split, chosen in (("train", ~validation), ("validation", validation)):
        if not chosen.any():
            continue
        of_split = np.repeat(chosen, lengths)
        writers[split].add(tokens[of_split], lengths[chosen], sources[chosen], int(utf8_bytes[chosen].sum()))
        for place in np.unique(sources[chosen]):
            mine = chosen & (sources == place)
            counts = Counts(int(mine.sum()), int(lengths[mine].sum()), int(utf8_bytes[mine].sum()))
            ledger.sources[names[place]][split] += counts


def _commit(
    plan: Plan, ledger: Ledger, writers: dict[str, ShardWriter], number: int, position: Position | None
) -> None:
    """Give the part's shards their names, then write the record that says they are there."""
    for split in SPLITS:
        shard = writers[split].close()
        if shard is not None:
            ledger.shards[split].append(shard)
    record = {
        "shards": {split: [asdict(one) for one in ledger.shards[split] if _part(one) == number] for split in SPLITS},
        "sources": {name: {key: asdict(one) for key, one in counts.items()} for name, counts in ledger.sources.items()},
        "tallies": [asdict(one) for one in ledger.tallies],
        "position": None if position is None else asdict(position),
    }
    write_atomically(plan.work / f"part-{number:05d}.json", json.dumps(record).encode())


def _part(shard: Shard) -> int:
    return int(shard.name.rpartition("-")[2])


def _committed(plan: Plan, encoder: Tokenizer) -> tuple[Ledger, int, Position | None]:
    """Return what finished parts hold, the number of the next part, and where it begins (None: nothing is left)."""
    ledger, number, position = Ledger([Tally(name) for name in plan.listing.groups]), 0, Position()
    while (path := plan.work / f"part-{number:05d}.json").exists():
        record = json.loads(path.read_bytes())
        shards = {split: [shard_from(one) for one in record["shards"][split]] for split in SPLITS}
        files = [file for one in shards.values() for shard in one for file in _files(plan, shard, encoder)]
        if any(size_problem(file, size) for file, size, _ in files):
            break  # someone took a shard away: it and what follows are made again
        for split in SPLITS:
            ledger.shards[split] += shards[split]
        ledger.tallies = [Tally(**one) for one in record["tallies"]]
        ledger.sources = {
            name: {key: Counts(**one) for key, one in counts.items()} for name, counts in record["sources"].items()
        }
        number += 1
        if record["position"] is None:
            return ledger, number, None
        position = Position(**record["position"])
    return ledger, number, position


def _files(plan: Plan, shard: Shard, encoder: Tokenizer) -> list[tuple[Path, int, str]]:
    return shard_files(plan.directory, shard, encoder.dtype.itemsize)


def _sweep(plan: Plan, ledger: Ledger, number: int) -> None:
    """Remove what a killed call left: temporary files, and shards whose part was never committed."""
    known = {shard.name for shards in ledger.shards.values() for shard in shards}
    for path in plan.directory.iterdir():
        if path.suffix in (".bin", ".docs") and SHARD_NAME.fullmatch(path.stem) and path.stem not in known:
            path.unlink()
    keep = {PLAN_FILE, HASHES_FILE, *(f"part-{part:05d}.json" for part in range(number))}
    for path in plan.work.iterdir():
        if path.name not in keep:
            path.unlink()


def _manifest(plan: Plan, encoder: Tokenizer, ledger: Ledger) -> Manifest:
    made = plan.tokenizer == "bytes" or plan.given is None
    return Manifest(
        content_hash="",
        dtype=encoder.dtype.str,
        tokenizer=TokenizerFacts(
            plan.tokenizer if made else Path(plan.tokenizer).name,
            encoder.n_ids,
            encoder.vocab_size,
            encoder.eot,
            encoder.end_of_text,
            encoder.hash,
        ),
        source_fingerprint=plan.listing.fingerprint,
        inputs=plan.listing.facts,
        settings=plan.settings,
        train=Split(ledger.split_counts("train"), tuple(ledger.shards["train"])),
        validation=Split(ledger.split_counts("validation"), tuple(ledger.shards["validation"])),
        sources=tuple(SourceCounts(name, one["train"], one["validation"]) for name, one in ledger.sources.items()),
        tallies=tuple(ledger.tallies),
    ).with_content_hash()
