"""Sources: what the user names is what is read, in an order and with a fingerprint that do not depend on the place."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from nugpt.data.embedded import documentation_topics, embedded_files
from nugpt.data.hub import HubName, parse_hub
from nugpt.data.sources import file_kind, list_sources


def test_embedded_is_the_standard_library_without_its_tests() -> None:
    listing = list_sources(["embedded"])
    names = [Path(one.path).name for one in listing.inputs]
    assert {"argparse.py", "typing.py", "topics.py"} <= set(names)
    assert not [one.path for one in listing.inputs if {"site-packages", "test", "tests"} & set(Path(one.path).parts)]
    assert [one.kind for one in listing.inputs if one.path.endswith("topics.py")] == ["topics"]
    assert listing.groups == ("code", "documentation")
    assert listing.fingerprint == list_sources(["embedded"]).fingerprint


def test_embedded_leaves_out_what_is_not_python_itself(tmp_path: Path) -> None:
    kept = ["b.py", "a/c.py", "pydoc_data/topics.py"]
    for name in [*kept, "site-packages/x.py", "a/test/t.py", "a/__pycache__/p.py", "_sysconfigdata_x.py", "notes.txt"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    found = [(path.relative_to(tmp_path).as_posix(), name) for path, name in embedded_files(tmp_path)]
    assert found == [("a/c.py", "code"), ("b.py", "code"), ("pydoc_data/topics.py", "documentation")]
    with pytest.raises(ValueError, match=r"\.py"):
        embedded_files(tmp_path / "a" / "test" / "nothing")


def test_topics_are_read_and_never_run() -> None:
    module = "# made by a tool\ntopics = {'if': 'The if\\n' 'statement', 'assert': 'The assert'}\n"
    assert documentation_topics(module) == ["The assert", "The if\nstatement"]
    with pytest.raises(ValueError, match="malformed"):
        documentation_topics("topics = {'a': print('run')}")
    assert documentation_topics("other = 1") == ["other = 1"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"),
        ("a.MD", "text"),
        ("a.py.gz", "text"),
        ("a.jsonl", "lines"),
        ("a.jsonl.gz", "lines"),
        ("a.jsonl.zst", "lines"),
        ("a.json.gz", "lines"),
        ("a.parquet", "parquet"),
        ("a.parquet.gz", None),
        ("a.bin", None),
        ("a", None),
        ("a.gz", None),
    ],
)
def test_the_suffix_says_how_a_file_is_read(name: str, kind: str | None) -> None:
    assert file_kind(Path(name)) == kind


def test_a_directory_is_read_in_order_of_its_names(tmp_path: Path) -> None:
    root = tmp_path / "books"
    for name in ["b.txt", "a/z.txt", "c.jsonl", ".hidden/x.txt", ".y.txt", "picture.png"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    listing = list_sources([str(root)])
    assert [os.path.relpath(one.path, root) for one in listing.inputs] == ["a/z.txt", "b.txt", "c.jsonl"]
    assert {one.source for one in listing.inputs} == {"books"}
    # All text files are counted together, a file of lines by itself.
    assert listing.groups == ("books (text)", "c.jsonl")
    assert [one.group for one in listing.inputs] == [0, 0, 1]
    assert len(list_sources([str(root / "**" / "*.txt")]).inputs) == 2


def test_the_fingerprint_is_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    (tmp_path / "one" / "books").mkdir(parents=True)
    (tmp_path / "one" / "books" / "a.txt").write_text("same")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    before = list_sources([str(tmp_path / "one" / "books")])
    moved = list_sources([str(tmp_path / "two" / "books")])
    assert moved.fingerprint == before.fingerprint
    assert moved.facts == before.facts
    (tmp_path / "two" / "books" / "a.txt").write_text("Same")
    assert list_sources([str(tmp_path / "two" / "books")]).fingerprint != before.fingerprint


@pytest.mark.parametrize("source", ["missing.txt", "missing/*.txt", "hf:", "hf:a:b:c:d"])
def test_what_is_no_source_is_refused_by_name(source: str) -> None:
    with pytest.raises(ValueError) as caught:
        list_sources([source])
    assert source in str(caught.value)


def test_a_file_or_directory_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"")
    for source in (tmp_path / "picture.png", tmp_path):
        with pytest.raises(ValueError, match=r"\.parquet"):
            list_sources([str(source)])
    with pytest.raises(ValueError, match="no source"):
        list_sources([])


def test_a_folder_that_may_not_be_read_is_named_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    locked = tmp_path / "locked"
    locked.mkdir()
    scan = os.scandir

    def scandir(folder: str) -> object:  # root, who may run this, can read anything
        if Path(folder) == locked:
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="locked"):
        list_sources([str(tmp_path)])


def test_names_of_the_hub(tmp_path: Path) -> None:
    edu = "HuggingFaceFW/fineweb-edu"
    assert parse_hub(f"hf:{edu}") == HubName(edu, None, None, "train")
    assert parse_hub(f"hf:{edu}:sample-10BT") == HubName(edu, None, "sample-10BT", "train")
    assert parse_hub(f"hf:{edu}@v1:sample-10BT:test") == HubName(edu, "v1", "sample-10BT", "test")
    assert parse_hub(f"hf:{edu}::test") == HubName(edu, None, None, "test")
    place = tmp_path / "at@home"
    place.mkdir()
    assert parse_hub(f"hf:{place}") == HubName(str(place), None, None, "train")
