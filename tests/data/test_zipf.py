"""Batches for timing: how frequent a token is, that targets follow, and that none comes twice."""

from __future__ import annotations

import pytest
import torch

from nugpt.data.zipf import Stream, frequencies

CPU = torch.device("cpu")


def test_the_law_by_hand() -> None:
    # 1 + 1/2 + 1/3 + 1/4 = 25/12
    assert frequencies(4).tolist() == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25])


def test_tokens_are_drawn_by_the_law() -> None:
    ((tokens, _),) = Stream(4, (2, 50, 1000), CPU).draw(1)
    shares = torch.bincount(tokens.flatten(), minlength=4) / 100_000
    for share, p in zip(shares.tolist(), (12 / 25, 6 / 25, 4 / 25, 3 / 25), strict=True):
        assert abs(share - p) < 5 * (p * (1 - p) / 100_000) ** 0.5  # five standard deviations


def test_targets_are_the_next_tokens_and_no_batch_comes_twice() -> None:
    stream = Stream(512, (2, 3, 64), CPU)
    pairs = [*stream.draw(3), *stream.draw(2)]
    for tokens, targets in pairs:
        assert tokens.shape == targets.shape == (2, 3, 64)
        assert tokens.dtype == torch.int64
        assert torch.equal(tokens[..., 1:], targets[..., :-1])
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < 512
    assert len({tuple(tokens.flatten().tolist()) for tokens, _ in pairs}) == 5
    assert not torch.equal(pairs[0][0][0], pairs[0][0][1])  # nor do two replicas see the same
    for (mine, _), (other, _) in zip(pairs, Stream(512, (2, 3, 64), CPU).draw(5), strict=True):
        assert torch.equal(mine, other)  # however they are drawn, they are those of the seed


@pytest.mark.parametrize("vocab_size", [1, 2])
def test_the_smallest_vocabularies(vocab_size: int) -> None:
    ((tokens, _),) = Stream(vocab_size, (1, 1, 200), CPU).draw(1)
    assert set(tokens.flatten().tolist()) == set(range(vocab_size))
