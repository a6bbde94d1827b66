"""Records in, answers with their error out; no input or output, no torch."""

from nugpt.fit.comparison import Budgeted, Difference, compare, compare_at_cost, tuned
from nugpt.fit.drift import Drift, drift
from nugpt.fit.edge import Edge, EdgeRule, stability_edge
from nugpt.fit.interval import Interval
from nugpt.fit.noise import NoiseModel, study_noise
from nugpt.fit.optimum import Optimum, optimum
from nugpt.fit.points import GridPoint, Point
from nugpt.fit.power_law import Observed, PowerLaw, lerp_power_law, power_law
from nugpt.fit.regret import Cost, Sensitivity, cautious_lr, regret, regret_at, sensitivity
from nugpt.fit.roles import RoleExponent, profile, role_exponents
from nugpt.fit.verdict import Estimate, Verdict, estimate_of, exponent_estimate, judge

__all__ = [
    "Budgeted",
    "Cost",
    "Difference",
    "Drift",
    "Edge",
    "EdgeRule",
    "Estimate",
    "GridPoint",
    "Interval",
    "NoiseModel",
    "Observed",
    "Optimum",
    "Point",
    "PowerLaw",
    "RoleExponent",
    "Sensitivity",
    "Verdict",
    "cautious_lr",
    "compare",
    "compare_at_cost",
    "drift",
    "estimate_of",
    "exponent_estimate",
    "judge",
    "lerp_power_law",
    "optimum",
    "power_law",
    "profile",
    "regret",
    "regret_at",
    "role_exponents",
    "sensitivity",
    "stability_edge",
    "study_noise",
    "tuned",
]
