"""Damage is found and named: by size when data is opened, by checksum when asked, and whatever a manifest claims."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.corpus import make_documents, write_like

from nugpt.data import open_dataset, prepare, verify
from nugpt.data.manifest import content_hash, digest, manifest_from


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    source = write_like(root / "corpus.jsonl", make_documents(300))
    prepare([str(source)], "bpe:300", root / "out", val_fraction=0.2, shard_tokens=5000, workers=1)
    assert verify(root / "out") == []
    return root / "out"


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def refused(data: Path, word: str, check: str = "full") -> None:
    """Both `verify` and `open_dataset` must name it, in one line."""
    problems = verify(data)
    assert any(word in problem for problem in problems), problems
    with pytest.raises(ValueError, match=word.replace(".", r"\.")) as caught:
        open_dataset(data, check=check)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["train-00001.bin", "validation-00000.bin", "train-00002.docs"])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_a_flipped_bit_is_found(data: Path, name: str, where: float) -> None:
    content = bytearray((data / name).read_bytes())
    content[int(where * (len(content) - 1))] ^= 4
    (data / name).write_bytes(content)
    refused(data, f"{name} is damaged")
    assert len(verify(data)) == 1
    # Opening checks small data in full without being asked, and says how it was checked.
    with pytest.raises(ValueError, match=name):
        open_dataset(data)
    assert open_dataset(data, check="sizes").checked == "sizes"


@pytest.mark.parametrize("name", ["train-00000.bin", "validation-00001.docs"])
def test_a_truncated_a_longer_and_a_missing_file_are_found_on_opening(data: Path, name: str) -> None:
    content = (data / name).read_bytes()
    (data / name).write_bytes(content[:-2])
    refused(data, f"{name} has {len(content) - 2} bytes", check="sizes")
    (data / name).write_bytes(content + b"\0\0")
    refused(data, f"{name} has {len(content) + 2} bytes", check="sizes")
    (data / name).unlink()
    refused(data, f"{name} is missing", check="sizes")


def test_a_shard_too_many_is_found(data: Path) -> None:
    shutil.copy(data / "train-00000.bin", data / "train-00077.bin")
    assert verify(data) == [f"{data / 'train-00077.bin'} is a shard the manifest does not know"]


def test_a_changed_or_missing_tokenizer_is_found(data: Path) -> None:
    text = (data / "tokenizer.json").read_text(encoding="utf-8")
    (data / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    refused(data, "tokenizer.json is not the tokenizer", check="sizes")
    (data / "tokenizer.json").unlink()
    refused(data, "tokenizer.json is missing", check="sizes")


def edit(data: Path, change: Callable[[dict[str, Any]], object], honest_hashes: bool) -> None:
    """Change the manifest's fields; with honest hashes its own two hashes are made to fit again."""
    path = data / "manifest.json"
    fields = json.loads(path.read_bytes())
    change(fields)
    if honest_hashes:
        del fields["manifest_hash"]
        with contextlib.suppress(ValueError):
            fields["content_hash"] = content_hash(manifest_from(fields))
        fields["manifest_hash"] = digest(fields)
    path.write_text(json.dumps(fields))


def count_more(fields: dict[str, Any]) -> None:
    fields["train"]["counts"]["tokens"] += 1


def drop_shard(fields: dict[str, Any]) -> None:
    fields["train"]["shards"].pop()


def swap_shards(fields: dict[str, Any]) -> None:
    shards = fields["train"]["shards"]
    shards[0]["tokens_sha256"], shards[1]["tokens_sha256"] = shards[1]["tokens_sha256"], shards[0]["tokens_sha256"]


def rename_source(fields: dict[str, Any]) -> None:
    fields["sources"].insert(0, {"name": "other", "train": fields["sources"][0]["train"], "validation": {}})


@pytest.mark.parametrize("change", [count_more, drop_shard, swap_shards, rename_source])
def test_an_edited_manifest_is_found_by_its_own_hash(data: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(data, change, honest_hashes=False)
    refused(data, "manifest.json disagrees with its own hash", check="sizes")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (count_more, "train counts are not the sum"),
        (drop_shard, "train counts are not the sum"),
        (swap_shards, "train-00000.bin is damaged"),
        (rename_source, "sum of its sources"),
    ],
)
def test_an_edited_manifest_with_fitting_hashes_is_found_by_the_shards(
    data: Path, change: Callable[[dict[str, Any]], object], word: str
) -> None:
    edit(data, change, honest_hashes=True)
    refused(data, word)


def test_counts_moved_between_sources_are_found(tmp_path: Path) -> None:
    rows = [json.dumps({"text": text, "source": f"s{i % 2}"}) for i, text in enumerate(make_documents(60))]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    prepare([str(tmp_path / "a.jsonl")], "bytes", tmp_path / "out", val_fraction=0.2, workers=1)

    def swap(fields: dict[str, Any]) -> None:
        one, two = fields["sources"]
        one["train"], two["train"] = two["train"], one["train"]

    edit(tmp_path / "out", swap, honest_hashes=True)
    refused(tmp_path / "out", "counts of source 's0'")


def test_documents_that_do_not_end_where_they_should_are_found(data: Path) -> None:
    # A whole rewrite, checksums and all: only the documents' ends tell that something is wrong.
    tokens = np.fromfile(data / "train-00000.bin", "<u2")
    tokens[1:] = tokens[:-1].copy()
    tokens.tofile(data / "train-00000.bin")

    def change(fields: dict[str, Any]) -> None:
        fields["train"]["shards"][0]["tokens_sha256"] = hashlib.sha256(tokens.tobytes()).hexdigest()

    edit(data, change, honest_hashes=True)
    refused(data, "train-00000.bin has documents that do not end with end-of-text")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not JSON"),
        ("[1, 2]", "not the manifest"),
        ('{"format": "nugpt-data", "version": 99}', "version 99"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_manifest_is_refused(data: Path, text: str, word: str) -> None:
    (data / "manifest.json").write_text(text)
    refused(data, word)


def test_a_directory_without_data_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        refused(path, "nugpt data prepare")


def test_a_shard_cannot_lie_outside_its_directory(data: Path) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["train"]["shards"][0]["name"] = "../train-00000"

    edit(data, change, honest_hashes=True)
    refused(data, "is not the name of a shard")


def test_large_data_is_read_in_full_once_and_again_when_a_file_has_changed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nugpt.data.dataset.FULL_CHECK_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert open_dataset(data).checked == "full"
    assert open_dataset(data).checked == "sizes"
    shard = max(data.rglob("*.bin"), key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=shard.name):
        open_dataset(data)
