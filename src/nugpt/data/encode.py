"""Blocks to tokens: the part of preparing that runs on every core, a pure function of the block."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nugpt.data.manifest import Tally
from nugpt.data.readers import Block, Columns
from nugpt.data.tokenizer import Tokenizer

HASH_RANGE = 1 << 64


@dataclass(frozen=True)
class SplitRule:
    """Which documents are validation: those whose hash is small, and one more where chance would leave none."""

    threshold: int
    extra: int | None = None

    def is_validation(self, document_hash: int) -> bool:
        """Decide by the text alone, so that copies of a document fall on one side."""
        return document_hash < self.threshold or document_hash == self.extra


@dataclass(frozen=True)
class Document:
    """One document: its text, the same as UTF-8, and the name of its source."""

    text: str
    utf8: bytes
    source: str

    @property
    def hash(self) -> int:
        """A number below 2^64 that depends on the text alone."""
        return int.from_bytes(hashlib.blake2b(self.utf8, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Encoded:
    """The documents of a block one after the other, each ended by end-of-text."""

    tokens: NDArray[np.generic]
    lengths: NDArray[np.int64]
    utf8_bytes: NDArray[np.int64]
    validation: NDArray[np.bool_]
    sources: NDArray[np.int64]  # places in `names`
    names: tuple[str, ...]
    tally: Tally


def encode_block(block: Block, tokenizer: Tokenizer, columns: Columns, rule: SplitRule) -> Encoded:
    """Turn a block into tokens and say which of its documents are validation."""
    documents, tally = block_documents(block, columns)
    names = tuple(dict.fromkeys(document.source for document in documents))
    ids = tokenizer.encode_all([document.text for document in documents])
    end = np.array([tokenizer.eot], tokenizer.dtype)
    tokens = [part for pieces in ids for part in (*pieces, end)]
    return Encoded(
        tokens=np.concatenate(tokens) if tokens else end[:0],
        lengths=np.array([sum(map(len, pieces)) + 1 for pieces in ids], np.int64),
        utf8_bytes=np.array([len(document.utf8) for document in documents], np.int64),
        validation=np.array([rule.is_validation(document.hash) for document in documents], np.bool_),
        sources=np.array([names.index(document.source) for document in documents], np.int64),
        names=names,
        tally=tally,
    )


def block_documents(block: Block, columns: Columns) -> tuple[list[Document], Tally]:
    """Return the documents of a block, and count what could not be used."""
    documents = []
    counts = {"empty": 0, "bad_json": 0, "no_text": 0, "bad_utf8": 0}
    rows = block.documents if block.lines is None else block.lines.split(b"\n")
    # What follows the last newline is a line only where the file does not end with one.
    lines = len(rows) - (block.lines is not None and not rows[-1])
    for row in rows[:lines]:
        found = _line_document(row, columns, block.source) if isinstance(row, bytes) else _row_document(row, block)
        if isinstance(found, Document):
            documents.append(found)
        else:
            counts[found] += 1
    return documents, Tally("", lines, **counts)


def _line_document(line: bytes, columns: Columns, default: str) -> Document | str:
    if not line.strip():
        return "empty"
    try:
        fields = json.loads(line)
    except UnicodeDecodeError:
        return "bad_utf8"
    except (ValueError, RecursionError):
        return "bad_json"
    text = fields.get(columns.text) if isinstance(fields, dict) else None
    if not isinstance(text, str):
        return "no_text"
    try:
        data = text.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, UTF-8 cannot
        return "bad_utf8"
    source = fields.get(columns.source)
    return Document(text, data, source if isinstance(source, str) and source else default) if text else "empty"


def _row_document(row: tuple[bytes | None, str | None], block: Block) -> Document | str:
    data, source = row
    if data is None:
        return "no_text"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "bad_utf8"
    return Document(text, data, source or block.source) if text else "empty"
