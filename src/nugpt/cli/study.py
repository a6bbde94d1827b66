"""`nugpt study`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from nugpt.cli.launch import Execution, default_devices, launch, show_plan
from nugpt.cli.measured_runs import say_unmeasured
from nugpt.cli.run_arguments import Carrier, open_data, precision_for
from nugpt.cli.show import print_json, print_table

if TYPE_CHECKING:
    from nugpt.data import TokenDataset


@dataclass(frozen=True)
class Study:
    """The paper's studies and ours: `nugpt study list`, or one of them, printed, and run with --run."""

    id: Annotated[str, tyro.conf.Positional]
    """The study's id, the paper's figure label; or `list`."""
    scale: str = "tiny"
    """tiny (a CPU, minutes), lab (one GPU, minutes), evidence (one GPU, decides the claim), paper (a cluster)."""
    name: str | None = None
    """The plan's name; ID-SCALE by default."""
    data: Path | None = None
    """A directory made by `nugpt data prepare`; by default the embedded corpus."""
    precision: str = "auto"
    """Of matrix products: float32 or bfloat16; auto: bfloat16 on a GPU, float32 on a CPU."""
    multiplier: dict[str, float] = field(default_factory=dict)
    """Role and factor on its learning rate, as tuned on the base, where the study does not sweep it: output 0.5."""
    store: Path = Path("runs")
    """Where runs and plans are kept."""
    carrier: Carrier = Carrier()
    execution: Execution = Execution()
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the study's plan, or run it."""
        from nugpt.studies import STUDIES

        if self.id == "list":
            rows = [[s.id, s.varies, "; ".join(claim.text for claim in s.claims)] for s in STUDIES.values()]
            if self.json:
                print_json([{"id": row[0], "varies": row[1], "claims": row[2]} for row in rows])
            else:
                print_table(["study", "what varies", "claim or question"], rows)
            return 0
        return self._run_study()

    def _run_study(self) -> int:
        from dataclasses import replace

        from nugpt.spec.scales import scale_named
        from nugpt.spec.study import Setting
        from nugpt.spec.study_rules import describe
        from nugpt.studies import plan, study

        chosen, scale = study(self.id), scale_named(self.scale)
        devices = default_devices(self.execution, self.carrier.device)
        device_type = devices[0].split(":")[0]
        precision = precision_for(self.precision, device_type)
        provisional = self.data is None and scale.name == "paper" and not self.execution.run
        if provisional:  # a plan can be looked at before its data is there
            dataset: TokenDataset | None = None
            setting = Setting("not-prepared-yet", scale.vocab_size, precision, self.multiplier)
            print("no --data: the plan is as it will be, but for the runs' hashes", file=sys.stderr)
        else:
            dataset = open_data(self.data, scale.name, scale.vocab_size)
            setting = Setting(dataset.content_hash, dataset.vocab_size, precision, self.multiplier)
        made = plan(chosen, self.scale, setting)
        if self.name is not None:
            made = replace(made, name=self.name)
        if self.json:
            print_json(made.to_dict() | {"runs": [spec.hash for spec in made.specs()]})
        else:
            for claim in chosen.claims:
                print(f"{claim.text}   [{describe(claim.rule)}]")
            show_plan(made, self.store, device_type, len(devices))
        if not self.execution.run or dataset is None:
            return 0
        carrier = replace(self.carrier, measure=tuple(dict.fromkeys((*self.carrier.measure, *chosen.measures))))
        status = launch(made, self.store, dataset, carrier, self.execution, quiet=self.json)
        if "alignment" in chosen.measures:
            say_unmeasured(made, self.store)
        return status
