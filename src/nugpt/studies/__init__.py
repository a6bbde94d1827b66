"""One file per figure of the paper and per question beyond it, each at four scales: its claims, its rules, its runs."""

from __future__ import annotations

import difflib

from nugpt.spec.plan import Plan, Policy
from nugpt.spec.scales import scale_named
from nugpt.spec.study import Setting, Study
from nugpt.studies import (
    against_llama,
    against_llama_clipped,
    against_llama_warmup,
    alignment_by_length,
    alignment_val,
    alignment_val_l12h28,
    alignment_val_layer_dependence,
    alignment_val_layer_dependence_l12h28,
    alignment_val_loss_weighted,
    alignment_val_loss_weighted_l12h28,
    batch_by_steps,
    both_eta_input_output_sweep,
    depth_mup_depth_sweep,
    depth_mup_roles,
    depth_sweep_baseline_alpha_power_law,
    depth_sweep_ours_alpha_power_law,
    depth_sweeps,
    held_out,
    held_out_steps,
    multipliers_at_base,
    mup_drifts_fresh_seeds,
    mup_drifts_ours_not,
    rescaler_rate,
    role_sweeps,
    run_length_by_width,
    run_length_fresh_seeds,
    steps_sweep_ngpt_ours,
    warmup_at_base,
    width_all_seeds,
    width_fixed_steps,
    width_fresh_seeds,
    width_sweep_ngpt_mup_vs_muppr,
    width_sweep_ngpt_mup_vs_muppr_tuned,
    width_sweep_ngpt_ours_with_token_corr,
    width_sweep_ngpt_ours_without_tc_corrections,
)

__all__ = ["EVIDENCE", "STUDIES", "plan", "study"]

STUDIES: dict[str, Study] = {
    made.id: made
    for made in (
        width_fixed_steps.STUDY,
        mup_drifts_ours_not.STUDY,
        depth_sweeps.STUDY,
        depth_mup_depth_sweep.STUDY,
        width_sweep_ngpt_ours_with_token_corr.STUDY,
        steps_sweep_ngpt_ours.STUDY,
        width_sweep_ngpt_ours_without_tc_corrections.STUDY,
        alignment_val.STUDY,
        alignment_val_loss_weighted.STUDY,
        alignment_val_layer_dependence.STUDY,
        alignment_val_l12h28.STUDY,
        alignment_val_loss_weighted_l12h28.STUDY,
        alignment_val_layer_dependence_l12h28.STUDY,
        depth_sweep_baseline_alpha_power_law.STUDY,
        depth_sweep_ours_alpha_power_law.STUDY,
        both_eta_input_output_sweep.STUDY,
        width_sweep_ngpt_mup_vs_muppr.STUDY,
        width_sweep_ngpt_mup_vs_muppr_tuned.STUDY,
        # beyond the paper
        alignment_by_length.STUDY,
        run_length_by_width.STUDY,
        role_sweeps.STUDY,
        depth_mup_roles.STUDY,
        batch_by_steps.STUDY,
        against_llama.STUDY,
        against_llama_clipped.STUDY,
        against_llama_warmup.STUDY,
        held_out.STUDY,
        held_out_steps.STUDY,
        width_fresh_seeds.STUDY,
        mup_drifts_fresh_seeds.STUDY,
        run_length_fresh_seeds.STUDY,
        width_all_seeds.STUDY,
        warmup_at_base.STUDY,
        multipliers_at_base.STUDY,
        rescaler_rate.STUDY,
    )
}

# The order in which `evidence` is run on one GPU, whose time may end before the list does.
EVIDENCE: dict[str, tuple[str, ...]] = {
    "first": ("warmup-at-base", "multipliers-at-base"),
    "width": ("width-fixed-steps", "mup-drifts-ours-not"),
    "token horizon": ("steps-sweep-ngpt-ours",),
    "alignment": (
        "alignment_val",
        "alignment_val_loss_weighted",
        "alignment_val_layer_dependence",
        "alignment_val_l12h28",
        "alignment_val_loss_weighted_l12h28",
        "alignment_val_layer_dependence_l12h28",
    ),
    "depth": (
        "depth-sweeps",
        "depth-mup-depth-sweep",
        "depth-sweep-baseline-alpha-power-law",
        "depth-sweep-ours-alpha-power-law",
    ),
    "run length": ("alignment-by-length", "run-length-by-width"),  # whose runs are then measured once
    "roles": ("role-sweeps",),
    "roles over depth": ("depth-mup-roles",),
    "batch": ("batch-by-steps",),
    "baseline": ("against-llama", "against-llama-clipped", "against-llama-warmup"),
    "held out": ("held-out", "held-out-steps"),
    "fresh seeds": ("width-fresh-seeds", "mup-drifts-fresh-seeds", "width-all-seeds"),
    "the rest": (
        "width-sweep-ngpt-ours-with-token-corr",
        "width-sweep-ngpt-mup-vs-muppr",
        "width-sweep-ngpt-mup-vs-muppr-tuned",
        "width-sweep-ngpt-ours-without-tc-corrections",
        "both-eta-input-output-sweep",
    ),
    "run length again": ("run-length-fresh-seeds",),
    "rescalers": ("rescaler-rate",),
}


def study(id: str) -> Study:
    """The study of this id."""
    if id not in STUDIES:
        near = difflib.get_close_matches(id, STUDIES, n=3, cutoff=0.4)
        hint = f"near it: {', '.join(near)}" if near else f"known are {', '.join(STUDIES)}"
        raise ValueError(f"unknown study {id!r}, {hint}")
    return STUDIES[id]


def plan(study: Study, scale: str, setting: Setting) -> Plan:
    """The study's runs at one scale, named `<id>-<scale>`."""
    scale_named(scale)
    return Plan(
        name=f"{study.id}-{scale}",
        curves=study.curves(scale, setting),
        policy=study.policy.get(scale, Policy()),
        study=study.id,
        scale=scale,
    )
