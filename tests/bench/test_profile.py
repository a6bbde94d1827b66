"""Where time goes: kernels by the names that CUDA libraries and our own modules give them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nugpt
from nugpt.bench import profile as profiles
from nugpt.bench import steps
from nugpt.bench.profile import OURS, REST, by_kind, by_name, kind, profile_pairs, side_by_side, uneven, watched
from nugpt.engines.lab.options import Options

PRODUCTS = [
    "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_NTN",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x4_nn_align8>(Params)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false>(Params)",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float>(Params)",
]
ATTENTION = [
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_30_64x64x128_1x1x1_kernel0_0",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16, 128, 10, 4>(float*, __nv_bfloat16 const*)",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>(Params)",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<traits<64, cutlass::bfloat16_t>>(Params)",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
    "fmha_cutlassB_bf16_aligned_128x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)",
    "_short_forward",
    "_short_queries",
    "_short_keys",
]
COPIES = [
    "Memcpy DtoD (Device -> Device)",
    "Memset (Device)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1>>(int)",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)",
]
OTHERS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>(int)",
    "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<Policy, false, long, long, int, int>(int*)",
    "_a_kernel_of_somebody",
]


@pytest.mark.parametrize(
    ("names", "expected"),
    [(PRODUCTS, "matrix products"), (ATTENTION, "attention"), (COPIES, "copies"), (OTHERS, REST)],
)
def test_kernels_of_libraries(names: list[str], expected: str) -> None:
    assert {name: kind(name) for name in names} == dict.fromkeys(names, expected)


def test_kernels_of_inductor() -> None:
    assert kind("triton_red_fused__to_copy_add_mul_native_layer_norm_3") == "compiled by torch"


def kernels_in_source() -> Iterator[str]:
    """The functions of kernels/fused that Triton compiles and that are launched."""
    for path in (Path(nugpt.__file__).parent / "kernels" / "fused").glob("*.py"):
        tree = ast.parse(path.read_text())
        jitted = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
        }
        # One that is called from another kernel is part of that; one that is named without being called is launched.
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        named = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}
        yield from jitted & named


def test_every_kernel_of_ours_has_its_kind() -> None:
    found = set(kernels_in_source())
    assert {"_lerp_forward", "_short_keys", "_adam_columns", "_total_kernel"} <= found
    assert found == set(OURS)


def test_the_sum_is_the_total() -> None:
    names = [*PRODUCTS, *ATTENTION, *COPIES, *OTHERS, *OURS]
    times = [(name, 10.0 * 1.5**i) for i, name in enumerate(names)]
    found = by_kind(times)
    assert sum(found.values()) == pytest.approx(sum(us for _, us in times) / 1e3)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert by_kind([("nvjet_a", 500.0), ("_lerp_forward", 250.0), ("nvjet_b", 1500.0), ("_lerp_backward", 30.0)]) == {
        "matrix products": 2.0,
        "lerp": 0.25,
        "lerp backward": 0.03,
    }


def test_the_table_keeps_every_sum() -> None:
    ours = by_name([("aten::mm", 4000.0), ("aten::add", 100.0), ("aten::mm", 1000.0), ("aten::exp", 50.0)])
    assert ours == {"aten::mm": 5.0, "aten::add": 0.1, "aten::exp": 0.05}
    plain = {"aten::mm": 4.0, "aten::mul": 0.5, REST: 0.25}
    assert side_by_side([ours, plain], most=2) == {
        "aten::mm": [5.0, 4.0],
        "aten::mul": [0.0, 0.5],
        REST: [pytest.approx(0.15), 0.25],
    }
    assert REST not in side_by_side([ours], most=3)


def test_a_cpu_is_watched_by_operator() -> None:
    a = torch.ones(64, 64)
    found = dict(watched(lambda: a @ a, torch.device("cpu"), 3))
    assert found["aten::mm"] > 0


def test_both_models_of_a_pair_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "WARM_UP", 0)
    pair = steps.host_shapes("normalized")[0], steps.host_shapes("prenorm")[0]
    ((ours, plain),) = profile_pairs([pair], torch.device("cpu"), Options(device="cpu"))
    for row in (ours, plain):
        assert sum(row["ms"].values()) == pytest.approx(row["total_ms"])
        assert any("mm" in name for name in row["ms"])
    assert (ours["architecture"], plain["architecture"]) == ("normalized", "prenorm")


def test_a_profiler_that_sees_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "WARM_UP", 0)
    monkeypatch.setattr("nugpt.bench.profile.watched", lambda *_: [])
    pair = steps.host_shapes("normalized")[0], steps.host_shapes("prenorm")[0]
    ((ours, _),) = profile_pairs([pair], torch.device("cpu"), Options(device="cpu"))
    assert ours["not_run"] == "the profiler saw no kernel"


def test_kernels_that_equal_steps_cannot_have_run_so_often() -> None:
    seen = [("a", 1.0)] * 6 + [("b", 2.0)] * 3 + [("c", 1.0)] * 2
    assert uneven(seen, 3) == ["c"]
    assert uneven(seen, 1) == []


def test_a_memset_is_the_same_kernel_whatever_kind_of_memory_it_is_told_with() -> None:
    seen = [("Memset (Device)", 1.0)] * 4 + [("Memset (Unknown)", 1.0)] * 2
    assert uneven(seen, 3) == []
    assert uneven(seen[1:], 3) == ["Memset"]


class Acted:
    """A GPU of one kernel a step, and a profiler that drops what the GPU's clock puts outside of its own time."""

    def __init__(self, ahead_s: float) -> None:
        self.now, self.ahead_s, self.ran = 0.0, ahead_s, list[tuple[float, float]]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        self.ran.append((self.now, self.now + 0.01))
        self.now += 0.01

    def profile(self, **_: Any) -> Acted:
        return self

    def __enter__(self) -> Acted:
        self.begun = self.now
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = self.now

    def events(self) -> list[Any]:
        by_device = [(begin + self.ahead_s, end + self.ahead_s) for begin, end in self.ran]
        kernel = SimpleNamespace(
            name="k",
            time_range=SimpleNamespace(elapsed_us=lambda: 1e4),
            device_type=SimpleNamespace(name="CUDA"),
            is_user_annotation=False,
        )
        ranges = SimpleNamespace(**(vars(kernel) | {"name": "a range around kernels", "is_user_annotation": True}))
        called = SimpleNamespace(**(vars(kernel) | {"name": "aten::mm", "device_type": SimpleNamespace(name="CPU")}))
        return [kernel for begin, end in by_device if self.begun <= begin and end <= self.ended] + [ranges, called]


@pytest.mark.parametrize("ahead_s", [-0.1, 0.0, 0.1])
def test_clocks_that_drift_apart_lose_no_kernel(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    acted = Acted(ahead_s)
    monkeypatch.setattr(profiles, "profile", acted.profile)
    monkeypatch.setattr(profiles, "time", acted)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert watched(acted.step, torch.device("cuda"), 3) == [("k", 1e4)] * 3


def test_sums_without_some_kernels_are_not_passed_off_as_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nugpt.cli.bench import _show_profile  # which needs more than what a GPU node has

    class Stub:
        def __init__(self, *_: object) -> None:
            pass

        def prepared(self, steps: int) -> Callable[[], None]:
            return lambda: None

    lost = [("_lerp_forward", 10.0)] * (2 * profiles.STEPS - 1) + [("nvjet_a", 5.0)] * profiles.STEPS
    monkeypatch.setattr(profiles, "Trained", Stub)
    monkeypatch.setattr(profiles, "watched", lambda *_: lost)
    pair = steps.host_shapes("normalized")[0], steps.host_shapes("prenorm")[0]
    (rows,) = profile_pairs([pair], torch.device("cuda"), Options())
    assert [row["uneven"] for row in rows] == [["_lerp_forward"]] * 2
    _show_profile("lab", rows)
    assert "νGPT: 1 kernels were not seen in every step" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["normalized", "prenorm"])
def test_a_gpu_is_watched_through_the_graph_that_a_step_is(architecture: str) -> None:
    shape, cuda = steps.lab_shapes(architecture)[0], torch.device("cuda")
    trained = steps.Trained(shape, cuda, Options())
    trained.time(10)
    seen = watched(trained.prepared(profiles.STEPS), cuda, profiles.STEPS)
    assert not uneven(seen, profiles.STEPS)
    found = by_kind((name, us / profiles.STEPS) for name, us in seen)
    assert {"matrix products", "attention", "swiglu", "Adam, retraction, copy"} <= set(found)
    assert found.get(REST, 0.0) < 0.1 * sum(found.values())  # every kernel of weight has a kind
    # What is left of a step are the gaps between kernels.
    assert 0.7 < sum(found.values()) / trained.row()["ms"]["median"] < 1.1
