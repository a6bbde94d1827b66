"""Every claim has a rule, and every rule can be read off the runs that its study plans."""

from __future__ import annotations

import re

import pytest
from tests.studies.page import planned

from nugpt.spec.plan import Plan
from nugpt.spec.study_rules import KINDS, Rule, describe
from nugpt.studies import STUDIES

IDS = list(STUDIES)
MEASURED = ("layer",)  # what a rule may split by that is measured within a run rather than planned
SLOPES = ("no-drift", "drift", "slope-near", "joint-slope", "multiplier-slope", "lerp-slope")

# Studies; kind, table, the other table or the axis, by, of, at; low, high.
LERP = "depth-sweep-baseline-alpha-power-law"
LARGER = "max(alpha, nu)"
ASPECT = "width-sweep-ngpt-ours-with-token-corr"
BOUNDS: list[tuple[str, tuple[str | None, ...], tuple[float | None, float | None]]] = [
    (f"width-fixed-steps {ASPECT}", ("drift", "ngpt", "heads", None, None, None), (None, -0.1)),
    (
        f"width-fixed-steps mup-drifts-ours-not width-fresh-seeds {ASPECT}",
        ("no-drift", "nugpt", "heads", None, None, None),
        (-0.1, 0.1),
    ),
    ("mup-drifts-ours-not mup-drifts-fresh-seeds", ("drift", "completep", "heads", None, None, None), (0.1, None)),
    ("depth-sweeps", ("no-drift", "ngpt", "layers", None, None, None), (-0.2, 0.2)),
    ("depth-sweeps depth-mup-depth-sweep", ("no-drift", "nugpt", "layers", None, None, None), (-0.2, 0.2)),
    ("depth-mup-depth-sweep", ("drift", "depth-mup", "layers", None, None, None), (0.2, None)),
    (
        f"width-fixed-steps depth-sweeps {ASPECT}",
        ("loss-not-worse", "nugpt", "ngpt", None, None, None),
        (None, 0.01),
    ),
    ("depth-sweeps", ("sensitivity-not-worse", "nugpt", "ngpt", None, None, None), (None, 0.01)),
    (
        "steps-sweep-ngpt-ours width-sweep-ngpt-ours-without-tc-corrections",
        ("slope-near", "nugpt", "steps", None, None, None),
        (-13 / 30, -7 / 30),
    ),
    ("alignment_val alignment_val_l12h28", ("alignment", "nugpt", None, None, "omega", "end"), (0.4, 0.6)),
    ("alignment_val alignment_val_l12h28", ("alignment-fall", "nugpt", None, None, LARGER, None), (0.1, None)),
    ("alignment_val alignment_val_l12h28", ("alignment", "nugpt", None, None, LARGER, "end"), (0.45, 0.65)),
    (
        "alignment_val_loss_weighted alignment_val_loss_weighted_l12h28",
        ("alignment", "nugpt", None, None, LARGER, "loss-weighted"),
        (0.65, 0.85),
    ),
    (
        "alignment_val_layer_dependence alignment_val_layer_dependence_l12h28",
        ("alignment", "nugpt", None, "layer", "omega", None),
        (0.4, 0.6),
    ),
    ("alignment-by-length", ("alignment-change", "nugpt", None, "steps", LARGER, "end"), (None, 0.0)),
    (LERP, ("lerp-slope", "ngpt", "layers", None, "alpha_A", None), (-0.7, -0.3)),
    (LERP, ("lerp-slope", "ngpt", "layers", None, "alpha_M", None), (-0.7, -0.3)),
    (LERP, ("lerp-spread", "ngpt", None, None, None, None), (0.5, None)),
    ("both-eta-input-output-sweep", ("multiplier", "nugpt", None, "heads", "output", None), (-1.5, -0.5)),
    (
        "width-sweep-ngpt-mup-vs-muppr width-sweep-ngpt-mup-vs-muppr-tuned",
        ("loss-near", "nugpt-full-align", "completep", None, None, None),
        (-0.01, 0.01),
    ),
    (
        "run-length-by-width run-length-fresh-seeds",
        ("slope-change", "nugpt", "heads", "steps", None, None),
        (0.0, None),
    ),
    ("run-length-by-width", ("no-drift", "nugpt", "heads", "steps", None, None), (-0.1, 0.1)),
    ("run-length-by-width", ("slope-change", "completep", "heads", "steps", None, None), (0.0, None)),
    *(
        ("role-sweeps", ("multiplier-slope", "nugpt", "heads", None, group, None), (-0.1, 0.1))
        for group in ("hidden", "input", "output", "rescalers")
    ),
    ("depth-mup-roles", ("multiplier-slope", "depth-mup", "layers", None, "hidden", None), (0.2, None)),
    ("batch-by-steps", ("joint-slope", None, "steps", None, None, None), (-13 / 30, -7 / 30)),
    (
        "against-llama against-llama-clipped against-llama-warmup",
        ("loss-not-worse", "nugpt", "prenorm-completep", None, None, "equal-flops"),
        (None, 0.01),
    ),
    ("against-llama", ("loss-not-worse", "nugpt", "prenorm-completep", None, None, "equal-time"), (None, 0.01)),
    ("held-out", ("prediction", "nugpt", None, "axis", None, "held-out"), (-0.25, 0.25)),
    ("held-out", ("regret", "nugpt", None, "axis", None, "held-out"), (None, 0.02)),
    ("warmup-at-base", ("shift", "ngpt", None, "warmup", None, None), (-0.25, 0.25)),
    ("warmup-at-base", ("shift", "nugpt", None, "warmup", None, None), (-0.25, 0.25)),
    ("rescaler-rate", ("loss-not-worse", "nugpt-rescalers-doubled", "nugpt", None, None, None), (None, 0.0)),
    ("rescaler-rate", ("loss-near", "nugpt-lower-constant", "nugpt", None, None, None), (-0.01, 0.01)),
]


def values(made: Plan, label: str, table: str | None) -> set[object]:
    return {c.label[label] for c in made.curves if label in c.label and table in (None, c.label["table"])}


@pytest.mark.parametrize("id", IDS)
def test_every_study_claims_or_asks_something_in_a_sentence(id: str) -> None:
    made = STUDIES[id]
    assert made.claims
    for claim in made.claims:
        assert claim.text.endswith(".")
        assert "\n" not in claim.text
        assert isinstance(claim.rule, Rule)
    assert len({claim.text for claim in made.claims}) == len(made.claims)


def test_what_the_paper_claims_has_a_verdict() -> None:
    without = {id for id in IDS if not any(claim.rule.decides for claim in STUDIES[id].claims)}
    # What the paper fits without a claim, what is tuned before anything is claimed, what is asked of runs seen before.
    assert without == {"depth-sweep-ours-alpha-power-law", "multipliers-at-base", "held-out-steps", "width-all-seeds"}


@pytest.mark.parametrize("scale", ["paper", "evidence", "lab", "tiny"])
@pytest.mark.parametrize("id", IDS)
def test_a_rule_names_tables_and_axes_that_the_plan_has(id: str, scale: str) -> None:
    made = planned(STUDIES[id], scale)
    tables = values(made, "table", None)
    for claim in STUDIES[id].claims:
        rule = claim.rule
        assert {rule.table, rule.against} - {None} <= tables
        assert (rule.along is not None) == (rule.kind in SLOPES or rule.kind == "slope-change")
        if rule.along is not None:
            assert len(values(made, rule.along, rule.table)) >= 3, f"{claim.text} needs three sizes for an interval"
        if rule.by is not None and rule.by not in MEASURED:
            assert len(values(made, rule.by, rule.table)) >= 2
        if rule.against is not None:
            shared = [
                {
                    (c.label["layers"], c.label["heads"], c.label["steps"])
                    for c in made.curves
                    if c.label["table"] == name
                }
                for name in (rule.table, rule.against)
            ]
            assert shared[0] <= shared[1], "compared at the same sizes"


def test_bounds_by_hand() -> None:
    """The numbers that decide, written a second time, every one of them: changing one is a decision."""
    rules = [(id, claim.rule) for id in IDS for claim in STUDIES[id].claims if claim.rule.decides]
    found = {(id, r.kind, r.table, r.against or r.along, r.by, r.of, r.at): r for id, r in rules}
    assert len(found) == len(rules)
    wanted = {(id, *key): bounds for ids, key, bounds in BOUNDS for id in ids.split()}
    assert set(found) == set(wanted)
    for key, bounds in wanted.items():
        assert (found[key].low, found[key].high) == pytest.approx(bounds), key
        assert found[key].level == 0.90


def test_drift_and_no_drift_cannot_both_hold() -> None:
    """No slope lies inside the bounds of transfer and beyond those of drift over the same axis."""
    rules = [claim.rule for made in STUDIES.values() for claim in made.claims]
    for axis in ("heads", "layers"):
        still = [r for r in rules if r.kind == "no-drift" and r.along == axis]
        moves = [r for r in rules if r.kind == "drift" and r.along == axis and r.decides]
        assert still
        assert moves
        for a in still:
            for b in moves:
                assert a.low is not None
                assert a.high is not None
                assert (b.low is not None and b.low >= a.high) or (b.high is not None and b.high <= a.low)


def test_rules_in_words() -> None:
    width = STUDIES["width-fixed-steps"].claims
    assert describe(width[0].rule) == "slope of the best η over heads for ngpt: 90% interval at most −0.1"
    assert describe(width[1].rule) == "slope of the best η over heads for nugpt: 90% interval from −0.1 to 0.1"
    omega, fall, _ = STUDIES["alignment_val"].claims
    power = "as a power of width, or at each of fewer than three"
    within = "for nugpt: 90% interval from 0.4 to 0.6"
    assert describe(omega.rule) == f"alignment exponent ω, averaged over layers, {power} (end) {within}"
    assert describe(fall.rule).startswith(
        "alignment exponent max(α, ν) at the start less that at the end, at each width "
    )
    by_layer = STUDIES["alignment_val_layer_dependence"].claims[0].rule
    assert describe(by_layer) == f"alignment exponent ω, {power} by layer {within}"
    for made in STUDIES.values():
        for claim in made.claims:
            assert re.fullmatch(r"[^\n|`]+", describe(claim.rule)), "fits a cell of a table"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "wobble"}, "rule is 'wobble', but must be one of no-drift"),
        ({"kind": "drift", "low": float("nan")}, "low of rule 'drift' is nan"),
        ({"kind": "no-drift", "low": 0.1, "high": -0.1}, "rule 'no-drift' has the bounds 0.1 and -0.1"),
        ({"kind": "no-drift", "level": 1.0}, "level of rule 'no-drift' is 1.0"),
        ({"kind": "alignment-change", "by": "heads"}, "by of rule 'alignment-change' is 'heads', but must be 'steps'"),
    ],
)
def test_a_wrong_rule_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Rule(**values)  # type: ignore[arg-type]


def test_every_kind_is_used() -> None:
    assert {claim.rule.kind for made in STUDIES.values() for claim in made.claims} == set(KINDS)
