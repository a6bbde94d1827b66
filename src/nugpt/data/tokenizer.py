"""Text to ids and back: bytes, byte-level BPE trained here, or any tokenizer.json."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from nugpt.spec.checks import one_line

VOCABULARY_MULTIPLE = 128
END_OF_TEXT = "<|endoftext|>"
# What published tokenizers call the token that ends a document, the commonest first.
END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
BYTE_IDS = 256
# `tokenizers` keeps about a hundred bytes per token while it encodes, so a long text goes through in pieces.
PIECE_CHARACTERS = 1 << 17
TOKENIZER_FILE = "tokenizer.json"


def padded_vocabulary(n_ids: int) -> int:
    """Round the number of ids up to a multiple of 128, which is what matrix products on a GPU want."""
    return -(-n_ids // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


@dataclass(frozen=True)
class Tokenizer:
    """Encodes a document without its end-of-text; `model` is None for plain bytes."""

    n_ids: int
    eot: int
    hash: str
    model: tokenizers.Tokenizer | None
    text: str  # the tokenizer.json it came from, "" for bytes
    end_of_text: str | None  # what the file calls the token that ends a document, None for bytes

    @property
    def vocab_size(self) -> int:
        """The padded vocabulary a model is built with."""
        return padded_vocabulary(self.n_ids)

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
        """The smallest little-endian type that holds every id."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which the name of a special token is ordinary text."""
        return [int(token) for piece in self.encode_all([text])[0] for token in piece]

    def encode_all(self, texts: Sequence[str]) -> list[list[NDArray[np.generic]]]:
        """Return the ids of each text as arrays of `dtype`, one for each piece of a long text."""
        if self.model is None:
            return [[np.frombuffer(text.encode(), np.uint8).astype(self.dtype)] for text in texts]
        pieces = [text_pieces(text) for text in texts]
        encoded = self._encode_pieces([piece for group in pieces for piece in group])
        return [[next(encoded) for _ in group] for group in pieces]

    def _encode_pieces(self, pieces: Sequence[str]) -> Iterator[NDArray[np.generic]]:
        assert self.model is not None
        start = characters = 0
        for end, piece in enumerate(pieces, 1):
            characters += len(piece)
            if characters >= PIECE_CHARACTERS or end == len(pieces):
                for encoding in self.model.encode_batch_fast(pieces[start:end], add_special_tokens=False):
                    yield np.array(encoding.ids, self.dtype)
                start, characters = end, 0

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; end-of-text and ids that only pad the vocabulary have none."""
        known = [int(token) for token in ids if 0 <= token < self.n_ids and token != self.eot]
        if self.model is None:
            return bytes(known).decode(errors="replace")
        return str(self.model.decode(known, skip_special_tokens=True))


def byte_tokenizer() -> Tokenizer:
    """Return the tokenizer whose ids are the 256 bytes of UTF-8 and end-of-text."""
    return Tokenizer(BYTE_IDS + 1, BYTE_IDS, hashlib.sha256(b"nugpt bytes").hexdigest(), None, "", None)


def json_tokenizer(text: str, name: str, end_of_text: str | None = None) -> Tokenizer:
    """Return the tokenizer that the text of a tokenizer.json describes; `name` is for messages."""
    try:
        model = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # `tokenizers` raises bare Exception for whatever is wrong with the file
        raise ValueError(f"{name} is not a tokenizer.json: {one_line(error)}") from None
    model.no_truncation()
    model.no_padding()
    model.encode_special_tokens = True  # a document that spells out <|endoftext|> must not end itself
    wanted = END_OF_TEXT_NAMES if end_of_text is None else (end_of_text,)
    found = {one: token for one in wanted if (token := model.token_to_id(one)) is not None}
    if not found:
        raise ValueError(f"{name} has no end-of-text token among {', '.join(wanted)}; name the right one")
    name_of_eot, eot = next(iter(found.items()))
    n_ids = 1 + max(model.get_vocab(with_added_tokens=True).values())
    digest = hashlib.sha256(text.encode() + b"\n%d" % eot).hexdigest()
    return Tokenizer(n_ids, eot, digest, model, text, name_of_eot)


def load_tokenizer(spec: str | Path, end_of_text: str | None = None) -> Tokenizer:
    """Load `bytes`, a tokenizer.json, or the tokenizer kept in a prepared directory."""
    if str(spec) == "bytes":
        return byte_tokenizer()
    if bpe_size(str(spec)) is not None:
        raise ValueError(f"{spec} is trained by `nugpt data prepare`; give the prepared directory or a tokenizer.json")
    path = Path(spec)
    if path.is_dir():
        from nugpt.data.manifest import read_manifest

        return stored_tokenizer(path, read_manifest(path).tokenizer.end_of_text)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"no tokenizer {spec}; give bytes, bpe:N or the path of a tokenizer.json") from None
    except UnicodeDecodeError:
        raise ValueError(f"{spec} is not a tokenizer.json: it is not UTF-8") from None
    return json_tokenizer(text, str(spec), end_of_text)


def stored_tokenizer(directory: Path, end_of_text: str | None) -> Tokenizer:
    """Load the tokenizer kept with a prepared data set (None as end-of-text means plain bytes)."""
    if end_of_text is None:
        return byte_tokenizer()
    path = directory / TOKENIZER_FILE
    try:
        return json_tokenizer(path.read_text(encoding="utf-8"), str(path), end_of_text)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: prepare the data again") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8: prepare the data again") from None


def bpe_size(spec: str) -> int | None:
    """Return N of `bpe:N`, or None where the text is something else."""
    if not spec.startswith("bpe:"):
        return None
    size = int(spec[4:]) if re.fullmatch(r"[0-9]{1,9}", spec[4:]) else 0
    if size <= BYTE_IDS:
        raise ValueError(f"tokenizer {spec}: N must be a whole number above {BYTE_IDS} (256 bytes and end-of-text)")
    return size


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """Train byte-level BPE with at most `size` ids, end-of-text among them; the same texts give the same tokenizer."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator((piece for text in texts for piece in text_pieces(text)), trainer)
    return json_tokenizer(model.to_str(), f"bpe:{size}", END_OF_TEXT)


def text_pieces(text: str, size: int = PIECE_CHARACTERS) -> list[str]:
    """Cut a long text before single spaces between letters, where byte-level BPE never joins two pieces."""
    pieces, start = [], 0
    while len(text) - start > size:
        cut = _cut(text, start, start + size)
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def _cut(text: str, start: int, end: int) -> int:
    at = text.rfind(" ", start + 1, end)
    while at > start:
        if text[at - 1].isalpha() and text[at + 1].isalpha():
            return at
        at = text.rfind(" ", start + 1, at)
    return end
