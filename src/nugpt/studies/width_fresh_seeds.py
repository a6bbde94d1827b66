"""`width-fresh-seeds`: νGPT's half of `width-fixed-steps` again, on seeds that it has not seen.

Which loss its curves are read from was settled after its runs, and νGPT's verdict hung on it. Here it is settled
before. With several seeds at every width a slope's interval is narrower than there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nugpt.spec.parametrization import NUGPT, Parametrization
from nugpt.spec.plan import Curve
from nugpt.spec.study import Claim, Setting, Study
from nugpt.studies.grids import POLICY, next_seeds, width_curves
from nugpt.studies.rules import transfers

FEWEST = {"evidence": 2}  # seeds of a curve, also where a run takes a minute
LIMITS = "Fresh seeds change initial weights and the order of data, not the data, the shapes or the length."


def fresh_curves(table: Parametrization, scale: str, setting: Setting) -> tuple[Curve, ...]:
    """The widths and learning rates of `width-fixed-steps` for one table; the scale's next seeds."""
    made = width_curves(scale, setting, (table,))
    fewest = FEWEST.get(scale, 1)
    return tuple(replace(one, seeds=next_seeds(scale, max(len(one.seeds), fewest))) for one in made)


STUDY = Study(
    id="width-fresh-seeds",
    title="Width at a fixed number of iterations: νGPT again, on fresh seeds",
    varies="heads at fixed layers, fixed steps, seeds",
    claims=(Claim("νGPT's best learning rate transfers over width, on fresh seeds.", transfers("nugpt", "heads")),),
    curves=partial(fresh_curves, NUGPT),
    policy=POLICY,
    limits=LIMITS,
)
