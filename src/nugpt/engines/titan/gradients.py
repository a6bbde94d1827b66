"""Gradients of tensors that are spread over ranks: sums of what FSDP2 leaves alone, and their length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

Named = Sequence[tuple[str, Tensor]]


@torch.no_grad()
def sum_vector_gradients_(named: Named) -> None:
    """Add up the gradients that ranks have parts of: one sum per group of ranks for all vectors together."""
    waiting: dict[tuple[DeviceMesh, tuple[int, ...]], list[tuple[Tensor, Tensor]]] = {}
    for _, parameter in named:
        grad = parameter.grad
        if isinstance(grad, DTensor) and any(isinstance(p, Partial) for p in grad.placements):
            mesh = grad.device_mesh
            dims = tuple(d for d, p in enumerate(grad.placements) if isinstance(p, Partial) and mesh.size(d) > 1)
            waiting.setdefault((mesh, dims), []).append((parameter, grad.to_local()))
    for (mesh, dims), members in waiting.items():
        if dims:
            together = torch.cat([grad.flatten() for _, grad in members])
            for dim in dims:
                dist.all_reduce(together, group=mesh.get_group(dim))
            pieces = together.split([grad.numel() for _, grad in members])
            members = [(p, piece.view_as(grad)) for (p, grad), piece in zip(members, pieces, strict=True)]
        for parameter, grad in members:
            assert isinstance(parameter, DTensor)
            parameter.grad = DTensor.from_local(grad, mesh, parameter.placements, run_check=False)


@torch.no_grad()
def grad_norm_square(named: Named) -> Tensor:
    """This rank's share of the squared length of the whole gradient: the shares of all ranks add up to it."""
    by_share: dict[float, list[Tensor]] = {}
    for _, parameter in named:
        grad = parameter.grad
        assert grad is not None
        share = 1.0
        if isinstance(grad, DTensor):
            mesh = grad.device_mesh
            for dim, placement in enumerate(grad.placements):
                share /= mesh.size(dim) if placement.is_replicate() else 1
            grad = grad.to_local()
        by_share.setdefault(share, []).append(grad)
    squares = [share * torch.stack(torch._foreach_norm(grads)).square().sum() for share, grads in by_share.items()]
    return torch.stack(squares).sum()


@torch.no_grad()
def scale_gradients_(named: Named, factor: Tensor) -> None:
    """Multiply every gradient."""
    for _, parameter in named:
        grad = parameter.grad
        assert grad is not None
        own = grad.to_local() if isinstance(grad, DTensor) else grad
        own.mul_(factor.to(own.dtype))
