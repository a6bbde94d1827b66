"""Retraction onto the sphere of tensors that are spread over ranks, and how far off they are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from nugpt.core.sphere import retract_tensor_
from nugpt.engines.titan.layout import cut_axis
from nugpt.spec.roles import Roles

NamedParameters = Iterable[tuple[str, Tensor]]


@torch.no_grad()
def retract_spread_(named_parameters: NamedParameters, roles: Roles) -> None:
    """Put every tensor that lives on a sphere back onto it: one small sum over ranks, whatever the sharding."""
    for part, axis, length in _lengths(named_parameters, roles):
        if length is None:
            retract_tensor_(part, axis)
        else:
            part.div_(torch.where(length > 0, length, 1.0))


@torch.no_grad()
def norm_error(named_parameters: NamedParameters, roles: Roles) -> Tensor:
    """The largest distance of any vector's length from 1 in this rank's part; the model's is the largest of them."""
    errors = []
    for part, axis, length in _lengths(named_parameters, roles):
        if part.numel():
            found = torch.linalg.vector_norm(part, dim=axis, keepdim=True) if length is None else length
            errors.append((found - 1).abs().amax())
    return torch.stack(errors).amax() if errors else torch.zeros(())


def _lengths(named_parameters: NamedParameters, roles: Roles) -> list[tuple[Tensor, int, Tensor | None]]:
    """Each tensor on a sphere: this rank's part, its axis, and the lengths where a vector is spread over ranks."""
    whole: list[tuple[Tensor, int, Tensor | None]] = []
    spread: dict[tuple[DeviceMesh, tuple[int, ...]], list[tuple[Tensor, int]]] = {}
    for name, parameter in named_parameters:
        axis = roles(name).axis
        if axis is None:
            continue
        if not isinstance(parameter, DTensor):
            whole.append((parameter, axis, None))
            continue
        mesh = parameter.device_mesh
        dims = tuple(
            dim
            for dim, placement in enumerate(parameter.placements)
            if cut_axis(placement) == axis and mesh.size(dim) > 1
        )
        if dims:
            spread.setdefault((mesh, dims), []).append((parameter.to_local(), axis))
        else:
            whole.append((parameter.to_local(), axis, None))
    for (mesh, dims), members in spread.items():
        squares = [part.square().sum(axis, keepdim=True) for part, axis in members]
        together = torch.cat([square.flatten() for square in squares])
        for dim in dims:
            dist.all_reduce(together, group=mesh.get_group(dim))
        lengths = together.sqrt().split([square.numel() for square in squares])
        for (part, axis), square, length in zip(members, squares, lengths, strict=True):
            whole.append((part, axis, length.view_as(square)))
    return whole
