"""The least time of a step: matrix products and attention at the rate of a product, all else at that of a copy.

Shapes: R replicas, N tokens, D d_model, M d_MLP, V vocabulary. One operation after the other, each reading its operands
and writing its results once; nothing is made again. What products and attention move beside their FLOPs is not counted,
nor is the way back through the rotation, which attention may do in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nugpt.bench.steps import Shape
from nugpt.spec.model import ModelConfig, parameter_shapes

WIDE, LOW = 4, 2  # bytes of float32 (states, parameters, moments) and of bfloat16 (what products take and give)

# The fewest bytes that an operation moves per number of the hidden state, of queries and keys, of the gated product, of
# the logits or of a parameter: first what is read, then what is written.
BYTES: dict[str, int] = {
    "lerp": (WIDE + LOW) + (WIDE + LOW),  # h and the branch; the next h and its copy
    "lerp backward": (WIDE + LOW) + (WIDE + LOW) + (WIDE + LOW),  # two gradients, h, the branch; two gradients
    "add, norm": (WIDE + LOW) + (WIDE + LOW),
    "add, norm backward": (WIDE + LOW) + WIDE + (WIDE + LOW),  # the branch is not needed
    "rotate, norm, s_qk": LOW + LOW,
    "swiglu": 2 * LOW + LOW,  # u and ν; their gated product
    "swiglu backward": LOW + 2 * LOW + 2 * LOW,
    "logits to their gradient": LOW + LOW,
    "unembedding, scaled and back": (WIDE + LOW) + (2 * WIDE + WIDE),  # s_z ⊙ E_out; its gradient to that of E_out
    # Parameter and moments both ways, and either a low gradient and the copy for products, or a wide gradient alone.
    "adam": 3 * 2 * WIDE + 2 * LOW,
    # Along columns a parameter is written once before its sphere's length is known, and once after.
    "adam, spheres along columns": 3 * 2 * WIDE + 2 * LOW + WIDE,
    "length of a gradient": LOW,
    "length of a wide gradient": WIDE,
}


def embedding_bytes(numbers: int, rows: int, copied: bool = True) -> int:
    """Of a lookup, `rows` numbers read, and of its backward pass, `rows` numbers written; states with their copies."""
    return (WIDE + LOW if copied else WIDE) * numbers + WIDE * rows


@dataclass(frozen=True)
class Counts:
    """What one step of all replicas needs."""

    product_flops: int
    attention_flops: int
    bytes: dict[str, int]  # by operation


def counts(shape: Shape) -> Counts:
    """FLOPs of products, three for each matrix, and of causal attention, as `flops_per_token` has them; other bytes."""
    model, R, N = shape.model, shape.replicas, shape.batch * shape.model.seq_len
    per_replica = _residuals(model, N) | _others(model, N) | _parameters(model)
    products = _in_blocks(model) + model.d_model * model.vocab_size
    return Counts(
        product_flops=R * 6 * N * products,
        attention_flops=R * 6 * N * model.n_layers * model.d_model * model.seq_len,
        bytes={name: R * moved for name, moved in per_replica.items()},
    )


def floor_ms(of: Counts, ceilings: dict[str, float]) -> float:
    """Milliseconds of a step at these ceilings, one operation after the other."""
    computed = (of.product_flops + of.attention_flops) / ceilings["product_tflops"]
    return (computed + sum(of.bytes.values()) / ceilings["copy_tbps"]) / 1e9


def _residuals(model: ModelConfig, N: int) -> dict[str, int]:
    """Of the 2L places where a branch joins the hidden state, and of the plain transformer's last norm."""
    e, places = N * model.d_model, 2 * model.n_layers
    if model.architecture == "normalized":
        # The last state is needed as a copy alone, and only that has a gradient.
        return {
            "lerp": (places * BYTES["lerp"] - WIDE) * e,
            "lerp backward": (places * BYTES["lerp backward"] - WIDE) * e,
        }
    # The first norm has no branch to add, so that it writes no state, and its gradient none; the last state has none.
    return {
        "add, norm": (places * BYTES["add, norm"] + WIDE + LOW) * e,
        "add, norm backward": ((places + 1) * BYTES["add, norm backward"] - LOW - WIDE) * e,
    }


def _others(model: ModelConfig, N: int) -> dict[str, int]:
    """Of heads, gates, embeddings and logits."""
    D, V, L, normalized = model.d_model, model.vocab_size, model.n_layers, model.architecture == "normalized"
    heads, gated = N * (D + model.d_kv), N * model.d_mlp
    return {
        "rotate, norm, s_qk": L * BYTES["rotate, norm, s_qk"] * heads,
        "swiglu": L * BYTES["swiglu"] * gated,
        "swiglu backward": L * BYTES["swiglu backward"] * gated,
        "embedding": embedding_bytes(N * D, min(N, V) * D, normalized),
        "embedding backward": embedding_bytes(N * D, V * D, normalized),
        "logits to their gradient": BYTES["logits to their gradient"] * N * V,
        "unembedding, scaled and back": BYTES["unembedding, scaled and back"] * V * D,
    }


def _parameters(model: ModelConfig) -> dict[str, int]:
    """Of the optimizer: every parameter, and the length of every gradient, low where a product made it in a block."""
    shapes = parameter_shapes(model)
    columns = sum(prod(shape) for name, shape in shapes.items() if len(shape) == 2 and model.roles(name).axis == 0)
    every, low = sum(map(prod, shapes.values())), _in_blocks(model)
    return {
        "adam": BYTES["adam"] * (every - columns) + BYTES["adam, spheres along columns"] * columns,
        "length of a gradient": BYTES["length of a gradient"] * low
        + BYTES["length of a wide gradient"] * (every - low),
    }


def _in_blocks(model: ModelConfig) -> int:
    """Numbers in the matrices of all blocks."""
    return sum(
        prod(shape)
        for name, shape in parameter_shapes(model).items()
        if name.startswith("blocks.") and name.endswith(".weight") and len(shape) == 2
    )
