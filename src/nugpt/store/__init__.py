"""Run directories: atomic files, records, metrics, checkpoints. Nothing else touches a store."""

from nugpt.store.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from nugpt.store.opened import opened
from nugpt.store.run_directory import RunDirectory, Store, run_of_file

__all__ = [
    "Checkpoint",
    "RunDirectory",
    "Store",
    "latest_checkpoint",
    "load_checkpoint",
    "opened",
    "run_of_file",
    "save_checkpoint",
]
