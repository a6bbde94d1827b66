"""Between an ensemble's stacked state and one checkpoint per replica."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nugpt.engines.lab.ensemble import Ensemble, State
from nugpt.store.checkpoint import Checkpoint


def replica_tensors(state: State, r: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Replica r's parameters, and its optimizer state, on the CPU."""
    model = {name: p[r].detach().cpu().contiguous() for name, p in state.params.items()}
    optimizer = {f"first.{name}": x[r].cpu().contiguous() for name, x in state.first.items()}
    optimizer |= {f"second.{name}": x[r].cpu().contiguous() for name, x in state.second.items()}
    return model, optimizer


def replica_counters(state: State, r: int) -> dict[str, Any]:
    """Replica r's small state as plain values that come back to the bit."""
    return {
        "died_at": int(state.died_at[r]),
        "high": int(state.high[r]),
        "loss_sum": float(state.loss_sum[r]),
        "grad_norm": float(state.grad_norm[r]),
        "logged": state.logged,
    }


def restored_state(ensemble: Ensemble, checkpoints: list[Checkpoint]) -> State:
    """The stacked state of replicas that all stand at the same step."""
    assert len({c.step for c in checkpoints}) == 1

    def stacked(tensors: list[Any], prefix: str = "") -> dict[str, Tensor]:
        for found in tensors:
            wanted = {prefix + name for name in ensemble.names}
            if prefix and not found:
                raise ValueError(
                    "checkpoint has no optimizer state (as an imported one): start a run from it with --start-from"
                )
            if missing := sorted(wanted - set(found)):
                raise ValueError(f"checkpoint lacks the tensor {missing[0]!r}")
        return {name: torch.stack([t[prefix + name] for t in tensors]).to(ensemble.device) for name in ensemble.names}

    optimizers = [c.optimizer for c in checkpoints]
    state = ensemble.state(
        stacked([c.model for c in checkpoints]), stacked(optimizers, "first."), stacked(optimizers, "second.")
    )
    counters = [c.state["counters"] for c in checkpoints]

    def column(key: str, like: Tensor) -> Tensor:
        return torch.tensor([c[key] for c in counters], dtype=like.dtype, device=like.device)

    state.died_at = column("died_at", state.died_at)
    state.high = column("high", state.high)
    state.loss_sum = column("loss_sum", state.loss_sum)
    state.grad_norm = column("grad_norm", state.grad_norm)
    state.alive = state.died_at < 0
    state.step, state.logged = checkpoints[0].step, counters[0]["logged"]
    return state
