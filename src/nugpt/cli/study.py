"""`nugpt study`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.execution import Execution, default_devices
from nugpt.cli.hints import required
from nugpt.cli.launch import early_worker, launch, show_plan
from nugpt.cli.measured_runs import say_unmeasured
from nugpt.cli.run_arguments import Carrier, open_data, precision_for
from nugpt.cli.show import print_json, print_table

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.spec.plan import Plan
    from nugpt.spec.study import Setting
    from nugpt.spec.study import Study as StudyDefinition
    from nugpt.sweep.executors.local import EarlyWorker


@dataclass(frozen=True)
class Study:
    """The paper's studies and ours: `nugpt study list`, or one of them, printed, and run with --run."""

    ids: Annotated[tuple[str, ...], tyro.conf.Positional, required("ID …")]
    """The study's id, the paper's figure label, or `list`; several, or `all`, are run one after the other."""
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

        if self.ids == ("list",):
            self._list(STUDIES.values())
            return 0
        if not self.ids:
            raise ValueError("no study given: name one, or several, or `all`; `nugpt study list` lists them")
        with early_worker(self.execution, self.store) as early:
            if self.ids == ("all",) or len(self.ids) > 1:
                return self._run_several(early)
            return self._run_study(early)

    def _list(self, studies: Iterable[StudyDefinition]) -> None:
        if self.json:
            print_json([_facts(study) for study in studies])
            return
        rows = [[one.id, one.title, "paper" if one.figure else "ours", str(len(one.claims))] for one in studies]
        print_table(["study", "about", "whose", "claims"], rows, right=(3,))
        print("`nugpt study ID` shows a study's claims, the rules that decide them, and its runs.")

    def _run_study(self, early: EarlyWorker | None) -> int:
        from nugpt.store import Store
        from nugpt.store.plans import check_name_free

        chosen = study_of(self.ids[0])
        devices = default_devices(self.execution, self.carrier.device)
        dataset, setting = self._setting(devices[0].split(":")[0])
        made = self._plan(chosen, setting)
        if dataset is not None:  # what is printed is what --run would run
            check_name_free(Store(self.store), made)
        if self.json:
            print_json(made.to_dict() | {"runs": [spec.hash for spec in made.specs()]})
        else:
            self._show(chosen, made, devices)
        if not self.execution.run or dataset is None:
            return 0
        status = launch(made, self.store, dataset, self._carrier(chosen), self.execution, quiet=self.json, early=early)
        if "alignment" in chosen.measures:
            say_unmeasured(made, self.store)
        return status

    def _run_several(self, early: EarlyWorker | None) -> int:
        """Each plan printed, or all run by the same workers in the order given; of `all`, that of `evidence`."""
        from nugpt.cli.launch_many import Wanted, launch_many
        from nugpt.studies import EVIDENCE

        if self.name is not None:
            raise ValueError(f"--name is {self.name!r}, but several studies have a plan each: leave it out")
        ids = [id for row in EVIDENCE.values() for id in row] if self.ids == ("all",) else list(dict.fromkeys(self.ids))
        chosen = [study_of(id) for id in ids]
        devices = default_devices(self.execution, self.carrier.device)
        dataset, setting = self._setting(devices[0].split(":")[0])
        wanted = [Wanted(self._plan(one, setting), self._carrier(one)) for one in chosen]
        if self.json:
            runs = [w.plan.to_dict() | {"runs": [spec.hash for spec in w.plan.specs()]} for w in wanted]
            print_json(runs)
        elif not self.execution.run:
            for one, made in zip(chosen, wanted, strict=True):
                self._show(one, made.plan, devices)
                print()
        if dataset is None:
            return 0
        if not self.execution.run:
            return self._say_others([w.plan for w in wanted])
        status = launch_many(wanted, self.store, dataset, self.execution, quiet=self.json, early=early)
        for one, made in zip(chosen, wanted, strict=True):
            if "alignment" in one.measures:
                say_unmeasured(made.plan, self.store)
        return status

    def _say_others(self, plans: Sequence[Plan]) -> int:
        """Which of these --run would leave as they are; 1 where it would, as it does."""
        from nugpt.store import Store
        from nugpt.store.plans import OtherPlan, check_name_free

        status = 0
        for plan in plans:
            try:
                check_name_free(Store(self.store), plan)
            except OtherPlan as error:
                print(f"would be left as it is: {error}", file=sys.stderr)
                status = 1
        return status

    def _setting(self, device_type: str) -> tuple[TokenDataset | None, Setting]:
        """The data, where it is there or needed, and what a plan takes from it."""
        from nugpt.spec.scales import scale_named
        from nugpt.spec.study import Setting

        scale = scale_named(self.scale)
        precision = precision_for(self.precision, device_type)
        provisional = self.data is None and scale.name == "paper" and not self.execution.run
        if provisional:  # a plan can be looked at before its data is there
            print("no --data: the plan is as it will be, but for the runs' hashes", file=sys.stderr)
            return None, Setting("not-prepared-yet", scale.vocab_size, precision, self.multiplier)
        dataset = open_data(self.data, scale.name, scale.vocab_size)
        return dataset, Setting(dataset.content_hash, dataset.vocab_size, precision, self.multiplier)

    def _plan(self, chosen: StudyDefinition, setting: Setting) -> Plan:
        from nugpt.studies import plan

        made = plan(chosen, self.scale, setting)
        return made if self.name is None else replace(made, name=self.name)

    def _carrier(self, chosen: StudyDefinition) -> Carrier:
        """What carries the runs, which takes the study's measurements too."""
        return replace(self.carrier, measure=tuple(dict.fromkeys((*self.carrier.measure, *chosen.measures))))

    def _show(self, chosen: StudyDefinition, made: Plan, devices: list[str]) -> None:
        from nugpt.spec.study_rules import describe

        for claim in chosen.claims:
            print(f"{claim.text}   [{describe(claim.rule)}]")
        show_plan(made, self.store, devices[0].split(":")[0], len(devices))


def _facts(one: StudyDefinition) -> dict[str, Any]:
    from nugpt.spec.study_rules import describe

    claims = [{"text": claim.text, "rule": describe(claim.rule)} for claim in one.claims]
    return {"id": one.id, "title": one.title, "varies": one.varies, "figure": one.figure, "claims": claims}


def study_of(id: str) -> StudyDefinition:
    """The study of this id, as imported late."""
    from nugpt.studies import study

    return study(id)
