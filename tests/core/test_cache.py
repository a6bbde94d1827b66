"""Generation reads each token once: with a cache, pieces give what the whole gives."""

from __future__ import annotations

import pytest
import torch
from tests.core import small
from torch import Tensor

from nugpt.core.cache import Cache
from nugpt.core.decoder import Decoder

# Two float64 orders of the same sums, values of order 1.
ROUNDING = 1e-12
TIME = 9


def cache_for(model: Decoder, batch: int = 2, capacity: int = TIME) -> Cache:
    return Cache(model.config, batch, capacity, torch.device("cpu"), torch.float64)


def in_pieces(model: Decoder, tokens: Tensor, sizes: list[int], positions: Tensor | None = None) -> Tensor:
    cache, gains, outputs = cache_for(model), small.gains(model), []
    start = 0
    for size in sizes:
        piece = slice(start, start + size)
        outputs.append(
            model(tokens[:, piece], gains, positions_T=None if positions is None else positions[piece], cache=cache)
        )
        start += size
        assert cache.length == start
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("sizes", [[1] * TIME, [TIME], [4, 1, 1, 3], [1, 8], [5, 4]], ids=str)
@pytest.mark.parametrize("attention", ["plain", "sdpa", "folded"])
@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
@torch.no_grad()
def test_pieces_equal_the_whole(architecture: str, attention: str, sizes: list[int]) -> None:
    model = small.model(small.config(architecture), attention=attention)
    tokens = small.tokens(time=TIME)
    whole = model(tokens, small.gains(model))
    torch.testing.assert_close(in_pieces(model, tokens, sizes), whole, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("sizes", [[1] * TIME, [4, 2, 3]], ids=str)
@pytest.mark.parametrize(
    "positions", [torch.arange(100, 100 + TIME), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])], ids=str
)
@torch.no_grad()
def test_positions_move_the_rotation_and_not_what_is_visible(positions: Tensor, sizes: list[int]) -> None:
    model = small.model(small.config())
    tokens = small.tokens(time=TIME)
    whole = model(tokens, small.gains(model), positions_T=positions)
    ours = in_pieces(model, tokens, sizes, positions)
    torch.testing.assert_close(ours, whole, rtol=ROUNDING, atol=ROUNDING)


@torch.no_grad()
def test_the_cache_holds_keys_and_values_as_attention_uses_them() -> None:
    model = small.model(small.config())
    cache, tokens = cache_for(model, capacity=TIME + 3), small.tokens(time=TIME)
    model(tokens, small.gains(model), cache=cache)
    assert [layer.k_BSKH.shape for layer in cache.layers] == [(2, TIME + 3, 2, 6)] * 2
    for layer in cache.layers:
        assert layer.k_BSKH[:, :TIME].abs().amax((-1, -2)).min() > 0
        assert not layer.k_BSKH[:, TIME:].any()
        assert not layer.v_BSKH[:, TIME:].any()


@pytest.mark.parametrize("more", [2, 3])
@torch.no_grad()
def test_a_cache_that_is_full_says_so(more: int) -> None:
    model = small.model(small.config())
    cache = cache_for(model, capacity=4)
    model(small.tokens(time=3), small.gains(model), cache=cache)
    with pytest.raises(ValueError, match=f"room for 4 tokens, but these would make it {3 + more}"):
        model(small.tokens(time=more), small.gains(model), cache=cache)
    model(small.tokens(time=1), small.gains(model), cache=cache)
    # a single token would broadcast into the empty rest of the cache in silence
    with pytest.raises(ValueError, match="room for 4 tokens, but these would make it 5"):
        model(small.tokens(time=1), small.gains(model), cache=cache)
