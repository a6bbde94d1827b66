"""Inputs to blocks of about a megabyte, always cut at the same places, so that reading can go on after any block."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nugpt.data.embedded import documentation_topics
from nugpt.data.hub import hub_examples
from nugpt.data.sources import Input
from nugpt.spec.checks import one_line

# A document is held in memory while it is encoded; this keeps the largest one well below our gigabyte.
MAX_DOCUMENT_BYTES = 8 << 20
# A text file longer than this becomes several documents, so that one long file still has a validation part.
TEXT_DOCUMENT_BYTES = 64 << 10
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Position:
    """Where to go on: the input and how much of it was read (bytes, rows, examples), with the hub's own state."""

    input: int = 0
    offset: int = 0
    state: dict[str, Any] | None = None


@dataclass(frozen=True)
class Block:
    """A piece of input that a worker turns into tokens: raw lines of JSON, or documents as UTF-8."""

    group: int
    source: str
    lines: bytes | None
    documents: tuple[tuple[bytes | None, str | None], ...]
    after: Position
    done: float  # the share of this input that has been read, for progress

    @property
    def size(self) -> int:
        """Bytes of input it holds."""
        return len(self.lines or b"") + sum(len(text or b"") for text, _ in self.documents)


@dataclass(frozen=True)
class Columns:
    """Where a table or a line of JSON keeps its text and, if it does, its source."""

    text: str
    source: str


Row = tuple[bytes | None, str | None, Callable[[], Position], float]


def read_blocks(inputs: Sequence[Input], columns: Columns, block_bytes: int, start: Position) -> Iterator[Block]:
    """Yield the blocks from a position on; the cuts do not depend on where reading started."""
    numbered = list(enumerate(inputs))[start.input :]
    for group, members in itertools.groupby(numbered, key=lambda one: one[1].group):
        for kind, run in itertools.groupby(members, key=lambda one: one[1].kind):
            places = [(i, one, start if i == start.input else Position(i)) for i, one in run]
            if kind == "lines":
                for _, one, place in places:
                    yield from _line_blocks(one, place, block_bytes)
            else:
                rows = itertools.chain.from_iterable(_rows(one, place, columns) for _, one, place in places)
                yield from _row_blocks(rows, group, places[0][1].source, block_bytes)


def _row_blocks(rows: Iterator[Row], group: int, source: str, block_bytes: int) -> Iterator[Block]:
    held: list[tuple[bytes | None, str | None]] = []
    size = 0
    for text, name, after, done in rows:
        held.append((text, name))
        size += len(text or b"") + 1  # the end-of-text; and rows without text fill a block as well
        if size >= block_bytes:
            yield Block(group, source, None, tuple(held), after(), done)
            held, size = [], 0
    if held:
        yield Block(group, source, None, tuple(held), after(), done)


def _rows(one: Input, place: Position, columns: Columns) -> Iterator[Row]:
    if one.kind == "text":
        return _text_rows(one, place)
    if one.kind == "topics":
        return _topic_rows(one, place)
    if one.kind == "parquet":
        return _parquet_rows(one, place, columns)
    assert one.kind == "hub", one.kind
    return _hub_rows(one, place, columns)


def _text_rows(one: Input, place: Position) -> Iterator[Row]:
    with _open_bytes(one, place.offset) as (read, done):
        offset, buffer = place.offset, read(TEXT_DOCUMENT_BYTES + 1)
        while len(buffer) > TEXT_DOCUMENT_BYTES:
            cut = _text_cut(buffer[:TEXT_DOCUMENT_BYTES])
            offset += cut
            yield buffer[:cut], None, partial(Position, place.input, offset), done()
            buffer = buffer[cut:] + read(cut)
        if buffer or not offset:
            yield buffer, None, partial(Position, place.input + 1), 1.0


def _text_cut(text: bytes) -> int:
    half = len(text) // 2
    for mark in (b"\n\n", b"\n", b" "):
        at = text.rfind(mark, half)
        if at >= 0:
            return at + len(mark)
    cut = len(text)
    # A character of UTF-8 goes on with bytes 10xxxxxx, at most three of them.
    while cut > len(text) - 4 and text[cut - 1] & 0xC0 == 0x80:
        cut -= 1
    return cut - 1 if text[cut - 1] >= 0xC0 else cut


def _topic_rows(one: Input, place: Position) -> Iterator[Row]:
    with open(one.path, encoding="utf-8") as file:
        topics = documentation_topics(file.read())
    for number, topic in enumerate(topics[place.offset :], place.offset + 1):
        after = Position(place.input, number) if number < len(topics) else Position(place.input + 1)
        yield topic.encode(), None, partial(_same, after), number / len(topics)


def _same(position: Position) -> Position:
    return position


def _parquet_rows(one: Input, place: Position, columns: Columns) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without pre-buffering a row group is read page by page, so its size does not matter.
        with pq.ParquetFile(one.path, pre_buffer=False, buffer_size=READ_BYTES) as file:
            names = _parquet_columns(one, file, columns)
            first = 0
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                if first + group.num_rows > place.offset:
                    rows = _group_rows(file, number, names, _batch_rows(group))
                    for row, (text, name) in enumerate(rows, first + 1):
                        if row > place.offset:
                            after = partial(Position, place.input, row)
                            yield _within_cap(text, one.path, row), name, after, row / file.metadata.num_rows
                first += group.num_rows
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{one.path} is not a readable parquet file: {one_line(error)}") from None


def _parquet_columns(one: Input, file: Any, columns: Columns) -> list[str]:
    import pyarrow as pa

    schema = file.schema_arrow
    if columns.text not in schema.names:
        raise ValueError(f"{one.path} has no column {columns.text}; it has {', '.join(schema.names)}")
    kind = schema.field(columns.text).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    textual = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(check(kind) for check in textual):
        raise ValueError(f"{one.path}: column {columns.text} holds {kind}, not text")
    return [columns.text, *([columns.source] if columns.source in schema.names else [])]


def _batch_rows(group: Any) -> int:
    """Return how many rows make about a megabyte, by the row group's own account of its size."""
    return int(min(4096, max(1, READ_BYTES * group.num_rows // max(1, group.total_byte_size))))


def _group_rows(file: Any, number: int, names: list[str], rows: int) -> Iterator[tuple[bytes | None, str | None]]:
    import pyarrow as pa

    for batch in file.iter_batches(rows, row_groups=[number], columns=names, use_threads=False):
        # As bytes: the worker decodes, and counts what is not UTF-8.
        plain = [_plain(batch.column(name)) for name in names]
        texts = plain[0].cast(pa.large_binary()).to_pylist()
        sources = plain[1].cast(pa.string()).to_pylist() if names[1:] else [None] * len(texts)
        yield from zip(texts, sources, strict=True)


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _hub_rows(one: Input, place: Position, columns: Columns) -> Iterator[Row]:
    assert one.hub is not None
    examples = hub_examples(one.hub, (columns.text, columns.source), place.offset, place.state)
    for number, (example, state) in enumerate(examples, place.offset + 1):
        text, source = example.get(columns.text), example.get(columns.source)
        # A lone surrogate is passed on for the worker to count as not UTF-8.
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else None
        name = source if isinstance(source, str) else None
        after = partial(_hub_position, place.input, number, state)
        yield _within_cap(data, f"hf:{one.path}", number), name, after, 0.0


def _hub_position(number: int, offset: int, state: Callable[[], dict[str, Any]]) -> Position:
    return Position(number, offset, state())


def _line_blocks(one: Input, place: Position, block_bytes: int) -> Iterator[Block]:
    with _open_bytes(one, place.offset) as (read, done):
        offset, buffer, ended = place.offset, b"", False
        while True:
            while not ended and len(buffer) <= block_bytes:
                chunk = read(READ_BYTES)
                buffer, ended = buffer + chunk, not chunk
            if not buffer:
                return
            cut = len(buffer) if len(buffer) <= block_bytes else buffer.rfind(b"\n", 0, block_bytes) + 1
            while not cut:  # a line longer than a block
                cut = buffer.find(b"\n", block_bytes) + 1 or (len(buffer) if ended else 0)
                if (cut or len(buffer)) > MAX_DOCUMENT_BYTES:
                    raise ValueError(
                        f"{one.path}: the line at byte {offset} is longer than {MAX_DOCUMENT_BYTES} bytes, "
                        "the longest document that can be read; split it"
                    )
                if not cut:
                    chunk = read(READ_BYTES)
                    buffer, ended = buffer + chunk, not chunk
            offset += cut
            yield Block(one.group, one.source, buffer[:cut], (), Position(place.input, offset), done())
            buffer = buffer[cut:]


@contextlib.contextmanager
def _open_bytes(one: Input, offset: int) -> Iterator[tuple[Callable[[int], bytes], Callable[[], float]]]:
    """Open a file at an offset: return how to read so many bytes (fewer only at the end), and how far one is."""
    with open(one.path, "rb") as raw:
        stream: Any = raw
        if one.compression:
            import pyarrow as pa

            stream = pa.CompressedInputStream(pa.PythonFile(raw), one.compression)

        def read(size: int) -> bytes:
            try:
                return bytes(stream.read(size))
            except OSError as error:
                raise ValueError(f"{one.path} cannot be read: {one_line(error)}") from None

        def done() -> float:
            return raw.tell() / max(1, one.size)

        if not one.compression:
            raw.seek(offset)
        while one.compression and offset > 0:  # a compressed file can only be read from its beginning
            offset -= len(read(min(offset, READ_BYTES))) or offset
        yield read, done


def _within_cap(text: bytes | None, where: str, row: int) -> bytes | None:
    if text is not None and len(text) > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{where}: the text of row {row} has {len(text)} bytes, "
            f"and the longest document that can be read has {MAX_DOCUMENT_BYTES}; split it"
        )
    return text
