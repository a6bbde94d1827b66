"""Text from a trained model, token by token, with or without a key-value cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nugpt.core.cache import Cache
from nugpt.core.decoder import Decoder
from nugpt.core.init import build, gains
from nugpt.data.tokenizer import Tokenizer, stored_tokenizer
from nugpt.spec.run import RunSpec
from nugpt.store import Checkpoint, RunDirectory, latest_checkpoint, load_checkpoint
from nugpt.store.checkpoint import check_checkpoint


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: temperature 0 takes the likeliest; top_k 0 and top_p 1 leave all in."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature!r}, but must be a number of at least 0")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k!r}, but must be a whole number of at least 0 (0: all)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}, but must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed!r}, but must be a whole number from 0 to 2^63 - 1")


@dataclass(frozen=True)
class Trained:
    """A model with its weights, the multipliers of its forward pass, and what turns its tokens into text."""

    spec: RunSpec
    model: Decoder
    gains: Any
    tokenizer: Tokenizer
    step: int


def load_trained(directory: RunDirectory, checkpoint: str | None = None, device: str = "cpu") -> Trained:
    """The model of a run at its newest checkpoint, or at the one named (`step-000000120`)."""
    spec = directory.spec()
    found = _checkpoint(directory, checkpoint)
    check_checkpoint(found.model, found.state, spec, f"checkpoint at step {found.step} of {directory.path}")
    tokenizer = stored_tokenizer(directory.path, directory.end_of_text())
    return trained_model(spec, found.model, tokenizer, found.step, device)


def trained_model(
    spec: RunSpec, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, step: int, device: str = "cpu"
) -> Trained:
    """The model of a run with these weights; a tokenizer that has more ids than the model is refused."""
    if tokenizer.n_ids > spec.model.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.n_ids} ids, but the model's vocabulary has {spec.model.vocab_size}"
        )
    model = build(spec.model, device=device)
    model.load_state_dict(dict(tensors))
    model.requires_grad_(False)
    return Trained(spec, model, gains(model, spec.resolved(), device), tokenizer, step)


def _checkpoint(directory: RunDirectory, name: str | None) -> Checkpoint:
    if name is not None:
        known = sorted(path.name for path in directory.checkpoints.glob("step-*"))
        if name not in known:
            raise ValueError(f"run {directory.path} has no checkpoint {name!r}, it has {', '.join(known) or 'none'}")
        return load_checkpoint(directory.checkpoints / name)
    found = latest_checkpoint(directory.checkpoints)
    if found is None:
        raise ValueError(directory.without_checkpoint("generate from"))
    return found


@torch.no_grad()
def generate(
    trained: Trained, prompt: list[int], max_new: int, sampling: Sampling | None = None, use_cache: bool = True
) -> Iterator[int]:
    """Yield up to `max_new` tokens after the prompt, ending at end-of-text."""
    sampling = sampling or Sampling()
    model, device = trained.model, next(trained.model.parameters()).device
    tokens = list(prompt) or [trained.tokenizer.eot]  # a document begins where another ended
    generator = torch.Generator().manual_seed(sampling.seed)
    capacity = len(tokens) + max_new
    cache = Cache(trained.spec.model, 1, capacity, device, torch.float32) if use_cache else None
    fresh = tokens
    for _ in range(max_new):
        h = model(torch.tensor([fresh if cache is not None else tokens], device=device), trained.gains, cache=cache)
        logits = model.logits(h[:, -1], trained.gains)[0].float().cpu()
        logits = logits[: trained.tokenizer.n_ids]  # padded ids are never drawn
        if not bool(logits.isfinite().all()):
            raise ValueError(f"the logits of the model at step {trained.step} are not finite: its run diverged")
        token = _draw(logits, sampling, generator)
        if token == trained.tokenizer.eot:
            return
        yield token
        tokens.append(token)
        fresh = [token]


def _draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token from the logits."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    # From the largest down, in float64: so no temperature above 0 is too small to divide by.
    logits = (logits - logits.max()).double() / sampling.temperature
    order = logits.argsort(descending=True, stable=True)
    ranked = logits[order].softmax(-1)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    # The fewest likeliest tokens whose probabilities reach top_p: one is kept while those before it fall short.
    keep &= ranked.cumsum(-1) - ranked < sampling.top_p
    return int(order[torch.multinomial(ranked * keep, 1, generator=generator)])


def stream_text(tokenizer: Tokenizer, tokens: Iterator[int]) -> Iterator[str]:
    """The text of tokens as they come; a character whose bytes are not all there yet waits for them."""
    ids: list[int] = []
    shown = ""
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids)
        whole = text.rstrip("\ufffd")  # which may yet become another character
        if whole.startswith(shown) and len(whole) > len(shown):
            yield whole[len(shown) :]
            shown = whole
    rest = tokenizer.decode(ids)
    if len(rest) > len(shown):
        yield rest[len(shown) :]
