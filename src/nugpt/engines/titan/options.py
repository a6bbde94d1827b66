"""What carries a run on many devices without changing its result, and whether a run and a mesh go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nugpt.engines.lab.options import (
    CHUNKED,
    FOLDED,
    KERNELS,
    MEASURES,
    Options,
    asks_for_plain,
    check_fused,
    why_not_fused,
)
from nugpt.kernels.attention import attention_named
from nugpt.kernels.cross_entropy import loss_named
from nugpt.spec.run import RunSpec

ACTIVATIONS = ("none", "selective", "full")
RESHARD = ("default", "always", "never")
COUNTS = (
    "tp",
    "replicate",
    "micro_batch",
    "checkpoint_every",
    "log_every",
    "measure_points",
    "measure_windows",
    "timeout",
)


@dataclass(frozen=True)
class TitanOptions:
    """The mesh, memory against time, kernels, and how often to save and to log."""

    device: str = "auto"  # auto: cuda when there is one, else cpu
    tp: int = 1  # ranks that share each matrix product
    replicate: int = 1  # groups of ranks with a whole model each; all other ranks share one by FSDP2
    micro_batch: int | None = None  # sequences of a rank per forward and backward; None: all of its batch at once
    activations: str = "none"  # what the backward pass computes again: none, selective, full
    kernels: str = "auto"  # auto: fused on a GPU that Triton can compile for, without tensor parallelism; else plain
    compile: bool | None = None  # of the plain functions; None: on a GPU only
    reshard: str = "default"  # whether gathered weights are dropped between forward and backward
    attention: str = FOLDED
    loss: str = CHUNKED
    checkpoint_every: int | None = None  # steps; None: ten times a run
    keep: int = 2  # checkpoints kept
    log_every: int | None = None  # steps; None: two hundred rows a run
    measure: tuple[str, ...] = ("lerp",)  # what is measured beside the loss; it changes no result
    measure_points: int | None = None  # measurements a run, log-spaced; None: as many as cost little
    measure_windows: int | None = None  # validation windows of alignment's batch; None: as many as cost little
    timeout: int = 600  # seconds after which a rank that waits for another gives up

    def __post_init__(self) -> None:
        attention_named(self.attention)
        loss_named(self.loss)
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}, but must be auto, cpu or cuda: a rank's number says which")
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels is {self.kernels!r}, but must be one of {', '.join(KERNELS)}")
        if self.activations not in ACTIVATIONS:
            raise ValueError(f"activations is {self.activations!r}, but must be one of {', '.join(ACTIVATIONS)}")
        if self.reshard not in RESHARD:
            raise ValueError(f"reshard is {self.reshard!r}, but must be one of {', '.join(RESHARD)}")
        if self.keep < 2:
            raise ValueError(
                f"keep is {self.keep}, but must be at least 2: the newest may be cut off while it is saved"
            )
        if unknown := [name for name in self.measure if name not in MEASURES]:
            raise ValueError(f"measure is {unknown[0]!r}, but must be of {', '.join(MEASURES)}")
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of at least 1")

    def arguments(self) -> list[str]:
        """The words by which a rank is told these options; what is as by default is left out."""
        words: list[str] = []
        for field in fields(self):
            name, value = f"--{field.name.replace('_', '-')}", getattr(self, field.name)
            if value == field.default:
                continue
            if isinstance(value, bool):
                words.append(name if value else f"--no-{name.removeprefix('--')}")
            elif isinstance(value, tuple):
                words += [name, *value]
            else:
                words.append(f"{name}={value}")
        return words

    def device_type(self) -> str:
        """cpu or cuda, checked to exist."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but no CUDA device is visible")
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def kernels_for(self, spec: RunSpec, device_type: str) -> str:
        """`fused` or `plain`: as asked, else fused where there are a GPU, Triton, whole matrices and kernels."""
        if self.kernels == "plain" or (self.kernels == "auto" and (device_type != "cuda" or self.compile is not None)):
            return "plain"
        import torch

        reason = self._why_never_fused(spec) or why_not_fused(spec.model.architecture, torch.device(device_type))
        check_fused(self.kernels, reason)
        return "plain" if reason else "fused"

    def check_kernels(self, spec: RunSpec) -> None:
        """Refuse fused kernels where no device has them for this run, as can be said on a machine without a GPU."""
        check_fused(self.kernels, self._why_never_fused(spec))

    def _why_never_fused(self, spec: RunSpec) -> str | None:
        if spec.model.architecture != "normalized":
            return f"here there are no fused kernels for {spec.model.architecture!r}"
        if self.tp > 1:
            return f"tp is {self.tp}, and they need whole matrices"
        return asks_for_plain(self.attention, self.loss, self.compile)


def options_of_plan(options: Options, mesh: Mapping[str, Any]) -> TitanOptions:
    """What a plan says for any engine, and this engine's mesh; what does not apply here is refused."""
    if options.deterministic:
        raise ValueError(
            "deterministic is asked for, but with --titan kernels are not chosen so: leave one of them out"
        )
    both = {f.name for f in fields(TitanOptions)} & {f.name for f in fields(Options)}
    return TitanOptions(**{name: getattr(options, name) for name in both} | dict(mesh))


@dataclass(frozen=True)
class Mesh:
    """How the ranks of a run are laid out, and what each does per step."""

    world: int
    replicate: int
    shard: int
    tp: int
    local_batch: int  # sequences of a rank per step
    micro_batch: int  # of them per forward and backward

    @property
    def data(self) -> int:
        """Ranks (or groups of them) that see different sequences."""
        return self.replicate * self.shard


def mesh_of(spec: RunSpec, options: TitanOptions, world: int) -> Mesh:
    """The mesh of this run on so many ranks; what does not divide is refused."""
    model, tp, replicate = spec.model, options.tp, options.replicate
    if world % (tp * replicate):
        raise ValueError(f"tp {tp} × replicate {replicate} is {tp * replicate}, but must divide the {world} ranks")
    parts = {
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads,
        "d_mlp": model.d_mlp,
        "vocab_size": model.vocab_size,
    }
    for name, size in parts.items():
        if size % tp:
            raise ValueError(f"tp is {tp}, but must divide {name}, which is {size}")
    data = world // tp
    if spec.batch % data:
        raise ValueError(f"a step has {spec.batch} sequences, but the {data} data-parallel ranks must divide them")
    local = spec.batch // data
    micro = min(options.micro_batch or local, local)
    if local % micro:
        raise ValueError(f"micro_batch is {micro}, but must divide the {local} sequences that a rank has per step")
    return Mesh(world, replicate, data // replicate, tp, local, micro)
