"""`mup-drifts-fresh-seeds`: CompleteP's half of `mup-drifts-ours-not` again, on seeds that it has not seen.

There the slope's interval reaches from below the rule's bound to far above it: its widest curve has one seed.
"""

from __future__ import annotations

from functools import partial

from nugpt.spec.parametrization import COMPLETEP
from nugpt.spec.study import Claim, Study
from nugpt.studies.grids import POLICY
from nugpt.studies.rules import drifts_right
from nugpt.studies.width_fresh_seeds import LIMITS, fresh_curves

STUDY = Study(
    id="mup-drifts-fresh-seeds",
    title="Width at a fixed number of iterations: CompleteP again, on fresh seeds",
    varies="heads at fixed layers, fixed steps, seeds",
    claims=(
        Claim(
            "CompleteP's best learning rate drifts to the right over width, on fresh seeds.",
            drifts_right("completep", "heads"),
        ),
    ),
    curves=partial(fresh_curves, COMPLETEP),
    policy=POLICY,
    limits=LIMITS,
)
