"""Batches: a pure function of (seed, step) that shows every window once an epoch, and a fixed validation set."""

import threading
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.corpus import jsonl, make_documents, split_documents

from nugpt.data import TokenDataset, open_dataset, prefetch, prepare
from nugpt.data.dataset import batch_windows


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    """Many small shards, so that windows cross from one into the next, and three sources."""
    root = tmp_path_factory.mktemp("data")
    names = [f"s{i % 3}" for i in range(300)]
    (root / "corpus.jsonl").write_bytes(jsonl(make_documents(300), names))
    source = [str(root / "corpus.jsonl")]
    prepare(source, "bytes", root / "out", val_fraction=0.2, shard_tokens=4000, workers=1)
    found = open_dataset(root / "out")
    assert len(found.manifest.train.shards) > 5
    return found


def stream(dataset: TokenDataset, split: str) -> list[int]:
    return [token for tokens in split_documents(dataset.path, split) for token in tokens]


@pytest.mark.parametrize("seq_len", [1, 7, 64, 5000])
def test_an_epoch_shows_every_window_once(dataset: TokenDataset, seq_len: int) -> None:
    tokens = stream(dataset, "train")
    n = (len(tokens) - 1) // seq_len
    assert dataset.n_windows(seq_len) == n
    inputs, targets = dataset.batch(seed=5, step=0, batch_size=n, seq_len=seq_len)
    expected = Counter(tuple(tokens[i * seq_len : (i + 1) * seq_len]) for i in range(n))
    assert Counter(map(tuple, inputs.tolist())) == expected
    expected = Counter(tuple(tokens[i * seq_len + 1 : (i + 1) * seq_len + 1]) for i in range(n))
    assert Counter(map(tuple, targets.tolist())) == expected


def test_targets_are_inputs_one_later(dataset: TokenDataset) -> None:
    inputs, targets = dataset.batch(seed=0, step=3, batch_size=8, seq_len=32)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.shape == targets.shape == (8, 32)
    assert inputs.flags.c_contiguous
    assert targets.flags.c_contiguous
    assert (inputs[:, 1:] == targets[:, :-1]).all()


def test_a_batch_depends_on_seed_and_step_alone(dataset: TokenDataset) -> None:
    again = open_dataset(dataset.path)
    for step in (7, 0, 10**9):
        expected = dataset.batch(1, step, 6, 16)[0]
        assert (again.batch(1, step, 6, 16)[0] == expected).all()
        assert (expected != dataset.batch(2, step, 6, 16)[0]).any()
        assert (expected != dataset.batch(1, step + 1, 6, 16)[0]).any()


@given(
    n_windows=st.integers(1, 400),
    seed=st.integers(0, 2**64),
    batch_size=st.integers(1, 50),
    parts=st.integers(1, 7),
)
def test_batches_of_any_size_walk_through_epochs(n_windows: int, seed: int, batch_size: int, parts: int) -> None:
    epochs = 3
    steps = -(-epochs * n_windows // batch_size)
    whole = np.concatenate([batch_windows(n_windows, seed, step, batch_size) for step in range(steps)])
    for epoch in range(epochs):
        shown = whole[epoch * n_windows : (epoch + 1) * n_windows]
        assert sorted(shown.tolist()) == list(range(n_windows))
    # The windows do not depend on how they are cut into batches, nor a batch on how it is shared out.
    other = np.concatenate([batch_windows(n_windows, seed, step, 1) for step in range(2 * n_windows)])
    assert (other == whole[: 2 * n_windows]).all()
    shared = [batch_windows(n_windows, seed, 1, batch_size, slice(i, None, parts)) for i in range(parts)]
    assert sorted(np.concatenate(shared)) == sorted(batch_windows(n_windows, seed, 1, batch_size))


def test_epochs_are_reshuffled() -> None:
    n = 500
    first, second = (batch_windows(n, 0, epoch, n) for epoch in (0, 1))
    # One agreement is expected between random orders (Poisson); ten or more has probability 1e-7.
    assert (first == second).sum() < 10


def test_a_trillion_tokens_need_no_memory() -> None:
    n = 10**12 // 4096
    windows = np.concatenate([batch_windows(n, 0, step, 512) for step in range(20)])
    assert len(set(windows.tolist())) == len(windows)
    assert windows.max() > n // 2


def test_rows_are_the_rows_of_the_whole(dataset: TokenDataset) -> None:
    inputs, targets = dataset.batch(3, 11, 12, 24)
    for rows in (slice(0, 4), slice(4, 12), slice(5, 6), slice(None, None, 3)):
        part = dataset.batch(3, 11, 12, 24, rows=rows)
        assert (part[0] == inputs[rows]).all()
        assert (part[1] == targets[rows]).all()


def test_prefetching_changes_nothing_and_resumes_anywhere(dataset: TokenDataset) -> None:
    expected = [dataset.batch(9, step, 4, 16) for step in range(20)]
    for start in (0, 13):
        for (inputs, targets), step in zip(
            prefetch(dataset, 9, start, 4, 16, stop_step=20), range(start, 20), strict=True
        ):
            assert (inputs == expected[step][0]).all()
            assert (targets == expected[step][1]).all()
    (only,) = islice(prefetch(dataset, 9, 5, 4, 16, rows=slice(1, 3)), 1)
    assert (only[0] == expected[5][0][1:3]).all()


def test_prefetching_ends_its_thread_and_passes_errors_on(dataset: TokenDataset) -> None:
    def threads() -> int:
        return sum(thread.name == "nugpt-prefetch" for thread in threading.enumerate())

    batches = prefetch(dataset, 0, 0, 4, 16)
    next(batches)
    assert threads() == 1
    batches.close()
    assert threads() == 0
    with pytest.raises(ValueError, match="seq_len"):
        next(prefetch(dataset, 0, 0, 4, 0))
    assert threads() == 0


def test_validation_is_fixed_and_knows_its_sources(dataset: TokenDataset) -> None:
    documents = split_documents(dataset.path, "validation")
    tokens = [token for document in documents for token in document]
    named = {f"{i}": i % 3 for i in range(300)}
    owner = [named[bytes(document[: document.index(32)]).decode()] for document in documents for _ in document]
    found = dataset.validation(16)
    n = (len(tokens) - 1) // 16
    assert found.inputs.ravel().tolist() == tokens[: n * 16]
    assert found.targets.ravel().tolist() == tokens[1 : n * 16 + 1]
    places = {name: place for place, name in enumerate(found.source_names)}
    assert found.sources.ravel().tolist() == [places[f"s{one}"] for one in owner[1 : n * 16 + 1]]


def test_a_part_of_validation_is_spread_over_the_whole(dataset: TokenDataset) -> None:
    whole, part = dataset.validation(16), dataset.validation(16, max_windows=10)
    n = len(whole.inputs)
    chosen = [i * n // 10 for i in range(10)]
    assert (part.inputs == whole.inputs[chosen]).all()
    assert (part.sources == whole.sources[chosen]).all()
    assert len(dataset.validation(16, max_windows=10**6).inputs) == n
    assert (open_dataset(dataset.path).validation(16, 10).targets == part.targets).all()


def test_what_cannot_be_asked_is_refused(dataset: TokenDataset) -> None:
    for call, word in (
        (lambda: dataset.batch(0, -1, 4, 16), "step is -1"),
        (lambda: dataset.batch(0, 0, 0, 16), "batch_size is 0"),
        (lambda: dataset.batch(0, 0, 4, 0), "seq_len is 0"),
        (lambda: dataset.batch(0, 0, 4, 10**7), "train split has"),
        (lambda: dataset.validation(10**7), "val_fraction"),
        (lambda: dataset.validation(16, 0), "max_windows is 0"),
        (lambda: open_dataset(dataset.path, check="some"), "'some'"),
    ):
        with pytest.raises(ValueError, match=word):
            call()


def test_what_a_model_and_a_run_need_to_know(dataset: TokenDataset) -> None:
    assert dataset.vocab_size == 384
    assert dataset.content_hash == dataset.manifest.content_hash
    inputs, _ = dataset.batch(0, 0, 1, 64)
    text = dataset.tokenizer().decode(inputs[0])
    assert dataset.tokenizer().encode(text)[5:20] == [token for token in inputs[0].tolist() if token != 256][5:20]


def test_wide_tokens_are_read_as_they_are(tmp_path: Path) -> None:
    import tokenizers

    words = [f"w{i}" for i in range(70_000)]
    vocabulary = {"<|endoftext|>": 0} | {word: i + 1 for i, word in enumerate(words)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.save(str(tmp_path / "wide.json"))
    (tmp_path / "a.jsonl").write_bytes(jsonl([" ".join(words[i::100]) for i in range(100)]))
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "wide.json", tmp_path / "out", val_fraction=0.0, workers=1)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.manifest.dtype == "<u4"
    assert dataset.vocab_size == 70_016
    inputs, _ = dataset.batch(0, 0, dataset.n_windows(50), 50)
    assert inputs.max() > 1 << 16
    assert set(stream(dataset, "train")) == set(range(70_001))
