"""One device: an ensemble of replicas, its step, the loop around it, and generation."""

from nugpt.engines.lab.loop import Interrupted, execute
from nugpt.engines.lab.options import Options

__all__ = ["Interrupted", "Options", "execute"]
