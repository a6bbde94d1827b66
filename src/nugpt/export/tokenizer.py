"""Our tokenizers as `transformers` reads them: the same ids for the same text, nothing added."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import tokenizers

from nugpt.data.tokenizer import BYTE_IDS, END_OF_TEXT, Tokenizer


def end_of_text_name(tokenizer: Tokenizer) -> str:
    """What the exported tokenizer calls the token that ends a document."""
    return tokenizer.end_of_text or END_OF_TEXT


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The text of a tokenizer.json that encodes as training did: no token added, nothing cut or padded."""
    if tokenizer.model is None:
        return _bytes_json()
    values = json.loads(tokenizer.text)
    kept = {"truncation": None, "padding": None, "post_processor": _only_offsets(values.get("post_processor"))}
    if all(values.get(key) == value for key, value in kept.items()):
        return tokenizer.text
    return json.dumps(values | kept, ensure_ascii=False)


def tokenizer_config(tokenizer: Tokenizer, seq_len: int) -> dict[str, Any]:
    """What `AutoTokenizer` needs beside tokenizer.json."""
    name = end_of_text_name(tokenizer)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": seq_len,
        "bos_token": name,  # a document begins where another ended
        "eos_token": name,
        "pad_token": name,
        "padding_side": "left",  # so that a batch of prompts can be continued as it is
        # As in training: a text that spells out the name of a special token does not become one.
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }


def vocabulary_digest(text: str) -> str:
    """A hash of which text has which id in this tokenizer.json, however the file is laid out."""
    ids = tokenizers.Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    return hashlib.sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()


def _only_offsets(post_processor: dict[str, Any] | None) -> dict[str, Any] | None:
    """The post-processor if it adds no tokens: byte-level's corrects offsets alone."""
    return post_processor if post_processor is None or post_processor.get("type") == "ByteLevel" else None


def _bytes_json() -> str:
    """Byte-level BPE without merges whose id for a byte is the byte, and after them end-of-text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    # Byte-level writes a printable byte as that character, and the others, in order, as characters from 256 on.
    others = iter([letter for letter in alphabet if ord(letter) >= BYTE_IDS])
    letters = [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(BYTE_IDS)]
    model = tokenizers.Tokenizer(tokenizers.models.BPE({letter: byte for byte, letter in enumerate(letters)}, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens([END_OF_TEXT])
    return str(model.to_str())
