"""How a tensor lies over a mesh: which axis is cut, and which part is this rank's."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Placement


def cut_axis(placement: Placement) -> int | None:
    """The axis of a tensor that this placement cuts, none where it cuts none."""
    # FSDP2 over tensor parallelism has a placement of its own, which is a Shard in some versions of torch only.
    return None if placement.is_replicate() or placement.is_partial() else getattr(placement, "dim", None)


def own_part(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, laid out as `like` is."""
    if not isinstance(like, DTensor):
        return value
    mesh = like.device_mesh
    # FSDP2 cuts what tensor parallelism left of a tensor, so the last axis of the mesh comes first.
    for dim in reversed(range(mesh.ndim)):
        axis = cut_axis(like.placements[dim])
        if axis is not None:
            pieces, rank = value.chunk(mesh.size(dim), axis), mesh.get_local_rank(dim)
            value = pieces[rank] if rank < len(pieces) else value.narrow(axis, 0, 0)
    return value
