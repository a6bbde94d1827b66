"""What the notes beside the committed results say in words, held against the records that they speak of."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from nugpt.fit.claims import verdicts
from nugpt.fit.curves import Answers, answer
from nugpt.fit.measured import Measured, measured
from nugpt.fit.noise import USUALLY_ALIKE, curve_noise, study_noise
from nugpt.fit.optimum import Optimum
from nugpt.fit.points import levels
from nugpt.fit.regret import regret_at
from nugpt.fit.verdict import Verdict
from nugpt.spec.loss import loss_name
from nugpt.spec.plan import Curve
from nugpt.store import opened
from nugpt.store.plans import plans
from nugpt.studies import STUDIES
from nugpt.sweep.state import CurveState, Place, plan_state

CHANGE = ("slope-change", "nugpt")
EVIDENCE = Path(__file__).resolve().parents[2] / "results" / "evidence"


def note(id: str) -> str:
    """As a person wrote it."""
    return (EVIDENCE / "notes" / f"{id}.md").read_text(encoding="utf-8")


@cache
def states(id: str) -> list[CurveState]:
    """Every curve of a study with its runs."""
    (directory,) = [one for one in plans(opened(EVIDENCE)) if one.path.name == f"{id}-evidence"]
    return plan_state(directory.plan(), directory, math.inf)


def found(id: str, keep: Callable[[Place], bool] = lambda place: True) -> Answers:
    """What the runs of a study say, or those of them that are kept."""
    loss = loss_name([state.curve for state in states(id)])
    curves = [
        measured(
            state.curve,
            [(p.log2_lr, p.seed, p.record) for p in state.places if p.record is not None and keep(p)],
            loss,
        )
        for state in states(id)
    ]
    return answer(curves)


def judged(id: str, answers: Answers) -> dict[str, Verdict]:
    """Each claim's verdict, by its rule's kind and table."""
    claims = STUDIES[id].claims
    return {f"{c.rule.kind} {c.rule.table}": v for c, v in zip(claims, verdicts(claims, answers), strict=True)}


def test_over_depth_ngpt_held_while_optima_were_taken_to_share_their_errors_and_with_points_added_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "and only with the points that had been added around optima that had moved" in note("depth-sweeps")

    def first(place: Place) -> bool:
        return "which had moved" not in (place.added or "")

    now = judged("depth-sweeps", found("depth-sweeps"))
    monkeypatch.setattr(Optimum, "independent", property(lambda self: self.seeds < 2))
    shared, fewer = (judged("depth-sweeps", some) for some in (found("depth-sweeps"), found("depth-sweeps", first)))
    changed = {key: (now[key].answer, shared[key].answer) for key in now if now[key].answer != shared[key].answer}
    assert changed == {"no-drift ngpt": ("not decided here", "holds")}
    assert fewer["no-drift ngpt"].answer == "not decided here"


def test_over_width_nugpt_falls_in_shorter_runs_and_rises_in_longer_ones() -> None:
    """What the width study holds of its own length, the runs of another study deny of others."""
    first, second = note("width-fixed-steps").split("\n\n")
    assert "in runs half as long it falls with width, in runs four times as long it may rise" in first.split(". ")[0]
    assert "there its whole interval lies above zero, but by the runs of [`run-length-by-width`]" in second
    (length,) = {state.curve.spec.steps for state in states("width-fixed-steps")}
    answers = found("held-out-steps")
    (group,) = {path.group for path in answers.paths}
    paths = {path.others["steps"]: path.drift for path in answers.paths if path.name.startswith("width")}
    assert paths[length / 2].interval.high < -0.1, "the rule's bound"
    assert paths[4 * length].interval.low > 0.0
    fewer = [p for p in found("run-length-by-width").paths if p.group == group and p.others.get("steps") == 4 * length]
    assert [p.drift.interval.contains(0.0) for p in fewer] == [True]
    assert len(paths[length / 2].sizes) == len(paths[4 * length].sizes) == 3


def test_the_drift_over_width_rises_with_length_by_three_lengths_and_is_not_decided_by_two() -> None:
    said = note("run-length-by-width")
    here, there = "run-length-by-width", "held-out-steps"
    at = {id: {(c.spec.model.n_heads, c.spec.steps) for c in nugpts(id)} for id in (here, there)}
    assert at[here] < at[there]
    short, middle, long = sorted({steps for _, steps in at[there]})
    assert "they have the same sizes of νGPT, and runs of half the shorter length besides" in said
    assert {steps for _, steps in at[here]} == {middle, long}
    assert middle == 2 * short
    for ids in ([there], [here, there]):
        answers = answer([together(ids, size) for size in sorted(at[there])])
        falls, stays, rises = (path.drift.interval for path in answers.paths[:3])
        assert [path.others["steps"] for path in answers.paths[:3]] == [short, middle, long]
        assert falls.high < 0.0 < rises.low, "falls … and rises"
        assert -0.1 < (stays.low + stays.high) / 2 < 0.1, "hardly moves"
        assert change_with_length(answers).answer == "holds", "that is, the whole interval above zero"
    for ids in ([here], [there], [here, there]):
        two = change_with_length(answer([together(ids, size) for size in sorted(at[here])]))
        assert two.answer == "not decided here", "with the two lengths alone, by either study's runs"


def nugpts(id: str) -> list[Curve]:
    return [state.curve for state in states(id) if state.curve.label["table"] == "nugpt"]


def together(ids: list[str], size: tuple[int, int]) -> Measured:
    """νGPT's runs at so many heads and steps, of several studies."""
    found = [
        state
        for id in ids
        for state in states(id)
        if (state.curve.spec.model.n_heads, state.curve.spec.steps) == size and state.curve.label["table"] == "nugpt"
    ]
    runs = {place.spec.hash: place for state in found for place in state.places}
    points = [(p.log2_lr, p.spec.seed, p.record) for p in runs.values() if p.record is not None]
    return measured(found[0].curve, points, loss_name(nugpts(ids[0])))


def change_with_length(answers: Answers) -> Verdict:
    """By the rule of `run-length-by-width`."""
    claims = [c for c in STUDIES["run-length-by-width"].claims if (c.rule.kind, c.rule.table) == CHANGE]
    (verdict,) = verdicts(claims, answers)
    return verdict


def test_the_best_learning_rate_follows_iterations_not_tokens() -> None:
    said = note("batch-by-steps")
    optima = {(o.curve.label["batch"], o.curve.label["steps"]): o.optimum for o in found("batch-by-steps").curves}
    assert {optimum.verdict for optimum in optima.values()} == {"enclosed"}
    assert (
        "There the larger batch's best learning rate is a little higher, well within what the intervals allow" in said
    )
    for steps in (1_000, 2_000):
        few, many = ((batch, optimum) for (batch, n), optimum in sorted(optima.items()) if n == steps)
        assert many[0] == 4 * few[0]
        assert 0.0 < (many[1].log2_lr or 0.0) - (few[1].log2_lr or 0.0) < few[1].interval.width / 2
        assert not many[1].interval.contains((few[1].log2_lr or 0.0) + 1.0), "as it would be were it tokens"
    assert "at a given number of tokens it is higher for a larger batch" in said
    for tokens in (16 * 2_000, 16 * 8_000):
        along = [optimum.log2_lr for (batch, steps), optimum in sorted(optima.items()) if batch * steps == tokens]
        assert len(along) == 4
        assert along == sorted(along)  # type: ignore[type-var]
    batch, steps = verdicts(STUDIES["batch-by-steps"].claims, found("batch-by-steps"))
    (exponent,), (fall,) = batch.estimates, steps.estimates
    told = f"{exponent.value:.2f} ({exponent.interval.low:.2f} to {exponent.interval.high:.2f})".replace("-", "−")
    page = (EVIDENCE.parents[1] / "docs" / "choices.md").read_text(encoding="utf-8")
    assert f"as batch to the power {told}." in " ".join(page.split())
    assert "the upper end of the interval lies a little within the rule's bounds" in said
    assert steps.answer == "not decided here"
    assert steps.rule.low is not None
    assert 0.0 <= fall.interval.high - steps.rule.low < fall.interval.width / 5


def test_the_wider_the_model_the_less_the_prediction_over_length_misses_by() -> None:
    assert "by the estimates, the wider the model, the less the prediction misses by, and at both of" in note(
        "held-out"
    )
    _, off, cost = verdicts(STUDIES["held-out-steps"].claims, found("held-out-steps"))
    assert None not in [one.value for one in off.estimates]
    missed = [abs(one.value or 0.0) for one in off.estimates]
    assert missed == sorted(missed, reverse=True)
    (bound,) = {c.rule.high for c in STUDIES["held-out"].claims if (c.rule.kind, c.rule.table) == ("regret", "nugpt")}
    assert bound is not None
    assert all(one.interval.high < bound for one in cost.estimates[1:])


def test_over_length_nugpt_falls_less_in_wider_models_as_docs_recommend_says() -> None:
    page = (EVIDENCE.parents[1] / "docs" / "recommend.md").read_text(encoding="utf-8")
    falls = {
        path.others["width"]: -(path.drift.slope or math.nan)
        for path in found("held-out-steps").paths
        if path.along == "steps"
    }
    assert [*falls] == [192, 384, 768]
    told = "fell by {:.2f} octaves per octave at d_model 192, by {:.2f} at 384 and by {:.2f} at 768"
    assert told.format(*falls.values()) in " ".join(page.split())


def test_over_width_nugpt_is_not_decided_on_fresh_seeds_and_falls_by_all() -> None:
    ngpt, fixed = found("width-fixed-steps").paths
    assert [path.curves[0].curve.label["table"] for path in (ngpt, fixed)] == ["ngpt", "nugpt"]
    (fresh,), (every,) = (found(id).paths for id in ("width-fresh-seeds", "width-all-seeds"))
    assert "bound lies within the interval" in note("width-fresh-seeds")
    assert fresh.drift.interval.low < -0.1 < fresh.drift.interval.high < 0.0
    assert "with the bound of the two studies' rule within it" in note("width-all-seeds")
    assert "the rule's bound lies within the interval" in note("width-fixed-steps")
    assert every.drift.interval.low < -0.1 < every.drift.interval.high < 0.0
    assert ngpt.drift.slope is not None
    assert ngpt.drift.slope < 3 * every.drift.interval.low, "several times as far"
    assert "differ most at the narrowest width, where the best learning rate is higher" in note("width-fresh-seeds")
    apart = [
        float(b.optimum.log2_lr or math.nan) - float(a.optimum.log2_lr or math.nan)
        for a, b in zip(fixed.curves, fresh.curves, strict=True)
    ]
    assert max(apart, key=abs) == apart[0] > 0
    assert "settled after they were seen" in note("width-fixed-steps").split(". ")[0]


def test_clipping_and_then_warmup_took_more_than_half_of_nugpts_lead() -> None:
    assert "took away more than half of the lead" in note("against-llama-warmup")
    first, warmed = (
        [e.value for e in verdicts(STUDIES[id].claims, found(id))[0].estimates]
        for id in ("against-llama", "against-llama-warmup")
    )
    for before, after in zip(first, warmed, strict=True):
        assert before is not None
        assert after is not None
        assert before / 2 < after < 0
    assert "the longer, half of the run, did better" in note("against-llama-warmup")
    lowest: dict[int, dict[int, float]] = {}
    for state in states("against-llama-warmup"):
        losses: dict[float, list[float]] = {}
        for place in state.places:
            if place.record is not None and place.record.val_loss is not None:
                losses.setdefault(place.log2_lr, []).append(place.record.val_loss)
        spec = state.curve.spec
        if state.curve.label["table"] != "nugpt":
            lowest.setdefault(spec.model.d_model, {})[int(state.curve.label["warmup"])] = min(
                map(np.mean, losses.values())
            )
            assert spec.weight_decay == 0.1
    assert sorted(lowest) == [384, 768]
    assert all(at[1000] < at[400] for at in lowest.values())


def test_over_width_nugpts_curves_lean_over_and_a_parabola_takes_that_for_a_fall() -> None:
    assert "A parabola through the learning rates that all widths have" in note("width-fixed-steps")
    losses: dict[int, dict[float, list[float]]] = {}
    for state in states("width-fixed-steps"):
        if state.curve.label["table"] == "nugpt":
            at = losses.setdefault(state.curve.spec.model.d_model, {})
            for place in state.places:
                assert place.record is not None
                assert place.record.val_loss is not None
                at.setdefault(place.log2_lr, []).append(place.record.val_loss)
    x = sorted(set.intersection(*(set(at) for at in losses.values())))
    curves = [[float(np.mean(at[one])) for one in x] for _, at in sorted(losses.items())]
    highest, lowest = ([curve[i] - min(curve) for curve in curves] for i in (-1, 0))
    assert highest == sorted(highest)
    assert lowest == sorted(lowest, reverse=True)
    bends = [np.polyfit(np.array(x) - np.mean(x), curve, 2) for curve in curves]
    slope = np.polyfit(np.log2(sorted(losses)), [-linear / (2 * square) for square, linear, _ in bends], 1)[0]
    assert slope < -0.1, "beyond what the rule allows"


def test_the_readme_counts_the_runs_that_the_prediction_over_width_shares_with_the_slope() -> None:
    readme = (EVIDENCE.parents[1] / "README.md").read_text(encoding="utf-8")
    asked = [
        state
        for state in states("held-out")
        if state.curve.label["table"] == "nugpt" and state.curve.label["axis"] in ("base", "heads")
    ]
    mine = {place.spec.hash for state in asked for place in state.places}
    slope = {place.spec.hash for state in states("width-fixed-steps") for place in state.places}
    shared = f"{len(mine & slope)} are also behind the slope in `width-fixed-steps`."
    assert f"Of the {len(mine)} runs behind the prediction over width, {shared}" in readme
    (held_out,) = [state for state in asked if state.curve.label["held_out"]]
    assert {place.spec.hash for place in held_out.places} <= slope, "as the note says"


def test_one_law_sees_a_bend_that_a_study_of_two_axes_sees() -> None:
    """νGPT's fall with length is less in wider models, so its sizes lie on no plane."""
    page = (EVIDENCE.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    part = page.split("\n## One law of all runs\n")[1].split("\n## ")[0]
    columns, row = (
        next(line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith(f"| {first} |"))
        for first in ("table", "νGPT")
    )
    assert row[columns.index("bend seen")] == "yes"
    (change,) = judged("held-out-steps", found("held-out-steps"))["slope-change nugpt"].estimates
    assert change.interval.low > 0


def test_what_holds_of_one_run_says_so() -> None:
    for id, study in STUDIES.items():
        if (EVIDENCE / "plans" / f"{id}-evidence.jsonl").is_file() and len(study.measures):
            runs = [place for state in states(id) for place in state.places if place.record is not None]
            assert len(runs) != 1 or "one run of one seed" in note(id)


def test_short_runs_scatter_more_than_long_ones_as_docs_fit_says() -> None:
    page = (EVIDENCE.parents[1] / "docs" / "fit.md").read_text(encoding="utf-8")
    answers = found("steps-sweep-ngpt-ours")
    own = {one.curve.sizes["steps"]: curve_noise(levels(one.curve.points)).deviation for one in answers.curves}
    assert f"by {own[800]:.2f} nats at 800 steps and by {own[6400]:.3f} at 6,400" in page
    assert own[800] > answers.noise.deviation > own[6400]


def test_over_length_the_fall_was_less_steep_while_all_lengths_were_taken_to_scatter_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    id, kind = "steps-sweep-ngpt-ours", "slope-near nugpt"
    said = note(id)
    assert "As long as all lengths were taken to scatter alike, the slope was less steep." in said
    now = judged(id, found(id))[kind]
    answers = found(id).curves
    optima = {one.curve.sizes["steps"]: one.optimum.log2_lr for one in answers}
    short, long = optima[1600] - optima[400], optima[6400] - optima[1600]
    assert "about twice as steeply" in said
    assert 1.5 < long / short < 2.5
    monkeypatch.setattr(importlib.import_module("nugpt.fit.noise"), "ALIKE", np.array([1e3]))
    clear_caches()
    try:
        before = judged(id, found(id))[kind]
    finally:
        clear_caches()
    (own,), (alike,) = now.estimates, before.estimates
    assert own.value is not None
    assert alike.value is not None
    assert own.value < alike.value
    assert own.bent
    assert alike.bent
    assert {now.answer, before.answer} == {"not decided here"}


def clear_caches() -> None:
    """Forget fits that were made with another constant."""
    importlib.import_module("nugpt.fit.optimum")._optimum.cache_clear()
    importlib.import_module("nugpt.fit.noise").like_others.cache_clear()


def test_roles_are_best_as_the_table_has_them_but_for_rescalers() -> None:
    assert "best of the five that were run, for hidden, input and output matrices alike" in note("role-sweeps")
    tuned: dict[object, dict[float, dict[int, float]]] = {}
    for state in states("width-fixed-steps"):
        if state.curve.label["table"] == "nugpt":
            at = tuned.setdefault(state.curve.label["heads"], {})
            for place in state.places:
                at.setdefault(place.log2_lr, {})[place.spec.seed] = final_loss(place)
    losses: dict[object, dict[tuple[object, object], dict[int, float]]] = {}
    for state in states("role-sweeps"):
        label = state.curve.label
        losses.setdefault(label["heads"], {})[label["role"], label["octaves"]] = {
            place.spec.seed: final_loss(place) for place in state.places
        }
    assert len(losses) == 3
    for heads, found in losses.items():
        own = found["none", 0]
        for role in ("hidden", "input", "output"):
            assert all(mean(own) < mean(found[role, octaves]) for octaves in (-2, -1, 1, 2)), (heads, role)
        doubled, fourfold = found["rescalers", 1], found["rescalers", 2]
        assert all(doubled[seed] < own[seed] < fourfold[seed] for seed in own), heads
        others = [by_seed for by_seed in tuned[heads].values() if by_seed.keys() >= own.keys()]
        assert mean(doubled) < min(mean({seed: by_seed[seed] for seed in own}) for by_seed in others), heads


def final_loss(place: Place) -> float:
    """Of a run that has ended well."""
    assert place.record is not None
    assert place.record.val_loss is not None
    return place.record.val_loss


def mean(by_seed: dict[int, float]) -> float:
    """Over seeds."""
    return sum(by_seed.values()) / len(by_seed)


def test_how_alike_curves_are_expected_to_scatter_is_likeliest_by_our_studies() -> None:
    """The sum over studies of the log likelihood of so many degrees of freedom, whatever a study's common scale."""
    alike = np.geomspace(0.5, 60.0, 60)[:, None]
    scales = np.geomspace(0.0005**2, 0.2**2, 200)
    together = np.zeros(len(alike))
    for directory in plans(opened(EVIDENCE)):
        study = study_noise([state.points() for state in states(directory.path.name.removesuffix("-evidence"))])
        if len(study.curves) > 1:
            logs = [stats.f.logpdf(v / scales, dof, alike) - np.log(scales) for v, dof in study.curves]
            together += special.logsumexp(sum(logs), axis=1)
    assert alike[int(np.argmax(together)), 0] == pytest.approx(USUALLY_ALIKE, rel=0.2)


def test_over_length_the_prediction_is_wrong_however_its_lengths_are_weighted_but_not_what_it_costs() -> None:
    said = note("held-out")
    assert "Weighted alike, the two would have missed it by more than the rule allows all the same, but whether" in said
    verdicts_ = judged("held-out", found("held-out"))
    optima = {
        o.curve.label["steps"]: o.optimum
        for o in found("held-out").curves
        if (o.curve.label["table"], o.curve.label["layers"], o.curve.label["heads"]) == ("nugpt", 4, 4)
    }
    short, middle, long = (optima[steps].log2_lr for steps in (1000, 2000, 8000))
    assert short is not None
    assert middle is not None
    assert long is not None
    off, cost = (verdicts_[kind].rule for kind in ("prediction nugpt", "regret nugpt"))
    assert off.low is not None
    assert long - (short + middle) / 2 < off.low
    assert "the longer of the two alone would have missed the held-out length by less than half as much" in said
    (weighted,) = (e.value for e in verdicts_["prediction nugpt"].estimates if e.where == "axis steps")
    assert weighted is not None
    assert abs(long - middle) < abs(weighted) / 2
    assert cost.high is not None
    alike = regret_at(optima[8000], (short + middle) / 2)
    assert alike.interval.low < cost.high < alike.interval.high


def test_what_changes_of_the_fit_changed_is_as_the_page_has_it_now() -> None:
    """Readings before a change are those of a version that is gone; those after the last one are the page's."""
    docs = EVIDENCE.parents[1] / "docs"
    fit, glance = ((docs / name).read_text(encoding="utf-8") for name in ("fit.md", "results.md"))
    noise, slopes = (changes(fit, what) for what in ("noise", "slopes"))
    assert (len(noise), len(slopes)) == (22, 7)
    for claim in noise.keys() & slopes.keys():
        assert noise[claim][1] == slopes[claim][0], "what one change left the next one found"
    for (study, said), (_, after, verdict) in (noise | slopes).items():
        section = glance.split(f"\n## {study}\n")[1].split("\n## ")[0]
        (line,) = [line for line in section.splitlines() if line.startswith("- **") and f"— {said} " in line]
        assert after in line, (study, said)
        assert verdict.split("now ")[-1] in line.split("—")[0], (study, said)


def changes(page: str, what: str) -> dict[tuple[str, str], tuple[str, str, str]]:
    """By study and claim: before, after, and the verdict."""
    rows = page.split(f"\n## What the change of {what} changed\n")[1].split("\n## ")[0]
    told = [line.strip("| ").split(" | ") for line in rows.splitlines() if line.startswith("| [")]
    return {(study[2:].split("`")[0], claim): (before, after, verdict) for study, claim, before, after, verdict in told}
