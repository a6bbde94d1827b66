"""`nugpt generate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Generate:
    """Continue a text with a trained model, printing it as it comes."""

    run_name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run's directory, or the first digits of its hash."""
    prompt: str = ""
    """The text to continue; nothing: the model begins a document."""
    max_tokens: int = 200
    """How many tokens at the most."""
    temperature: float = 0.8
    """0 takes the likeliest token each time."""
    top_k: int = 0
    """Draw from the k likeliest; 0: from all."""
    top_p: float = 1.0
    """Draw from the likeliest tokens whose probabilities reach this."""
    seed: int = 0
    """Of the draws."""
    store: Path = Path("runs")
    """Where runs are kept."""
    checkpoint: str | None = None
    """A checkpoint's name, as step-000000120; the newest by default."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    no_cache: bool = False
    """Read the whole text anew for every token (slow; the tokens are the same)."""

    def run(self) -> int:
        """Print the prompt and what the model makes of it."""
        from nugpt.engines.lab.generate import Sampling, generate, load_trained, stream_text
        from nugpt.engines.lab.options import Options
        from nugpt.store import Store

        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, but must be at least 1")
        device = str(Options(device=self.device).torch_device())
        trained = load_trained(Store(self.store).find(self.run_name), self.checkpoint, device)
        prompt = trained.tokenizer.encode(self.prompt) if self.prompt else []
        sys.stdout.write(self.prompt)
        for piece in stream_text(
            trained.tokenizer, generate(trained, prompt, self.max_tokens, sampling, not self.no_cache)
        ):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return 0
