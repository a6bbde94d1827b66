"""From a run and a mesh to TorchTitan's configuration: in one place, so that no number is typed twice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.config.configs import CommConfig, DebugConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.protocols.model_spec import ModelSpec

from nugpt.engines.titan.checkpoints import Checkpoints
from nugpt.engines.titan.components import Batches, NoTokenizer, ScheduleContainer, TokenLosses, optimizer_config
from nugpt.engines.titan.dcp import FOLDER
from nugpt.engines.titan.model import model_config, named_parameters
from nugpt.engines.titan.options import Mesh, TitanOptions
from nugpt.engines.titan.parallelize import Selective, parallelize
from nugpt.engines.titan.sphere import retract_spread_
from nugpt.spec.run import RunSpec


@dataclass(frozen=True)
class Job:
    """A run, where its results go, where its data is, and what carries it."""

    spec: RunSpec
    directory: Path  # of the run
    data: Path
    options: TitanOptions
    mesh: Mesh
    device_type: str

    @property
    def kernels(self) -> str:
        """fused or plain."""
        return self.options.kernels_for(self.spec, self.device_type)

    @property
    def compiles(self) -> bool:
        """Whether to compile: as asked, else on a GPU only; fused kernels need it not."""
        asked = self.device_type == "cuda" if self.options.compile is None else self.options.compile
        return asked and self.kernels == "plain"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for logs."""
        return {"run": self.spec.hash, "directory": str(self.directory), "data": str(self.data)}


def settings(job: Job) -> dict[str, Any]:
    """The fields of a `Trainer.Config` for this job."""
    spec, options, mesh = job.spec, job.options, job.mesh
    return {
        "model_spec": model_spec(spec, options, job.kernels),
        "dump_folder": str(job.directory),
        "loss": TokenLosses.Config(),
        "tokenizer": NoTokenizer.Config(),
        "dataloader": Batches.Config(dataset_path=str(job.data), seed=spec.seed, batch=spec.batch, steps=spec.steps),
        "optimizer": optimizer_config(spec, fused=job.device_type == "cuda"),
        "lr_scheduler": ScheduleContainer.Config(schedule=spec.schedule, warmup_steps=spec.schedule.warmup),
        "training": TrainingConfig(
            local_batch_size=mesh.micro_batch,
            global_batch_size=spec.batch,
            seq_len=spec.model.seq_len,
            steps=spec.steps,
            mixed_precision_param=spec.precision,
            disable_cuda_graphs=True,
        ),
        "parallelism": parallelism(options, mesh),
        "metrics": MetricsProcessor.Config(disable_color_printing=True),
        "checkpoint": Checkpoints.Config(
            enable=True, folder=FOLDER, keep_latest_k=0, last_save_model_only=False, initial_load_model_only=False
        ),
        "activation_checkpoint": activation_config(options),
        "compile": CompileConfig(enable=job.compiles),
        "comm": CommConfig(init_timeout_seconds=options.timeout, trace_buf_size=0),
        "debug": DebugConfig(seed=0, enable_structured_logging=False),  # our initial values use no global generator
        "hf_assets_path": ".",
    }


def activation_config(options: TitanOptions) -> Any:
    """What the backward pass computes again."""
    kinds: dict[str, Any] = {"none": None, "selective": Selective.Config(), "full": FullAC.Config()}
    return kinds[options.activations]


def parallelism(options: TitanOptions, mesh: Mesh) -> ParallelismConfig:
    """The mesh in TorchTitan's words."""
    return ParallelismConfig(
        spmd_backend="partial_dtensor",
        data_parallel_replicate_degree=mesh.replicate,
        data_parallel_shard_degree=mesh.shard,
        tensor_parallel_degree=mesh.tp,
        enable_sequence_parallel=False,
        fsdp_reshard_after_forward=options.reshard,
    )


def model_spec(spec: RunSpec, options: TitanOptions, kernels: str = "plain") -> ModelSpec:
    """The model, how it is spread, and what happens after every optimizer step."""
    return ModelSpec(
        name="nugpt",
        flavor=spec.hash,
        model=model_config(spec, options.attention, options.loss, kernels),
        parallelize_fn=parallelize,
        pipelining_fn=None,
        post_optimizer_build_fn=_retract_after_steps,
        state_dict_adapter=None,
    )


def _retract_after_steps(optimizers: Any, model_parts: list[Any], parallel_dims: Any) -> None:
    """After every optimizer step the weights go back onto the sphere."""
    (model,) = model_parts
    named, roles = list(named_parameters(model)), model.spec.model.roles

    def retract(*_: Any) -> None:
        retract_spread_(named, roles)

    optimizers.register_step_post_hook(retract)
