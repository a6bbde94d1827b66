"""Cross-entropy of a scaled linear unembedding: the definition, and the same in chunks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nugpt.kernels import cross_entropy
from nugpt.kernels.cross_entropy import LOSSES, loss_named

M, D, V = 13, 6, 17
# Two float64 orders of sums over 17 classes.
ROUNDING = 1e-12
each_loss = pytest.mark.parametrize("name", LOSSES)
each_chunk = pytest.mark.parametrize("chunk", [1, V, 3 * V + 1, M * V - 1, M * V, 10**9])


def draw(*leading: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h, weight, scale = (
        torch.randn(*leading, *size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in ((M, D), (V, D), (V,))
    )
    return h, weight, scale, torch.randint(V, (*leading, M), generator=generator)


def torchs(h: Tensor, weight: Tensor, scale: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy((h @ weight.T) * scale, targets, reduction="none")


def values_and_gradients(loss: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    # a weight per token, so that a token in another's place shows
    weights = torch.arange(1, loss.numel() + 1, dtype=loss.dtype).view(loss.shape)
    return [loss.detach(), *torch.autograd.grad((loss * weights).sum(), inputs)]


def close(ours: list[Tensor], truth: list[Tensor]) -> None:
    for mine, theirs in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=ROUNDING, atol=ROUNDING)


def test_by_hand() -> None:
    h = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    scale = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    # logits 2, 2, 0
    ours = cross_entropy.plain(h, weight, scale, torch.tensor([2]))
    assert ours.tolist() == [pytest.approx(math.log(2 * math.e**2 + 1), rel=1e-14)]


@each_loss
def test_ids_that_are_never_targets_are_classes_all_the_same(name: str) -> None:
    h, weight, scale, targets = draw()
    real = V - 5
    targets = targets % real  # the last five only pad the vocabulary
    loss = loss_named(name)(h, weight, scale, targets)
    logits = (h @ weight.T) * scale
    total = logits.exp().sum(-1)  # over all V
    torch.testing.assert_close(loss, total.log() - logits[torch.arange(M), targets], rtol=ROUNDING, atol=ROUNDING)
    masked = torch.nn.functional.cross_entropy(logits[:, :real], targets, reduction="none")
    assert (loss > masked).all()
    (gradient,) = torch.autograd.grad(loss.sum(), scale)
    # Training pushes them down: d loss / d logit is their probability, which no target takes off.
    truth = (logits.exp() / total.unsqueeze(-1) * (h @ weight.T)).sum(0)[real:]
    torch.testing.assert_close(gradient[real:], truth, rtol=ROUNDING, atol=ROUNDING)
    assert truth.abs().min() > 0


@each_loss
@each_chunk
def test_values_and_gradients_are_torchs(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", chunk)
    h, weight, scale, targets = draw()
    truth = values_and_gradients(torchs(h, weight, scale, targets), (h, weight, scale))
    ours = values_and_gradients(loss_named(name)(h, weight, scale, targets), (h, weight, scale))
    assert ours[0].shape == (M,)
    close(ours, truth)


@each_loss
@each_chunk
@pytest.mark.parametrize("shared_targets", [False, True])
def test_a_replica_axis_equals_the_loop(
    name: str, chunk: int, shared_targets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", chunk)
    h, weight, scale, targets = draw(3)
    if shared_targets:
        targets = targets[0]
    loss = loss_named(name)(h, weight, scale, targets)
    ours = values_and_gradients(loss, (h, weight, scale))
    alone = [torchs(h[r], weight[r], scale[r], targets if shared_targets else targets[r]) for r in range(3)]
    close(ours, values_and_gradients(torch.stack(alone), (h, weight, scale)))


def test_chunks_are_no_larger_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    definition = cross_entropy.plain

    def spied(h: Tensor, weight: Tensor, scale: Tensor, targets: Tensor) -> Tensor:
        sizes.append(h.shape[:-2].numel() * h.shape[-2] * weight.shape[-2])
        return definition(h, weight, scale, targets)

    monkeypatch.setattr(cross_entropy, "plain", spied)
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 4 * V * 3)
    h, weight, scale, targets = draw(3)
    loss = cross_entropy.chunked(h, weight, scale, targets)
    assert len(sizes) == 4  # 13 tokens in pieces of at most 4
    assert max(sizes) <= 4 * V * 3
    assert sum(sizes) == 3 * M * V
    loss.sum().backward()
    assert len(sizes) == 8  # made again in the backward pass


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_gives_a_float32_loss(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 50)
    h, weight, scale, targets = draw()
    ours = loss_named(name)(h.to(dtype), weight.to(dtype), scale.float(), targets)
    assert ours.dtype == torch.float32
    truth = torchs(h, weight, scale, targets)
    # logits of up to about 10, rounded once by the product
    torch.testing.assert_close(ours.double(), truth, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.2)


@each_loss
def test_logits_far_beyond_the_exponentials_range(name: str) -> None:
    h, weight, scale, targets = draw()
    ours = loss_named(name)(1e4 * h, weight, scale, targets)
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours, torchs(1e4 * h, weight, scale, targets), rtol=ROUNDING, atol=1e-8)


def test_gradients_by_finite_differences() -> None:
    h, weight, scale, targets = draw()
    assert torch.autograd.gradcheck(lambda h, w, s: cross_entropy.plain(h, w, s, targets), (h, weight, scale))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="loss is 'fused', but must be one of plain, chunked"):
        loss_named("fused")
