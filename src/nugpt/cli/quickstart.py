"""`nugpt quickstart`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quickstart:
    """See the method: the tables, what they do to every tensor of a model, and what the model counts to."""

    def run(self) -> int:
        """Print the tables, then one model under νGPT."""
        from nugpt.cli.count import Count
        from nugpt.cli.explain import Explain
        from nugpt.cli.shape import Shape
        from nugpt.cli.table import Table

        print("The parametrizations of the paper:\n")
        Table().run()
        wide = Shape(preset="paper-l12h28")
        print("\nA model of 12 layers and 28 heads under νGPT at η = 2^-7, tensor by tensor:\n")
        Explain(lr=2**-7, shape=wide).run()
        print("\nWhat it counts to:\n")
        Count(shape=wide).run()
        print("\nNext: nugpt explain --help, nugpt table --resolve --preset paper-l12h40")
        return 0
