"""Exported tokenizers give the ids that training saw, whatever the text."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from nugpt.data.tokenizer import Tokenizer, byte_tokenizer, json_tokenizer, train_bpe
from nugpt.export.tokenizer import tokenizer_config, tokenizer_json

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(["the naïve café 你好 🙂 the of sphere " * 20], 280)


def with_beginning(text: str) -> str:
    """A tokenizer.json that adds a token before every text, cuts it short and pads it, as some published ones do."""
    model = tokenizers.Tokenizer.from_str(text)
    eot = model.token_to_id("<|endoftext|>")
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", eot)]
    )
    model.enable_truncation(4)
    model.enable_padding(length=12)
    return str(model.to_str())


def exported(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    model = tokenizers.Tokenizer.from_str(tokenizer_json(tokenizer))
    model.encode_special_tokens = tokenizer_config(tokenizer, 16)["split_special_tokens"]
    return model


@given(TEXTS)
@example("naïve 你好 🙂🙂 \ufffd e\u0301 \x00\x7f\xad\r\n\t  two")
@example("ends <|endoftext|> here")
def test_a_text_has_the_ids_it_had_in_training(bpe: Tokenizer, text: str) -> None:
    published = json_tokenizer(with_beginning(bpe.text), "published")
    for tokenizer in (byte_tokenizer(), bpe, published):
        model = exported(tokenizer)
        assert model.encode(text).ids == tokenizer.encode(text)  # special tokens and all


@given(st.lists(st.integers(0, 256), max_size=24))
@example([0xF0, 0x9F, 0x99, 0xF0, 0x9F, 0x99, 0x82, 256, 0xFF, 0x61])
def test_any_bytes_decode_alike(ids: list[int]) -> None:
    assert exported(byte_tokenizer()).decode(ids, skip_special_tokens=True) == byte_tokenizer().decode(ids)


def test_the_ids_of_bytes_are_the_bytes_and_end_of_text_follows() -> None:
    model = exported(byte_tokenizer())
    assert model.get_vocab_size() == 257
    assert model.token_to_id("<|endoftext|>") == 256
    assert model.encode("aé").ids == [0x61, 0xC3, 0xA9]


def test_a_tokenizer_that_adds_nothing_is_kept_to_the_letter(bpe: Tokenizer) -> None:
    assert tokenizer_json(bpe) == bpe.text
    values = json.loads(bpe.text) | {"post_processor": {"type": "ByteLevel", "add_prefix_space": False}}
    offsets = json_tokenizer(json.dumps(values | {"post_processor": None}), "offsets")
    assert tokenizer_json(offsets) == offsets.text


def test_end_of_text_begins_ends_and_pads(bpe: Tokenizer) -> None:
    for tokenizer in (byte_tokenizer(), bpe):
        config = tokenizer_config(tokenizer, 16)
        assert {config[f"{name}_token"] for name in ("bos", "eos", "pad")} == {"<|endoftext|>"}
        assert exported(tokenizer).token_to_id(config["eos_token"]) == tokenizer.eot
        assert (config["padding_side"], config["model_max_length"]) == ("left", 16)
