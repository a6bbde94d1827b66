"""Preparing: the same shards whatever the form of the input and the number of workers, and nothing lost or doubled."""

import json
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.corpus import contents, jsonl, make_documents, split_documents, split_texts, write_like

from nugpt.data import Manifest, Progress, cached_embedded, open_dataset, prepare, verify
from nugpt.data.manifest import Counts
from nugpt.data.prepare import _locked, fair_share

DOCUMENTS = make_documents(400)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_like(tmp_path / "corpus.jsonl", DOCUMENTS)


def make(source: Path | str, out: Path, tokenizer: str = "bytes", **settings: object) -> Manifest:
    return prepare([str(source)], tokenizer, out, **{"workers": 1, "val_fraction": 0.1, **settings})  # type: ignore[arg-type]


def test_every_document_is_in_one_split_once_and_in_order(source: Path, tmp_path: Path) -> None:
    manifest = make(source, tmp_path / "out", shard_tokens=5000)
    train, validation = (split_texts(tmp_path / "out", split) for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(DOCUMENTS)
    assert train == [text for text in DOCUMENTS if text in set(train)]
    # Binomial(400, 0.1): 40 expected, and 15 to 70 is more than four standard deviations wide on either side.
    assert 15 < len(validation) < 70
    assert len(manifest.train.shards) > 3
    for split, texts in (("train", train), ("validation", validation)):
        size = sum(len(text.encode()) for text in texts)
        assert manifest.split(split).counts == Counts(len(texts), size + len(texts), size)
    assert verify(tmp_path / "out") == []


def test_every_document_ends_with_end_of_text_and_holds_no_other(source: Path, tmp_path: Path) -> None:
    for tokenizer, eot in (("bytes", 256), ("bpe:300", 0)):
        make(source, tmp_path / tokenizer, tokenizer)
        for tokens in split_documents(tmp_path / tokenizer, "train"):
            assert tokens[-1] == eot
            assert eot not in tokens[:-1]


@pytest.mark.parametrize("name", ["corpus.jsonl.gz", "corpus.jsonl.zst", "corpus.json.gz", "corpus.parquet"])
def test_the_form_of_the_input_does_not_matter(source: Path, tmp_path: Path, name: str) -> None:
    plain = make(source, tmp_path / "plain", shard_tokens=10**6)
    other = make(write_like(tmp_path / name, DOCUMENTS), tmp_path / "other", shard_tokens=10**6)
    assert other.content_hash == plain.content_hash
    assert other.source_fingerprint != plain.source_fingerprint


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_number_of_workers_does_not_matter(source: Path, tmp_path: Path, tokenizer: str) -> None:
    for workers in (1, 2):
        make(source, tmp_path / str(workers), tokenizer, workers=workers, shard_tokens=6000)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(contents(tmp_path / "1")) > 10


def test_the_place_does_not_matter(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    moved = write_like(tmp_path / "elsewhere" / "corpus.jsonl", DOCUMENTS)
    make(source, tmp_path / "a")
    make(moved, tmp_path / "elsewhere" / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "elsewhere" / "b")
    assert str(tmp_path).encode() not in (tmp_path / "a" / "manifest.json").read_bytes()


def test_the_hash_follows_the_content(source: Path, tmp_path: Path) -> None:
    one = make(source, tmp_path / "one")
    changed = [*DOCUMENTS[:-1], DOCUMENTS[-1] + "!"]
    two = make(write_like(tmp_path / "changed.jsonl", changed), tmp_path / "two")
    assert one.content_hash != two.content_hash
    assert one.content_hash != make(source, tmp_path / "three", "bpe:300").content_hash


def test_copies_of_a_document_fall_on_one_side(tmp_path: Path) -> None:
    path = write_like(tmp_path / "twice.jsonl", DOCUMENTS + DOCUMENTS[::-1])
    make(path, tmp_path / "out")
    train, validation = (split_texts(tmp_path / "out", split) for split in ("train", "validation"))
    assert not set(train) & set(validation)
    assert len(train) == 2 * len(set(train))


@pytest.mark.parametrize("count", [2, 3, 20])
def test_there_is_always_a_validation_document(tmp_path: Path, count: int) -> None:
    path = write_like(tmp_path / "few.jsonl", DOCUMENTS[:count])
    manifest = make(path, tmp_path / "out", val_fraction=1e-9)
    assert manifest.validation.counts.documents == 1
    assert manifest.train.counts.documents == count - 1


def test_no_validation_where_none_is_wanted(source: Path, tmp_path: Path) -> None:
    manifest = make(source, tmp_path / "out", val_fraction=0.0)
    assert manifest.validation.counts.documents == 0
    with pytest.raises(ValueError, match="validation split has 0 tokens"):
        open_dataset(tmp_path / "out").validation(16)


@pytest.mark.parametrize(("text", "word"), [(b'{"text": "alone"}\n', "val_fraction"), (b"", "no document")])
def test_too_little_text_is_refused_and_leaves_the_directory_free(tmp_path: Path, text: bytes, word: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=word):
        make(path, tmp_path / "out")
    path.write_bytes(jsonl(DOCUMENTS))
    assert make(path, tmp_path / "out").train.counts.documents


def test_sources_by_column_by_field_and_by_file(tmp_path: Path) -> None:
    names = [f"s{i % 3}" for i in range(400)]
    (tmp_path / "named.jsonl").write_bytes(jsonl(DOCUMENTS, names))
    pq.write_table(pa.table({"text": DOCUMENTS, "source": names}), tmp_path / "named.parquet")
    lines = make(tmp_path / "named.jsonl", tmp_path / "lines", shard_tokens=10**6)
    table = make(tmp_path / "named.parquet", tmp_path / "table", shard_tokens=10**6)
    assert lines.sources == table.sources
    assert [source.name for source in lines.sources] == ["s0", "s1", "s2"]
    for number, source in enumerate(lines.sources):
        assert (source.train + source.validation).documents == names.count(f"s{number}")
    unnamed = make(tmp_path / "named.jsonl", tmp_path / "unnamed", source_column="")
    assert [source.name for source in unnamed.sources] == ["named"]


def test_too_many_source_names_are_refused(tmp_path: Path) -> None:
    documents = make_documents(1200, words=2)
    (tmp_path / "urls.jsonl").write_bytes(jsonl(documents, [f"https://{i}" for i in range(1200)]))
    with pytest.raises(ValueError, match="1000 sources"):
        make(tmp_path / "urls.jsonl", tmp_path / "out")


def test_several_sources_are_read_one_after_the_other(source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("first note")
    (tmp_path / "notes" / "b.txt").write_text("second note")
    manifest = prepare([str(tmp_path / "notes"), str(source)], "bytes", tmp_path / "out", val_fraction=0.0, workers=1)
    assert split_texts(tmp_path / "out", "train") == ["first note", "second note", *DOCUMENTS]
    assert [one.name for one in manifest.sources] == ["notes", "corpus"]
    assert [(one.name, one.kind, one.files) for one in manifest.inputs] == [
        ("notes", "directory", 2),
        ("corpus.jsonl", "file", 1),
    ]


def test_the_cap_on_tokens_is_never_passed_and_a_document_never_cut(source: Path, tmp_path: Path) -> None:
    whole = make(source, tmp_path / "whole")
    total = whole.train.counts.tokens + whole.validation.counts.tokens
    for cap in (2000, total - 1, total):
        out = tmp_path / str(cap)
        capped = make(source, out, max_tokens=cap, shard_tokens=5000)
        tokens = capped.train.counts.tokens + capped.validation.counts.tokens
        texts = set(split_texts(out, "train") + split_texts(out, "validation"))
        count = len(texts)
        assert texts == set(DOCUMENTS[:count])
        assert tokens <= cap
        assert count == len(DOCUMENTS) or tokens + len(DOCUMENTS[count].encode()) + 1 > cap
        assert capped.validation.counts.documents >= 1
    with pytest.raises(ValueError, match="max_tokens 3"):
        make(source, tmp_path / "tiny", max_tokens=3)


def bad_lines(count: int) -> list[bytes]:
    kinds = [b"{not json", b'{"body": "x"}', b'{"text": 7}', b'["text"]', b'{"text": "\xff"}', b'{"text": "\\ud800"}']
    return [kinds[i % len(kinds)] for i in range(count)]


def test_malformed_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    good = jsonl(DOCUMENTS).splitlines()
    lines = [line for pair in zip(good, bad_lines(60) + [b""] * 340, strict=True) for line in pair]
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    (tally,) = make(path, tmp_path / "out").tallies
    assert (tally.lines, tally.bad_json, tally.no_text, tally.bad_utf8, tally.empty) == (800, 10, 30, 20, 340)
    assert sorted(split_texts(tmp_path / "out", "train") + split_texts(tmp_path / "out", "validation")) == sorted(
        DOCUMENTS
    )


def test_a_block_may_hold_nothing_of_use(tmp_path: Path) -> None:
    path = tmp_path / "hole.jsonl"
    path.write_bytes(jsonl(DOCUMENTS) + b"\n" * 40_000 + b"{\n" * 300 + jsonl(make_documents(100, seed=1)))
    for workers in (1, 2):
        make(path, tmp_path / str(workers), workers=workers, shard_tokens=5000)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_column_of_bytes_may_hold_what_is_not_utf8(tmp_path: Path) -> None:
    rows = [text.encode() for text in DOCUMENTS] + [b"\xff", None]
    pq.write_table(pa.table({"text": pa.array(rows, pa.binary())}), tmp_path / "b.parquet")
    (tally,) = make(tmp_path / "b.parquet", tmp_path / "out").tallies
    assert (tally.lines, tally.bad_utf8, tally.no_text) == (402, 1, 1)


def test_a_mostly_malformed_file_is_refused_with_its_counts(tmp_path: Path) -> None:
    good = jsonl(DOCUMENTS).splitlines()
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(good + bad_lines(401)))
    with pytest.raises(ValueError, match=r"bad\.jsonl.*of 801 lines 67"):
        make(path, tmp_path / "out")
    path.write_bytes(b"\n".join(good + bad_lines(400)))
    assert make(path, tmp_path / "out").malformed == 400


def test_what_would_be_right_goes_by_what_most_lines_lack(tmp_path: Path) -> None:
    array = tmp_path / "array.json"
    array.write_text(json.dumps([{"text": "a"}, {"text": "b"}], indent=1))
    with pytest.raises(ValueError, match="each line must be an object of JSON by itself"):
        make(array, tmp_path / "out")
    (tmp_path / "latin.txt").write_bytes("café ".encode("latin-1") * 9)
    with pytest.raises(ValueError, match="1 are not UTF-8; convert it to UTF-8"):
        make(tmp_path / "latin.txt", tmp_path / "out")
    (tmp_path / "body.jsonl").write_text(jsonl(DOCUMENTS).decode().replace('"text"', '"body"'))
    with pytest.raises(ValueError, match=r"is the text column right\?"):
        make(tmp_path / "body.jsonl", tmp_path / "out")


def test_a_long_malformed_file_is_refused_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(bad_lines(100_000)))
    with pytest.raises(ValueError, match="mostly malformed") as caught:
        make(path, tmp_path / "out", shard_tokens=5000)
    lines = int(str(caught.value).split(" of ")[1].split()[0])
    assert 1000 <= lines < 2000


def test_a_missing_column_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": DOCUMENTS, "n": list(range(400))}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet has no column text; it has body, n"):
        make(tmp_path / "t.parquet", tmp_path / "out")
    with pytest.raises(ValueError, match="int64"):
        make(tmp_path / "t.parquet", tmp_path / "out", text_column="n")
    assert make(tmp_path / "t.parquet", tmp_path / "out", text_column="body").train.counts.documents


def test_the_same_command_again_does_nothing(source: Path, tmp_path: Path) -> None:
    first = make(source, tmp_path / "out", "bpe:300")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir() if path.suffix}
    assert make(source, tmp_path / "out", "bpe:300") == first
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir() if path.suffix}


def test_other_work_is_not_overwritten_unless_asked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(source, out)
    kept = contents(out)
    other = write_like(tmp_path / "other.jsonl", DOCUMENTS[:300])
    for path, settings, word in (
        (other, {}, "another source"),
        (source, {"tokenizer": "bpe:300"}, "bytes there, bpe:300 asked"),
        (source, {"val_fraction": 0.2}, "val_fraction 0.1 there, 0.2 asked"),
    ):
        with pytest.raises(ValueError, match=word) as caught:
            make(path, out, **settings)
        assert "\n" not in str(caught.value)
        assert contents(out) == kept
    (out / "mine.txt").write_text("a user's own file")
    make(other, out, force=True)
    assert (out / "mine.txt").read_text() == "a user's own file"
    assert verify(out) == []


def test_a_directory_of_something_else_is_never_touched(source: Path, tmp_path: Path) -> None:
    for name, text in (
        ("tokenizer.json", "mine"),
        ("manifest.json", '{"name": "a web page"}'),
        ("train-00000.bin", "x"),
    ):
        out = tmp_path / name
        out.mkdir()
        (out / name).write_text(text)
        for force in (False, True):
            with pytest.raises(ValueError, match="not empty"):
                make(source, out, force=force)
        assert contents(out) == {name: text.encode()}


@pytest.mark.parametrize(
    "settings",
    [
        {"val_fraction": 1.0},
        {"val_fraction": -0.1},
        {"shard_tokens": 0},
        {"max_tokens": 0},
        {"workers": 0},
        {"text_column": ""},
    ],
)
def test_settings_that_cannot_be_are_refused(source: Path, tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        make(source, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_given_tokenizer_is_kept_with_the_data(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "trained", "bpe:300")
    file = tmp_path / "mine.json"
    file.write_bytes((tmp_path / "trained" / "tokenizer.json").read_bytes())
    given = make(source, tmp_path / "given", str(file))
    file.unlink()
    assert given.tokenizer.spec == "mine.json"
    assert given.content_hash == open_dataset(tmp_path / "trained").content_hash
    tokenizer = open_dataset(tmp_path / "given").tokenizer()
    assert tokenizer.decode(tokenizer.encode("naïve 🙂")) == "naïve 🙂"


def test_progress_is_reported(source: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    manifest = make(source, tmp_path / "out", shard_tokens=5000, report=seen.append)
    assert [one.stage for one in seen[:2]] == ["tokenizer", "encode"]
    tokens = [one.counts.tokens for one in seen]
    assert tokens == sorted(tokens)
    assert tokens[-1] == manifest.train.counts.tokens + manifest.validation.counts.tokens
    assert seen[-1].fraction == 1.0


def test_a_directory_is_prepared_by_one_process_at_a_time(source: Path, tmp_path: Path) -> None:
    def second(progress: Progress) -> None:
        with pytest.raises(ValueError, match="another process"):
            make(source, tmp_path / "out")

    make(source, tmp_path / "out", report=second)


def test_the_embedded_corpus_is_cached_by_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=cached_embedded, args=("bytes", None, str(tmp_path))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        assert process.exitcode == 0
    dataset = cached_embedded("bytes", cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [dataset.path.name]
    assert verify(dataset.path) == []
    assert dataset.manifest.train.counts.tokens > 10**6
    names = [source.name for source in dataset.manifest.sources]
    assert names == ["code", "documentation"]
    # A validation loss over fewer tokens would be mostly noise.
    assert dataset.manifest.validation.counts.tokens > 50_000
    assert "import" in dataset.tokenizer().decode(dataset.train.read(np.array([0]), 20_000)[0])


def test_the_cache_lies_where_the_user_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.data.cache import user_cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "nugpt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "nugpt"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 5000))
def test_the_sample_is_shared_fairly(sizes: list[int], total: int) -> None:
    share = fair_share(sizes, total)
    given_away = sum(min(size, share) for size in sizes)
    # What is left over is less than one unit for each, and no more than the total is given unless a unit is too much.
    assert given_away <= total or share == 1
    assert given_away == sum(sizes) or given_away > total - len(sizes)


def test_a_manifest_is_plain_json(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert fields["format"] == "nugpt-data"
    assert os.path.getsize(tmp_path / "out" / "train-00000.bin") == 2 * fields["train"]["counts"]["tokens"]


def test_a_worker_that_dies_is_an_error_and_the_work_goes_on_later(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = multiprocessing.context.SpawnProcess.start
    with monkeypatch.context() as patch:

        def start_and_kill(self: multiprocessing.context.SpawnProcess) -> None:
            start(self)
            self.kill()

        patch.setattr(multiprocessing.context.SpawnProcess, "start", start_and_kill)
        with pytest.raises(OSError, match="worker process ended"):
            make(source, tmp_path / "out", workers=2, shard_tokens=5000)
    make(source, tmp_path / "out", workers=1, shard_tokens=5000)
    make(source, tmp_path / "again", workers=1, shard_tokens=5000)
    assert contents(tmp_path / "out") == contents(tmp_path / "again")


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, there: bool) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"{\n" * 10)
    out = tmp_path / "data" / "mine"
    if there:
        out.mkdir(parents=True)
    with pytest.raises(ValueError, match="mostly malformed"):
        make(tmp_path / "bad.jsonl", out)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"bad.jsonl", *(("data", "data/mine") if there else ())}


def test_a_folder_of_another_hand_gets_no_lock(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="not empty"):
        make(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_who_waits_for_a_lock_that_is_taken_away_makes_another(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    out = tmp_path / "out"
    entered = threading.Event()

    def waiting() -> None:
        with _locked(out, wait=True):
            entered.set()
            with pytest.raises(ValueError, match="another process"), _locked(out, wait=False):
                pass

    out.mkdir()
    with open(out / ".lock", "ab") as file:  # as a call has it that is about to be refused
        fcntl.flock(file, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(waiting)
            assert not entered.wait(0.2)
            (out / ".lock").unlink()
            out.rmdir()
            file.close()
            done.result()


def test_a_shard_is_closed_by_the_piece_of_input_that_fills_it(tmp_path: Path) -> None:
    source = write_like(tmp_path / "corpus.jsonl", DOCUMENTS)
    longest = max(len(text.encode()) for text in DOCUMENTS) + 1
    for size in (1500, 5000):
        manifest = make(source, tmp_path / str(size), shard_tokens=size)
        full = [shard.counts.tokens for shard in manifest.train.shards[:-1]]
        assert len(full) > 3
        assert all(size <= tokens <= size + max(size, 4096) + longest for tokens in full)
