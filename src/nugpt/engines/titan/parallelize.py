"""Spreading a model over a mesh: tensor parallelism, activation checkpointing, compilation, then FSDP2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.distributed.compile import apply_compile
from torchtitan.distributed.fsdp import disable_fsdp_gradient_division

from nugpt.engines.titan import compat
from nugpt.engines.titan.model import TitanModel, plain_name
from nugpt.kernels import attention

# Modules of a block: where tensor parallelism cuts their output (a head or hidden unit stays whole on its rank) ...
OUTPUT_CUT = ("attention.W_q", "attention.W_k", "attention.W_v", "mlp.W_u", "mlp.W_nu")
# ... and where their input, which comes from those.
INPUT_CUT = ("attention.W_O", "mlp.W_oMLP")
# Vectors with one component per head or hidden unit or vocabulary entry of the rank; the others are whole everywhere.
VECTORS_CUT = ("attention.s_qk.stored", "mlp.s_u.stored", "mlp.s_nu.stored", "s_z.stored")


class Selective(SelectiveAC):
    """TorchTitan's selective activation checkpointing, which also keeps what our attention computed."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        """Its configuration."""

    def get_save_ops(self) -> set[Any]:
        """The operations whose results are kept."""
        assert attention.folded is not None  # its module registers the operation
        return super().get_save_ops() | {torch.ops.nugpt.flash.default}


class _AsTheyName(nn.Module):
    """The blocks under the name by which TorchTitan looks for them."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.layers = blocks


def parallelize(
    model: TitanModel,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    compile_config: Any,
    ac_config: Any,
    dump_folder: str,
) -> TitanModel:
    """Spread the model, still without memory, over the mesh."""
    tp = parallel_dims.get_mesh("tp") if parallel_dims.tp_enabled else None
    if tp is not None:
        _cut(model, tp)
    axes = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
    _lay_out_vectors(model, parallel_dims.get_mesh([*axes, "tp"] if tp is not None else axes))
    seen_by_them = _AsTheyName(model.blocks)
    if ac_config is not None:
        ac_config.build(dump_folder=dump_folder).apply(seen_by_them)
    if compile_config.enable and "model" in compile_config.components:
        apply_compile(seen_by_them, compile_config=compile_config, parallel_dims=parallel_dims)
    if compile_config.enable and "loss" in compile_config.components and tp is None:
        model.E_out.loss = torch.compile(model.E_out.loss, backend=compile_config.backend, dynamic=False)
    _shard(model, parallel_dims.get_mesh(axes), TORCH_DTYPE_MAP[training.mixed_precision_param], parallelism)
    return model


def _cut(model: TitanModel, tp: Any) -> None:
    """Tensor parallelism of the matrices."""
    plan: dict[str, Any] = {}
    for i in range(len(model.blocks)):
        plan |= {f"blocks.{i}.{name}": ColwiseParallel() for name in OUTPUT_CUT}
        plan |= {f"blocks.{i}.{name}": RowwiseParallel() for name in INPUT_CUT}
    parallelize_module(model, tp, plan)
    for end in (model.E_in, model.E_out):
        end.tp_group = tp.get_group()
        end.weight = _laid_out(end.weight, tp, [Shard(0)])


def _lay_out_vectors(model: TitanModel, mesh: Any) -> None:
    """Vectors are on every data-parallel rank; tensor parallelism cuts those that go with heads or hidden units."""
    for prefix, module in model.named_modules():
        for name, vector in list(module.named_parameters(recurse=False)):
            if isinstance(vector, DTensor) or not is_vector(f"{prefix}.{name}"):
                continue
            cut = f"{prefix}.{name}".endswith(VECTORS_CUT)
            layout = [Shard(0) if cut and axis == "tp" else Replicate() for axis in mesh.mesh_dim_names]
            module.register_parameter(name, _laid_out(vector, mesh, layout))


def is_vector(name: str) -> bool:
    """Whether a parameter is a rescaler or a norm, which FSDP2 leaves alone."""
    return name.endswith(".stored") or "norm" in plain_name(name)


def _laid_out(whole: torch.Tensor, mesh: Any, placements: Sequence[Placement]) -> nn.Parameter:
    """A parameter without memory, laid out over the mesh."""
    own = whole.detach()
    for dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            assert own.shape[placement.dim] % mesh.size(dim) == 0
            own = own.narrow(placement.dim, 0, own.shape[placement.dim] // mesh.size(dim))
    return nn.Parameter(DTensor.from_local(own, mesh, list(placements), run_check=False))


def _shard(model: TitanModel, mesh: Any, dtype: torch.dtype, parallelism: Any) -> None:
    """FSDP2 of the matrices, a block at a time; products in `dtype`, gradients summed in float32."""
    vectors = {parameter for name, parameter in model.named_parameters() if is_vector(name)}
    spread = mesh.size() > 1
    reshard = {"always": True, "never": False, "default": spread}[parallelism.fsdp_reshard_after_forward]

    def shard(module: nn.Module, dtype: torch.dtype, reshard: bool) -> None:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard, ignored_params=vectors)

    shard(model.E_in, torch.float32, reshard)  # as in the lab engine: the hidden state starts as a stored row
    for block in model.blocks:
        shard(block, dtype, reshard)
    shard(model.E_out, dtype, parallelism.fsdp_reshard_after_forward == "always")
    shard(model, dtype, False)
    disable_fsdp_gradient_division(model)  # the loss is divided by the tokens of the whole batch already
    compat.sum_gradients_unscaled(model)
