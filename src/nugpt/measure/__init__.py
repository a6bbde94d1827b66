"""Alignment exponents, coordinates and LERP statistics, on live tensors; slopes and verdicts are `fit`'s."""

from nugpt.measure.alignment import Alignment, Exponents, alignment_exponents
from nugpt.measure.lerp import lerp_statistics
from nugpt.measure.probe import AlignmentProbe

__all__ = ["Alignment", "AlignmentProbe", "Exponents", "alignment_exponents", "lerp_statistics"]
