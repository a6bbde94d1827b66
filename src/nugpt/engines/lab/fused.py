"""Losses and gradients of stacked replicas by fused kernels, forward and backward written out, and the update.

Shapes: R replicas, N = B·T tokens, D d_model, M d_MLP, V vocabulary. The equations are those of `core/transformer.py`
and `core/baseline.py`. What the forward pass has written and the backward pass reads is kept where that is little, as
in sweeps; else it is spared: made again from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nugpt.core.baseline import RMS_EPS
from nugpt.core.rope import rope_angles
from nugpt.kernels.fused.adam import Course, Place, Settings, lengths, update_
from nugpt.kernels.fused.add_norm import add_norm, add_norm_backward
from nugpt.kernels.fused.attention import attend, attend_turned_backward, candidates, fastest
from nugpt.kernels.fused.embedding import embed, embed_backward, embedding_order
from nugpt.kernels.fused.heads import Heads, rotate_scale
from nugpt.kernels.fused.lerp import lerp, lerp_backward, lerp_low
from nugpt.kernels.fused.loss import scaled, token_losses, token_losses_and_gradients, unscale_
from nugpt.kernels.fused.product import product
from nugpt.kernels.fused.swiglu import Scales, swiglu, swiglu_backward
from nugpt.spec.model import ModelConfig
from nugpt.spec.roles import Roles

Params = dict[str, Tensor]

# Bytes that a replica may keep of what could be made again. Of the paper's model with 8 sequences it would be 8 GiB,
# for 1.4 % of a step's time by count of bytes; at d_model 192 to 1536 with 16k tokens it is 0.2 to 1.6, for 4 to 6 %.
MOST_KEPT = 2 * 2**30


@dataclass(frozen=True)
class Copies:
    """A block's matrices in the dtype of products, stacked as the products take them; heads padded with zeros."""

    qkv: Tensor  # (R, (Q + 2K)·W, D)
    out: Tensor  # (R, D, Q·W)
    up: Tensor  # (R, 2M, D): W_u over W_ν
    down: Tensor  # (R, D, M)


@dataclass
class Gradients:
    """The gradient of each parameter, stacked as its copy is where it has one."""

    of: dict[str, Tensor] = field(default_factory=dict)

    def add_(self, other: Gradients) -> None:
        """Add another piece's gradients, in float32."""
        for name, grad in other.of.items():
            self.of[name] = self.of[name].float().add_(grad)


class Program:
    """Losses and gradients of R replicas of one shape; what architectures share."""

    scaled_heads = False  # whether queries and keys have Norm and s_qk

    def __init__(
        self, config: ModelConfig, gains: Any, replicas: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.gains, self.dtype, self.device = config, gains, dtype, device
        self.heads = Heads(config.n_heads, config.n_kv_heads, config.head_dim, config.seq_len)
        angles = rope_angles(
            torch.arange(config.seq_len, device=device), config.head_dim, config.rope_theta, torch.float32
        )
        self.cos, self.sin = self.heads.turns(angles)
        R, D, M, W, H = replicas, config.d_model, config.d_mlp, self.heads.width, config.head_dim

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(R, *shape, dtype=dtype, device=device)

        self.copies = [
            Copies(
                zeros(self.heads.columns, D),
                zeros(D, config.n_heads * W),
                zeros(2 * M, D),
                zeros(D, M),
            )
            for _ in range(config.n_layers)
        ]
        # For each matrix of a block: the stacked copy that holds it, and where in it.
        self.places: dict[str, tuple[str, Place]] = {
            "attention.W_q": ("qkv", Place(0, H // 2, W // 2)),
            "attention.W_k": ("qkv", Place(config.n_heads * W, H // 2, W // 2)),
            "attention.W_v": ("qkv", Place((config.n_heads + config.n_kv_heads) * W, H, W)),
            "attention.W_O": ("out", Place(0, H, W, columns=True)),
            "mlp.W_u": ("up", Place(0)),
            "mlp.W_nu": ("up", Place(M)),
            "mlp.W_oMLP": ("down", Place(columns=True)),
        }
        self.attention, self.spare = "", False  # the kernel's name, and what is kept: known once a batch's shape is
        self.asked: str | None = None  # the attention kernel to take, whatever others would take

    def refresh_(self, params: Params) -> None:
        """Fill the copies from the parameters."""
        for i, copies in enumerate(self.copies):
            for name, (which, place) in self.places.items():
                matrix, copy = params[f"blocks.{i}.{name}.weight"].detach(), getattr(copies, which)
                if place.columns:
                    view = copy.unflatten(2, (-1, place.width))[..., : place.dim]
                    view.copy_(matrix.unflatten(2, (-1, place.dim)))
                else:
                    rows = matrix.shape[1] // place.dim * place.width
                    view = copy[:, place.first_row : place.first_row + rows].unflatten(1, (-1, place.width))
                    view[:, :, : place.dim].copy_(matrix.unflatten(1, (-1, place.dim)))

    def losses(self, params: Params, tokens_RN: Tensor, targets_RN: Tensor) -> Tensor:
        """The loss of every token, (R, N)."""
        low, _ = self.forward(params, tokens_RN, keep=False)
        return token_losses(low, self.unembedding(params), targets_RN)

    def gradients(
        self, params: Params, tokens_RN: Tensor, targets_RN: Tensor, weight: float
    ) -> tuple[Tensor, Gradients]:
        """The loss of every token, and the gradient of weight·Σ losses for every parameter."""
        order = embedding_order(tokens_RN, self.config.vocab_size)
        low, kept = self.forward(params, tokens_RN, keep=True)
        losses, d_low, d_weight = token_losses_and_gradients(low, self.unembedding(params), targets_RN, weight)
        grads = Gradients()
        del low
        d_weight, d_scale = unscale_(d_weight, params["E_out.weight"], *self.logit_scale(params))
        grads.of["E_out.weight"] = d_weight
        if "s_z.stored" in params:
            grads.of["s_z.stored"] = d_scale
        d_h, d_rest = self.backward(params, kept, d_low, grads)
        grads.of["E_in.weight"] = embed_backward(d_h, d_rest, order)
        return losses, grads

    def unembedding(self, params: Params) -> Tensor:
        """s ⊙ E_out for the loss."""
        return scaled(params["E_out.weight"], *self.logit_scale(params), self.dtype)

    def logit_scale(self, params: Params) -> tuple[Tensor, Tensor]:
        """The stored vector and the gain of the logits' scale."""
        raise NotImplementedError

    def forward(self, params: Params, tokens_RN: Tensor, keep: bool) -> tuple[Tensor, list[Any]]:
        """What the unembedding is applied to, and what the backward pass needs."""
        raise NotImplementedError

    def backward(
        self, params: Params, kept: list[Any], d_low: Tensor, grads: Gradients
    ) -> tuple[Tensor, Tensor | None]:
        """From the gradient of the last state to the two parts of the embedding's, filling in the blocks' gradients."""
        raise NotImplementedError

    def choose_kept(self, batch: int) -> None:
        """Decide for batches of this size whether what can be made again is kept: a replica of a sweep keeps it."""
        config, size, W = self.config, self.dtype.itemsize, self.heads.width
        states = size * 2 * config.d_model + 4 * config.d_model  # two low copies, and the state between the LERPs
        turned, gated = size * (config.n_heads + config.n_kv_heads) * W, size * config.d_mlp
        self.spare = config.n_layers * batch * config.seq_len * (states + turned + gated) > MOST_KEPT

    def attention_names(self) -> tuple[str, ...]:
        """The attention kernels of which `choose_attention` takes one."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        return (self.asked,) if self.asked else candidates(self.heads, self.dtype, self.device, deterministic)

    def choose_attention(self, replicas: int, batch: int) -> None:
        """Take the attention kernel asked for, else measure which is fastest for batches of this size."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        self.attention = self.asked or fastest(
            replicas * batch, self.heads, self.scaled_heads, self.dtype, self.device, deterministic
        )

    def _attend(self, low: Tensor, i: int, stored: Tensor | None, gain: Tensor | None, scale: float) -> tuple[Any, ...]:
        """W_O applied to attention; the product q-k-v came from, q and k, attention's output and its log-sum-exp."""
        copies = self.copies[i]
        qkv = product(low, copies.qkv.mT)
        q, k = rotate_scale(qkv, self.heads, stored, gain, self.cos, self.sin)
        o, saved = attend(self.attention, q, k, self.heads.split(qkv)[2], scale)
        turned = None if self.spare else (q, k)
        return product(o.reshape(*low.shape[:2], -1), copies.out.mT), qkv, turned, o, saved

    def _attend_backward(
        self,
        d_branch: Tensor,
        low: Tensor,
        kept: tuple[Any, ...],
        i: int,
        stored: Tensor | None,
        gain: Tensor | None,
        scale: float,
        grads: Gradients,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient of the low state, and of s_qk."""
        qkv, turned, o, saved = kept
        copies, block = self.copies[i], f"blocks.{i}.attention."
        grads.of[f"{block}W_O.weight"] = product(d_branch.mT, o.reshape(*low.shape[:2], -1))
        d_o = product(d_branch, copies.out).view(o.shape)
        q, k = turned or rotate_scale(qkv, self.heads, stored, gain, self.cos, self.sin)
        around = (self.heads, stored, gain, self.cos, self.sin)
        dx, d_stored = attend_turned_backward(self.attention, d_o, q, k, qkv, o, saved, scale, *around)
        del d_o, q, k, turned
        grads.of[f"{block}W_q.weight"] = product(dx.mT, low)  # of W_k and W_v too
        return product(dx, copies.qkv), d_stored

    def _mlp(self, low: Tensor, i: int, scales: Scales | None, constant: float) -> tuple[Tensor, Tensor, Tensor | None]:
        """W_oMLP applied to the gated product, the product that was gated, and the gated one."""
        x = product(low, self.copies[i].up.mT)
        gated = swiglu(x, scales, constant)
        return product(gated, self.copies[i].down.mT), x, None if self.spare else gated

    def _mlp_backward(
        self,
        d_branch: Tensor,
        low: Tensor,
        x: Tensor,
        gated: Tensor | None,
        i: int,
        scales: Scales | None,
        constant: float,
        grads: Gradients,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The gradient of the low state, and of s_u and s_ν."""
        block = f"blocks.{i}.mlp."
        d_gated = product(d_branch, self.copies[i].down)
        dx, d_scales, again = swiglu_backward(d_gated, x, scales, constant, again=gated is None)
        del d_gated
        gated = again if gated is None else gated
        assert gated is not None
        grads.of[f"{block}W_oMLP.weight"] = product(d_branch.mT, gated)
        del gated, again
        grads.of[f"{block}W_u.weight"] = product(dx.mT, low)  # of W_ν too
        return product(dx, self.copies[i].up), d_scales


class Normalized(Program):
    """The Normalized Transformer."""

    scaled_heads = True

    def logit_scale(self, params: Params) -> tuple[Tensor, Tensor]:
        """s_z."""
        return params["s_z.stored"], self.gains.s_z

    def _scales(self, params: Params, i: int) -> Scales:
        stored_u, stored_nu = (params[f"blocks.{i}.mlp.{name}.stored"] for name in ("s_u", "s_nu"))
        return stored_u, self.gains.s_u, stored_nu, self.gains.s_nu

    def _alpha(self, params: Params, i: int, name: str) -> tuple[Tensor, Tensor]:
        return params[f"blocks.{i}.{name}.stored"], getattr(self.gains, name)

    def _s_qk(self, params: Params, i: int) -> tuple[Tensor, Tensor, float]:
        """s_qk's stored vector and gain, and the softmax scale."""
        return params[f"blocks.{i}.attention.s_qk.stored"], self.gains.s_qk, self.config.head_dim**0.5

    def forward(self, params: Params, tokens_RN: Tensor, keep: bool) -> tuple[Tensor, list[Any]]:
        """Embedding and blocks."""
        h, low = embed(params["E_in.weight"], tokens_RN, self.dtype)
        constant = self.config.d_model**0.5
        kept: list[Any] = []
        for i in range(self.config.n_layers):
            branch_A, *attended = self._attend(low, i, *self._s_qk(params, i))
            low_A = low
            mid, low = lerp(h, branch_A, *self._alpha(params, i, "alpha_A"))  # (1), (2)
            branch_M, x, gated = self._mlp(low, i, self._scales(params, i), constant)
            if keep:
                states = None if self.spare else (low_A, mid, low)
                kept.append((h, states, tuple(attended), branch_A, x, gated, branch_M))
            alpha_M = self._alpha(params, i, "alpha_M")
            if i + 1 < self.config.n_layers:
                h, low = lerp(mid, branch_M, *alpha_M)  # (3), (4)
            else:  # of the last state nothing but the copy is read
                low = lerp_low(mid, branch_M, *alpha_M)
        return low, kept

    def backward(
        self, params: Params, kept: list[Any], d_low: Tensor, grads: Gradients
    ) -> tuple[Tensor, Tensor | None]:
        """Blocks, last to first."""
        constant = self.config.d_model**0.5
        d_h: Tensor | None = None
        for i in reversed(range(self.config.n_layers)):
            h, states, attended, branch_A, x, gated, branch_M = kept.pop()
            block, spare = f"blocks.{i}.", states is None
            low_A, mid, low_M = (None, h, None) if spare else states
            alpha_A, alpha_M = self._alpha(params, i, "alpha_A"), self._alpha(params, i, "alpha_M")
            d_mid, d_branch, grads.of[f"{block}alpha_M.stored"], again = lerp_backward(
                d_h, d_low, mid, branch_M, *alpha_M, (branch_A, *alpha_A) if spare else None, spare
            )
            low_M = again if spare else low_M
            assert low_M is not None
            del branch_M, mid, again, states
            scales = self._scales(params, i)
            d_low, d_scales = self._mlp_backward(d_branch, low_M, x, gated, i, scales, constant, grads)
            assert d_scales is not None
            grads.of[f"{block}mlp.s_u.stored"], grads.of[f"{block}mlp.s_nu.stored"] = d_scales
            del x, gated, low_M
            d_h, d_branch, grads.of[f"{block}alpha_A.stored"], again = lerp_backward(
                d_mid, d_low, h, branch_A, *alpha_A, again=spare
            )
            low_A = again if spare else low_A
            assert low_A is not None
            del h, branch_A, d_mid, again
            d_low, d_s_qk = self._attend_backward(d_branch, low_A, attended, i, *self._s_qk(params, i), grads)
            del low_A, attended
            assert d_s_qk is not None
            grads.of[f"{block}attention.s_qk.stored"] = d_s_qk
        assert d_h is not None
        return d_h, d_low


class Prenorm(Program):
    """The plain pre-norm transformer."""

    def logit_scale(self, params: Params) -> tuple[Tensor, Tensor]:
        """One constant for all entries."""
        weight = params["E_out.weight"]
        return weight.new_ones(weight.shape[:2]), self.gains.logit

    def _norm(self, params: Params, h: Tensor, branch: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
        return add_norm(h, branch, self.gains.residual, params[f"{name}.weight"], RMS_EPS, self.dtype)

    def _norm_backward(
        self, params: Params, d_h: Tensor | None, d_low: Tensor, h: Tensor, name: str, added: bool, grads: Gradients
    ) -> tuple[Tensor, Tensor | None]:
        weight = params[f"{name}.weight"]
        d_h, d_branch, grads.of[f"{name}.weight"] = add_norm_backward(
            d_h, d_low, h, self.gains.residual, weight, RMS_EPS, added
        )
        return d_h, d_branch

    def forward(self, params: Params, tokens_RN: Tensor, keep: bool) -> tuple[Tensor, list[Any]]:
        """Embedding, blocks and the last norm."""
        h, _ = embed(params["E_in.weight"], tokens_RN, self.dtype)
        scale = self.config.head_dim**-0.5
        kept: list[Any] = []
        branch: Tensor | None = None
        for i in range(self.config.n_layers):
            h, low_A = self._norm(params, h, branch, f"blocks.{i}.norm_A")
            branch, *attended = self._attend(low_A, i, None, None, scale)
            mid, low_M = self._norm(params, h, branch, f"blocks.{i}.norm_M")
            branch, x, gated = self._mlp(low_M, i, None, 1.0)
            if keep:
                kept.append((h, low_A, tuple(attended), mid, low_M, x, gated))
            h = mid
        h, low = self._norm(params, h, branch, "norm_out")
        if keep:
            kept.append(h)
        return low, kept

    def backward(
        self, params: Params, kept: list[Any], d_low: Tensor, grads: Gradients
    ) -> tuple[Tensor, Tensor | None]:
        """The last norm, then blocks, last to first."""
        scale = self.config.head_dim**-0.5
        d_h, d_branch = self._norm_backward(params, None, d_low, kept.pop(), "norm_out", True, grads)
        for i in reversed(range(self.config.n_layers)):
            h, low_A, attended, mid, low_M, x, gated = kept.pop()
            assert d_branch is not None
            d_low, _ = self._mlp_backward(d_branch, low_M, x, gated, i, None, 1.0, grads)
            d_h, d_branch = self._norm_backward(params, d_h, d_low, mid, f"blocks.{i}.norm_M", True, grads)
            assert d_branch is not None
            d_low, _ = self._attend_backward(d_branch, low_A, attended, i, None, None, scale, grads)
            d_h, d_branch = self._norm_backward(params, d_h, d_low, h, f"blocks.{i}.norm_A", i > 0, grads)
        return d_h, None


PROGRAMS: dict[str, type[Program]] = {"normalized": Normalized, "prenorm": Prenorm}


class Updates:
    """Adam and retraction of every parameter of a state by the fused kernel."""

    def __init__(self, program: Program, names: list[str], roles: Roles, settings: dict[str, Settings]) -> None:
        self.program, self.names, self.roles, self.settings = program, names, roles, settings

    def grad_norm(self, grads: Gradients) -> Tensor:
        """The gradient's length per replica."""
        return lengths(list(grads.of.values()))

    def apply_(self, params: Params, first: Params, second: Params, grads: Gradients, course: Course) -> None:
        """One step of every living replica, in place."""
        for name in self.names:
            assignment = self.roles(name)
            copy: Tensor | None = None
            place: Place | None = None
            source = name
            if name.startswith("blocks.") and (short := name.split(".", 2)[2].removesuffix(".weight")) in (
                places := self.program.places
            ):
                which, place = places[short]
                copies = self.program.copies[int(name.split(".")[1])]
                copy = getattr(copies, which)
                holder = {"qkv": "attention.W_q", "up": "mlp.W_u"}.get(which, short)
                source = name.replace(short, holder)
            update_(
                params[name],
                grads.of[source],
                first[name],
                second[name],
                course,
                self.settings[assignment.role],
                assignment.axis,
                copy,
                place,
                grad_moved=copy is not None,
            )
