"""The shims: a node that has torch and little else, and a torch without the names that later ones have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.engines.titan.ranks import Place, make_run, rows

from nugpt.data import TokenDataset

pytestmark = pytest.mark.titan

# What the extra `titan` brings along and no run of ours uses, and one name that torch 2.11 lacks.
BARE_NODE = """
import importlib.util, sys
absent = set("datasets torchdata tensorboard wandb einops torch_checkpointing PIL pandas rich typeguard triton".split())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in absent else found(name, package)
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch.distributed.fsdp
if hasattr(torch.distributed.fsdp, "DataParallelMeshDims"):
    del torch.distributed.fsdp.DataParallelMeshDims
from nugpt.engines.titan import compat
from nugpt.engines.titan.__main__ import main
compat.prepare("cpu")
status = main(sys.argv[1:])  # which prepares once more
real = {name.split(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print("theirs:", *sorted(real & {"torchtitan", "spmd_types", "tyro", "datasets", "torchdata"}))
sys.exit(status)
"""


def test_a_node_that_lacks_what_torchtitan_imports_and_we_do_not_use(place: Place, dataset: TokenDataset) -> None:
    spec = make_run(dataset)
    command = [sys.executable, "-c", BARE_NODE, *place.arguments(spec, "runs")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    assert "theirs: spmd_types torchtitan tyro\n" in found.stdout
    assert len(rows(place.directory(spec, "runs"), "train")) == 20


def test_without_torchtitan_the_way_to_get_it_is_said(place: Place, dataset: TokenDataset) -> None:
    missing = "import sys, importlib.util as u\nfound = u.find_spec\n"
    missing += "u.find_spec = lambda name, package=None: None if name == 'torchtitan' else found(name, package)\n"
    missing += "from nugpt.engines.titan.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", missing, *place.arguments(make_run(dataset), "runs")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert found.returncode == 2
    assert found.stderr == (
        "nugpt: error: the titan engine needs torchtitan, which is not installed: pip install 'nugpt[titan]'\n"
    )


def test_each_shim_says_when_it_can_go() -> None:
    from nugpt.engines.titan import compat

    source = Path(compat.__file__).read_text(encoding="utf-8")
    shims = [name for name in vars(compat) if name.startswith(("_name_", "_stand_in_for", "_set_device"))]
    assert len(shims) >= 4
    later = [
        "quiet",
        "sum_gradients_unscaled",
        "keep_head_gathered",
        "sum_gradients_alike",
    ]  # for what is there already
    assert all("Until" in (getattr(compat, name).__doc__ or "") for name in [*shims, *later])
    assert all(f"    {name}(" in source[source.index("def prepare") : source.index("def _name")] for name in shims)


def test_shims_are_in_one_file_alone() -> None:
    from nugpt.engines.titan import compat

    words = ("filterwarnings", "getLogger().addFilter", "set_force_sum_reduction", "sys.modules[")
    for path in Path(compat.__file__).parent.glob("*.py"):
        found = [word for word in words if word in path.read_text(encoding="utf-8")]
        assert found == (list(words) if path.name == "compat.py" else []), path.name


class Sharded:
    """A parameter of FSDP2's group, with the two operations of torch's own class that the shim calls."""

    def __init__(self, grad: torch.Tensor | None, summed: torch.Tensor | None = None) -> None:
        self._unsharded_param = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        self.grad, self.unsharded_accumulated_grad = grad, summed

    def accumulate_unsharded_grad_if_needed(self) -> None:
        if self.unsharded_accumulated_grad is not None and self.grad is not None:
            self.unsharded_accumulated_grad = self.unsharded_accumulated_grad + self.grad
            self.grad = None

    def to_accumulated_grad_if_needed(self) -> None:
        if self.grad is not None and self.grad.dtype != torch.float32:
            self.grad, self.unsharded_accumulated_grad = None, self.grad.float()


def test_gradients_that_are_reduced_together_have_one_dtype() -> None:
    from nugpt.engines.titan.compat import sum_gradients_alike

    low, high = torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([0.5, 0.25])
    group = SimpleNamespace(fsdp_params=[Sharded(low), Sharded(low, high), Sharded(None, high), Sharded(None)])
    reduced: list[list[torch.Tensor | None]] = []
    group.post_backward = lambda *_: reduced.append([p.unsharded_accumulated_grad for p in group.fsdp_params])
    sum_gradients_alike(group)
    group.post_backward()
    ((norm, head, only, none),) = reduced
    assert only is high
    assert none is None
    assert norm is not None
    assert head is not None
    assert norm.dtype == head.dtype == torch.float32
    assert [norm.tolist(), head.tolist()] == [[1.0, 2.0], [1.5, 2.25]]
    assert all(p.grad is None for p in group.fsdp_params)
