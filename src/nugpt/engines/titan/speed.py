"""`python -m nugpt.engines.titan.speed`: tokens per second of this engine, the lab engine and TorchTitan's own Llama.

One call on one device, one after the other: the same shape, batches, pieces and precision, compiled (on a GPU), warm.
Every step has a batch of its own, the same for all.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from nugpt.data.zipf import Stream
from nugpt.engines.titan import compat
from nugpt.engines.titan.execute import Request, join
from nugpt.engines.titan.options import TitanOptions, mesh_of
from nugpt.spec.parametrization import parametrization
from nugpt.spec.recipe import NO_DATA
from nugpt.spec.run import RunSpec
from nugpt.spec.scales import preset

Step = Callable[[], None]
Batch = tuple[Tensor, Tensor]  # tokens and targets, each (B, T)

WARM_UP = 3  # steps before any counts


@dataclass(frozen=True)
class Bench:
    """What all three are measured at."""

    spec: RunSpec
    options: TitanOptions
    device: torch.device
    compiled: bool
    batches: list[Batch]  # one for each step, drawn before anything is timed


def drawn(spec: RunSpec, steps: int) -> list[Batch]:
    """As many batches of this run's shape, on the CPU, as training has them."""
    stream = Stream(spec.model.vocab_size, (1, spec.batch, spec.model.seq_len), torch.device("cpu"))
    return [(tokens[0], targets[0]) for tokens, targets in stream.draw(steps)]


def pieces(batches: list[Batch], size: int) -> Iterator[Batch]:
    """Every batch, so many sequences at a time."""
    for tokens, targets in batches:
        yield from zip(tokens.split(size), targets.split(size), strict=True)


def titan_step(bench: Bench) -> Step:
    """A step of this engine."""
    from nugpt.engines.titan.configure import Job, settings
    from nugpt.engines.titan.trainer import RunTrainer

    mesh = mesh_of(bench.spec, bench.options, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = Job(bench.spec, folder, folder, bench.options, mesh, bench.device.type)
        values = settings(job) | {"dataloader": _loader(bench)}
        trainer = RunTrainer.Config(job=job, **values).build()
    trainer._start_counting()
    batches = trainer.batch_generator(trainer.dataloader)

    def step() -> None:
        trainer.step = 0  # of a run without end: the schedule's place costs no time
        trainer._step(batches, 0)

    return step


def plain_titan_step(bench: Bench) -> Step:
    """A step of this engine by the plain functions, compiled on a GPU."""
    return titan_step(replace(bench, options=replace(bench.options, kernels="plain")))


def lab_step(bench: Bench, kernels: str = "auto") -> Step:
    """A step of the lab engine with one replica, by the kernels that it would choose here."""
    from nugpt.engines.lab import Options
    from nugpt.engines.lab.ensemble import Ensemble

    chosen = Options(kernels=kernels).kernels_on(bench.device, bench.spec.model.architecture)
    compiled = bench.compiled and chosen == "plain"
    ensemble = Ensemble(
        [bench.spec], bench.device, bench.options.attention, bench.options.loss, compiled, kernels=chosen
    )
    state = ensemble.initial_state()
    cuda = bench.device.type == "cuda"  # from other memory than pinned, a copy would wait for the steps under way
    ahead = iter([[x.unsqueeze(0).pin_memory() if cuda else x.unsqueeze(0) for x in pair] for pair in bench.batches])
    micro = min(bench.options.micro_batch or bench.spec.batch, bench.spec.batch)

    def step() -> None:
        tokens, targets = (x.to(bench.device, non_blocking=True) for x in next(ahead))
        ensemble.train_step(state, tokens, targets, 1.0, micro)

    return step


def llama_step(bench: Bench) -> Step:
    """A step of TorchTitan's Llama at the same shape, by its own trainer, loss and optimizer."""
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import CompileConfig, TrainingConfig
    from torchtitan.config.configs import CommConfig, DebugConfig
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import Llama3Model, parallelize_llama
    from torchtitan.models.llama3 import __dict__ as llama
    from torchtitan.protocols.model_spec import ModelSpec
    from torchtitan.trainer import Trainer

    from nugpt.engines.titan.components import NoTokenizer
    from nugpt.engines.titan.configure import parallelism

    model, mesh = bench.spec.model, mesh_of(bench.spec, bench.options, 1)
    rope = llama["ComplexRoPE"].Config(dim=model.head_dim, max_seq_len=model.seq_len, theta=model.rope_theta)
    layers = llama["_build_llama3_layers"](
        n_layers=model.n_layers,
        dim=model.d_model,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        hidden_dim=model.d_mlp,
        rope=rope,
        attn_backend="flex",
    )
    for layer in layers:  # causal and nothing else, as ours is
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config = Llama3Model.Config(
        dim=model.d_model,
        vocab_size=model.vocab_size,
        tok_embeddings=llama["Embedding"].Config(
            num_embeddings=model.vocab_size, embedding_dim=model.d_model, param_init=llama["_EMBEDDING_INIT"]
        ),
        norm=llama["RMSNorm"].Config(normalized_shape=model.d_model, param_init=llama["_NORM_INIT"]),
        lm_head=llama["Linear"].Config(
            in_features=model.d_model,
            out_features=model.vocab_size,
            param_init=llama["_output_linear_init"](model.d_model),
        ),
        layers=layers,
    )
    loss = CrossEntropyLoss.Config(global_vocab_size=model.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.Config(
            model_spec=ModelSpec("llama", "same shape", config, parallelize_llama, None, None, None),
            dump_folder=folder,
            loss=ChunkedLossWrapper.Config(loss_fn=loss),
            tokenizer=NoTokenizer.Config(),
            dataloader=_loader(bench, targets=False),
            optimizer=default_adamw(),
            lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
            training=TrainingConfig(
                local_batch_size=mesh.micro_batch,
                global_batch_size=bench.spec.batch,
                seq_len=model.seq_len,
                steps=bench.spec.steps,
                mixed_precision_param=bench.spec.precision,
                disable_cuda_graphs=True,
            ),
            parallelism=parallelism(bench.options, mesh),
            metrics=MetricsProcessor.Config(disable_color_printing=True, log_freq=10**9),
            checkpoint=CheckpointManager.Config(enable=False),
            activation_checkpoint=None,
            compile=CompileConfig(enable=bench.compiled),
            comm=CommConfig(trace_buf_size=0),
            debug=DebugConfig(seed=0, enable_structured_logging=False),
            hf_assets_path=".",
        ).build()
    compat.keep_head_gathered(trainer.model_parts[0])
    trainer.step = 2  # not the first, which it logs
    batches = trainer.batch_generator(trainer.dataloader)
    return lambda: trainer.train_step(batches)


def plain_lab_step(bench: Bench) -> Step:
    """A step of the lab engine by the functions that this engine uses too."""
    return lab_step(bench, "plain")


STEPS: dict[str, Callable[[Bench], Step]] = {
    "titan": titan_step,
    "lab": lab_step,
    "llama": llama_step,
    "titan-plain": plain_titan_step,
    "lab-plain": plain_lab_step,
}


def measure(bench: Bench, names: list[str], steps: int, rounds: int) -> dict[str, Any]:
    """What each was found to do; one that fails is named as failed and leaves the others their turn."""
    found = {}
    for name in names:  # one at a time in memory: the rounds of each follow one another
        _reset(bench.device)
        begun = time.perf_counter()
        try:
            found[name] = _measured(STEPS[name](bench), bench, steps, rounds, begun)
            print(f"{name}: {_in_words(found[name])}", file=sys.stderr, flush=True)
        except Exception as error:  # whatever a library raises: the reason is shown, and the exit status says so
            traceback.print_exc()
            found[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        _reset(bench.device)
    return found


def _measured(step: Step, bench: Bench, steps: int, rounds: int, begun: float) -> dict[str, Any]:
    """Median tokens per second over the rounds, the most memory taken, and what building and the first steps took."""
    for _ in range(WARM_UP):
        step()
    _synchronize(bench.device)
    ready, rates = time.perf_counter() - begun, []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        _synchronize(bench.device)
        rates.append(steps * bench.spec.batch * bench.spec.model.seq_len / (time.perf_counter() - start))
    peak = torch.cuda.max_memory_allocated(bench.device) if bench.device.type == "cuda" else None
    return {"tokens_per_s": median(rates), "rounds": rates, "peak_memory_bytes": peak, "ready_s": ready}


def _in_words(found: dict[str, Any]) -> str:
    peak = found["peak_memory_bytes"]
    memory = "" if peak is None else f", {peak / 2**30:.1f} GiB at most"
    return f"{found['tokens_per_s']:,.0f} tokens/s{memory}, ready after {found['ready_s']:.0f} s"


def _loader(bench: Bench, targets: bool = True) -> Any:
    """A loader of the batches, each once."""
    from torchtitan.components.dataloader import BaseDataLoader

    class Once(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            """Nothing to set."""

        def __init__(self, config: Any, *, local_batch_size: int, **_: Any) -> None:
            self.size = local_batch_size

        def __iter__(self) -> Iterator[Any]:
            for tokens, wanted in pieces(bench.batches, self.size):
                yield {"input": tokens} | ({"targets_BT": wanted} if targets else {}), wanted

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    return Once.Config()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset(device: torch.device) -> None:
    gc.enable()  # TorchTitan turns it off
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(prog="nugpt.engines.titan.speed", description=__doc__)
    parser.add_argument("--preset", default="paper-l12h12", help="the model's shape and its scale's batch")
    parser.add_argument("--batch", type=int, help="sequences per step; by default the scale's")
    parser.add_argument("--micro-batch", type=int, default=8, help="sequences per forward and backward")
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--attention", default=TitanOptions.attention)
    parser.add_argument("--loss", default=TitanOptions.loss)
    given = parser.parse_args(arguments)
    options = TitanOptions(
        device=given.device, micro_batch=given.micro_batch, attention=given.attention, loss=given.loss
    )
    kind = options.device_type()
    scale, model = preset(given.preset)
    precision = "bfloat16" if kind == "cuda" else "float32"
    scale = replace(scale, batch=given.batch or scale.batch)  # the base's too, so that no learning rate depends on it
    spec = RunSpec(
        model, parametrization("nugpt"), scale.base, 2**-7, 80_000, scale.batch, NO_DATA, precision=precision
    )
    compat.prepare(kind)
    compat.quiet()
    join(Request(Path(), Path(), Path(), options), 1)
    batches = drawn(spec, WARM_UP + given.steps * given.rounds)
    bench = Bench(spec, options, torch.device(kind), kind == "cuda", batches)
    found = measure(bench, given.only, given.steps, given.rounds)
    device = torch.cuda.get_device_name() if kind == "cuda" else "CPU"
    about = {"preset": given.preset, "batch": spec.batch, "micro_batch": given.micro_batch, "precision": precision}
    print(json.dumps(about | {"device": device, "torch": torch.__version__, "found": found}, indent=1))
    torch.distributed.destroy_process_group()
    return 1 if any("failed" in one for one in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
