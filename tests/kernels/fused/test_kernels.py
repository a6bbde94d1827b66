"""Every fused kernel against its plain twin in float64: values and gradients, odd shapes, replicas, zero rows.

On a GPU the kernels run as they are; elsewhere Triton interprets them.
"""

from __future__ import annotations

import pytest
import torch
from tests.kernels.fused.tensors import DEVICE, DTYPES, bordered, made
from torch import Tensor
from torch.nn import functional

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("mended_interpreter")]

# A result is rounded once to its dtype (by the interpreter towards zero); float32 sums of a few hundred numbers are
# good to a few 1e-6.
BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 6e-3}


def assert_close(found: Tensor, truth: Tensor, dtype: torch.dtype, what: str = "") -> None:
    assert found.shape == truth.shape, what
    assert bool(found.isfinite().all()), what
    error = float((found.double() - truth.double()).norm() / truth.double().norm())
    assert error < BOUNDS[dtype], (what, error)


def exact(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in tensors]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 8), (3, 7, 34), (2, 9, 192), (1, 3, 1224)])
def test_lerp_and_its_gradient(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    from nugpt.core import sphere
    from nugpt.kernels.fused.lerp import lerp, lerp_backward, lerp_low

    R, N, D = shape
    h, b, b0 = sphere.norm(made(R, N, D)), made(R, N, D, dtype=dtype, seed=1), made(R, N, D, dtype=dtype, seed=2)
    b[0, 0] = 0.0  # a zero row stays where it was, with a finite gradient
    stored, stored0, gain = made(R, D, seed=3), made(R, D, seed=4), torch.rand(R, device=DEVICE) * 0.3 + 0.05
    stored[0, 0] = 0.0  # |x| has gradient 0 there

    def twin(h: Tensor, b: Tensor, s: Tensor) -> Tensor:
        return sphere.lerp(h, sphere.norm(b), (gain.double().view(-1, 1, 1) * s.unsqueeze(1)).abs())

    h64, b64, s64 = exact(h, b, stored)
    truth = twin(h64, b64, s64)
    out, low = lerp(h, b, stored, gain)
    assert_close(out, truth, torch.float32, "state")
    assert low.dtype is dtype
    assert_close(low, truth, dtype, "low copy")
    assert torch.equal(lerp_low(h, b, stored, gain), low)
    g, g_low = made(R, N, D, seed=5), made(R, N, D, dtype=dtype, seed=6)
    true_grads = torch.autograd.grad(truth, (h64, b64, s64), g.double() + g_low.double())
    for again in (False, True):
        *found, before = lerp_backward(g, g_low, h, b, stored, gain, again=again)
        for name, x, t, d in zip("hbs", found, true_grads, (torch.float32, dtype, torch.float32), strict=True):
            assert_close(x, t, d, name)
        assert (before is not None) == again
    assert before is not None
    assert_close(before, h, dtype, "low copy of the state before")
    # Without a float32 part of the gradient, as at the last block, and with the LERP before this one made again.
    h64, b064, s064, b64, s64 = exact(h, b0, stored0, b, stored)
    middle = twin(h64, b064, s064)
    true_grads = torch.autograd.grad(twin(middle, b64, s64), (middle, b64, s64), g_low.double())
    *found, before = lerp_backward(None, g_low, h, b, stored, gain, before=(b0, stored0, gain), again=True)
    for name, x, t, d in zip("mbs", found, true_grads, (torch.float32, dtype, torch.float32), strict=True):
        assert_close(x, t, d, name)
    assert before is not None
    assert_close(before, middle, dtype, "the state between")


@pytest.mark.parametrize("apart", [0.5, 0.1, 0.03])
def test_where_branch_and_state_nearly_cancel_the_error_is_that_of_sums_of_squares(apart: float) -> None:
    from nugpt.core import sphere
    from nugpt.kernels.fused.lerp import lerp

    h = sphere.norm(made(1, 9, 192))
    b = apart * sphere.norm(made(1, 9, 192, seed=1)) - h
    stored, gain = torch.full((1, 192), 0.5, device=DEVICE), torch.ones(1, device=DEVICE)
    h64, branch64 = h.double(), sphere.norm(b.double())
    truth, length = sphere.lerp(h64, branch64, torch.tensor(0.5)), (0.5 * (h64 + branch64)).norm(dim=-1)
    assert 0.4 < float(length.max()) / apart < 0.6
    error = (lerp(h, b, stored, gain)[0].double() - truth).norm(dim=-1)
    assert bool((error < 5e-7 / length.square()).all())  # a few roundings of sums of size 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("added", [True, False])
def test_add_norm_and_its_gradient(added: bool, dtype: torch.dtype) -> None:
    from nugpt.core.baseline import RMS_EPS
    from nugpt.kernels.fused.add_norm import add_norm, add_norm_backward

    R, N, D = 2, 7, 102
    h, b, w = made(R, N, D), made(R, N, D, dtype=dtype, seed=1), made(R, D, seed=2)
    h[0, 0], b[0, 0] = 0.0, 0.0
    r = torch.rand(R, device=DEVICE) + 0.1
    h64, b64, w64 = exact(h, b, w)
    state = h64 + r.double().view(-1, 1, 1) * b64 if added else h64 * 1.0
    truth = state * torch.rsqrt(state.square().mean(-1, keepdim=True) + RMS_EPS) * w64.unsqueeze(1)
    out, low = add_norm(h, b if added else None, r, w, RMS_EPS, dtype)
    assert_close(out, state, torch.float32)
    assert_close(low, truth, dtype)
    g, g_low = made(R, N, D, seed=3), made(R, N, D, dtype=dtype, seed=4)
    total = (truth * g_low.double()).sum() + (state * g.double()).sum()
    leaves = (h64, b64, w64) if added else (h64, w64)
    true_grads = torch.autograd.grad(total, leaves)
    dh, db, dw = add_norm_backward(g, g_low, out, r, w, RMS_EPS, added)
    assert_close(dh, true_grads[0], torch.float32, "h")
    assert_close(dw, true_grads[-1], torch.float32, "w")
    assert (db is not None) is added
    if db is not None:
        assert_close(db, true_grads[1], dtype, "b")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys", "dim"), [(2, 2, 48), (4, 2, 6), (3, 1, 102), (2, 2, 16)])
@pytest.mark.parametrize("scaled", [True, False])
def test_heads_and_their_gradient(queries: int, keys: int, dim: int, scaled: bool, dtype: torch.dtype) -> None:
    from nugpt.core import sphere
    from nugpt.core.rope import rope_angles, rotate
    from nugpt.kernels.fused.heads import Heads, rotate_scale, rotate_scale_backward

    R, B, T = 2, 2, 5
    heads = Heads(queries, keys, dim, T)
    half, apart = dim // 2, heads.width // 2
    angles = rope_angles(torch.arange(T, device=DEVICE), dim, 100.0, torch.float32)
    q, k, v = (made(R * B, T, n, dim, dtype=dtype, seed=i) for i, n in enumerate((queries, keys, keys)))
    q[0, 0, 0] = 0.0
    stored, gain = made(R, keys, dim, seed=9), torch.rand(R, device=DEVICE) + 0.5
    x = torch.zeros(R * B, T, queries + 2 * keys, heads.width, device=DEVICE, dtype=dtype)
    for place, part in ((0, q), (queries, k)):
        x[:, :, place : place + part.shape[2], :half] = part[..., :half]
        x[:, :, place : place + part.shape[2], apart : apart + half] = part[..., half:]
    x[:, :, queries + keys :, :dim] = v
    x = x.view(R, B * T, heads.columns)

    def lying(y: Tensor) -> Tensor:
        """A head's components in the order of the definition."""
        return torch.cat((y[..., :half], y[..., apart : apart + half]), -1)

    q64, k64, s64 = exact(q, k, stored)

    def twin(y: Tensor) -> Tensor:
        turned = rotate(y, angles.double())
        if not scaled:
            return turned
        s = (gain.double().view(-1, 1, 1) * s64).repeat_interleave(y.shape[2] // keys, 1).repeat_interleave(B, 0)
        return sphere.norm(turned) * s.unsqueeze(1)

    true_q, true_k = twin(q64), twin(k64)
    given = (stored, gain) if scaled else (None, None)
    turns = heads.turns(angles)
    found_q, found_k = rotate_scale(x, heads, *given, *turns)
    assert_close(lying(found_q), true_q, dtype)
    assert_close(lying(found_k), true_k, dtype)
    if heads.width > dim:
        assert not found_q[..., half:apart].any()
        assert not found_q[..., apart + half :].any()
    dq, dk, dv = (made(R * B, T, n, heads.width, dtype=dtype, seed=20 + i) for i, n in enumerate((queries, keys, keys)))
    total = (true_q * lying(dq).double()).sum() + (true_k * lying(dk).double()).sum()
    true_grads = torch.autograd.grad(total, (q64, k64, s64) if scaled else (q64, k64))
    dx, ds = rotate_scale_backward((dq, dk, dv), x, heads, *given, *turns)
    found = heads.split(dx)
    assert_close(lying(found[0]), true_grads[0], dtype, "q")
    assert_close(lying(found[1]), true_grads[1], dtype, "k")
    assert_close(found[2], dv, dtype)
    for part in found[:2]:  # what pads their gradients, which held anything, is left out
        assert not part[..., half:apart].any()
        assert not part[..., apart + half :].any()
    if scaled:
        assert ds is not None
        assert_close(ds, true_grads[2], torch.float32, "s")


@pytest.mark.parametrize("strides", [(2**32, 2**15, 2**7), (2**32, 2**7, 2**24)], ids=["by token", "by head"])
def test_heads_are_found_in_gradients_of_more_than_two_thousand_million_numbers(strides: tuple[int, int, int]) -> None:
    """Two sequences of 2^17 tokens with 256 heads of 128, which lie token by token or head by head."""
    from tests.kernels.fused.offsets import places

    T, rows, heads = 2**17, 4, 256
    found = torch.empty(rows, heads, dtype=torch.int64, device=DEVICE)
    first = T - 2  # the last two tokens of one sequence, the first two of the next
    places[(1,)](found, first, T, *(stride // 8 for stride in strides), rows, heads)
    at = [((first + row) // T, (first + row) % T) for row in range(rows)]
    by_batch, by_token, by_head = strides
    truth = [[b * by_batch + t * by_token + head * by_head for head in range(heads)] for b, t in at]
    assert found.tolist() == truth


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shape", [(1, 5, 24), (3, 17, 130), (2, 33, 128)])  # last tiles of one row, or of all columns
def test_swiglu_and_its_gradient(shape: tuple[int, int, int], scaled: bool, dtype: torch.dtype) -> None:
    from nugpt.kernels.fused.swiglu import swiglu, swiglu_backward

    R, N, M = shape
    x, u, nu = made(R, N, 2 * M, dtype=dtype), made(R, M, seed=1), made(R, M, seed=2)
    gains = torch.rand(2, R, device=DEVICE) + 0.5
    constant = 3.0 if scaled else 1.0
    x64, u64, nu64 = exact(x, u, nu)
    left, right = x64.split(M, dim=-1)
    if scaled:
        left = left * (gains[0].double().view(-1, 1, 1) * u64.unsqueeze(1))
        right = right * (gains[1].double().view(-1, 1, 1) * nu64.unsqueeze(1)) * constant
    truth = functional.silu(right) * left
    given = (u, gains[0], nu, gains[1]) if scaled else None
    assert_close(swiglu(x, given, constant), truth, dtype)
    g = made(R, N, M, dtype=dtype, seed=3)
    true_grads = torch.autograd.grad(truth, (x64, u64, nu64) if scaled else (x64,), g.double())
    dx, ds, again = swiglu_backward(g, x, given, constant, again=scaled)
    assert (again is not None) is scaled
    if again is not None:
        assert_close(again, truth, dtype, "made again")
    assert_close(dx, true_grads[0], dtype, "x")
    assert (ds is not None) is scaled
    if ds is not None:
        assert_close(ds[0], true_grads[1], torch.float32, "s_u")
        assert_close(ds[1], true_grads[2], torch.float32, "s_nu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("whole", "shape", "held", "pieces"),
    [
        (True, (2, 11, 4500), None, 1),
        (False, (2, 11, 4500), None, 1),
        (True, (3, 300, 90), 100 * 90, 9),  # of each replica 128, 128 and 44 tokens
        (True, (3, 300, 90), 700 * 90, 2),  # two replicas, then one
        (False, (2, 150, 33), 100 * 33, 4),  # of each replica 128 and 22 tokens; a row is a part and one number
    ],
    ids=["row at once", "row in pieces", "tokens in chunks", "replicas in groups", "tokens in chunks, row in pieces"],
)
def test_loss_and_its_gradients(
    whole: bool,
    shape: tuple[int, int, int],
    held: int | None,
    pieces: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nugpt.kernels import cross_entropy
    from nugpt.kernels.fused import loss
    from nugpt.kernels.fused.tile import Tiling

    (R, N, V), D = shape, 24
    if held is not None:
        monkeypatch.setattr(loss, "CHUNK_LOGITS", held)
    if not whole:  # a row in several parts, and several rows for a program
        monkeypatch.setattr(loss, "WHOLE_ROW", 16)
        monkeypatch.setitem(loss.TILINGS, "long softmax", Tiling(1024 if V > 1024 else 32, resident=1))
    assert len(loss.pieces(R, N, V)) == pieces
    h, W, s = made(R, N, D, dtype=dtype), made(R, V, D, seed=1), made(R, V, seed=2)
    s[0, 3] = 0.0  # a scale of zero still has a gradient
    gain = torch.rand(R, device=DEVICE) + 0.5
    targets = torch.randint(V, (R, N), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scaled = loss.scaled(W, s, gain, dtype)
    h64, W64, s64 = exact(h, W, s)
    truth = cross_entropy.plain(h64, W64, gain.double().view(-1, 1) * s64, targets)
    losses, dh, dw = loss.token_losses_and_gradients(h, scaled, targets, 0.25)
    assert_close(losses, truth, dtype, "losses")
    assert_close(loss.token_losses(h, scaled, targets), truth, dtype, "losses alone")
    true_grads = torch.autograd.grad(0.25 * truth.sum(), (h64, W64, s64))
    dW, ds = loss.unscale_(dw, W, s, gain)
    # Logits of size 10 rounded to bfloat16 are off by 2^-6 or so, and a probability by that share.
    bound = BOUNDS[dtype] if dtype is torch.float32 else 5e-2
    for name, x, t in zip(("h", "W", "s"), (dh, dW, ds), true_grads, strict=True):
        assert float((x.double() - t).norm() / t.norm()) < bound, name


@pytest.mark.parametrize("whole", [True, False])
def test_logits_that_overflow_an_exponential_are_fine(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import loss

    if not whole:
        monkeypatch.setattr(loss, "WHOLE_ROW", 16)
    h = torch.full((1, 2, 8), 30.0, device=DEVICE)
    W = torch.full((1, 40, 8), 1.0, device=DEVICE)
    W[0, 7] = 2.0
    targets = torch.tensor([[7, 0]], device=DEVICE)
    losses = loss.token_losses(h, W, targets)
    assert losses.tolist() == [[0.0, 240.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_and_its_gradient(dtype: torch.dtype) -> None:
    from nugpt.kernels.fused.embedding import embed, embed_backward, embedding_order

    R, N, V, D = 2, 33, 10, 24
    W = made(R, V, D)
    tokens = torch.randint(V - 1, (R, N), generator=torch.Generator().manual_seed(3)).to(DEVICE)  # one never comes
    out, low = embed(W, tokens, dtype)
    truth = torch.stack([W[r][tokens[r]] for r in range(R)])
    assert torch.equal(out, truth)
    assert_close(low, truth, dtype)
    g, g_low = made(R, N, D, seed=1), made(R, N, D, dtype=dtype, seed=2)
    for low_part in (g_low, None):
        summed = g.double() + (0.0 if low_part is None else low_part.double())
        true_grad = torch.zeros(R, V, D, dtype=torch.float64, device=DEVICE)
        for r in range(R):
            true_grad[r].index_add_(0, tokens[r], summed[r])
        found = embed_backward(g, low_part, embedding_order(tokens, V))
        assert_close(found, true_grad, torch.float32)
        assert not found[:, V - 1].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_embeddings_gradient_of_a_frequent_token_is_summed_over_windows(dtype: torch.dtype) -> None:
    from nugpt.kernels.fused.embedding import WINDOW, embed_backward, embedding_order

    V, D, W = 9, 24, WINDOW
    # How often each token comes. First: over many windows, to the end of one, from its start, within one, never.
    # Second: the last token alone in every window, the last of them not full.
    counts = [[3, 5 * W + 7, 2 * W - 10, W, 0, 4, 2 * W - 4, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0, 10 * W + 1]]
    N = sum(counts[1])
    assert sum(counts[0]) == N
    generator = torch.Generator().manual_seed(5)
    each = [torch.arange(V).repeat_interleave(torch.tensor(count)) for count in counts]
    tokens = torch.stack([x[torch.randperm(N, generator=generator)] for x in each]).to(DEVICE)
    g, g_low = made(2, N, D), made(2, N, D, dtype=dtype, seed=1)
    truth = torch.zeros(2, V, D, dtype=torch.float64, device=DEVICE)
    for r in range(2):
        truth[r].index_add_(0, tokens[r], (g.double() + g_low.double())[r])
    order = embedding_order(tokens, V)
    found = embed_backward(g, g_low, order)
    assert_close(found, truth, torch.float32)
    assert torch.equal(found, embed_backward(g, g_low, embedding_order(tokens, V)))
    assert torch.equal(found, embed_backward(g, g_low, embedding_order(tokens.int(), V)))
    # Places of one token stay in the order of the batch: no two keys are equal, so that any sort gives this order.
    keys = tokens * N + torch.arange(N, device=DEVICE)
    assert torch.equal(order.places_RN, keys.argsort(dim=1))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_adam_and_retraction(axis: int | None, padded: bool, dtype: torch.dtype) -> None:
    from nugpt.core.optim import adam_
    from nugpt.core.sphere import retract_tensor_
    from nugpt.kernels.fused.adam import Course, Place, lengths, update_

    R, heads, dim, other, width = 3, 2, 6, 10, 8 if padded else 6
    columns = axis == 0
    shape = (R, other, heads * dim) if columns else (R, heads * dim, other)
    p, m, v = made(*shape), made(*shape, seed=1), made(*shape, seed=2).square()
    g = made(*shape, dtype=dtype, seed=3)
    for x in (p, m, g):  # a vector of zeros that nothing moves has no length to be divided by
        x.select(2 if columns else 1, 4).zero_()
    stacked_shape = (R, other, heads * width) if columns else (R, 3 + heads * width, other)
    place = Place(0 if columns else 3, dim, width, columns)

    def placed(x: Tensor, like: Tensor) -> Tensor:
        """x at its place in a stack."""
        if columns:
            like.unflatten(2, (heads, width))[..., :dim] = x.unflatten(2, (heads, dim)).to(like.dtype)
        else:
            like[:, 3:].unflatten(1, (heads, width))[:, :, :dim] = x.unflatten(1, (heads, dim)).to(like.dtype)
        return like

    g_stacked = bordered(placed(g, torch.zeros(stacked_shape, device=DEVICE, dtype=dtype)))
    copy = placed(p, torch.zeros(stacked_shape, device=DEVICE, dtype=dtype))
    p, m, v, copy = (bordered(x, around=7.0) for x in (p, m, v, copy))  # what is read there must not be written back
    alive = torch.tensor([1, 0, 1], dtype=torch.int32, device=DEVICE)
    clip = torch.tensor([1.0, 1.0, 0.5], device=DEVICE)
    lr, eps, decay = (torch.tensor(x, device=DEVICE) for x in ([0.1, 0.2, 0.3], [1e-8, 1e-8, 1e-3], [0.0, 0.1, 0.1]))
    betas, step = (0.9, 0.95), 3
    scalars = torch.tensor([0.7, 1 - betas[0] ** step, 1 - betas[1] ** step], device=DEVICE)
    truth = [x.double().clone() for x in (p, m, v)]
    for r in (0, 2):
        grad = g[r].double() * float(clip[r])
        rate = 0.7 * float(lr[r])
        adam_(truth[0][r], grad, truth[1][r], truth[2][r], step, rate, betas, float(eps[r]), float(decay[r]))
        if axis is not None:
            retract_tensor_(truth[0][r], axis)
    before = [x[1].clone() for x in (p, m, v)]
    update_(p, g_stacked, m, v, Course(alive, clip, scalars, betas), (lr, eps, decay), axis, copy, place, True)
    for name, x, t in zip(("p", "m", "v"), (p, m, v), truth, strict=True):
        assert_close(x, t, torch.float32, name)
    for x, old in zip((p, m, v), before, strict=True):
        assert torch.equal(x[1], old)  # the dead keep theirs to the bit
    assert_close(copy, placed(p, torch.zeros_like(copy)), dtype)
    assert not copy[placed(torch.ones_like(p), torch.zeros_like(copy)) == 0].any()  # nothing beside its place
    true_length = g.double().flatten(1).norm(dim=1)
    assert_close(lengths([g_stacked]), true_length, torch.float32)


def test_columns_are_followed_down_by_any_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.core.optim import adam_
    from nugpt.core.sphere import retract_tensor_
    from nugpt.kernels.fused import adam

    R, rows, columns = 2, 150, 40
    g = made(R, rows, columns, seed=3)
    start = [made(R, rows, columns), made(R, rows, columns, seed=1), made(R, rows, columns, seed=2).square()]
    truth = [x.double() for x in start]
    adam_(truth[0], g.double(), truth[1], truth[2], 1, 0.1, (0.9, 0.95), 1e-8)
    retract_tensor_(truth[0], 1)
    ones = torch.ones(R, device=DEVICE)
    course = adam.Course(ones.int(), ones, torch.tensor([1.0, 0.1, 0.05], device=DEVICE), (0.9, 0.95))
    for tile in adam.COLUMN_TILES:
        with monkeypatch.context() as patch:
            patch.setattr(adam, "COLUMN_TILES", (tile,))
            p, m, v = (bordered(x, around=7.0) for x in start)
            copy = torch.empty_like(p)
            settings = (0.1 * ones, 1e-8 * ones, 0 * ones)
            adam.update_(p, g, m, v, course, settings, 0, copy, adam.Place(columns=True), True)
        for x, t in zip((p, m, v, copy), (*truth, truth[0]), strict=True):
            assert_close(x, t, torch.float32, str(tile))


def test_the_length_of_gradients_of_every_size_and_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import adam

    def check(*grads: Tensor) -> None:
        truth = torch.cat([g.double().flatten(1) for g in grads], 1).norm(dim=1)
        assert_close(adam.lengths(list(grads)), truth, torch.float32)
        for i in range(len(grads)):  # each counts, and only for its own replica
            spoiled = [g.clone() for g in grads]
            spoiled[i][1] = float("inf")
            assert adam.lengths(spoiled).isfinite().tolist() == [True, False, True]

    wide, low = made(3, 2, 9000), made(3, 70, 33, dtype=torch.bfloat16)  # several programs' and one's
    check(wide, made(3, 7), low, made(3, 2, 5), made(3, 1), made(3, 4097, seed=1))
    check(low, wide)
    check(made(3, 6))
    for programs in (8, 0):  # of all replicas together; where that is fewer than replicas, each has one
        monkeypatch.setattr(adam, "multiprocessors", lambda device, few=programs // 8: few)
        check(wide, made(3, 7))


@pytest.mark.parametrize("programs", [1, 129, 1100])  # the last takes three rounds
def test_what_programs_summed_is_added_up(programs: int) -> None:
    from nugpt.kernels.fused.tile import total

    R, W = 2, 19
    partial, stored, gain = made(R, programs, W), made(R, W, seed=1), made(R, seed=2)
    stored[:, 3] = 0.0
    summed, g = partial.double().sum(1), gain.double().unsqueeze(1)
    assert_close(total(partial, None, None), summed, torch.float32)
    assert_close(total(partial, None, gain), summed * g, torch.float32)
    assert_close(total(partial, stored, gain, absolute=True), summed * g * (g * stored).sign(), torch.float32)


def test_adam_of_vectors_of_any_length() -> None:
    from nugpt.core.optim import adam_
    from nugpt.kernels.fused.adam import Course, update_

    for size in (7, 1031, 3072):  # the second is prime
        p, m, v, g = (made(2, size, seed=i) for i in range(4))
        v.abs_()
        truth = [x.double().clone() for x in (p, m, v)]
        adam_(truth[0], g.double(), truth[1], truth[2], 1, 0.1, (0.9, 0.95), 1e-8)
        ones = torch.ones(2, device=DEVICE)
        course = Course(ones.int(), ones, torch.tensor([1.0, 0.1, 0.05], device=DEVICE), (0.9, 0.95))
        update_(p, g, m, v, course, (0.1 * ones, 1e-8 * ones, 0 * ones), None)
        assert_close(p, truth[0], torch.float32, str(size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(2, 2), (4, 2)])
def test_attention_and_its_gradient(queries: int, keys: int, dtype: torch.dtype) -> None:
    from nugpt.kernels.attention import plain
    from nugpt.kernels.fused.attention import attend, attend_backward, fastest
    from nugpt.kernels.fused.heads import Heads

    B, T, W = 3, 37, 16
    q, k, v = (made(B, T, n, W, dtype=dtype, seed=i) for i, n in enumerate((queries, keys, keys)))
    device = torch.device(DEVICE)
    heads = Heads(queries, keys, W, T)
    names = {fastest(B, heads, True, dtype, device, deterministic) for deterministic in (True, False)}
    if DEVICE == "cuda" and dtype is torch.bfloat16:
        names |= {"flash", "cudnn", "short"}
    exact_qkv = exact(q, k, v)
    truth = plain(*exact_qkv, 0.3)
    g = made(B, T, queries, W, dtype=dtype, seed=7)
    true_grads = torch.autograd.grad(truth, exact_qkv, g.double())
    for name in names:
        o, saved = attend(name, q, k, v, 0.3)
        bound = 1e-2 if dtype is torch.bfloat16 else 2e-3  # some float32 kernels take tf32 products
        assert float((o.double() - truth).norm() / truth.norm()) < bound, name
        grads = attend_backward(name, g, q, k, v, o, saved, 0.3)
        for x, t in zip(grads, true_grads, strict=True):
            assert float((x.double() - t).norm() / t.norm()) < bound, name


def test_attention_is_chosen_by_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    from nugpt.kernels.fused import attention
    from nugpt.kernels.fused.heads import Heads

    def choose(outcomes: dict[str, float | Exception], deterministic: bool = False) -> str:
        def time(name: str, *shape: object) -> float:
            if isinstance(found := outcomes[name], Exception):
                raise found
            return found

        monkeypatch.setattr(attention, "_time", time)
        heads = Heads(2, 2, 16, 8)
        return attention.fastest.__wrapped__(2, heads, True, torch.bfloat16, torch.device("cuda"), deterministic)

    refused = RuntimeError("no such kernel for this head dimension")
    large = OutOfResources(250_000, 232_448, "shared memory")
    assert choose({"flash": 2.0, "cudnn": 1.0, "short": 1.5}) == "cudnn"
    assert choose({"flash": 1.0, "short": 1.5}, deterministic=True) == "short"  # always the same, whatever the times
    assert choose({"flash": 1.0, "short": large}, deterministic=True) == "flash"
    assert choose({"flash": 2.0, "cudnn": 1.0, "short": 0.5}) == "short"
    assert choose({"flash": 2.0, "cudnn": refused, "short": large}) == "flash"
    assert choose({"flash": refused, "cudnn": refused, "short": large}) == "efficient"
    assert choose({"flash": refused, "short": large}, deterministic=True) == "efficient"
    with pytest.raises(torch.OutOfMemoryError):  # for the worker, which then takes fewer replicas
        choose({"flash": torch.OutOfMemoryError("CUDA out of memory"), "cudnn": 1.0, "short": 1.0})


@pytest.mark.parametrize("arguments", ["fewer", "more", "others", "named"])
@pytest.mark.parametrize("op", ["flash", "cudnn", "efficient"])
def test_a_call_that_this_torch_does_not_know_is_not_skipped(
    op: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.kernels.fused import attention
    from nugpt.kernels.fused.heads import Heads

    x = torch.empty(2, 2, 8, 16, dtype=torch.bfloat16, device="meta")
    given = {"fewer": ((x,), {}), "more": ((x,) * 12, {}), "others": ((x, x, 1), {}), "named": ((x,) * 3, {"no": 1})}
    args, named = given[arguments]
    monkeypatch.setattr(
        attention, "_time", lambda *_: getattr(torch.ops.aten, f"_scaled_dot_product_{op}_attention")(*args, **named)
    )
    with pytest.raises(RuntimeError, match=op):
        attention.fastest.__wrapped__(2, Heads(2, 2, 16, 8), True, torch.bfloat16, torch.device("cuda"), False)


@pytest.mark.parametrize("keys", [4, 2])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("flash", torch.bfloat16),
        ("cudnn", torch.bfloat16),
        ("efficient", torch.bfloat16),
        ("efficient", torch.float32),
        ("host", torch.float32),
    ],
)
def test_this_torch_takes_the_calls_of_its_attention_kernels(name: str, dtype: torch.dtype, keys: int) -> None:
    # On the meta device torch checks the arguments and says the shapes; nothing is computed, and no GPU is needed.
    from nugpt.kernels.fused.attention import attend, attend_backward

    q, k, v = (torch.empty(2, 37, heads, 24, dtype=dtype, device="meta") for heads in (4, keys, keys))
    o, saved = attend(name, q, k, v, 0.3)
    grads = attend_backward(name, torch.empty_like(o), q, k, v, o, saved, 0.3)
    for found, like in zip((o, *grads), (q, q, k, v), strict=True):
        assert found.shape == like.shape
        assert found.dtype == dtype


def _all_of_a_block(order: str) -> list[Tensor]:
    """What the kernels of a block give for fixed operands, gradients of q, k and v lying in memory in this order."""
    from nugpt.core.rope import rope_angles
    from nugpt.kernels.fused.heads import Heads, rotate_scale, rotate_scale_backward
    from nugpt.kernels.fused.lerp import lerp, lerp_backward
    from nugpt.kernels.fused.swiglu import swiglu, swiglu_backward

    R, B, T, D, M, heads = 2, 2, 7, 40, 72, Heads(4, 4, 10, 7)
    gain = torch.rand(R, generator=torch.Generator().manual_seed(0)).to(DEVICE) + 0.5
    h, b, s, g = made(R, B * T, D), made(R, B * T, D, seed=1), made(R, D, seed=2), made(R, B * T, D, seed=3)
    found = [*lerp(h, b, s, gain), *lerp_backward(g, g, h, b, s, gain)[:3]]
    x, g, u = made(R, B * T, 2 * M, seed=4), made(R, B * T, M, seed=5), made(R, M, seed=6)
    dx, scales, _ = swiglu_backward(g, x, (u, gain, u, gain), 2.0)
    assert scales is not None
    found += [swiglu(x, (u, gain, u, gain), 2.0), dx, *scales]
    turns = heads.turns(rope_angles(torch.arange(T, device=DEVICE), 10, 100.0, torch.float32))
    x, s = made(R, B * T, heads.columns, seed=7), made(R, 4, 10, seed=8)
    grads = [made(R * B, T, 4, heads.width, seed=9 + i) for i in range(3)]
    if order == "heads, tokens":
        grads = [y.transpose(1, 2).contiguous().transpose(1, 2) for y in grads]
    if order == "odd":
        grads = [functional.pad(y, (0, 1))[..., :-1] for y in grads]
    dx, ds = rotate_scale_backward((grads[0], grads[1], grads[2]), x, heads, s, gain, *turns)
    assert ds is not None
    return [*found, *rotate_scale(x, heads, s, gain, *turns), dx, ds]


@pytest.mark.parametrize("order", ["tokens, heads", "heads, tokens", "odd"])
def test_neither_tiles_nor_the_gradients_strides_change_what_is_computed(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nugpt.kernels.fused import tile

    expected = _all_of_a_block("tokens, heads")
    for name, given in list(tile.TILINGS.items()):
        other = tile.Tiling(256, per_thread=4, side=min(given.side, 64) if given.side > 8 else 2, stages=2, resident=16)
        monkeypatch.setitem(tile.TILINGS, name, other)
    for a, b in zip(expected, _all_of_a_block(order), strict=True):
        assert_close(b, a, torch.float32)
