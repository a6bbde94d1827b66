"""Floors: counts worked out by hand at a small shape, and the time that follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nugpt.bench.floor import Counts, counts, floor_ms
from nugpt.bench.steps import Shape, lab_shapes, paper_shapes
from nugpt.spec.model import ModelConfig, flops_per_token, parameter_shapes

# One block of 2 heads of 2, d_MLP 8, 10 words; 2 sequences of 4 tokens (8 in all), 3 replicas.
SMALL = Shape("small", ModelConfig(1, 2, 2, 10, 4, d_mlp=8), 2, 3)


def plain(shape: Shape) -> Shape:
    return replace(shape, model=ModelConfig(**(shape.model.to_dict() | {"architecture": "prenorm"})))


def test_flops_by_hand() -> None:
    for shape in (SMALL, plain(SMALL)):
        found = counts(shape)
        # Matrices: 4 of 4 × 4 and 3 of 4 × 8, and the unembedding of 10 × 4: 64 + 96 + 40 = 200.
        assert found.product_flops == 3 * 8 * 6 * 200
        # A token sees half of 4 tokens on average, 4 numbers each, by 2 products of 2 FLOPs, thrice: 2 · 4 · 2 · 2 · 3.
        assert found.attention_flops == 3 * 8 * 96


def test_bytes_of_the_normalized_transformer_by_hand() -> None:
    # Of a replica: the hidden state has 8 · 4 = 32 numbers, queries and keys have as many each, the gated product 64.
    # Parameters: 160 in the block's matrices, of which W_O and W_oMLP (16 + 32) have spheres along columns; 40 and 40
    # in the embeddings; 4 in s_qk, 8 and 8 in s_u and s_ν, 4 and 4 in α_A and α_M, 10 in s_z: 278.
    assert counts(SMALL).bytes == {
        "lerp": 3 * (12 * 32 + 8 * 32),  # the second writes no state
        "lerp backward": 3 * (14 * 32 + 18 * 32),  # the second, which comes first, has no gradient of a state
        "rotate, norm, s_qk": 3 * 4 * (32 + 32),
        "swiglu": 3 * 6 * 64,
        "swiglu backward": 3 * 10 * 64,
        "embedding": 3 * (6 * 32 + 4 * 8 * 4),  # 8 tokens name at most 8 of 10 rows
        "embedding backward": 3 * (6 * 32 + 4 * 10 * 4),
        "logits to their gradient": 3 * 4 * 8 * 10,
        "unembedding, scaled and back": 3 * 18 * 10 * 4,
        "adam": 3 * (28 * 230 + 32 * 48),
        "length of a gradient": 3 * (2 * 160 + 4 * 118),
    }


def test_bytes_of_the_plain_transformer_by_hand() -> None:
    found = counts(plain(SMALL)).bytes
    # Three norms. The first reads a state and writes a copy; the others read state and branch and write both.
    assert found["add, norm"] == 3 * (6 + 12 + 12) * 32
    # The last has no gradient of a state (2 + 4 read, 4 + 2 written), the first gives none to a branch.
    assert found["add, norm backward"] == 3 * (12 + 16 + 14) * 32
    assert found["embedding"] == 3 * (4 * 32 + 4 * 8 * 4)  # no copy
    assert found["adam"] == 3 * 28 * (160 + 80 + 3 * 4)  # three norms' weights, no spheres
    assert "lerp" not in found


def test_the_time_at_given_ceilings() -> None:
    # 2e12 FLOPs at 4 TFLOP/s are 500 ms, 3e11 bytes at 2 TB/s are 150.
    found = floor_ms(
        Counts(15 * 10**11, 5 * 10**11, {"a": 10**11, "b": 2 * 10**11}), {"product_tflops": 4, "copy_tbps": 2}
    )
    assert found == pytest.approx(650)


@pytest.mark.parametrize("shape", [*lab_shapes("normalized"), *paper_shapes("normalized"), *paper_shapes("prenorm")])
def test_flops_are_those_of_the_stated_count_but_for_vectors(shape: Shape) -> None:
    found, tokens = counts(shape), shape.replicas * shape.batch * shape.model.seq_len
    outside = ("E_in.", "E_out.", "s_z.")
    vectors = sum(
        s[0] * (s[1] if len(s) > 1 else 1)
        for name, s in parameter_shapes(shape.model).items()
        if not name.startswith(outside) and (len(s) == 1 or name.endswith(".stored"))
    )
    stated = tokens * flops_per_token(shape.model)
    assert found.product_flops + found.attention_flops == stated - 6 * tokens * vectors
