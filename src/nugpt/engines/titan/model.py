"""Our model as TorchTitan takes it: the same modules, each of them also a `Module` of its protocol.

Matrices are sharded by FSDP2 and tensor parallelism. Vectors (rescalers, norms) are float32 and on every data-parallel
rank, because they are tiny and because FSDP2 would cast them with the matrices of their block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.protocols.model import BaseModel
from torchtitan.protocols.module import Module

from nugpt.core.baseline import Baseline, RMSNorm
from nugpt.core.decoder import Decoder, Matrix
from nugpt.core.init import gains, initial_value
from nugpt.core.transformer import Rescaler, Transformer
from nugpt.engines.titan.layout import own_part
from nugpt.engines.titan.vocabulary import spread_lookup, spread_loss
from nugpt.spec.model import flops_per_token, total_parameters
from nugpt.spec.run import RunSpec

WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")  # what activation checkpointing and compile put into names


def plain_name(name: str) -> str:
    """A parameter's own name, without what wrappers put into it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter by its own name."""
    return ((plain_name(name), parameter) for name, parameter in model.named_parameters())


class _OwnVector:
    """A module with one vector, which its forward finds as this rank's own tensor."""

    _parameters: dict[str, nn.Parameter]
    parts_over_tp = False  # whether ranks of a tensor-parallel group each have a part of a whole vector's gradient

    def _own(self, name: str) -> Tensor:
        vector = self._parameters[name]
        if not isinstance(vector, DTensor):
            return vector
        names = vector.device_mesh.mesh_dim_names or ()
        placements = zip(names, vector.placements, strict=True)
        return vector.to_local(grad_placements=[self._gradient(dim, placement) for dim, placement in placements])

    def _gradient(self, dim: str, placement: Placement) -> Placement:
        """How the gradient of what forward got is laid out: summed over the batch, and over heads where they share."""
        if dim != "tp":
            return Partial()
        return Partial() if self.parts_over_tp and isinstance(placement, Replicate) else placement


class _OwnRescaler(_OwnVector):
    @property
    def stored(self) -> Tensor:
        return self._own("stored")


class _OwnNorm(_OwnVector):
    @property
    def weight(self) -> Tensor:
        return self._own("weight")


class Embedding(nn.Embedding):
    """E_in, whose rows tensor parallelism spreads over ranks."""

    tp_group: Any

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """The row of every token."""
        if not isinstance(self.weight, DTensor):
            return super().forward(tokens_BT)
        # Not by torch's own RowwiseParallel: what it returns loses its gradient on the way into a compiled block.
        return spread_lookup(tokens_BT, _own_rows(self.weight), self.tp_group)


class Unembedding(Matrix):
    """E_out together with the loss, so that FSDP2 gathers the matrix where it is used and nowhere else."""

    loss: Any
    tp_group: Any

    def forward(self, h_MD: Tensor, *scale: Tensor, targets_M: Tensor) -> Tensor:  # type: ignore[override]
        """The loss of every token; `scale` is that of each logit, or for a fused loss its two factors."""
        weight = self.weight
        if not isinstance(weight, DTensor):
            return self.loss(h_MD, weight, *scale, targets_M)
        own, (scale_V,) = _own_rows(weight), scale
        if scale_V.shape[0] != own.shape[0]:  # one number for all: this rank needs as many as it has rows
            scale_V = scale_V[: own.shape[0]]
        return spread_loss(h_MD, own, scale_V, targets_M, self.tp_group)


def _own_rows(weight: DTensor) -> Tensor:
    return weight.to_local(grad_placements=list(weight.placements))


_ENDS: dict[str, type] = {"E_in": Embedding, "E_out": Unembedding}
_MADE: dict[type, type] = {}


def _with_protocol(kind: type) -> type:
    """This class of ours as one that TorchTitan accepts, made once so that all its modules share it."""
    if kind not in _MADE:
        own: tuple[type, ...] = ()
        if issubclass(kind, Rescaler):
            own = (_OwnRescaler,)
        elif issubclass(kind, RMSNorm):
            own = (_OwnNorm,)
        _MADE[kind] = type(kind.__name__, (*own, kind, Module), {"__module__": __name__})
    return _MADE[kind]


@dataclass(kw_only=True, slots=True)
class _Config(BaseModel.Config):
    """A run's model and the kernels it computes with."""

    spec: RunSpec
    attention: str = "folded"
    loss: str = "chunked"
    kernels: str = "plain"

    def update_from_config(self, *, config: Any, **_: Any) -> None:
        """Nothing of the trainer's configuration changes the model."""

    def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
        """Parameters, and FLOPs per token."""
        return total_parameters(self.spec.model), flops_per_token(self.spec.model)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for logs."""
        return {"spec": self.spec.to_dict(), "attention": self.attention, "loss": self.loss, "kernels": self.kernels}


class TitanModel(BaseModel, Decoder):
    """What the two architectures share: construction, initial values, and a forward that ends with the loss."""

    fused = False
    spec: RunSpec
    gains: Any
    E_out: Any
    s_z: Any

    def _adopt(self, config: Any) -> None:
        """Give every submodule the protocol's class; names, shapes and forwards stay ours."""
        self.spec = config.spec
        for name, child in self.named_modules():
            if name:
                child.__class__ = _with_protocol(_ENDS.get(name, type(child)))
            if name.endswith(("attention.q_norm", "attention.k_norm")):
                child.parts_over_tp = True  # one vector for the heads of all ranks
        self.E_out.loss = self.loss

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        """The initial values of (seed, name), whatever the sharding: each rank keeps its own part."""
        resolved, roles = self.spec.resolved(), self.spec.model.roles
        device = torch.device("cpu")
        for name, parameter in named_parameters(self):
            value = initial_value(name, tuple(parameter.shape), self.spec.seed, resolved, roles)
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            own.copy_(own_part(value, parameter))
            device = own.device
        self.gains = gains(self, resolved, device)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:  # type: ignore[override]
        """The loss of every token, (B·T); by fused kernels in training their sum, (1,)."""
        if self.fused:
            low_MD = fused_kernels().hidden_states(self, tokens_BT, TORCH_DTYPE_MAP[self.spec.precision])
            return self.E_out(low_MD, self.s_z.stored, self.gains.s_z, targets_M=targets_BT.flatten())
        h_BTD = Decoder.forward(self, tokens_BT, self.gains)
        _, scale_V = self.head(self.gains)
        return self.E_out(h_BTD.flatten(0, 1), scale_V, targets_M=targets_BT.flatten())


class TitanTransformer(TitanModel, Transformer):
    """The Normalized Transformer."""

    @dataclass(kw_only=True, slots=True)
    class Config(_Config):
        """Its configuration."""

    def __init__(self, config: Any) -> None:
        Transformer.__init__(self, config.spec.model, config.attention, config.loss)
        self.fused = config.kernels == "fused"
        if self.fused:
            self.loss = fused_kernels().loss
            for block in self.blocks:
                block.__class__ = fused_kernels().FusedBlock
        self._adopt(config)


class TitanBaseline(TitanModel, Baseline):
    """The pre-norm transformer."""

    @dataclass(kw_only=True, slots=True)
    class Config(_Config):
        """Its configuration."""

    def __init__(self, config: Any) -> None:
        Baseline.__init__(self, config.spec.model, config.attention, config.loss)
        self._adopt(config)


def fused_kernels() -> Any:
    """The module that needs Triton, imported where it is used."""
    from nugpt.engines.titan import fused

    return fused


def model_config(spec: RunSpec, attention: str, loss: str, kernels: str = "plain") -> Any:
    """What TorchTitan builds this run's model from."""
    kind = TitanTransformer if spec.model.architecture == "normalized" else TitanBaseline
    assert kernels == "plain" or kind is TitanTransformer
    return kind.Config(spec=spec, attention=attention, loss=loss, kernels=kernels)
