"""Figures for print and one self-contained HTML page, from records and fits and nothing else."""

from nugpt.report.source import CurveRuns, PlanRuns, Run, Source, from_curves, read_store
from nugpt.report.write import Written, check_page, write_report

__all__ = [
    "CurveRuns",
    "PlanRuns",
    "Run",
    "Source",
    "Written",
    "check_page",
    "from_curves",
    "read_store",
    "write_report",
]
