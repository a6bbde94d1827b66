"""`nugpt count`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nugpt.cli.shape import Shape
from nugpt.cli.show import counted, print_json, print_table
from nugpt.spec.model import (
    ModelConfig,
    flops_per_token,
    non_embedding_parameters,
    steps_at,
    tokens_at,
    total_parameters,
)
from nugpt.spec.scales import Scale, preset, preset_names


@dataclass(frozen=True)
class Count:
    """Count a model: parameters, FLOPs per token, and tokens and steps at N tokens per non-embedding parameter."""

    shape: Shape = Shape()
    tokens_per_parameter: float = 20.0
    """Tokens per non-embedding parameter."""
    batch: int | None = None
    """Sequences per step; the scale's by default."""
    round_steps_to: int | None = None
    """Steps are rounded up to a multiple of this; the scale's by default."""
    list: bool = False
    """Count the paper's sizes, and a row of widths and of depths at every other scale."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the counts of one model, or of all presets."""
        if self.list:
            counts = [{"preset": name} | self._count(*preset(name)) for name in preset_names()]
        else:
            counts = [{"preset": self.shape.preset} | self._count(self.shape.scale(), self.shape.model())]
        if self.json:
            print_json(counts if self.list else counts[0])
        elif self.list:
            columns = [
                "preset",
                "layers",
                "heads",
                "d_model",
                "total",
                "non-embedding",
                "GFLOP/token",
                "tokens",
                "steps",
            ]
            print_table(columns, [_row(c) for c in counts], right=range(1, 9))
        else:
            _print_one(counts[0], self.tokens_per_parameter)
        return 0

    def _count(self, scale: Scale, model: ModelConfig) -> dict[str, Any]:
        batch = scale.batch if self.batch is None else self.batch
        round_to = scale.round_steps_to if self.round_steps_to is None else self.round_steps_to
        return {
            "model": model.to_dict() | {"d_model": model.d_model},
            "total_parameters": total_parameters(model),
            "non_embedding_parameters": non_embedding_parameters(model),
            "flops_per_token": flops_per_token(model),
            "tokens_per_parameter": self.tokens_per_parameter,
            "tokens": tokens_at(model, self.tokens_per_parameter),
            "batch": batch,
            "steps": steps_at(model, self.tokens_per_parameter, batch, round_to),
        }


def _row(count: dict[str, Any]) -> list[str]:
    model = count["model"]
    return [
        count["preset"],
        str(model["n_layers"]),
        str(model["n_heads"]),
        str(model["d_model"]),
        _short(count["total_parameters"]),
        _short(count["non_embedding_parameters"]),
        f"{count['flops_per_token'] / 1e9:.3g}",
        _short(count["tokens"]),
        f"{count['steps']:,}",
    ]


def _print_one(count: dict[str, Any], tokens_per_parameter: float) -> None:
    model = count["model"]
    heads = f"{counted(model['n_heads'], 'head')} of {model['head_dim']}"
    if model["n_kv_heads"] != model["n_heads"]:
        heads += f", {model['n_kv_heads']} key-value heads"
    print(f"{counted(model['n_layers'], 'layer')}, {heads}: d_model {model['d_model']}, d_mlp {model['d_mlp']}")
    print(f"vocabulary {model['vocab_size']:,}, sequence {model['seq_len']:,}, {model['architecture']}")
    print(f"parameters       {count['total_parameters']:>16,}  ({_short(count['total_parameters'])})")
    print(f"  non-embedding  {count['non_embedding_parameters']:>16,}")
    print(f"FLOPs per token  {count['flops_per_token']:>16,}  (forward and backward, causal attention included)")
    print(f"at {tokens_per_parameter:g} tokens per non-embedding parameter:")
    print(f"  tokens         {count['tokens']:>16,}")
    print(f"  steps          {count['steps']:>16,}  of {count['batch']} sequences")


def _short(value: int) -> str:
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if value >= unit:
            return f"{value / unit:.2f} {name}"
    return str(value)
