"""The hub's way of data: a local directory laid out as FineWeb-Edu is, streamed with `datasets`."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.corpus import contents, make_documents, split_texts

from nugpt.data import Progress, prepare
from nugpt.data.hub import HubName, hub_commit
from nugpt.data.sources import list_sources

CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
---
# A data set
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of several row groups each, with the columns of FineWeb-Edu; the user's own cache is left alone."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = tmp_path / "fineweb-edu"
    (root / "sample" / "10BT").mkdir(parents=True)
    (root / "data" / "CC-MAIN-2024-10").mkdir(parents=True)
    (root / "README.md").write_text(CARD)
    for number in range(2):
        texts = make_documents(120, seed=number)
        table = pa.table({"text": texts, "id": [f"<{i}>" for i in range(120)], "score": [3.5] * 120})
        pq.write_table(table, root / "sample" / "10BT" / f"00{number}_00000.parquet", row_group_size=50)
    other = pa.table({"text": make_documents(30, seed=9), "id": ["x"] * 30, "score": [1.0] * 30})
    pq.write_table(other, root / "data" / "CC-MAIN-2024-10" / "train-00000-of-00001.parquet")
    return root


def test_a_subset_is_streamed_whole_and_in_order(hub: Path, tmp_path: Path) -> None:
    manifest = prepare([f"hf:{hub}:sample-10BT"], "bytes", tmp_path / "out", val_fraction=0.0, workers=1)
    assert split_texts(tmp_path / "out", "train") == make_documents(120, seed=0) + make_documents(120, seed=1)
    assert [source.name for source in manifest.sources] == ["fineweb-edu:sample-10BT"]
    assert manifest.inputs[0].kind == "hub"
    prepare([f"hf:{hub}"], "bytes", tmp_path / "default", val_fraction=0.0, workers=1)
    assert split_texts(tmp_path / "default", "train") == make_documents(30, seed=9)


@pytest.mark.parametrize("after", [1, 2, 4])
def test_streaming_goes_on_where_it_was(hub: Path, tmp_path: Path, after: int) -> None:
    class Interrupted(Exception):
        pass

    def run(out: Path, stop: int | None = None) -> None:
        def report(progress: Progress) -> None:
            if stop is not None and progress.shards >= stop:
                raise Interrupted

        settings = {"val_fraction": 0.1, "shard_tokens": 6000, "workers": 1, "report": report}
        prepare([f"hf:{hub}:sample-10BT"], "bytes", out, **settings)  # type: ignore[arg-type]

    run(tmp_path / "undisturbed")
    with pytest.raises(Interrupted):
        run(tmp_path / "out", after)
    run(tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_the_fingerprint_is_of_the_files(hub: Path) -> None:
    before = list_sources([f"hf:{hub}:sample-10BT"]).fingerprint
    assert before != list_sources([f"hf:{hub}"]).fingerprint
    (hub / "README.md").write_text(CARD + "changed")
    assert before != list_sources([f"hf:{hub}:sample-10BT"]).fingerprint


@pytest.mark.parametrize(
    ("source", "settings", "word"),
    [
        ("{hub}:no-such-subset", {}, "no-such-subset"),
        ("{hub}:sample-10BT:no-such-split", {}, "no-such-split"),
        ("{hub}:sample-10BT", {"text_column": "body"}, "no column body; it has text, id, score"),
    ],
)
def test_a_mistaken_name_is_refused_in_a_line(
    hub: Path, tmp_path: Path, source: str, settings: dict[str, str], word: str
) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        prepare(["hf:" + source.format(hub=hub)], "bytes", tmp_path / "out", workers=1, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"nugpt\[data\]"):
        prepare([f"hf:{hub}:sample-10BT"], "bytes", tmp_path / "out", workers=1)


def test_a_name_on_the_hub_is_read_at_one_commit(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    load, calls = datasets.load_dataset, []

    def load_dataset(name: str, subset: str, **settings: object) -> object:
        calls.append((name, subset, settings))
        return load(str(hub), subset, **{**settings, "revision": None})

    monkeypatch.setattr("nugpt.data.hub.hub_commit", lambda name: "abc123")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = "hf:HuggingFaceFW/fineweb-edu:sample-10BT"
    manifest = prepare([source], "bytes", tmp_path / "out", val_fraction=0.1, workers=1)
    settings = {"split": "train", "revision": "abc123", "streaming": True}
    assert calls
    assert all(call == ("HuggingFaceFW/fineweb-edu", "sample-10BT", settings) for call in calls)
    assert manifest.train.counts.documents + manifest.validation.counts.documents == 240
    monkeypatch.setattr("nugpt.data.hub.hub_commit", lambda name: "def456")
    with pytest.raises(ValueError, match="another source"):
        prepare([source], "bytes", tmp_path / "out", val_fraction=0.1, workers=1)


def test_the_hub_is_asked_for_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def dataset_info(self: object, name: str, revision: str | None) -> SimpleNamespace:
        asked.append((name, revision))
        if name == "gone":
            raise OSError("no such\ndata set")
        return SimpleNamespace(sha="abc123")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    assert hub_commit(HubName("a/b", "v1", None, "train")) == "abc123"
    assert asked == [("a/b", "v1")]
    with pytest.raises(ValueError, match="gone: no such") as caught:
        hub_commit(HubName("gone", None, None, "train"))
    assert "\n" not in str(caught.value)
