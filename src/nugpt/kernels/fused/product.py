"""Matrix products of stacked operands, as the library is fastest at them."""

from __future__ import annotations

import torch
from torch import Tensor


def product(a_RIK: Tensor, b_RKJ: Tensor, out: Tensor | None = None) -> Tensor:
    """a b, replica by replica, in their dtype; into `out` where it is given."""
    if a_RIK.shape[0] == 1:
        return torch.mm(a_RIK[0], b_RKJ[0], out=None if out is None else out[0]).unsqueeze(0)
    return torch.bmm(a_RIK, b_RKJ, out=out)


def product_into(out_RIJ: Tensor, a_RIK: Tensor, b_RKJ: Tensor, add: bool) -> None:
    """out ← a b, or out + a b, in float32 whatever the operands are."""
    if a_RIK.dtype == out_RIJ.dtype:
        torch.baddbmm(out_RIJ, a_RIK, b_RKJ, beta=1.0 if add else 0.0, out=out_RIJ)
    elif a_RIK.device.type == "cuda":
        if add:
            torch.baddbmm(out_RIJ, a_RIK, b_RKJ, out_dtype=out_RIJ.dtype, out=out_RIJ)
        else:
            torch.bmm(a_RIK, b_RKJ, out_dtype=out_RIJ.dtype, out=out_RIJ)
    else:
        exact = torch.bmm(a_RIK.to(out_RIJ.dtype), b_RKJ.to(out_RIJ.dtype))
        out_RIJ.copy_(out_RIJ + exact if add else exact)
