"""The four scales at which each study exists, their bases, and presets by name such as `paper-l12h28`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nugpt.spec.model import ModelConfig
from nugpt.spec.resolve import Base, Extent


@dataclass(frozen=True)
class Scale:
    """What all models of one scale share, and the one base that its tables are resolved against."""

    name: str
    head_dim: int
    vocab_size: int
    seq_len: int
    batch: int  # sequences per step
    base_layers: int
    base_heads: int
    base_steps: int
    fixed_steps: int  # the length of the fixed-iteration studies
    round_steps_to: int  # steps at N tokens per parameter are rounded up to a multiple of this
    validations: int = 100  # how often a run takes its validation loss
    val_windows: int = 64  # sequences of the fixed validation set
    default_lr: float | None = None  # η of νGPT at the base, where it was tuned
    rescaler_scale: float | None = None  # None: base width to the power −1/2
    sizes: tuple[tuple[int, int], ...] = ()  # (layers, heads) that have a name in `nugpt count --list`

    def model(self, layers: int, heads: int) -> ModelConfig:
        """The model of this scale with so many layers and heads."""
        return ModelConfig(layers, heads, self.head_dim, self.vocab_size, self.seq_len)

    @property
    def base_model(self) -> ModelConfig:
        """The model that learning rate and multipliers are tuned on."""
        return self.model(self.base_layers, self.base_heads)

    @property
    def base(self) -> Base:
        """Where m_width = m_depth = m_data = m_batch = 1."""
        return Base.of(Extent.of(self.base_model, self.base_steps, self.batch), self.rescaler_scale)


# Sizes the paper names (layers, heads); intermediate ones are ours, since the figures' images are not in its sources.
_PAPER_WIDTHS = tuple((12, heads) for heads in (8, 12, 16, 20, 28, 40))
_PAPER_DEPTHS = tuple((layers, 12) for layers in (8, 16, 32, 64, 128))
_PAPER_ASPECT = tuple((n, n) for n in (8, 10, 16, 20))

PAPER = Scale(
    name="paper",
    head_dim=102,
    vocab_size=100_352,
    seq_len=4096,
    batch=64,
    base_layers=10,
    base_heads=10,
    base_steps=9_750,  # CHOICE: 20 tokens per non-embedding parameter of the 10×10 base
    fixed_steps=80_000,
    round_steps_to=250,
    val_windows=256,
    rescaler_scale=0.03,
    sizes=(*_PAPER_WIDTHS, *_PAPER_DEPTHS, *_PAPER_ASPECT),
)

# CHOICE: a head dimension of 48 makes 8/3·d_model a whole multiple of 128 at every width.
EVIDENCE = Scale(
    name="evidence",
    head_dim=48,
    vocab_size=8192,
    seq_len=512,
    batch=32,
    base_layers=4,
    base_heads=4,
    base_steps=2_000,
    fixed_steps=2_000,
    round_steps_to=50,
    default_lr=2**-7,
    sizes=((4, 2), (4, 4), (4, 8), (4, 16), (2, 4), (8, 4), (16, 4), (32, 4)),
)
LAB = replace(EVIDENCE, name="lab", base_steps=800, fixed_steps=800)
TINY = Scale(
    name="tiny",
    head_dim=48,
    vocab_size=1024,
    seq_len=128,
    batch=16,
    base_layers=2,
    base_heads=2,
    base_steps=120,
    fixed_steps=120,
    round_steps_to=10,
    validations=10,  # CHOICE: a hundred would cost a run of this length more than its training
    default_lr=2**-5,
    sizes=((2, 1), (2, 2), (2, 4), (1, 2), (4, 2), (8, 2)),
)

SCALES: dict[str, Scale] = {scale.name: scale for scale in (PAPER, EVIDENCE, LAB, TINY)}

_PRESET = re.compile(r"(?P<scale>[a-z]+)-l(?P<layers>\d+)h(?P<heads>\d+)")


def scale_named(name: str) -> Scale:
    """The scale of this name."""
    if not isinstance(name, str) or name not in SCALES:
        raise ValueError(f"unknown scale {name!r}, known are {', '.join(SCALES)}")
    return SCALES[name]


def preset(name: str) -> tuple[Scale, ModelConfig]:
    """The scale and model of a preset: SCALE-lLAYERShHEADS, any number of either."""
    match = _PRESET.fullmatch(name) if isinstance(name, str) else None
    if not match or match["scale"] not in SCALES:
        known = ", ".join(SCALES)
        raise ValueError(
            f"unknown preset {name!r}: a preset is SCALE-lLAYERShHEADS with SCALE one of {known}, as in paper-l12h28"
        )
    scale = SCALES[match["scale"]]
    return scale, scale.model(int(match["layers"]), int(match["heads"]))


def preset_names() -> list[str]:
    """The paper's sizes, and a row of widths and of depths at every other scale."""
    return [
        f"{scale.name}-l{layers}h{heads}" for scale in SCALES.values() for layers, heads in dict.fromkeys(scale.sizes)
    ]
