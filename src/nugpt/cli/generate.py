"""`nugpt generate`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from nugpt.engines.lab.generate import Sampling, Trained


@dataclass(frozen=True)
class Generate:
    """Continue a text with a trained model, printing it as it comes."""

    run_name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run's directory or the first digits of its hash, a checkpoint's directory, or an exported folder."""
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
    interactive: bool = False
    """Then ask for texts to continue: a line is continued, an empty one goes on; Ctrl-C stops a text, Ctrl-D leaves."""
    no_cache: bool = False
    """Read the whole text anew for every token (slow; the tokens are the same)."""

    def run(self) -> int:
        """Print the prompt and what the model makes of it."""
        from nugpt.cli.trained import load_model
        from nugpt.engines.lab.generate import Sampling
        from nugpt.engines.lab.options import Options

        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, but must be at least 1")
        device = str(Options(device=self.device).torch_device())
        trained = load_model(self.run_name, self.store, self.checkpoint, device)
        if self.interactive:
            return self._converse(trained, sampling)
        self._continue(trained, _ids(trained, self.prompt), self.prompt, sampling)
        return 0

    def _converse(self, trained: Trained, sampling: Sampling) -> int:
        """Continue each line that is typed; an empty one lets the last text go on."""
        on_terminal = sys.stdin.isatty()
        if on_terminal:
            print("a line is continued, an empty one goes on; Ctrl-C stops a text, Ctrl-D leaves", file=sys.stderr)
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - lets input() edit a line and recall earlier ones
        tokens, line, turn = _ids(trained, self.prompt), self.prompt, 0
        while True:
            if line or turn:  # without a prompt the first thing is a question
                # Another seed each turn, or a text that goes on would be drawn with the numbers it began with.
                tokens = self._continue(trained, tokens, line, replace(sampling, seed=(sampling.seed + turn) % 2**63))
            turn += 1
            while True:
                asked = _line(on_terminal)
                if asked is None:
                    return 0
                try:
                    tokens = _ids(trained, asked) if asked else tokens
                except ValueError as error:  # a line that is no text ends nothing
                    print(f"nugpt: {error}", file=sys.stderr)
                else:
                    break
            line = asked

    def _continue(self, trained: Trained, tokens: list[int], shown: str, sampling: Sampling) -> list[int]:
        """Print `shown` and the continuation of these tokens as it comes; return all tokens."""
        from nugpt.engines.lab.generate import generate, stream_text

        made: list[int] = []

        def noted() -> Iterator[int]:
            for token in generate(trained, tokens, self.max_tokens, sampling, not self.no_cache):
                made.append(token)
                yield token

        sys.stdout.write(shown)
        try:
            for piece in stream_text(trained.tokenizer, noted()):
                sys.stdout.write(piece)
                sys.stdout.flush()
        except KeyboardInterrupt:
            if not self.interactive:
                raise
        sys.stdout.write("\n")
        return [*tokens, *made]


def _ids(trained: Trained, text: str) -> list[int]:
    """The tokens of a text; of none, the end-of-text after which a document begins."""
    try:
        text.encode()
    except UnicodeEncodeError:  # Python reads bytes that are not UTF-8 as lone surrogates
        raise ValueError(f"the text {text!a} is not UTF-8: give it in that encoding") from None
    return trained.tokenizer.encode(text) or [trained.tokenizer.eot]


def _line(on_terminal: bool) -> str | None:
    """The next line that is typed, None at the end; on a terminal Ctrl-C drops what was typed and asks again."""
    while True:
        try:
            return input("> " if on_terminal else "")
        except EOFError:
            sys.stdout.write("\n" if on_terminal else "")
            return None
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            sys.stdout.write("\n")
