"""`nugpt data prepare`, `nugpt data inspect`, `nugpt data verify` and `nugpt bench data`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.hints import required
from nugpt.cli.show import counted, print_json, print_table

if TYPE_CHECKING:
    from nugpt.data import Manifest, Progress

# A log file wants to know that we are alive, not every block.
SECONDS_BETWEEN_LINES = 10.0
# Of `nugpt bench`, beside data: after the word data one would be taken for a source.
SECTIONS = ("paper", "lab", "kernels")


@dataclass(frozen=True)
class Prepare:
    """Turn sources into checksummed token shards; the same command goes on where it was killed."""

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, required("SOURCE …")]
    """`embedded`, hf:NAME[@REVISION][:SUBSET[:SPLIT]], or files, directories and patterns: text, jsonl, parquet."""
    out: str
    """The directory to write; empty, new, or begun by the same command."""
    tokenizer: str = "bpe:8192"
    """`bytes`, `bpe:N` (trained here, kept with the data), or the path of a tokenizer.json."""
    val_fraction: float | None = None
    """The share of documents kept for validation: 0.02 for `embedded`, else 0.005."""
    shard_tokens: int = 1 << 26
    """A shard is closed after the piece of input, 1 MiB at most, that brings its training part to this many tokens."""
    max_tokens: int | None = None
    """Stop before this many tokens, training and validation together, would be passed."""
    text_column: str = "text"
    """The column of a table, or the field of a line of JSON, that holds the text."""
    source_column: str = "source"
    """The column or field that names a document's source, where there is one; '' for none."""
    end_of_text: str | None = None
    """What a given tokenizer.json calls its end-of-text token, where it is not found by itself."""
    workers: int | None = None
    """Processes that encode; by default one per core, six at most, which keeps all of them below 1 GiB of memory."""
    force: bool = False
    """Throw away prepared data of another kind in the same directory."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Prepare and print what was made."""
        try:
            manifest = self._prepare()
        except KeyboardInterrupt:
            print(self._stopped(), file=sys.stderr)
            return 130
        _show(manifest, self.out, self.json)
        return 0

    def _prepare(self) -> Manifest:
        from nugpt.data import prepare
        from nugpt.store.atomic import check_writable

        check_writable(Path(self.out).expanduser(), "out")  # before gigabytes are hashed
        with _progress() as report:
            return prepare(
                self.sources,
                self.tokenizer,
                self.out,
                val_fraction=self.val_fraction,
                shard_tokens=self.shard_tokens,
                max_tokens=self.max_tokens,
                text_column=self.text_column,
                source_column=self.source_column,
                end_of_text=self.end_of_text,
                workers=self.workers,
                force=self.force,
                report=report,
            )

    def _stopped(self) -> str:
        """What is kept after Ctrl-C, and how to go on."""
        from nugpt.data.manifest import MANIFEST_FILE
        from nugpt.data.prepare import kept_shards

        if (Path(self.out).expanduser() / MANIFEST_FILE).is_file():  # written last, and cleared first
            return f"stopped: the data set in {self.out} is whole"
        shards, tokens = kept_shards(self.out)
        again = "the same command" + (" without --force" if self.force else "")
        if not shards:
            return f"stopped before a shard was whole: {again} begins with the first"
        return (
            f"stopped: {self.out} keeps {counted(shards, 'shard')} of {tokens:,} tokens, and {again} goes on after them"
        )


@dataclass(frozen=True)
class Inspect:
    """Say what a prepared data set holds."""

    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIRECTORY")]
    """A prepared directory."""
    json: bool = False
    """Print the manifest as JSON."""

    def run(self) -> int:
        """Print the manifest's facts, after the check that every opening makes."""
        from nugpt.data import open_dataset

        _show(open_dataset(self.path, check="sizes").manifest, self.path, self.json)
        return 0


@dataclass(frozen=True)
class Verify:
    """Read every byte of a prepared data set and compare it with the manifest."""

    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIRECTORY")]
    """A prepared directory."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print each problem on a line; the status is 1 if there are any, 2 where there is no data set."""
        from nugpt.data import verify
        from nugpt.data.manifest import MANIFEST_FILE, read_manifest

        directory = Path(self.path).expanduser()
        if not (directory / MANIFEST_FILE).exists():
            read_manifest(directory)  # refuses it as every command does: a wrong path is no damaged data set
        problems = verify(self.path)
        if self.json:
            print_json({"path": self.path, "sound": not problems, "problems": problems})
        else:
            print("\n".join(problems) if problems else f"{self.path} is sound")
        return 1 if problems else 0


@dataclass(frozen=True)
class BenchData:
    """Measure how fast text becomes tokens and tokens become batches."""

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SOURCE …]")] = ("embedded",)
    """What to prepare, as for `nugpt data prepare`."""
    tokenizer: str = "bpe:1024"
    """The tokenizer to prepare with."""
    prepared: str | None = None
    """Measure loading alone, from this prepared directory."""
    workers: int | None = None
    """Processes that encode; as `data prepare` by default."""
    batch_size: int = 64
    """Windows in a batch."""
    seq_len: int = 1024
    """Tokens in a window."""
    seconds: float = 2.0
    """How long each way of loading is measured."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Measure and print."""
        import torch

        from nugpt.bench.data import bench_data
        from nugpt.bench.timing import environment

        for source in self.sources:
            if source in SECTIONS and not Path(source).exists():
                raise ValueError(
                    f"{source!r} is a section and not a source of data: nugpt bench {source} data has both"
                )
        taken_with = environment(torch.device("cpu"))
        result = bench_data(
            self.sources, self.tokenizer, self.prepared, self.workers, self.batch_size, self.seq_len, self.seconds
        )
        if self.json:
            print_json({"environment": taken_with} | result)
            return 0
        print_environment(taken_with)
        print_rates("", result)
        return 0


def print_environment(taken_with: dict[str, Any]) -> None:
    """What figures were taken with, on one line."""
    print(", ".join(f"{name} {value}" for name, value in taken_with.items() if value is not None))


def print_rates(title: str, result: dict[str, Any]) -> None:
    """The table of what `bench_data` found."""
    found = {
        "prepare": result.get("prepare", {}).get("tokens_per_second"),
        "load": result["load"]["tokens_per_second"],
        "load, prefetched": result["load"]["tokens_per_second_prefetched"],
    }
    rows = [[name, f"{rate:,.0f}"] for name, rate in found.items() if rate is not None]
    print_table([title, "tokens/s"], rows, right=[1])


def _show(manifest: Manifest, path: str, as_json: bool) -> None:
    if as_json:
        print_json(asdict(manifest))
        return
    facts = manifest.tokenizer
    print(f"{path}  content {manifest.content_hash[:16]}  source {manifest.source_fingerprint[:16]}")
    print(
        f"tokenizer {facts.spec}: {facts.n_ids} ids, vocabulary {facts.vocab_size}, "
        f"{'two' if manifest.dtype == '<u2' else 'four'} bytes a token"
    )
    if facts.spec.startswith("bpe:") and facts.n_ids < int(facts.spec[4:]):
        print(f"the text has too few repetitions for more than {facts.n_ids} ids")
    rows = []
    for split, part in (("train", manifest.train), ("validation", manifest.validation)):
        rows.append([split, *_cells(part.counts), str(len(part.shards))])
        if len(manifest.sources) > 1:
            named = [(source.name, getattr(source, split)) for source in manifest.sources]
            rows += [[f"  {name}", *_cells(counts), ""] for name, counts in named if counts.documents]
    print_table(["", "documents", "tokens", "UTF-8 bytes", "shards"], rows, right=[1, 2, 3, 4])
    for tally in manifest.tallies:
        if tally.malformed:
            print(
                f"{tally.input}: of {tally.lines} lines {tally.malformed} were left out as malformed "
                f"({tally.bad_json} not JSON, {tally.no_text} without text, {tally.bad_utf8} not UTF-8)"
            )


def _cells(counts: Any) -> list[str]:
    return [f"{counts.documents:,}", f"{counts.tokens:,}", f"{counts.utf8_bytes:,}"]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """Report on standard error: a bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    rate = _Rate()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def report(progress: Progress) -> None:
            known = progress.fraction is not None
            bar.update(task, description=rate.line(progress), total=1.0 if known else None, completed=progress.fraction)

        yield report


def _plain_lines() -> Callable[[Progress], None]:
    last = time.monotonic()
    rate = _Rate()

    def report(progress: Progress) -> None:
        nonlocal last
        line = rate.line(progress)
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            share = "" if progress.fraction is None else f"{progress.fraction:.1%}  "
            print(f"{share}{line}", file=sys.stderr, flush=True)

    return report


class _Rate:
    """Tokens per second of this call, not counting what an earlier one finished."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def line(self, progress: Progress) -> str:
        """Return one line about the progress."""
        if progress.stage == "tokenizer":
            return "looking at the source, making the tokenizer"
        now, tokens = time.monotonic(), progress.counts.tokens
        if self._first is None:
            self._first = (now, tokens)
        rate = (tokens - self._first[1]) / max(now - self._first[0], 1e-9) if tokens > self._first[1] else 0.0
        documents = progress.counts.documents
        return f"{tokens:,} tokens  {documents:,} documents  {progress.shards} shards  {rate:,.0f} tokens/s"
