"""The shape of a model: its parameters by name, and what they count to."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any

from nugpt.spec.checks import make_plain, whole
from nugpt.spec.roles import NORMALIZED, PRENORM, Roles

ARCHITECTURES: dict[str, Roles] = {
    "normalized": NORMALIZED,  # nGPT and every table of the paper
    "prenorm": PRENORM,  # the plain transformer to compare with
    "prenorm-qknorm": PRENORM,
}


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the names and shapes of a model's parameters and its forward pass."""

    n_layers: int
    n_heads: int
    head_dim: int
    vocab_size: int
    seq_len: int
    n_kv_heads: int = 0  # 0: as many as n_heads
    d_mlp: int = 0  # 0: 8/3 · d_model
    rope_theta: float = 10_000.0
    architecture: str = "normalized"

    def __post_init__(self) -> None:
        whole_numbers = ("n_layers", "n_heads", "head_dim", "vocab_size", "seq_len", "n_kv_heads", "d_mlp")
        make_plain(self, *whole_numbers)
        for name in whole_numbers:
            value = getattr(self, name)
            least = 0 if name in ("n_kv_heads", "d_mlp") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of at least {max(least, 1)}")
        if not isinstance(self.architecture, str) or self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture is {self.architecture!r}, but must be one of {', '.join(ARCHITECTURES)}")
        theta = self.rope_theta
        if not isinstance(theta, (int, float)) or isinstance(theta, bool) or not 1 < theta <= sys.float_info.max:
            raise ValueError(f"rope_theta is {theta!r}, but must be a finite number above 1")
        object.__setattr__(self, "rope_theta", float(theta))
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but must be even: RoPE rotates pairs of components")
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads is {self.n_kv_heads}, but must divide n_heads, which is {self.n_heads}")
        if not self.d_mlp:
            # CHOICE: d_MLP is 8/3 of d_model exactly: it fits the four published counts.
            if self.d_model * 8 % 3:
                raise ValueError(f"d_mlp must be given: 8/3 of d_model = {self.d_model} is not a whole number")
            object.__setattr__(self, "d_mlp", self.d_model * 8 // 3)

    @property
    def d_model(self) -> int:
        """The width: heads times head dimension."""
        return self.n_heads * self.head_dim

    @property
    def d_kv(self) -> int:
        """The width of all keys (and of all values) of a token."""
        return self.n_kv_heads * self.head_dim

    @property
    def roles(self) -> Roles:
        """The rules that give each parameter of this architecture its role and sphere axis."""
        return ARCHITECTURES[self.architecture]

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, every default filled in."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The configuration with these fields, unknown ones refused."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"model has an unknown field {unknown[0]!r}, known are {', '.join(sorted(known))}")
        if missing := sorted({"n_layers", "n_heads", "head_dim", "vocab_size", "seq_len"} - set(values)):
            raise ValueError(f"model lacks the field {missing[0]!r}")
        return cls(**values)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the order of `named_parameters()`."""
    d, d_mlp, d_kv = config.d_model, config.d_mlp, config.d_kv
    matrices_attention = {"W_q": (d, d), "W_k": (d_kv, d), "W_v": (d_kv, d), "W_O": (d, d)}
    matrices_mlp = {"W_u": (d_mlp, d), "W_nu": (d_mlp, d), "W_oMLP": (d, d_mlp)}
    shapes: dict[str, tuple[int, ...]] = {"E_in.weight": (config.vocab_size, d)}
    normalized = config.architecture == "normalized"
    for i in range(config.n_layers):
        block = f"blocks.{i}."
        shapes |= {f"{block}attention.{name}.weight": shape for name, shape in matrices_attention.items()}
        if normalized:
            shapes[f"{block}attention.s_qk.stored"] = (config.n_kv_heads, config.head_dim)
        elif config.architecture == "prenorm-qknorm":
            shapes |= {f"{block}attention.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
        shapes |= {f"{block}mlp.{name}.weight": shape for name, shape in matrices_mlp.items()}
        if normalized:
            shapes |= {f"{block}mlp.{name}.stored": (d_mlp,) for name in ("s_u", "s_nu")}
            shapes |= {f"{block}{name}.stored": (d,) for name in ("alpha_A", "alpha_M")}
        else:
            shapes |= {f"{block}{name}.weight": (d,) for name in ("norm_A", "norm_M")}
    if not normalized:
        shapes["norm_out.weight"] = (d,)
    shapes["E_out.weight"] = (config.vocab_size, d)
    if normalized:
        shapes["s_z.stored"] = (config.vocab_size,)
    return shapes


def total_parameters(config: ModelConfig) -> int:
    """Every trainable number of the model."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def non_embedding_parameters(config: ModelConfig) -> int:
    """All but E_in, E_out and s_z: what "20 tokens per parameter" counts."""
    outside = ("E_in.", "E_out.", "s_z.")
    return sum(math.prod(s) for name, s in parameter_shapes(config).items() if not name.startswith(outside))


def flops_per_token(config: ModelConfig) -> int:
    """Training FLOPs per token: 6·(N + d_model·V) for the matrices, 6·layers·d_model·sequence for causal attention."""
    matrices = non_embedding_parameters(config) + config.d_model * config.vocab_size
    return 6 * matrices + 6 * config.n_layers * config.d_model * config.seq_len


def tokens_at(config: ModelConfig, tokens_per_parameter: float) -> int:
    """Tokens at so many per non-embedding parameter."""
    if not tokens_per_parameter > 0 or not math.isfinite(tokens_per_parameter):
        raise ValueError(f"tokens per parameter is {tokens_per_parameter!r}, but must be a number above 0")
    return math.ceil(tokens_per_parameter * non_embedding_parameters(config))


def steps_at(config: ModelConfig, tokens_per_parameter: float, batch: int, round_to: int = 1) -> int:
    """Steps of `batch` sequences at so many tokens per parameter, rounded up to a multiple of `round_to`."""
    per_step = whole(batch, "batch") * config.seq_len * whole(round_to, "rounding of steps")
    return -(-tokens_at(config, tokens_per_parameter) // per_step) * round_to
