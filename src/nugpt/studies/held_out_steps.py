"""`held-out-steps`: is a longer run's best learning rate predicted better for a wider model?

A narrow model of `held-out` wants a lower one than its short runs predict. It is also the model that has seen the most
tokens per parameter by then: if that is why, the same lengths of wider models are predicted better. Most of these runs
had been seen when the question was asked, at `evidence` all but the shortest of the wider models: there is no verdict.
"""

from __future__ import annotations

from nugpt.spec.parametrization import NUGPT
from nugpt.spec.plan import Curve
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Claim, Setting, Study
from nugpt.spec.study_rules import Rule
from nugpt.studies.grids import POLICY, Size, curve
from nugpt.studies.held_out import AXES, BASE
from nugpt.studies.run_length_by_width import HEADS, LAYERS, affordable


def curves(scale: str, setting: Setting) -> tuple[Curve, ...]:
    """Lengths × widths, the shorter first; where `held-out` and `run-length-by-width` have such runs, theirs."""
    at = scale_named(scale)
    shorter, longest = AXES[scale]["steps"]
    sizes = [Size(LAYERS[scale], heads, n) for n in (*shorter, BASE[scale].steps, longest) for heads in HEADS[scale]]
    made = (curve(at, setting, NUGPT, size, label={"held_out": int(size.steps == longest)}) for size in sizes)
    return tuple(affordable(scale, one) for one in made)


STUDY = Study(
    id="held-out-steps",
    title="Predict longer runs from shorter ones, at several widths",
    varies="steps, heads",
    claims=(
        Claim(
            "How much less a wider model's best learning rate falls from short runs to long ones.",
            Rule("slope-change", table="nugpt", along="steps", by="heads"),
        ),
        Claim(
            "How far a longer run's best learning rate lies from the prediction, at each width.",
            Rule("prediction", table="nugpt", by="heads", at="held-out"),
        ),
        Claim(
            "What the prediction costs, at each width.",
            Rule("regret", table="nugpt", by="heads", at="held-out"),
        ),
    ),
    curves=curves,
    policy=POLICY,
    limits=(
        "A few lengths and widths. A wider model that is predicted better may be so for other reasons than its tokens "
        "per parameter, and would need longer runs to come to as many."
    ),
)
