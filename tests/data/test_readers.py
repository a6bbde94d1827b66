"""Readers: blocks hold the whole input once, and reading can go on after any of them."""

from pathlib import Path

import pytest
from tests.data.corpus import make_documents, write_like

from nugpt.data import readers
from nugpt.data.encode import block_documents
from nugpt.data.readers import Block, Columns, Position, read_blocks
from nugpt.data.sources import list_sources

COLUMNS = Columns("text", "source")
START = Position()


def blocks(sources: list[Path], start: Position = START, size: int = 4096) -> list[Block]:
    return list(read_blocks(list_sources([str(one) for one in sources]).inputs, COLUMNS, size, start))


def texts(found: list[Block]) -> list[str]:
    return [document.text for block in found for document in block_documents(block, COLUMNS)[0]]


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """One source of every kind, and two directories of text whose files are cut and joined."""
    paths = []
    for number, name in enumerate(["a.jsonl", "b.jsonl.gz", "c.parquet", "d.jsonl.zst"]):
        paths.append(write_like(tmp_path / name, make_documents(150, seed=number)))
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
        for number in range(5):
            text = "\n".join(make_documents(3 if name == "small" else 700, seed=number))
            (tmp_path / name / f"{number}.txt").write_text(text, encoding="utf-8")
        (tmp_path / name / "empty.txt").write_text("")
        paths.append(tmp_path / name)
    return paths


def test_the_whole_input_is_read_once(mixed: list[Path]) -> None:
    found = blocks(mixed)
    expected = [text for seed in range(4) for text in make_documents(150, seed=seed)]
    everything = texts(found)
    assert everything[:600] == expected
    joined = "".join("\n".join(make_documents(count, seed=n)) for count in (3, 700) for n in range(5))
    assert "".join(everything[600:]) == joined
    assert len(found) > 50


def test_reading_goes_on_after_any_block(mixed: list[Path]) -> None:
    found = blocks(mixed)
    for number in range(0, len(found), 7):
        rest = blocks(mixed, found[number].after)
        assert [(one.lines, one.documents, one.after) for one in rest] == [
            (one.lines, one.documents, one.after) for one in found[number + 1 :]
        ]


def test_a_long_text_is_cut_at_paragraphs_and_never_inside_a_character(tmp_path: Path) -> None:
    paragraphs = "\n\n".join(make_documents(1000))
    (tmp_path / "p.txt").write_text(paragraphs, encoding="utf-8")
    pieces = texts(blocks([tmp_path / "p.txt"]))
    assert len(pieces) > 2
    assert all(piece.endswith("\n\n") for piece in pieces[:-1])
    (tmp_path / "solid.txt").write_text("x" + "🙂" * 60_000, encoding="utf-8")
    assert "".join(texts(blocks([tmp_path / "solid.txt"]))) == "x" + "🙂" * 60_000


def test_a_line_longer_than_a_block_is_read_and_one_beyond_the_cap_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = ["a", "b" * 10_000, "c", "d" * 30_000]
    path = write_like(tmp_path / "long.jsonl", documents)
    table = write_like(tmp_path / "long.parquet", documents)
    assert texts(blocks([path])) == documents
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 20_000)
    with pytest.raises(ValueError, match=r"long\.jsonl.*20000"):
        blocks([path])
    with pytest.raises(ValueError, match=r"long\.parquet.*row 4.*20000"):
        blocks([table])


def test_the_last_line_may_lack_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n{"text": "two"}')
    found = blocks([path])
    assert texts(found) == ["one", "two"]
    tally = block_documents(found[0], COLUMNS)[1]
    assert (tally.lines, tally.empty, tally.malformed) == (3, 1, 0)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = write_like(tmp_path / name, make_documents(2000))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=name) as caught:
        blocks([path])
    assert "\n" not in str(caught.value)
