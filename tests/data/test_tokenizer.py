"""Tokenizers: what goes in comes out, whichever way it was made, saved and loaded."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.data.corpus import make_documents

from nugpt.data import load_tokenizer
from nugpt.data.tokenizer import Tokenizer, bpe_size, json_tokenizer, padded_vocabulary, text_pieces, train_bpe

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(make_documents(300), 340)


@given(TEXT)
def test_bytes_are_utf8(text: str) -> None:
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode([*tokenizer.encode(text), tokenizer.eot]) == text


@given(text=TEXT)
def test_bpe_gives_every_text_back(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


def test_sizes() -> None:
    tokenizer = load_tokenizer("bytes")
    assert (tokenizer.n_ids, tokenizer.eot, tokenizer.vocab_size) == (257, 256, 384)
    assert padded_vocabulary(100_278) == 100_352
    assert padded_vocabulary(128) == 128


def test_bpe_has_the_ids_it_was_asked_for(bpe: Tokenizer) -> None:
    assert bpe.n_ids == 340
    assert bpe.vocab_size == 384
    assert bpe.model is not None
    assert bpe.model.id_to_token(bpe.eot) == "<|endoftext|>"
    assert len(bpe.encode("learning rate")) < len("learning rate")


def test_bpe_is_the_same_in_every_process(bpe: Tokenizer) -> None:
    # Hash seeds differ from process to process; so would anything that iterates over a hash table.
    program = (
        "from tests.data.corpus import make_documents\n"
        "from nugpt.data.tokenizer import train_bpe\n"
        "print(train_bpe(make_documents(300), 340).hash)"
    )
    for _ in range(2):
        run = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == bpe.hash


def test_a_document_that_spells_out_the_end_does_not_end(bpe: Tokenizer) -> None:
    assert bpe.eot not in bpe.encode("one <|endoftext|> two")
    assert bpe.decode(bpe.encode("one <|endoftext|> two")) == "one <|endoftext|> two"


def test_ids_that_only_pad_the_vocabulary_have_no_text(bpe: Tokenizer) -> None:
    for tokenizer in (bpe, load_tokenizer("bytes")):
        ids = tokenizer.encode("norm")
        assert tokenizer.decode([tokenizer.vocab_size - 1, *ids, tokenizer.n_ids, tokenizer.eot]) == "norm"


def test_a_long_text_in_pieces_is_encoded_as_a_whole(bpe: Tokenizer) -> None:
    text = " ".join(make_documents(200))
    pieces = text_pieces(text, 1000)
    assert "".join(pieces) == text
    assert len(pieces) > 20
    assert max(map(len, pieces)) <= 1000
    assert bpe.model is not None
    whole = bpe.model.encode(text, add_special_tokens=False).ids
    assert [token for piece in pieces for token in bpe.encode(piece)] == whole


@given(st.text(" ab.\n", min_size=0, max_size=60), st.integers(2, 9))
def test_pieces_join_to_the_text(text: str, size: int) -> None:
    pieces = text_pieces(text, size)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces) or text == ""


def test_encode_all_is_encode_of_each(bpe: Tokenizer) -> None:
    texts = [*make_documents(20), "", "x" * 600_000]
    for text, ids in zip(texts, bpe.encode_all(texts), strict=True):
        assert {piece.dtype for piece in ids} == {np.dtype("<u2")}
        assert np.concatenate(ids).tolist() == bpe.encode(text)


def test_a_tokenizer_json_is_loaded_with_its_own_end_of_text(bpe: Tokenizer, tmp_path: Path) -> None:
    model = tokenizers.Tokenizer.from_str(bpe.text)
    model.add_special_tokens(["</s>", "<stop>"])
    model.enable_truncation(3)
    path = tmp_path / "some.json"
    model.save(str(path))
    assert load_tokenizer(path).eot == bpe.eot
    stop = load_tokenizer(path, "<stop>")
    assert (stop.eot, stop.n_ids) == (341, 342)
    assert stop.hash != load_tokenizer(path).hash
    assert len(stop.encode("learning rate of the sphere")) > 3
    with pytest.raises(ValueError, match="<none>"):
        load_tokenizer(path, "<none>")


def test_many_ids_need_four_bytes() -> None:
    vocabulary = {"<|endoftext|>": 0} | {f"w{i}": i for i in range(1, 65_500)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    assert json_tokenizer(model.to_str(), "two").dtype == np.dtype("<u2")
    # 65,537 ids no longer fit into two bytes.
    vocabulary |= {f"w{i}": i for i in range(65_500, 65_537)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    assert json_tokenizer(model.to_str(), "four").dtype == np.dtype("<u4")


@pytest.mark.parametrize("spec", ["bpe:", "bpe:x", "bpe:256", "bpe:-5", "bpe:1e3"])
def test_a_bpe_size_that_cannot_be_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=spec):
        bpe_size(spec)


def test_what_is_no_tokenizer_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text('{"model": 3}')
    (tmp_path / "latin.json").write_bytes(b"\xe9")
    for spec, word in (
        (tmp_path / "no.json", "no.json"),
        (tmp_path / "latin.json", "UTF-8"),
        ("gone.json", "gone.json"),
    ):
        with pytest.raises(ValueError, match=word) as caught:
            load_tokenizer(spec)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="prepare"):
        load_tokenizer("bpe:1000")
