"""One report for all tests that only read it: studies with planted answers, a hostile sweep, an idle plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.report.small import HOSTILE, fill, hostile_plan, source_of, study_plans

from nugpt.report import Source, Written, write_report
from nugpt.store import Store
from nugpt.store.atomic import write_json
from nugpt.store.plans import PlanDirectory

STUDIES_HERE = ("width-fixed-steps", "steps-sweep-ngpt-ours", "depth-sweep-baseline-alpha-power-law", "role-sweeps")
ADVICE = {
    "format": 1,
    "recommended": {
        "lr": 0.0078125,
        "log2_lr": -7.0,
        "plain_log2_lr": -6.9,
        "interval": [-7.2, None],
        "costs": [{"octaves": 1.0, "nats": None, "interval": [0.4, None]}],
        "warnings": [HOSTILE],
        "runs": ["0000000000000000"],
    },
    "resolved": {"rows": {"hidden": {"lr": 0.001, "multiplier": 1.0}}},
}


@dataclass(frozen=True)
class Made:
    """A store, what was read from it, and the report on it."""

    store: Store
    source: Source
    written: Written

    @property
    def html(self) -> str:
        return self.written.page.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder: Path = tmp_path_factory.mktemp("report")
    store = Store(folder / "runs")
    fill(store, study_plans(*STUDIES_HERE))
    fill(store, [hostile_plan()], skip=7)
    PlanDirectory.of(store, study_plans("alignment_val")[0])
    write_json(store.root / "recommendation.json", ADVICE)
    source = source_of(store, title=HOSTILE)
    return Made(store, source, write_report(source, folder / "report"))
