"""`nugpt titan plan`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.cli.show import print_json, print_table

if TYPE_CHECKING:
    from nugpt.engines.titan.plan import Fit
    from nugpt.spec.run import RunSpec

GIB = 2**30


@dataclass(frozen=True)
class MeshArguments:
    """What is not given is searched for."""

    tp: int | None = None
    """Ranks that share each matrix product."""
    replicate: int | None = None
    """Groups of ranks with a whole model each; 1 by default."""
    micro_batch: int | None = None
    """Sequences of a rank per forward and backward."""
    activations: str | None = None
    """What the backward pass computes again: none, selective, full."""

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True)
class Plan:
    """Memory per GPU and mesh of a recipe: the sharded model is really built, and a step of it run, without memory."""

    gpus: int
    """GPUs of the job."""
    recipe: Path | None = None
    """A file that `nugpt recommend --emit titan` wrote, or the spec.json of a run's directory."""
    preset: str | None = None
    """Instead of a recipe: a model by name, as paper-l12h40, with its scale's batch, in bfloat16."""
    batch: int | None = None
    """Sequences per step, instead of the recipe's or the scale's."""
    memory: float = 80.0
    """GiB that a run may use of each GPU."""
    mesh: MeshArguments = MeshArguments()
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the meshes that were tried; 1 when none fits."""
        from nugpt.engines.titan import compat
        from nugpt.engines.titan.options import TitanOptions

        if self.gpus < 1:
            raise ValueError(f"gpus is {self.gpus}, but must be at least 1")
        if not self.memory > 0:
            raise ValueError(f"memory is {self.memory:g}, but must be a number of GiB above 0")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch is {self.batch}, but must be at least 1")
        spec, given = self._spec(), self.mesh.given()
        if self.batch is not None:  # the base's too: what m_batch does to learning rates takes no memory
            extent = replace(spec.base.extent, batch_tokens=self.batch * spec.model.seq_len)
            spec = replace(spec, batch=self.batch, base=replace(spec.base, extent=extent))
        options = TitanOptions(**given)
        compat.prepare("cpu")
        from nugpt.engines.titan.plan import plans

        found = list(plans(spec, self.gpus, int(self.memory * GIB), options, frozenset(given)))
        self._show(spec, found)
        return 0 if found[-1].total <= self.memory * GIB else 1

    def _spec(self) -> RunSpec:
        from nugpt.spec.parametrization import parametrization
        from nugpt.spec.recipe import NO_DATA
        from nugpt.spec.run import RunSpec
        from nugpt.spec.scales import preset

        if (self.recipe is None) == (self.preset is None):
            raise ValueError("give either --recipe FILE or --preset NAME")
        if self.recipe is not None:
            from nugpt.store import run_of_file

            return run_of_file(self.recipe)
        assert self.preset is not None
        scale, model = preset(self.preset)
        extent = scale.base.extent
        return RunSpec(
            model, parametrization("nugpt"), scale.base, 1.0, extent.steps, scale.batch, NO_DATA, precision="bfloat16"
        )

    def _show(self, spec: RunSpec, found: list[Fit]) -> None:
        if self.json:
            print_json([_facts(fit, self.memory) for fit in found])
            return
        model = spec.model
        print(
            f"{model.n_layers} layers, {model.n_heads} heads, batch {spec.batch} × {model.seq_len} tokens, "
            f"{spec.precision}, {self.gpus} GPUs of {self.memory:g} GiB"
        )
        rows = []
        for fit in found:
            facts = _facts(fit, self.memory)
            mesh = f"{fit.mesh.replicate} × {fit.mesh.shard} × {fit.mesh.tp}"
            pieces = f"{fit.mesh.local_batch // fit.mesh.micro_batch} × {fit.mesh.micro_batch}"
            sizes = [f"{facts[name]:.1f}" for name in ("state_gib", "step_gib", "total_gib")]
            rows.append([mesh, pieces, fit.activations, *sizes, "yes" if facts["fits"] else "no"])
        columns = ["replicate × shard × tp", "sequences per rank", "recomputed", "state", "step", "GiB per GPU", "fits"]
        print_table(columns, rows, right=(3, 4, 5))
        best = found[-1]
        if best.total <= self.memory * GIB:
            words = f"--tp {best.mesh.tp} --replicate {best.mesh.replicate} --micro-batch {best.mesh.micro_batch}"
            print(f"{words} --activations {best.activations}")
        else:
            print("none fits: more GPUs, or more memory")


def _facts(fit: Fit, memory: float) -> dict[str, Any]:
    return {
        "replicate": fit.mesh.replicate,
        "shard": fit.mesh.shard,
        "tp": fit.mesh.tp,
        "local_batch": fit.mesh.local_batch,
        "micro_batch": fit.mesh.micro_batch,
        "activations": fit.activations,
        "state_gib": fit.state / GIB,
        "step_gib": fit.peak / GIB,
        "total_gib": fit.total / GIB,
        "fits": fit.total <= memory * GIB,
    }
