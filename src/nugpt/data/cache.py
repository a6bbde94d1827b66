"""The embedded corpus, prepared once for a user and found again."""

import os
from pathlib import Path

from nugpt.data.dataset import TokenDataset, open_dataset
from nugpt.data.manifest import MANIFEST_FILE, VERSION, digest
from nugpt.data.prepare import prepare
from nugpt.data.sources import list_sources


def user_cache() -> Path:
    """Return the directory where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nugpt"


def cached_embedded(
    tokenizer: str = "bpe:1024", val_fraction: float | None = None, cache: str | Path | None = None
) -> TokenDataset:
    """Open the embedded corpus, preparing it first where this user never has; two processes may ask at once."""
    directory = _directory(tokenizer, val_fraction, cache)
    # One process, so that a script without a main guard may call this; a second caller waits for the first.
    prepare(["embedded"], tokenizer, directory, val_fraction=val_fraction, workers=1, wait=True)
    return open_dataset(directory)


def found_embedded(tokenizer: str) -> TokenDataset | None:
    """The embedded corpus as this user has it prepared by default; none where it never was."""
    directory = _directory(tokenizer, None, None)
    return open_dataset(directory) if (directory / MANIFEST_FILE).is_file() else None


def _directory(tokenizer: str, val_fraction: float | None, cache: str | Path | None) -> Path:
    key = digest([VERSION, list_sources(["embedded"]).fingerprint, tokenizer, val_fraction])[:16]
    return (user_cache() if cache is None else Path(cache)) / f"embedded-{key}"
