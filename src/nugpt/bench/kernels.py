"""Each fused operation against its plain twin: time, the bytes it must move, and its share of the copy's rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nugpt.bench.floor import BYTES, LOW, embedding_bytes
from nugpt.bench.steps import TOO_LITTLE, Shape, failure, lab_shapes, paper_shapes
from nugpt.bench.timing import Timing, timed_in_graph, timed_queued
from nugpt.core import sphere
from nugpt.core.baseline import RMS_EPS
from nugpt.core.optim import adam_
from nugpt.core.rope import rope_angles, rotate
from nugpt.data.zipf import Stream
from nugpt.kernels.attention import plain as plain_attention
from nugpt.kernels.cross_entropy import chunked


@dataclass(frozen=True)
class Case:
    """One operation at one shape: the fused call, its plain twin, and the fewest bytes it can move.

    What the twin gives is what the fused call gives first, in the same order.
    """

    name: str
    fused: Callable[[], object]
    plain: Callable[[], object]
    bytes: int


Twin = Callable[[Callable[..., Any]], Callable[..., Any]]


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _by_inductor(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True)


class Operands:
    """Random operands of a step of this shape: R replicas of N tokens, low ones in the dtype of matrix products.

    `twin` makes the plain function that is run of the one that is written.
    """

    def __init__(self, shape: Shape, device: torch.device, low: torch.dtype, twin: Twin = _as_it_is) -> None:
        self.model, self.device, self.low, self.twin = shape.model, device, low, twin
        self.R, self.N = shape.replicas, shape.batch * shape.model.seq_len
        self.D, self.M = shape.model.d_model, shape.model.d_mlp
        self.generator = torch.Generator(device).manual_seed(0)
        self.gain = torch.rand(self.R, generator=self.generator, device=device) + 0.5

    def wide(self, *shape: int) -> Tensor:
        """Of float32."""
        return torch.randn(self.R, *shape, generator=self.generator, device=self.device)

    def narrow(self, *shape: int) -> Tensor:
        """Of the products' dtype."""
        return self.wide(*shape).to(self.low)

    def ids(self) -> Tensor:
        """Tokens, as frequent as in text: one that is everywhere is a long sum for whoever adds up its gradient."""
        ((tokens, _),) = Stream(self.model.vocab_size, (self.R, 1, self.N), self.device).draw(1)
        return tokens[:, 0].int()  # as in a step

    def times_gain(self, stored: Tensor) -> Tensor:
        """A rescaler's effective vector, for every token."""
        return self.gain.view(-1, 1, 1) * stored.unsqueeze(1)


def cases(shape: Shape, device: torch.device, low: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    """The operations of a block, of the embeddings, of the loss and of the optimizer; a few at a time are held."""
    for of in (_lerps, _residuals, _heads, _short_attention, _gates, _embeddings, _losses, _updates):
        yield from of(Operands(shape, device, low))


def compiled_cases(
    shape: Shape, device: torch.device, low: torch.dtype = torch.bfloat16, twin: Twin = _by_inductor
) -> Iterator[Case]:
    """The operations between a block's products, which torch's compiler would fuse, with twins that it has made."""
    for of in (_lerps, _residuals, _heads, _gates):
        yield from of(Operands(shape, device, low, twin))


def _lerps(x: Operands) -> list[Case]:
    from nugpt.kernels.fused.lerp import lerp, lerp_backward

    h, b, before = sphere.norm(x.wide(x.N, x.D)), x.narrow(x.N, x.D), x.narrow(x.N, x.D)
    stored, stored_before = x.wide(x.D).abs(), x.wide(x.D).abs()
    g, g_low = x.wide(x.N, x.D), x.narrow(x.N, x.D)

    @x.twin
    def plain(h: Tensor, b: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        out = sphere.lerp(h, sphere.norm(b.float()), x.times_gain(s).abs())
        return out, out.to(x.low)

    second = _backward(plain, (plain(h, before, stored_before)[0], b, stored), (g, g_low))

    def plain_twice() -> object:
        return *second(), plain(h, before, stored_before)[1]

    first, e = (before, stored_before, x.gain), x.R * x.N * x.D
    return [
        Case("lerp", lambda: lerp(h, b, stored, x.gain), lambda: plain(h, b, stored), BYTES["lerp"] * e),
        Case(
            "lerp backward",
            lambda: lerp_backward(g, g_low, h, b, stored, x.gain),
            _backward(plain, (h, b, stored), (g, g_low)),
            BYTES["lerp backward"] * e,
        ),
        Case(
            "lerp backward, the state before it made again",
            lambda: lerp_backward(g, g_low, h, b, stored, x.gain, first, again=True),
            plain_twice,
            (BYTES["lerp backward"] + 2 * LOW) * e,  # the branch before, and the copy that is made again
        ),
    ]


def _residuals(x: Operands) -> list[Case]:
    """The plain transformer's."""
    from nugpt.kernels.fused.add_norm import add_norm, add_norm_backward

    h, b, w = x.wide(x.N, x.D), x.narrow(x.N, x.D), x.wide(x.D)
    g, g_low = x.wide(x.N, x.D), x.narrow(x.N, x.D)

    @x.twin
    def plain(h: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        out = h + x.gain.view(-1, 1, 1) * b
        inverse = torch.rsqrt(out.square().mean(-1, keepdim=True) + RMS_EPS)
        return out, (out * inverse * w.unsqueeze(1)).to(x.low)

    out, e = plain(h, b, w)[0], x.R * x.N * x.D
    return [
        Case(
            "add, norm",
            lambda: add_norm(h, b, x.gain, w, RMS_EPS, x.low),
            lambda: plain(h, b, w),
            BYTES["add, norm"] * e,
        ),
        Case(
            "add, norm backward",
            lambda: add_norm_backward(g, g_low, out, x.gain, w, RMS_EPS, added=True),
            _backward(plain, (h, b, w), (g, g_low)),
            BYTES["add, norm backward"] * e,
        ),
    ]


class _QueriesAndKeys:
    """A q-k-v product, its layout and what turns it; heads as the definition has them."""

    def __init__(self, x: Operands) -> None:
        from nugpt.kernels.fused.heads import Heads

        model = x.model
        self.x, self.layout = x, Heads(model.n_heads, model.n_heads, model.head_dim, model.seq_len)
        self.product, self.s_qk = x.narrow(x.N, self.layout.columns), x.wide(model.n_heads, model.head_dim)
        positions = torch.arange(model.seq_len, device=x.device)
        self.angles = rope_angles(positions, model.head_dim, model.rope_theta, torch.float32)
        self.around = (self.layout, self.s_qk, x.gain, *self.layout.turns(self.angles))
        self.numbers = x.R * x.N * model.n_heads * self.layout.width  # in all queries, and in all keys

    def plain(self, product: Tensor, s_qk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys after rotation, Norm and s_qk, and values; of heads that need no padding as they lie."""
        H = self.layout.dim
        q, k, v = (part[..., :H] for part in self.layout.split(product))
        each = q.shape[0] // self.x.R
        scales = (self.x.gain.view(-1, 1, 1) * s_qk).repeat_interleave(each, 0).unsqueeze(1)
        q, k = ((sphere.norm(rotate(y, self.angles)) * scales).to(self.x.low) for y in (q, k))
        return q, k, v


def _heads(x: Operands) -> list[Case]:
    from nugpt.kernels.fused.heads import rotate_scale, rotate_scale_backward

    heads = _QueriesAndKeys(x)
    plain = x.twin(heads.plain)
    grads = tuple(x.narrow(x.N, x.model.n_heads, heads.layout.width) for _ in range(3))
    d_q, d_k, d_v = (g.view(-1, x.model.seq_len, *g.shape[2:]) for g in grads)
    pulls = tuple(g[..., : heads.layout.dim] for g in (d_q, d_k, d_v))
    return [
        Case(
            "rotate, norm, s_qk",
            lambda: rotate_scale(heads.product, *heads.around),
            lambda: plain(heads.product, heads.s_qk)[:2],
            BYTES["rotate, norm, s_qk"] * 2 * heads.numbers,
        ),
        Case(
            "rotate, norm, s_qk backward",
            lambda: rotate_scale_backward((d_q, d_k, d_v), heads.product, *heads.around),
            _backward(plain, (heads.product, heads.s_qk), pulls),
            16 * heads.numbers,
        ),
    ]


def _short_attention(x: Operands) -> list[Case]:
    """Ours, where it takes the shape; other sequences are left to the libraries."""
    from nugpt.kernels.fused import short
    from nugpt.kernels.fused.attention import attend, attend_turned_backward
    from nugpt.kernels.fused.heads import rotate_scale

    heads, scale = _QueriesAndKeys(x), x.model.head_dim**0.5
    if not short.takes(x.model.seq_len, heads.layout.width):
        return []
    q, k = rotate_scale(heads.product, *heads.around)
    v = heads.layout.split(heads.product)[2]
    o, saved = attend("short", q, k, v, scale)
    grad = x.narrow(x.N, x.model.n_heads, heads.layout.width).view(o.shape)

    def plain(product: Tensor, s_qk: Tensor) -> Tensor:
        return plain_attention(*heads.plain(product, s_qk), scale)

    return [
        Case(
            "attention of short sequences",
            lambda: attend("short", q, k, v, scale)[0],
            lambda: plain_attention(q, k, v, scale),
            8 * heads.numbers,
        ),
        Case(
            "attention of short sequences backward, to the product",
            lambda: attend_turned_backward("short", grad, q, k, heads.product, o, saved, scale, *heads.around),
            _backward(plain, (heads.product, heads.s_qk), (grad[..., : heads.layout.dim],)),
            16 * heads.numbers,
        ),
    ]


def _gates(x: Operands) -> list[Case]:
    from nugpt.kernels.fused.swiglu import swiglu, swiglu_backward

    product, grad, s_u, s_nu = x.narrow(x.N, 2 * x.M), x.narrow(x.N, x.M), x.wide(x.M), x.wide(x.M)
    scales, constant = (s_u, x.gain, s_nu, x.gain), x.D**0.5

    @x.twin
    def plain(product: Tensor, s_u: Tensor, s_nu: Tensor) -> Tensor:
        u, nu = product.split(x.M, dim=-1)
        return (functional.silu(nu * x.times_gain(s_nu) * constant) * (u * x.times_gain(s_u))).to(x.low)

    w = x.R * x.N * x.M
    return [
        Case(
            "swiglu", lambda: swiglu(product, scales, constant), lambda: plain(product, s_u, s_nu), BYTES["swiglu"] * w
        ),
        Case(
            "swiglu backward",
            lambda: swiglu_backward(grad, product, scales, constant)[:2],
            _backward(plain, (product, s_u, s_nu), (grad,)),
            BYTES["swiglu backward"] * w,
        ),
    ]


def _embeddings(x: Operands) -> list[Case]:
    from nugpt.kernels.fused.embedding import embed, embed_backward, embedding_order

    V = x.model.vocab_size
    weight, tokens, g, g_low = x.wide(V, x.D), x.ids(), x.wide(x.N, x.D), x.narrow(x.N, x.D)
    order = embedding_order(tokens, V)

    def plain(weight: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.stack([functional.embedding(of, rows) for of, rows in zip(tokens, weight, strict=True)])
        return out, out.to(x.low)

    e, rows = x.R * x.N * x.D, sum(len(of.unique()) for of in tokens) * x.D  # a row that many name is read once
    return [
        Case("embedding", lambda: embed(weight, tokens, x.low), lambda: plain(weight), embedding_bytes(e, rows)),
        Case(
            "embedding backward",
            lambda: embed_backward(g, g_low, order),
            _backward(plain, (weight,), (g, g_low)),
            embedding_bytes(e, x.R * V * x.D),
        ),
    ]


def _losses(x: Operands) -> list[Case]:
    from nugpt.kernels.fused import loss

    V, N, D = x.model.vocab_size, x.N, x.D
    h, E_out, s_z, targets = x.narrow(N, D), sphere.norm(x.wide(V, D)), x.wide(V), x.ids()
    replicas, tokens = loss.pieces(x.R, N, V)[0]
    logits = x.narrow(tokens.stop, V)[replicas].contiguous()
    losses = torch.empty(x.R, N, device=x.device)

    def fused() -> object:
        found, dh, d_scaled = loss.token_losses_and_gradients(h, loss.scaled(E_out, s_z, x.gain, x.low), targets, 1 / N)
        return dh, *loss.unscale_(d_scaled, E_out, s_z, x.gain), found

    def plain(h: Tensor, weight: Tensor, s: Tensor) -> Tensor:
        return chunked(h, weight.to(x.low), x.gain.view(-1, 1) * s, targets.long()).mean(-1).sum()

    def softmax_in_place() -> object:
        loss.softmax_(logits, targets[replicas], losses[replicas], 0, 1 / N)
        return logits

    def plain_softmax() -> Tensor:
        d = logits.float().softmax(-1)
        d.scatter_add_(-1, targets[replicas, tokens].long().unsqueeze(-1), -torch.ones_like(d[..., :1]))
        return (d / N).to(x.low)

    return [
        Case(
            "logits to their gradient",
            softmax_in_place,
            plain_softmax,
            BYTES["logits to their gradient"] * logits.numel(),
        ),
        Case(
            "linear cross-entropy, both ways",
            fused,
            lambda: _backward(plain, (h, E_out, s_z), None)(),
            # Logits written, read, rewritten, read; then h and its gradient; then weights.
            x.R * (4 * LOW * N * V + 2 * LOW * N * D + BYTES["unembedding, scaled and back"] * V * D),
        ),
    ]


def _updates(x: Operands) -> list[Case]:
    from nugpt.kernels.fused.adam import Course, Place, lengths, update_

    ones, betas, step = torch.ones(x.R, device=x.device), (0.9, 0.95), 5
    scalars = torch.tensor([1.0, *(1 - beta**step for beta in betas)], device=x.device)
    course, settings = Course(ones.int(), ones, scalars, betas), (1e-6 * ones, 1e-8 * ones, 0 * ones)

    def case(name: str, shape: tuple[int, int], axis: int, place: Place, bytes_each: int) -> Case:
        grad = x.narrow(*shape)
        start = sphere.norm(x.wide(*shape), axis + 1), x.wide(*shape), x.wide(*shape).square()
        ours, copy = [part.clone() for part in start], torch.empty_like(grad)

        def fused() -> object:
            update_(ours[0], grad, ours[1], ours[2], course, settings, axis, copy, place, grad_moved=True)
            return (*ours, copy)

        def plain() -> object:
            adam_(start[0], grad.float(), start[1], start[2], step, 1e-6, betas, 1e-8)
            sphere.retract_tensor_(start[0], axis + 1)
            return (*start, start[0].to(x.low))

        return Case(name, fused, plain, bytes_each * grad.numel())

    grad = x.narrow(x.M, x.D)
    return [
        case("adam, retraction, copy; spheres along rows", (x.M, x.D), 1, Place(), BYTES["adam"]),
        case(
            "adam, retraction, copy; spheres along columns",
            (x.D, x.M),
            0,
            Place(columns=True),
            BYTES["adam, spheres along columns"],
        ),
        Case(
            "length of a gradient",
            lambda: lengths([grad]),
            lambda: torch.linalg.vector_norm(grad.flatten(1), dim=1, dtype=torch.float32),
            BYTES["length of a gradient"] * grad.numel(),
        ),
    ]


def _backward(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...] | None
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone, over a graph made once; without `grads`, of a single number."""
    leaves = tuple(x.detach().requires_grad_() for x in inputs)
    with torch.enable_grad():
        found = function(*leaves)
    outputs = found if isinstance(found, tuple) else (found,)
    pulls = None if grads is None else tuple(g.to(out.dtype) for g, out in zip(grads, outputs, strict=True))
    return lambda: torch.autograd.grad(outputs, leaves, pulls, retain_graph=True)


def kernel_shapes() -> list[Shape]:
    """The paper's shapes, and eight replicas of the narrowest and of the widest model of sweeps."""
    sweeps = [shape for shape in lab_shapes("normalized") if shape.replicas > 1]
    return [*paper_shapes("normalized"), sweeps[0], sweeps[-1]]


def bench_kernels(
    device: torch.device, copy_tbps: float, runs: int, compiled: bool = False, shapes: Sequence[Shape] | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Every operation at large shapes and at sweeps', beside its plain twin; if `compiled`, also as inductor has it.

    Shape by shape; one at which something does not fit, or fails, ends with a row that says so.
    """
    for shape in shapes or kernel_shapes():
        rows: list[dict[str, Any]] = []
        try:
            for row in _rows(shape, device, copy_tbps, runs, compiled):
                rows.append(row)
        except torch.OutOfMemoryError:
            rows.append({"shape": _label(shape), "not_run": TOO_LITTLE})
        except Exception as error:  # whatever it is, the other shapes are timed
            rows.append({"shape": _label(shape)} | failure(error))
        yield rows


def _rows(shape: Shape, device: torch.device, copy_tbps: float, runs: int, compiled: bool) -> Iterator[dict[str, Any]]:
    by_inductor = _compiled_times(shape, device, runs) if compiled else {}
    for case in cases(shape, device):
        fused, plain = timed_in_graph(case.fused, device, runs), timed_queued(case.plain, device, runs)
        rate = case.bytes / fused.median / 1e9
        yield {
            "kernel": case.name,
            "shape": _label(shape),
            "ms": fused.figures(),
            "plain_ms": plain.figures(),
            "compiled_ms": by_inductor[case.name].figures() if case.name in by_inductor else None,
            "times_faster": plain.median / fused.median,
            "bytes": case.bytes,
            "tbps": rate,
            "share_of_copy": rate / copy_tbps,
        }
        torch.cuda.empty_cache()


def _label(shape: Shape) -> str:
    return f"{shape.replicas} × {shape.batch * shape.model.seq_len} × {shape.model.d_model}"


def _compiled_times(shape: Shape, device: torch.device, runs: int) -> dict[str, Timing]:
    from torch._functorch import config as functorch_config  # torch's own: not needed otherwise

    torch.compiler.reset()  # else a shape compiled before counts towards the number at which it gives up
    # A backward pass is run many times over one graph, whose buffers it must then leave alone.
    with functorch_config.patch(donated_buffer=False):
        return {case.name: timed_queued(case.plain, device, runs) for case in compiled_cases(shape, device)}
