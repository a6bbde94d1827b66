"""One device: an ensemble of replicas, its step, the loop around it, and generation."""

from nugpt.engines.lab.loop import Hooks, Interrupted, check_trainable, execute
from nugpt.engines.lab.options import Options

__all__ = ["Hooks", "Interrupted", "Options", "check_trainable", "execute"]
