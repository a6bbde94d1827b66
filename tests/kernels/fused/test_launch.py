"""Kernels are compiled ahead, and for a GPU, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.triton]


class Recorded:
    """Stands for a kernel: what it was asked to do."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.compiled: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.ran.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.compiled.append((grid, args, options))


def test_a_launch_runs_the_kernel_and_compiling_does_not() -> None:
    from nugpt.kernels.fused.launch import compiling, launch

    kernel = Recorded()
    asked = ((2, 3), (1, "x"), {"num_warps": 4})
    with compiling(torch.device("cpu")):
        launch(kernel, (2, 3), 1, "x", num_warps=4)
    assert (kernel.ran, kernel.compiled) == ([], [asked])
    with pytest.raises(ValueError, match="inside"), compiling(torch.device("cpu")):
        raise ValueError("inside")
    launch(kernel, (2, 3), 1, "x", num_warps=4)
    assert (kernel.ran, kernel.compiled) == ([asked], [asked])


def test_millions_of_tokens_fit_the_grids_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import adam, add_norm, embedding, heads, lerp, loss, swiglu, tile

    grids: dict[str, tuple[int, ...]] = {}

    def noted(kernel: Any, grid: tuple[int, ...], *_: Any, **__: Any) -> None:
        grids[kernel.fn.__name__] = grid

    for module in (adam, add_norm, embedding, heads, lerp, loss, swiglu, tile):
        monkeypatch.setattr(module, "launch", noted)
    R, N, D, M, V = 3, 4_194_304, 96, 256, 100_352

    def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(R, *shape, dtype=dtype, device="meta")

    h, b, s, gain = made(N, D, dtype=torch.float32), made(N, D), made(D), made()
    lerp.lerp(h, b, s, gain)
    lerp.lerp_backward(h, b, h, b, s, gain)
    add_norm.add_norm(h, b, gain, s, 1e-6, b.dtype)
    add_norm.add_norm_backward(h, b, h, gain, s, 1e-6, added=True)
    u, x, wide = made(M), made(N, 2 * M), made(N, M)
    swiglu.swiglu(x, (u, gain, u, gain), 1.0)
    swiglu.swiglu_backward(wide, x, (u, gain, u, gain), 1.0)
    layout = heads.Heads(2, 2, 48, 512)
    around = (layout, made(2, 48), gain, s, s)
    q, k, v = layout.split(made(N, layout.columns))
    heads.rotate_scale(made(N, layout.columns), *around)
    heads.rotate_scale_backward((q, k, v), made(N, layout.columns), *around)
    embedding.embed(made(V, D), made(N), b.dtype)
    embedding.embed_backward(h, b, embedding.Order(made(N), made(N), made(V + 1)))
    loss.softmax_(made(N, V), made(N), made(N), 0, 1.0)
    adam.lengths([made(V, D)])
    assert len(grids) == 14
    for name, grid in grids.items():
        assert grid[0] < 2**31, name
        assert all(n <= 65_535 for n in grid[1:]), (name, grid)


# A driver that says the GPU is a Hopper one: Triton then compiles for it, whatever this machine has.
AHEAD = """
from dataclasses import replace
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Hopper:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))


driver.set_active(Hopper())
from nugpt.engines.lab.ensemble import Ensemble  # noqa: E402
from nugpt.spec import load_table  # noqa: E402
from nugpt.spec.model import ModelConfig  # noqa: E402
from nugpt.spec.resolve import Base, Extent  # noqa: E402
from nugpt.spec.run import RunSpec  # noqa: E402

from nugpt.engines.lab import fused  # noqa: E402
from nugpt.kernels.fused import launch, loss  # noqa: E402

fused.candidates = lambda *shape: ("host", "short")  # on a GPU it is tried beside torch's kernels

failures, ready = [], launch._Threads._ready


def noted(self, compiled):
    try:
        return ready(self, compiled)
    except BaseException as error:
        failures.append(repr(error))
        raise


launch._Threads._ready = noted  # a variant that does not compile must not hide behind one that does
for architecture, table, most in (
    ("normalized", "nugpt", 2**30),
    ("normalized", "nugpt", 0),
    ("prenorm", "prenorm-completep", 2**30),
    ("prenorm", "prenorm-completep", 0),
):
    fused.MOST_KEPT, loss.WHOLE_ROW = most, 16384 if most else 16  # large models have large vocabularies
    model = ModelConfig(1, 2, 12, 64, 16, d_mlp=40, architecture=architecture)
    base = Base.of(Extent.of(model, 10, 2))
    spec = RunSpec(model, load_table(table), base, 2**-7, 10, 2, "0" * 16, precision="bfloat16")
    specs = [replace(spec, seed=seed) for seed in (0, 1)]
    ensemble = Ensemble(specs, torch.device("cpu"), "plain", "plain", False, "fused")
    state = ensemble.initial_state()
    before = {name: p.detach().clone() for name, p in state.params.items()}
    tokens = torch.zeros(2, 2, 16, dtype=torch.int64)
    moments = {name: x.clone() for group in (state.first, state.second) for name, x in group.items()}
    ensemble.fused._bind(state, tokens, 2)
    assert ensemble.fused.program.spare == (most == 0)
    assert all(torch.equal(p, before[name]) for name, p in state.params.items())
    assert all(torch.equal(x, moments[name]) for name, x in state.second.items())
assert not failures, failures
"""


def test_every_kernel_of_a_step_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", AHEAD], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled = Counter(path.stem for path in tmp_path.rglob("*.cubin"))
    # At a block's end and within it, with what is kept and with what is made again; scaled or not.
    assert compiled["_lerp_backward"] == compiled["_swiglu_backward"] == 4
    assert compiled.keys() == {
        "_adam_columns",
        "_adam_rows",
        "_add_norm_backward",
        "_add_norm_forward",
        "_embedding_collect",
        "_embedding_gather",
        "_embedding_scatter",
        "_heads_backward",
        "_heads_forward",
        "_lerp_backward",
        "_lerp_forward",
        "_long_softmax_in_place",
        "_scale_rows",
        "_short_forward",
        "_short_keys",
        "_short_queries",
        "_softmax_in_place",
        "_squares",
        "_swiglu_backward",
        "_swiglu_forward",
        "_total_kernel",
        "_unscale_rows",
    }


# Row by row kernels of models as wide as there are, as a chip of this kind would get them: their shared memory.
WIDE = """
import json
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

capability, room = map(int, sys.argv[1:])


class Chip:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", capability, 32))


driver.set_active(Chip())
from nugpt.kernels.fused import add_norm, lerp, launch, tile  # noqa: E402

tile.shared_memory = lambda device: room
found = []


def noted(self, compiled):
    kernel = compiled()
    found.append((kernel.metadata.name, kernel.metadata.shared))
    return kernel


launch._Threads._ready = noted
with launch.compiling(torch.device("cpu")):
    for D in (4096, 5120, 16384):
        for dtype in (torch.bfloat16, torch.float32):
            h, b = (torch.empty(1, 64, D, dtype=x, device="meta") for x in (torch.float32, dtype))
            s, gain = (torch.empty(*shape, device="meta") for shape in ((1, D), (1,)))
            lerp.lerp(h, b, s, gain)
            lerp.lerp_backward(h, b, h, b, s, gain)
            lerp.lerp_backward(h, b, h, b, s, gain, (b, s, gain), again=True)
            add_norm.add_norm(h, b, gain, s, 1e-6, dtype)
            add_norm.add_norm_backward(h, b, h, gain, s, 1e-6, added=True)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("capability", "room"),
    [pytest.param(80, 166_912, id="A100"), pytest.param(89, 101_376, id="L40S"), pytest.param(90, 232_448, id="H100")],
)
def test_wide_models_find_room_on_every_chip(tmp_path: Path, capability: int, room: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", WIDE, str(capability), str(room)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout)
    assert Counter(name for name, _ in shared if name != "_total_kernel") == {
        "_lerp_forward": 6,
        "_lerp_backward": 12,
        "_add_norm_forward": 6,
        "_add_norm_backward": 6,
    }
    assert [found for found in shared if found[1] > room] == []


def test_as_many_tiles_are_under_way_as_shared_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    from nugpt.kernels.fused import tile

    def stages(numbers: int, room: int, bytes_loaded: int) -> int:
        monkeypatch.setattr(tile, "shared_memory", lambda device: room)
        loaded = [torch.empty(1, dtype=torch.bfloat16, device="meta")] * (bytes_loaded // 2)
        return tile.stages_with_room(numbers, [*loaded, None], "lerp backward twice")

    hopper = 232_448
    assert tile.TILINGS["lerp backward twice"].stages == 4
    assert stages(2048, hopper, 14) == stages(4096, hopper, 14) == 4  # 4096 × (3 × 14 + 4) bytes are 188,416
    assert stages(8192, hopper, 14) == 2  # one more would be 8192 × (2 × 14 + 4) = 262,144
    assert stages(16384, hopper, 14) == 1
    assert stages(2048, 101_376, 14) == 4
    assert stages(4096, 101_376, 14) == 2
    assert stages(4096, 100, 14) == 1
