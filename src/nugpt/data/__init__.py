"""Text to batches: sources → tokens → checksummed shards → batch(seed, step)."""

from nugpt.data.cache import cached_embedded, found_embedded
from nugpt.data.dataset import TokenDataset, ValidationSet, open_dataset, prefetch
from nugpt.data.manifest import Manifest, read_manifest
from nugpt.data.prepare import Progress, prepare
from nugpt.data.tokenizer import Tokenizer, load_tokenizer
from nugpt.data.verify import verify

__all__ = [
    "Manifest",
    "Progress",
    "TokenDataset",
    "Tokenizer",
    "ValidationSet",
    "cached_embedded",
    "found_embedded",
    "load_tokenizer",
    "open_dataset",
    "prefetch",
    "prepare",
    "read_manifest",
    "verify",
]
