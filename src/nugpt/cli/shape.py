"""The arguments that several commands share: which model, how long, against which base."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tyro

from nugpt.spec.checks import whole
from nugpt.spec.model import ModelConfig
from nugpt.spec.parametrization import Parametrization
from nugpt.spec.resolve import Base, Extent
from nugpt.spec.scales import Scale, preset

AMONG_OPTIONS = tyro.conf.arg(name="")  # a part whose fields the help lists with the command's own


@dataclass(frozen=True)
class Shape:
    """The model: a preset, and what differs from it."""

    preset: str = "tiny-l2h2"
    """SCALE-lLAYERShHEADS, with SCALE one of paper, evidence, lab, tiny (`nugpt count --list` shows some)."""
    n_layers: int | None = None
    """Blocks."""
    n_heads: int | None = None
    """Query heads; d_model is heads × head dimension."""
    n_kv_heads: int | None = None
    """Key-value heads (grouped-query attention); all of them by default."""
    head_dim: int | None = None
    """Dimension of a head, d_key."""
    d_mlp: int | None = None
    """Hidden dimension of the MLP; 8/3 · d_model by default."""
    vocab_size: int | None = None
    """Vocabulary, padding included."""
    seq_len: int | None = None
    """Tokens of a sequence."""
    rope_theta: float | None = None
    """Base of RoPE's frequencies."""
    architecture: str | None = None
    """normalized, prenorm or prenorm-qknorm; by default what the parametrization is for."""

    def scale(self) -> Scale:
        """The scale of the preset."""
        return preset(self.preset)[0]

    def model(self, table: Parametrization | None = None) -> ModelConfig:
        """The model these arguments describe, of the table's architecture unless another is asked for."""
        start = preset(self.preset)[1]
        architecture = self.architecture or (table.family if table else start.architecture)
        given = {
            name: value
            for name in (
                "n_layers",
                "n_heads",
                "n_kv_heads",
                "head_dim",
                "d_mlp",
                "vocab_size",
                "seq_len",
                "rope_theta",
            )
            if (value := getattr(self, name)) is not None
        }
        for name in ("n_kv_heads", "d_mlp"):
            if given.get(name, 1) < 1:
                raise ValueError(f"{name} is {given[name]}, but must be a whole number of at least 1")
            given.setdefault(name, 0)  # derived again from the other fields
        model = replace(start, architecture=architecture, **given)
        if table is not None and not table.fits(model.architecture):
            raise ValueError(
                f"architecture is {model.architecture!r}, "
                f"but parametrization {table.name!r} is for {table.family!r} models"
            )
        return model


@dataclass(frozen=True)
class Length:
    """How long the target trains."""

    steps: int | None = None
    """Iterations; the length of the scale's fixed-iteration studies by default."""
    batch: int | None = None
    """Sequences per step; the scale's by default."""

    def extent(self, scale: Scale, model: ModelConfig) -> Extent:
        """The target's place in width, depth, iterations and batch."""
        steps, batch = self.steps, self.batch
        return Extent.of(model, scale.fixed_steps if steps is None else steps, scale.batch if batch is None else batch)


@dataclass(frozen=True)
class BaseShape:
    """The base that the table's ratios are taken over; the scale's own by default."""

    base: str | None = None
    """Preset of the base model, when it is not the scale's own base."""
    base_head_dim: int | None = None
    """Dimension of a head of the base model; that of the target must be the same, since width grows by heads."""
    base_steps: int | None = None
    """Iterations of the base run."""
    base_batch: int | None = None
    """Sequences per step of the base run."""
    base_seq_len: int | None = None
    """Tokens of a sequence of the base run."""
    rescaler_scale: float | None = None
    """The constant c of the rescalers' scale; 0.03 at the paper's base, base width^(-1/2) elsewhere."""

    def resolve(self, scale: Scale) -> Base:
        """The base these arguments describe."""
        if self == BaseShape():
            return scale.base
        own, model = (scale, scale.base_model) if self.base is None else preset(self.base)
        if self.base_seq_len is not None:
            model = replace(model, seq_len=whole(self.base_seq_len, "base_seq_len"))
        steps = own.base_steps if self.base_steps is None else self.base_steps
        extent = Extent.of(model, steps, own.batch if self.base_batch is None else self.base_batch)
        if self.base_head_dim is not None:
            head_dim = whole(self.base_head_dim, "base_head_dim")
            extent = replace(extent, head_dim=head_dim, d_model=model.n_heads * head_dim)
        constant = self.rescaler_scale
        if constant is None and extent.d_model == own.base_model.d_model:
            constant = own.rescaler_scale
        return Base.of(extent, constant)
