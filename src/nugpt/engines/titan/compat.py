"""What TorchTitan 0.3.0 needs that a torch, a CPU or a bare GPU node lacks: each shim with its reason and its end.

`prepare` comes before any import of torchtitan, which binds its device and some names of torch when it is imported; the
other shims are for a process or a model that is there already.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
import warnings
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp

WANTED = "0.3.0"


def prepare(device_type: str) -> None:
    """Make torchtitan importable here and let it use this kind of device, `cpu` or `cuda`."""
    if _is_absent("torchtitan"):
        raise ValueError("the titan engine needs torchtitan, which is not installed: pip install 'nugpt[titan]'")
    _name_mesh_dims()
    _stand_in_for_unused_packages()
    _stand_in_for_triton()
    _set_device(device_type)


def _name_mesh_dims() -> None:
    """torch 2.11 has no DataParallelMeshDims, which torchtitan imports and we never use. Until torch 2.12."""
    if not hasattr(torch.distributed.fsdp, "DataParallelMeshDims"):
        _set(torch.distributed.fsdp, "DataParallelMeshDims", type("DataParallelMeshDims", (), {}))


def _stand_in_for_unused_packages() -> None:
    """Packages that torchtitan imports for its own data loaders and TensorBoard, none of which a run of ours builds.

    Until torchtitan imports them where it uses them, or every node has them (the extra `titan` installs them).
    """
    unused = {
        "datasets": {"": ("Dataset", "load_dataset"), ".distributed": ("split_dataset_by_node",)},
        "torchdata": {"": (), ".stateful_dataloader": ("StatefulDataLoader",)},
    }
    for package, modules in unused.items():
        if _is_absent(package):
            for suffix, names in modules.items():
                _stand_in(package + suffix, names)
    if _is_absent("tensorboard"):
        _stand_in("torch.utils.tensorboard", ("SummaryWriter",))


def _stand_in_for_triton() -> None:
    """torch's CPU wheel has no triton, which torchtitan's kernels for expert parallelism import. Until it is lazy."""
    if _is_absent("triton"):
        kernels = _stand_in("torchtitan.distributed.minimal_async_ep.kernels", ())
        _set(kernels, "__getattr__", _nothing_named)


def _set_device(device_type: str) -> None:
    """torchtitan takes the first accelerator it finds and knows no CPU. Until it has a setting for it."""
    tools: Any = importlib.import_module("torchtitan.tools.utils")
    if getattr(tools, "device_type", None) == device_type:
        return
    taken = [name for name in ("torchtitan.trainer", "torchtitan.distributed.utils") if name in sys.modules]
    assert not taken, f"{taken[0]} was imported before the device was chosen"
    tools.device_type = device_type
    tools.device_module = _cpu_module() if device_type == "cpu" else torch.cuda


def quiet() -> None:
    """TorchTitan's lines and a few warnings of torch are about what we do not use. Until TorchTitan says less."""
    for theirs in (
        "DTensor random operators",  # initial values come from our generators
        "DTensor manual_seed",
        "To get the last learning rate",  # TorchTitan's way to take the schedule up again
        r"barrier\(\): using the device",  # the one that each rank has set before
    ):
        warnings.filterwarnings("ignore", message=theirs)
    logging.getLogger().setLevel(logging.WARNING)  # the logger that TorchTitan uses
    logging.getLogger().addFilter(_matters)
    logging.getLogger("torch.distributed.tensor._redistribute").addFilter(_matters)


def _matters(record: logging.LogRecord) -> bool:
    """Whether a line of theirs is more than one of these."""
    theirs = (
        "Error running lspci",  # for the device's peak FLOP/s, which nothing here reports
        "Peak flops undefined",
        # A matrix that FSDP2 and tensor parallelism cut is gathered in two goes, at the few steps that are measured.
        # Gathering adds nothing up, so that no order of sums differs, as the line fears.
        "While redistributing from",
    )
    return not record.getMessage().startswith(theirs)


def sum_gradients_unscaled(model: torch.nn.Module) -> None:
    """gloo cannot scale within a sum, as FSDP2 asks of it on a CPU. Until torch asks it for a plain sum by itself."""
    tools: Any = importlib.import_module("torchtitan.tools.utils")
    if tools.device_type == "cpu":
        for module in model.modules():
            if isinstance(module, torch.distributed.fsdp.FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


def keep_head_gathered(model: Any) -> None:
    """torch 2.11's FSDP2 does not know that of modules sharded together one may run later, as TorchTitan's chunked loss
    runs a Llama's head: it frees the norm's weights too before they have had their backward pass, and then finds the
    head's gradient, summed over chunks in float32, beside the norm's in bfloat16. Until torch 2.13.
    """
    state = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_state").FSDPState
    if not hasattr(state, "_force_complete_incomplete_states"):
        _set(model.lm_head, "reshard", _answering(None))  # the end of the backward pass frees them anyway
        sum_gradients_alike(model.lm_head._get_fsdp_state()._fsdp_param_group)


def sum_gradients_alike(group: Any) -> None:
    """Have every gradient of FSDP2's group in the dtype of sums before they are reduced. Until torch 2.13."""
    reduce = group.post_backward

    def post_backward(*arguments: Any) -> Any:
        for parameter in group.fsdp_params:
            if hasattr(parameter, "_unsharded_param"):
                parameter.accumulate_unsharded_grad_if_needed()  # what came since to what is summed already
                parameter.to_accumulated_grad_if_needed()  # and what is not summed yet
        return reduce(*arguments)

    _set(group, "post_backward", post_backward)


def _cpu_module() -> types.ModuleType:
    """torch.cpu with the few functions of torch.cuda that torchtitan calls on it."""
    module = types.ModuleType("nugpt_cpu_device")
    for name in ("synchronize", "current_stream", "stream", "Stream", "is_available"):
        _set(module, name, getattr(torch.cpu, name))
    answers: dict[str, Any] = {
        "device_count": 1,  # of one device each process takes number 0, whatever its local rank
        "current_device": 0,
        "get_device_name": "CPU",
        "get_device_properties": types.SimpleNamespace(total_memory=1 << 40),
        "memory_stats": {},
        "set_device": None,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
    }
    for name, answer in answers.items():
        _set(module, name, _answering(answer))
    return module


def _is_absent(package: str) -> bool:
    """Whether there is no such package, nor one that stands in for it since an earlier call."""
    return package not in sys.modules and importlib.util.find_spec(package) is None


def _answering(answer: Any) -> Any:
    return lambda *_, **__: answer


def _nothing_named(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)


def _stand_in(name: str, names: tuple[str, ...]) -> types.ModuleType:
    """A module of this name whose classes raise when somebody makes one after all."""
    module = types.ModuleType(name)
    _set(module, "__path__", [])
    for attribute in names:
        _set(module, attribute, _missing(f"{name}.{attribute}"))
    sys.modules[name] = module
    return module


def _missing(what: str) -> type:
    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise ValueError(f"{what} is not installed here: pip install 'nugpt[titan]'")

    return type(what.rpartition(".")[2], (), {"__init__": refuse})


def _set(target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)
