"""A spread vocabulary against the plain definition; more than one rank is test_parity's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from nugpt.engines.titan import vocabulary
from nugpt.kernels.cross_entropy import plain


@pytest.fixture
def group() -> Iterator[object]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("chunk", [2**28, 50])
def test_the_loss_and_its_gradients_are_the_plain_ones(
    chunk: int, group: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK_LOGITS", chunk)  # 50: several chunks of two tokens
    torch.manual_seed(0)
    tensors = [torch.randn(7, 5), torch.randn(23, 5), torch.rand(23) + 0.5]
    targets = torch.randint(23, (7,))
    ours, theirs = ([x.double().requires_grad_() for x in tensors] for _ in range(2))
    loss, wanted = vocabulary.spread_loss(*ours, targets, group), plain(*theirs, targets)
    torch.testing.assert_close(loss, wanted)
    weights = torch.rand(7, dtype=torch.float64)
    (loss * weights).sum().backward()
    (wanted * weights).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_looking_up_gives_rows_and_their_gradients(group: object) -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    tokens = torch.tensor([[0, 4, 4]])
    found = vocabulary.spread_lookup(tokens, weight, group)
    assert torch.equal(found, weight[tokens])
    found.sum().backward()
    assert torch.equal(weight.grad, torch.tensor([[1.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3, [2.0] * 3]))
